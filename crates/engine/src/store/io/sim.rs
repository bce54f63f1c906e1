//! A device in memory that fails on request.
//!
//! It stands in for a disk where a test or a benchmark must decide what the
//! disk does: which transfer fails and how, how long transfers take, when the
//! disk is full, which bytes rot. What it decides by itself follows from a
//! seed and the number of the operation, so a run can be repeated.

use super::{Device, Facts, IoError, Lane, Operation, transfer_whole};
use softswap_sys::file::errno;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that share a lock, so that threads at different places do not meet.
const STRIPE_BYTES: usize = 256 << 10;

/// What goes wrong with a transfer.
///
/// ```
/// use softswap_engine::store::io::sim::{Fault, SimDevice};
/// use softswap_engine::store::io::Operation;
/// let device = SimDevice::new(1 << 20, 1);
/// device.fail(Operation::Read, 0, 1, Fault::Errno(5));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this error number; nothing is transferred.
    Errno(i32),
    /// It ends after so many bytes, and reports that.
    Short(usize),
    /// One bit of it is flipped, and success reported.
    FlipBit,
    /// A write lands so many bytes further on, and success is reported. (A
    /// read is taken from there.)
    Misdirect(u64),
    /// A write goes nowhere, and success is reported. (A read leaves the
    /// buffer as it was.)
    Lose,
}

#[derive(Debug, Clone, Copy)]
enum When {
    /// From the first operation of this number, so many times.
    Numbered { first: u64, times: u64 },
    /// One in so many operations, chosen by the seed.
    Random { one_in: u64 },
}

#[derive(Debug, Clone, Copy)]
struct Plan {
    operation: Operation,
    when: When,
    fault: Fault,
}

/// How many operations a device has seen, failed ones included. A transfer
/// that is continued counts each time.
///
/// ```
/// use softswap_engine::store::io::SimDevice;
/// assert_eq!(SimDevice::new(1 << 20, 1).counts().read_bytes, 0);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    pub grows: u64,
    pub discards: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// A simulated device.
///
/// ```
/// use softswap_engine::store::io::SimDevice;
/// let device = SimDevice::new(1 << 20, 1);
/// assert_eq!(device.counts().writes, 0);
/// ```
#[derive(Debug)]
pub struct SimDevice {
    capacity_bytes: u64,
    seed: u64,
    latency: Duration,
    grown_bytes: AtomicU64,
    /// Of those, given back by discarding.
    hollow_bytes: AtomicU64,
    taken_bytes: AtomicU64,
    plans: Mutex<Vec<Plan>>,
    /// Empty until something is written there.
    stripes: Vec<Mutex<Vec<u8>>>,
    reads: AtomicU64,
    writes: AtomicU64,
    grows: AtomicU64,
    discards: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl SimDevice {
    /// A device on a disk with `capacity_bytes` free.
    #[must_use]
    pub fn new(capacity_bytes: u64, seed: u64) -> Self {
        let stripes = (capacity_bytes as usize).div_ceil(STRIPE_BYTES);
        Self {
            capacity_bytes,
            seed,
            latency: Duration::ZERO,
            grown_bytes: AtomicU64::new(0),
            hollow_bytes: AtomicU64::new(0),
            taken_bytes: AtomicU64::new(0),
            plans: Mutex::new(Vec::new()),
            stripes: (0..stripes).map(|_| Mutex::new(Vec::new())).collect(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            grows: AtomicU64::new(0),
            discards: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
        }
    }

    /// The same device, each transfer taking at least so long.
    #[must_use]
    pub fn with_latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Lets operations `nth..nth + times` of a kind fail, counted from 0 at
    /// the device's creation. Growing knows [`Fault::Errno`] only.
    pub fn fail(&self, operation: Operation, nth: u64, times: u64, fault: Fault) {
        let when = When::Numbered { first: nth, times };
        lock(&self.plans).push(Plan { operation, when, fault });
    }

    /// Lets one operation in `one_in` of a kind fail, chosen by the seed.
    pub fn fail_at_random(&self, operation: Operation, one_in: u64, fault: Fault) {
        let when = When::Random { one_in: one_in.max(1) };
        lock(&self.plans).push(Plan { operation, when, fault });
    }

    /// Forgets all planned faults.
    pub fn heal(&self) {
        lock(&self.plans).clear();
    }

    /// Takes disk space away, as another program does (or gives it back: the
    /// last call counts).
    pub fn take_space(&self, bytes: u64) {
        self.taken_bytes.store(bytes, Ordering::Relaxed);
    }

    /// What the device has seen so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            reads: load(&self.reads),
            writes: load(&self.writes),
            grows: load(&self.grows),
            discards: load(&self.discards),
            read_bytes: load(&self.read_bytes),
            written_bytes: load(&self.written_bytes),
        }
    }

