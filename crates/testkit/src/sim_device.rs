//! A device in memory that fails on request.
//!
//! Random faults follow from a seed and the operation's number, so a run can be repeated.
//!
//! The engine's unit tests include this file, because the device must implement the traits of their
//! own build of the engine.

use softswap_engine::store::io::poll::Polling;
use softswap_engine::store::io::{
    Device, DeviceProperties, IoError, Lane, Operation, Piece, transfer_whole,
};
use softswap_sys::file::errno;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Size of a stripe of content, which has its own lock, so that threads rarely contend.
pub const STRIPE_BYTES: usize = 256 << 10;

/// A fault of one transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Fails with this error number, without a transfer.
    Errno(i32),
    /// Stops after this many bytes and reports their number.
    Short(usize),
    /// Flips one bit and reports success.
    FlipBit,
    /// Transfers to or from an offset that is this many bytes higher, and reports success.
    Misdirect(u64),
    /// Transfers nothing and reports success.
    Lose,
}

#[derive(Debug, Clone, Copy)]
enum Trigger {
    Numbered { first: u64, times: u64 },
    Random { one_in: u64 },
}

#[derive(Debug, Clone, Copy)]
struct Plan {
    operation: Operation,
    when: Trigger,
    fault: Fault,
}

/// Numbers of operations and bytes. Includes failed operations, and each part of a transfer.
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

/// A simulated device. Clones share its content, so a test can observe the device of an area.
///
/// ```
/// use softswap_engine::store::io::{Device, Lane, Operation};
/// use softswap_testkit::sim_device::{Fault, SimDevice};
/// let device = SimDevice::new(1 << 20, 1);
/// device.grow(0, 4096).unwrap();
/// device.fail(Operation::Write, 1, 1, Fault::Errno(5));
/// assert!(device.write(&mut Lane::Plain, 0, &[7; 4096]).is_ok());
/// assert!(device.write(&mut Lane::Plain, 0, &[7; 4096]).is_err());
/// assert_eq!(device.counts().writes, 2);
/// ```
#[derive(Debug, Clone)]
pub struct SimDevice(Arc<Disk>);

#[derive(Debug, Default)]
struct Disk {
    capacity_bytes: u64,
    seed: u64,
    latency: Duration,
    grown_bytes: AtomicU64,
    /// Discarded bytes below `grown_bytes`.
    punched_bytes: AtomicU64,
    taken_bytes: AtomicU64,
    plans: Mutex<Vec<Plan>>,
    /// Content by stripe. A stripe is empty until it is written.
    stripes: Vec<Mutex<Vec<u8>>>,
    reads: AtomicU64,
    writes: AtomicU64,
    grows: AtomicU64,
    discards: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl SimDevice {
    /// Creates a device with `capacity_bytes` free.
    #[must_use]
    pub fn new(capacity_bytes: u64, seed: u64) -> Self {
        SimDevice::with_latency(capacity_bytes, seed, Duration::ZERO)
    }

    /// Creates a device whose transfers take at least `latency`.
    #[must_use]
    pub fn with_latency(capacity_bytes: u64, seed: u64, latency: Duration) -> Self {
        let stripes = (capacity_bytes as usize).div_ceil(STRIPE_BYTES);
        let stripes = (0..stripes).map(|_| Mutex::default()).collect();
        Self(Arc::new(Disk { capacity_bytes, seed, latency, stripes, ..Disk::default() }))
    }

    /// Makes the operations `nth..nth + times` of a kind fail, counted from 0 at the device's
    /// creation. Growing and discarding support [`Fault::Errno`] only.
    pub fn fail(&self, operation: Operation, nth: u64, times: u64, fault: Fault) {
        let when = Trigger::Numbered { first: nth, times };
        lock(&self.0.plans).push(Plan { operation, when, fault });
    }

    /// Makes one operation in `one_in` of a kind fail, chosen by the seed.
    pub fn fail_at_random(&self, operation: Operation, one_in: u64, fault: Fault) {
        let when = Trigger::Random { one_in: one_in.max(1) };
        lock(&self.0.plans).push(Plan { operation, when, fault });
    }

    /// Cancels all planned faults.
    pub fn clear_faults(&self) {
        lock(&self.0.plans).clear();
    }

    /// Sets the number of bytes of the capacity that another program uses.
    pub fn take_space(&self, bytes: u64) {
        self.0.taken_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns the numbers of operations since the device's creation.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            reads: load(&self.0.reads),
            writes: load(&self.0.writes),
            grows: load(&self.0.grows),
            discards: load(&self.0.discards),
            read_bytes: load(&self.0.read_bytes),
            written_bytes: load(&self.0.written_bytes),
        }
    }
}

