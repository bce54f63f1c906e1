use super::*;
use crate::base::stats::{Counter, Stats};
use crate::base::transfer_size::bucket_of;
use crate::store::io::poll::mode::Mode;
use crate::store::io::poll::pressure::Pressure;
use crate::store::io::poll::samples::INTERVAL_NS;
use softswap_sys::block_map::Fingerprint;
use softswap_sys::memory::reserve_bytes;
use std::path::Path;
use std::time::Duration;

fn round_trip(directory: &Path, avoid_io_uring: bool) {
    let device = FileDevice::new(SwapFile::open(directory).unwrap(), avoid_io_uring);
    assert!(!(avoid_io_uring && device.describe().io_uring));
    let mut lane = device.open_lane();
    device.grow(0, 1 << 20).unwrap();
    let (written, read) = (reserve_bytes(65536).unwrap(), reserve_bytes(65536).unwrap());
    for (index, byte) in written.iter_mut().enumerate() {
        *byte = (index / 7) as u8;
    }
    device.write(&mut lane, 40960, written).unwrap();
    device.read(&mut lane, 40960, read).unwrap();
    assert!(written == read);
    device.discard(40960, 4096).unwrap();
}

#[test]
fn file_round_trips_with_and_without_io_uring() {
    let directory = tempfile::tempdir().unwrap();
    round_trip(directory.path(), false);
    round_trip(directory.path(), true);
}

#[test]
fn tmpfs_file_works_with_and_without_direct_io() {
    let shared_memory = Path::new("/dev/shm");
    if SwapFile::open(shared_memory).is_err() {
        eprintln!("skipped: no writable {}", shared_memory.display());
        return;
    }
    round_trip(shared_memory, false);
    round_trip(shared_memory, true);
}

#[test]
fn reading_unwritten_data_fails() {
    let directory = tempfile::tempdir().unwrap();
    for avoid_io_uring in [false, true] {
        let file = SwapFile::open(directory.path()).unwrap();
        let device = FileDevice::new(file, avoid_io_uring);
        device.grow(0, 8192).unwrap();
        let buf = reserve_bytes(16384).unwrap();
        let error = device.read(&mut device.open_lane(), 0, buf).unwrap_err();
        assert_eq!((error.kind, error.transferred), (IoErrorKind::Stopped, 8192));
    }
}

#[test]
fn lane_continues_without_broken_ring() {
    let directory = tempfile::tempdir().unwrap();
    let device = FileDevice::new(SwapFile::open(directory.path()).unwrap(), false);
    let mut lane = device.open_lane();
    let Lane::Rings(rings) = &mut lane else {
        eprintln!("skipped: no io_uring here");
        return;
    };
    rings.irq.retire();
    let (written, read) = (reserve_bytes(4096).unwrap(), reserve_bytes(4096).unwrap());
    written.fill(0x42);
    device.write(&mut lane, 0, written).unwrap();
    assert!(matches!(lane, Lane::Plain));
    device.read(&mut lane, 0, read).unwrap();
    assert!(written == read);
}

fn written_device(
    directory: &Path,
    avoid_io_uring: bool,
    byte: impl Fn(usize) -> u8,
) -> (FileDevice, Lane, &'static [u8]) {
    let device = FileDevice::new(SwapFile::open(directory).unwrap(), avoid_io_uring);
    let mut lane = device.open_lane();
    device.grow(0, 1 << 20).unwrap();
    let written = reserve_bytes(65536).unwrap();
    written.iter_mut().enumerate().for_each(|(index, at)| *at = byte(index));
    device.write(&mut lane, 0, written).unwrap();
    (device, lane, written)
}

#[test]
fn every_wait_mode_reads_the_same_page() {
    let directory = tempfile::tempdir().unwrap();
    for avoid_io_uring in [false, true] {
        let (device, mut lane, _) =
            written_device(directory.path(), avoid_io_uring, |index| (index / 4096) as u8 + 1);
        let read = reserve_bytes(4096).unwrap();
        for mode in Mode::ALL {
            let polling = Polling::for_tests(mode);
            for page in 0..16 {
                device.read_page(&mut lane, page * 4096, read, &polling).unwrap();
                assert!(read.iter().all(|&byte| byte == page as u8 + 1), "{mode}, {page}");
            }
            let error = device.read_page(&mut lane, 1 << 20, read, &polling).unwrap_err();
            assert_eq!(error.kind, IoErrorKind::Stopped, "{mode}");
        }
    }
}