    fn room_bytes(&self) -> u64 {
        let grown = self.grown_bytes.load(Ordering::Relaxed);
        let claimed = grown.saturating_sub(self.hollow_bytes.load(Ordering::Relaxed));
        let taken = self.taken_bytes.load(Ordering::Relaxed);
        self.capacity_bytes.saturating_sub(claimed).saturating_sub(taken)
    }

    fn planned(&self, operation: Operation, number: u64) -> Option<Fault> {
        let hit = |plan: &&Plan| {
            plan.operation == operation
                && match plan.when {
                    When::Numbered { first, times } => number >= first && number - first < times,
                    When::Random { one_in } => self.chance(number).is_multiple_of(one_in),
                }
        };
        lock(&self.plans).iter().find(hit).map(|plan| plan.fault)
    }

    /// A number that seed and operation number determine (SplitMix64).
    fn chance(&self, number: u64) -> u64 {
        let mut z = self.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Ends a transfer that would leave the storage, as a file's end does.
    fn reachable(&self, offset: u64, length: usize) -> usize {
        let left = self.grown_bytes.load(Ordering::Acquire).saturating_sub(offset);
        length.min(left as usize)
    }

    /// Applies to a transfer what a fault does to its place, length or outcome.
    fn bend(&self, fault: Option<Fault>, offset: &mut u64, length: &mut usize) -> io::Result<()> {
        match fault {
            Some(Fault::Errno(errno)) => return Err(io::Error::from_raw_os_error(errno)),
            Some(Fault::Short(bytes)) => *length = (*length).min(bytes),
            Some(Fault::Misdirect(bytes)) => *offset += bytes,
            Some(Fault::Lose | Fault::FlipBit) | None => {}
        }
        *length = self.reachable(*offset, *length);
        Ok(())
    }

    fn read_once(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        self.wait();
        let fault = self.planned(Operation::Read, number);
        let (mut offset, mut length) = (offset, buf.len());
        if fault == Some(Fault::Lose) {
            return Ok(length);
        }
        self.bend(fault, &mut offset, &mut length)?;
        self.each_stripe(offset, length, |stripe, from, range| match stripe.get(from..) {
            Some(stored) if !stored.is_empty() => {
                let count = range.len();
                buf[range].copy_from_slice(&stored[..count]);
            }
            _ => buf[range].fill(0),
        });
        if fault == Some(Fault::FlipBit) {
            self.flip_bit(&mut buf[..length], number);
        }
        self.read_bytes.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }

    fn write_once(&self, offset: u64, buf: &[u8]) -> io::Result<usize> {
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        self.wait();
        let fault = self.planned(Operation::Write, number);
        let (mut offset, mut length) = (offset, buf.len());
        if fault == Some(Fault::Lose) {
            return Ok(length);
        }
        self.bend(fault, &mut offset, &mut length)?;
        let flipped = (fault == Some(Fault::FlipBit)).then(|| {
            let mut copy = buf[..length].to_vec();
            self.flip_bit(&mut copy, number);
            copy
        });
        let source = flipped.as_deref().unwrap_or(buf);
        self.each_stripe(offset, length, |stripe, from, range| {
            stripe.resize(STRIPE_BYTES, 0);
            stripe[from..from + range.len()].copy_from_slice(&source[range]);
        });
        self.written_bytes.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }

    /// Calls `visit(stripe, offset in the stripe, range of the buffer)` for
    /// each part of a transfer.
    fn each_stripe(
        &self,
        offset: u64,
        length: usize,
        mut visit: impl FnMut(&mut Vec<u8>, usize, std::ops::Range<usize>),
    ) {
        let mut done = 0;
        while done < length {
            let at = offset as usize + done;
            let from = at % STRIPE_BYTES;
            let count = (STRIPE_BYTES - from).min(length - done);
            visit(&mut lock(&self.stripes[at / STRIPE_BYTES]), from, done..done + count);
            done += count;
        }
    }

    fn flip_bit(&self, buf: &mut [u8], number: u64) {
        if !buf.is_empty() {
            let bit = self.chance(!number) as usize % (buf.len() * 8);
            buf[bit / 8] ^= 1 << (bit % 8);
        }
    }

    fn wait(&self) {
        if !self.latency.is_zero() {
            std::thread::sleep(self.latency);
        }
    }
}

impl Device for SimDevice {
    fn open_lane(&self) -> Lane {
        Lane::Plain
    }

