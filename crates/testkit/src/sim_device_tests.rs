use crate::sim_device::{Fault, STRIPE_BYTES, SimDevice};
use softswap_engine::store::io::{Device, IoErrorKind, Lane, Operation};
use softswap_sys::file::errno;

fn grown() -> SimDevice {
    let device = SimDevice::new(4 << 20, 7);
    device.grow(0, 1 << 20).unwrap();
    device
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 / 8) as u8).collect()
}

fn read_back(device: &SimDevice, offset: u64, length: usize) -> Vec<u8> {
    let mut buf = vec![0xee; length];
    device.read(&mut Lane::Plain, offset, &mut buf).unwrap();
    buf
}

#[test]
fn content_survives_across_stripes_and_unwritten_parts_are_zero() {
    let device = grown();
    let data = pattern(8192);
    let offset = STRIPE_BYTES as u64 - 4096;
    device.write(&mut Lane::Plain, offset, &data).unwrap();
    assert_eq!(read_back(&device, offset, 8192), data);
    assert_eq!(read_back(&device, 0, 4096), vec![0; 4096]);
    device.discard(offset, 4096).unwrap();
    assert_eq!(read_back(&device, offset, 4096), vec![0; 4096]);
}

#[test]
fn only_selected_operation_fails() {
    let device = grown();
    device.fail(Operation::Write, 1, 1, Fault::Errno(errno::EIO));
    let data = pattern(4096);
    device.write(&mut Lane::Plain, 0, &data).unwrap();
    let error = device.write(&mut Lane::Plain, 0, &data).unwrap_err();
    assert_eq!(error.kind, IoErrorKind::Errno(errno::EIO));
    device.write(&mut Lane::Plain, 0, &data).unwrap();
    assert_eq!(device.counts().writes, 3);
}

#[test]
fn short_transfers_continue_and_stuck_ones_fail() {
    let device = grown();
    let data = pattern(16384);
    device.fail(Operation::Write, 0, 1, Fault::Short(5000));
    device.write(&mut Lane::Plain, 0, &data).unwrap();
    assert_eq!(read_back(&device, 0, 16384), data);
    device.fail(Operation::Read, 1, u64::MAX - 1, Fault::Short(0));
    let error = device.read(&mut Lane::Plain, 0, &mut [0; 4096]).unwrap_err();
    assert_eq!(error.kind, IoErrorKind::Stopped);
}

#[test]
fn silent_faults_report_success_and_change_the_content() {
    let data = pattern(4096);
    let flipped = grown();
    flipped.fail(Operation::Write, 0, 1, Fault::FlipBit);
    flipped.write(&mut Lane::Plain, 0, &data).unwrap();
    let read = read_back(&flipped, 0, 4096);
    let bits: u32 = read.iter().zip(&data).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!(bits, 1);

    let misdirected = grown();
    misdirected.fail(Operation::Write, 0, 1, Fault::Misdirect(8192));
    misdirected.write(&mut Lane::Plain, 0, &data).unwrap();
    assert_eq!(read_back(&misdirected, 0, 4096), vec![0; 4096]);
    assert_eq!(read_back(&misdirected, 8192, 4096), data);

    let lossy = grown();
    lossy.fail(Operation::Write, 0, 1, Fault::Lose);
    lossy.write(&mut Lane::Plain, 0, &data).unwrap();
    assert_eq!(read_back(&lossy, 0, 4096), vec![0; 4096]);
}

#[test]
fn a_full_disk_refuses_to_grow() {
    let device = grown();
    device.take_space(3 << 20);
    assert_eq!(device.free_bytes().unwrap(), 0);
    assert!(device.grow(1 << 20, 1 << 20).unwrap_err().is_no_space());
    device.take_space(0);
    device.grow(1 << 20, 1 << 20).unwrap();
    assert_eq!(device.free_bytes().unwrap(), 2 << 20);
}

#[test]
fn transfers_beyond_grown_size_fail() {
    let device = grown();
    let error = device.read(&mut Lane::Plain, (1 << 20) - 4096, &mut [0; 8192]).unwrap_err();
    assert_eq!((error.kind, error.transferred), (IoErrorKind::Stopped, 4096));
}

#[test]
fn the_same_seed_fails_the_same_operations() {
    let failures = |seed| {
        let device = SimDevice::new(1 << 20, seed);
        device.grow(0, 4096).unwrap();
        device.fail_at_random(Operation::Write, 4, Fault::Errno(errno::EIO));
        (0..64).map(|_| device.write(&mut Lane::Plain, 0, &[1; 4096]).is_err()).collect::<Vec<_>>()
    };
    assert_eq!(failures(1), failures(1));
    assert_ne!(failures(1), failures(2));
    assert!(failures(1).contains(&true) && failures(1).contains(&false));
}