/// Reads of several pages have no samples, so they are polled if planned by their own size.
#[test]
fn piece_of_several_pages_is_planned_and_counted_by_its_size() {
    const BYTES: usize = 4 * PAGE_SIZE;
    let stats = Stats::for_tests();
    let polling = Polling::new(Mode::Auto, 2, Pressure::new(2, None).into(), 0, stats);
    let note_slow_page = || polling.note(false, PAGE_SIZE, now_ns() - 1_000_000);
    note_slow_page();
    std::thread::sleep(Duration::from_nanos(INTERVAL_NS));
    note_slow_page();
    let directory = tempfile::tempdir().unwrap();
    for avoid_io_uring in [false, true] {
        let (device, mut lane, written) =
            written_device(directory.path(), avoid_io_uring, |index| (index / 509) as u8);
        let read = reserve_bytes(BYTES).unwrap();
        let before = stats.get(Counter::IoPolled);
        let page = &mut read[..PAGE_SIZE];
        device.read_page(&mut lane, 0, page, &polling).unwrap();
        assert_eq!(stats.get(Counter::IoPolled), before);
        let offset = 2 * PAGE_SIZE;
        let mut pieces = [Piece { offset: offset as u64, buf: &mut *read }];
        polling
            .waited(BYTES, || device.read_pieces(&mut lane, &mut pieces, Some(&polling)))
            .unwrap();
        assert!(read[..] == written[offset..offset + BYTES]);
        let is_polled = matches!(lane, Lane::Rings(_));
        assert_eq!(stats.get(Counter::IoPolled), before + u64::from(is_polled));
        let counted = stats.transfers(bucket_of(false, BYTES));
        assert_eq!(counted, 1 + u64::from(avoid_io_uring));
    }
}

#[test]
fn guarded_file_neither_grows_nor_shrinks() {
    let directory = tempfile::tempdir().unwrap();
    let file = Arc::new(SwapFile::open(directory.path()).unwrap());
    let guard = MapGuard::new(Arc::clone(&file), 1, Fingerprint::of(&[]), None);
    let device = FileDevice::guarded(file, Some(guard), true);
    assert!(device.grow(0, 4096).unwrap_err().is_unsupported());
    assert!(device.truncate(0).unwrap_err().is_unsupported());
    assert_eq!(device.free_bytes(), Ok(0));
}

#[test]
fn unsupported_iopoll_is_not_retried() {
    let directory = tempfile::tempdir().unwrap();
    let device = FileDevice::new(SwapFile::open(directory.path()).unwrap(), false);
    let supports_polling = device.describe().device_polling;
    // Simulate that the test of polling at the start has succeeded.
    device.device_polling.store(true, Relaxed);
    let mut lane = device.open_lane();
    device.grow(0, 1 << 20).unwrap();
    let (written, read) = (reserve_bytes(4096).unwrap(), reserve_bytes(4096).unwrap());
    written.fill(0x43);
    device.write(&mut lane, 0, written).unwrap();
    for mode in [Mode::Poll, Mode::Hybrid, Mode::Poll] {
        read.fill(0);
        device.read_page(&mut lane, 0, read, &Polling::for_tests(mode)).unwrap();
        assert!(written == read, "{mode}");
    }
    let has_polled = matches!(lane, Lane::Rings(Rings { iopoll: Some(_), .. }));
    assert!(!has_polled || device.describe().device_polling == supports_polling);
}

#[test]
fn batch_reports_failed_piece() {
    let directory = tempfile::tempdir().unwrap();
    for avoid_io_uring in [false, true] {
        let file = SwapFile::open(directory.path()).unwrap();
        let device = FileDevice::new(file, avoid_io_uring);
        let mut lane = device.open_lane();
        device.grow(0, 1 << 20).unwrap();
        let (written, read) = (reserve_bytes(65536).unwrap(), reserve_bytes(65536).unwrap());
        for (index, byte) in written.iter_mut().enumerate() {
            *byte = (index / 509) as u8;
        }
        // From back to front, so that a wrong order cannot pass.
        let at = |number: usize| 8192 * (16 - number as u64);
        let pieces: Vec<Piece<&[u8]>> = written
            .chunks(4096)
            .enumerate()
            .map(|(number, buf)| Piece { offset: at(number), buf })
            .collect();
        device.write_pieces(&mut lane, &pieces).unwrap();
        let mut pieces: Vec<Piece<&mut [u8]>> = read
            .chunks_mut(4096)
            .enumerate()
            .map(|(number, buf)| Piece { offset: at(number), buf })
            .collect();
        device.read_pieces(&mut lane, &mut pieces, None).unwrap();
        pieces[7].offset = 1 << 20;
        assert!(device.read_pieces(&mut lane, &mut pieces, None).is_err());
        assert!(written == read);
    }
}