impl Disk {
    fn room_bytes(&self) -> u64 {
        let grown = self.grown_bytes.load(Ordering::Relaxed);
        let claimed = grown.saturating_sub(self.punched_bytes.load(Ordering::Relaxed));
        let taken = self.taken_bytes.load(Ordering::Relaxed);
        self.capacity_bytes.saturating_sub(claimed).saturating_sub(taken)
    }

    fn planned(&self, operation: Operation, number: u64) -> Option<Fault> {
        let hit = |plan: &&Plan| {
            plan.operation == operation
                && match plan.when {
                    Trigger::Numbered { first, times } => number >= first && number - first < times,
                    Trigger::Random { one_in } => self.random_number(number).is_multiple_of(one_in),
                }
        };
        lock(&self.plans).iter().find(hit).map(|plan| plan.fault)
    }

    /// Returns a pseudo-random number for an operation (SplitMix64).
    fn random_number(&self, number: u64) -> u64 {
        let mut z = self.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn reachable(&self, offset: u64, length: usize) -> usize {
        let left = self.grown_bytes.load(Ordering::Acquire).saturating_sub(offset);
        length.min(left as usize)
    }

    fn apply_fault(
        &self,
        fault: Option<Fault>,
        offset: &mut u64,
        length: &mut usize,
    ) -> io::Result<()> {
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
        self.apply_fault(fault, &mut offset, &mut length)?;
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
        self.apply_fault(fault, &mut offset, &mut length)?;
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

    /// Calls `visit(stripe, offset in the stripe, range of the buffer)` for each part.
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

    fn zero(&self, offset: u64, length: usize) {
        self.each_stripe(offset, length, |stripe, from, range| {
            if !stripe.is_empty() {
                stripe[from..from + range.len()].fill(0);
            }
        });
    }

    fn flip_bit(&self, buf: &mut [u8], number: u64) {
        if !buf.is_empty() {
            let bit = self.random_number(!number) as usize % (buf.len() * 8);
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

    fn read_pieces(
        &self,
        _lane: &mut Lane,
        pieces: &mut [Piece<&mut [u8]>],
        _polling: Option<&Polling>,
    ) -> Result<(), IoError> {
        pieces.iter_mut().try_for_each(|Piece { offset, buf }| {
            transfer_whole(Operation::Read, *offset, buf.len(), |done| {
                self.0.read_once(*offset + done as u64, &mut buf[done..])
            })
        })
    }

    fn write_pieces(&self, _lane: &mut Lane, pieces: &[Piece<&[u8]>]) -> Result<(), IoError> {
        pieces.iter().try_for_each(|Piece { offset, buf }| {
            transfer_whole(Operation::Write, *offset, buf.len(), |done| {
                self.0.write_once(*offset + done as u64, &buf[done..])
            })
        })
    }

    fn grow(&self, from: u64, bytes: u64) -> Result<(), IoError> {
        let number = self.0.grows.fetch_add(1, Ordering::Relaxed);
        let fail = |errno| {
            let error = io::Error::from_raw_os_error(errno);
            Err(IoError::from_os(Operation::Grow, from, bytes, &error))
        };
        if let Some(Fault::Errno(errno)) = self.0.planned(Operation::Grow, number) {
            return fail(errno);
        }
        let grown = self.0.grown_bytes.load(Ordering::Relaxed);
        // Bytes below the end may have been discarded, and are allocated again.
        let again = bytes.min(grown.saturating_sub(from));
        let again = again.min(self.0.punched_bytes.load(Ordering::Relaxed));
        if (from + bytes).saturating_sub(grown) + again > self.0.room_bytes() {
            return fail(errno::ENOSPC);
        }
        self.0.punched_bytes.fetch_sub(again, Ordering::Relaxed);
        self.0.grown_bytes.fetch_max(from + bytes, Ordering::Release);
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), IoError> {
        let number = self.0.discards.fetch_add(1, Ordering::Relaxed);
        if let Some(Fault::Errno(errno)) = self.0.planned(Operation::Discard, number) {
            let error = io::Error::from_raw_os_error(errno);
            return Err(IoError::from_os(Operation::Discard, offset, bytes, &error));
        }
        let length = self.0.reachable(offset, bytes as usize);
        self.0.punched_bytes.fetch_add(length as u64, Ordering::Relaxed);
        self.0.zero(offset, length);
        Ok(())
    }

    fn truncate(&self, offset: u64) -> Result<(), IoError> {
        let old = self.0.grown_bytes.fetch_min(offset, Ordering::AcqRel);
        let length = old.saturating_sub(offset) as usize;
        self.0.zero(offset, length);
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64, IoError> {
        Ok(self.0.room_bytes())
    }

    fn describe(&self) -> DeviceProperties {
        DeviceProperties::default()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