    fn read(&self, _lane: &mut Lane, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        transfer_whole(Operation::Read, offset, buf.len(), |done| {
            self.read_once(offset + done as u64, &mut buf[done..])
        })
    }

    fn write(&self, _lane: &mut Lane, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        transfer_whole(Operation::Write, offset, buf.len(), |done| {
            self.write_once(offset + done as u64, &buf[done..])
        })
    }

    fn grow(&self, from: u64, bytes: u64) -> Result<(), IoError> {
        let number = self.grows.fetch_add(1, Ordering::Relaxed);
        let fail = |errno| {
            let error = io::Error::from_raw_os_error(errno);
            Err(IoError::from_os(Operation::Grow, from, bytes, &error))
        };
        if let Some(Fault::Errno(errno)) = self.planned(Operation::Grow, number) {
            return fail(errno);
        }
        let grown = self.grown_bytes.load(Ordering::Relaxed);
        // What lies below was claimed before, and perhaps given back.
        let again = bytes.min(grown.saturating_sub(from));
        let again = again.min(self.hollow_bytes.load(Ordering::Relaxed));
        if (from + bytes).saturating_sub(grown) + again > self.room_bytes() {
            return fail(errno::ENOSPC);
        }
        self.hollow_bytes.fetch_sub(again, Ordering::Relaxed);
        self.grown_bytes.fetch_max(from + bytes, Ordering::Release);
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), IoError> {
        let number = self.discards.fetch_add(1, Ordering::Relaxed);
        if let Some(Fault::Errno(errno)) = self.planned(Operation::Discard, number) {
            let error = io::Error::from_raw_os_error(errno);
            return Err(IoError::from_os(Operation::Discard, offset, bytes, &error));
        }
        let length = self.reachable(offset, bytes as usize);
        self.hollow_bytes.fetch_add(length as u64, Ordering::Relaxed);
        self.each_stripe(offset, length, |stripe, from, range| {
            if !stripe.is_empty() {
                stripe[from..from + range.len()].fill(0);
            }
        });
        Ok(())
    }

    fn truncate(&self, offset: u64) -> Result<(), IoError> {
        let old = self.grown_bytes.fetch_min(offset, Ordering::AcqRel);
        let length = old.saturating_sub(offset) as usize;
        self.each_stripe(offset, length, |stripe, from, range| {
            if !stripe.is_empty() {
                stripe[from..from + range.len()].fill(0);
            }
        });
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64, IoError> {
        Ok(self.room_bytes())
    }

    fn describe(&self) -> Facts {
        Facts::default()
    }
}

/// A test's device is often watched from outside the area that owns it.
impl<D: Device> Device for std::sync::Arc<D> {
    fn open_lane(&self) -> Lane {
        (**self).open_lane()
    }
    fn read(&self, lane: &mut Lane, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        (**self).read(lane, offset, buf)
    }
    fn write(&self, lane: &mut Lane, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        (**self).write(lane, offset, buf)
    }
    fn grow(&self, from: u64, bytes: u64) -> Result<(), IoError> {
        (**self).grow(from, bytes)
    }
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), IoError> {
        (**self).discard(offset, bytes)
    }
    fn truncate(&self, offset: u64) -> Result<(), IoError> {
        (**self).truncate(offset)
    }
    fn free_bytes(&self) -> Result<u64, IoError> {
        (**self).free_bytes()
    }
    fn describe(&self) -> Facts {
        (**self).describe()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::io::IoErrorKind;

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
    fn the_chosen_operation_fails_and_only_that() {
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
    fn a_short_transfer_is_continued_and_a_stuck_one_reported() {
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
    fn nothing_is_transferred_beyond_what_was_grown() {
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
            (0..64)
                .map(|_| device.write(&mut Lane::Plain, 0, &[1; 4096]).is_err())
                .collect::<Vec<_>>()
        };
        assert_eq!(failures(1), failures(1));
        assert_ne!(failures(1), failures(2));
        assert!(failures(1).contains(&true) && failures(1).contains(&false));
    }
}
