//! Device for a swap file or block device.

use super::poll::plan::Plan;
use super::poll::{self, Polling};
use super::{
    Device, DeviceProperties, IoError, IoErrorKind, Lane, MAX_PIECES, MapGuard, Operation, Piece,
    Rings, transfer_whole,
};
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::{SwapFile, errno};
use softswap_sys::memory::reserve_pages;
use softswap_sys::raw::now_ns;
use softswap_sys::ring::{Pending, Ring, Target};
use softswap_sys::segment::StaticRange;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Requests that a lane's ring keeps in flight: all pieces of a batch.
const LANE_ENTRIES: u32 = MAX_PIECES as u32;
const MOVED: &str = "the file system has moved or freed blocks of the swap file, the file is no \
                     longer immutable, or the kernel swaps to it, so softswap no longer uses it; start the program again, \
                     with another swap area or with this one if `softswap swapon-check --raw` \
                     accepts it";

const UNKNOWN: &str = "the block map of the swap file cannot be read, so softswap does not write to \
                       its device now";

#[derive(Debug)]
pub struct FileDevice {
    file: Arc<SwapFile>,
    /// For a block device used for one of its files: the guard of that file's block map. Rings
    /// keep the guarded file open, and so its claim, until their last request has completed.
    guard: Option<MapGuard>,
    /// The same file or device with the claim of the tree, which rings keep open in the same way.
    claimed: Option<Arc<SwapFile>>,
    io_uring: bool,
    first_ring: Option<Ring>,
    device_polling: AtomicBool,
    /// The ring with which the bounce buffers are registered; lanes share its registration.
    registered: Option<Ring>,
    /// Rings that were only used to detect features. Closed only with the device: closing a ring
    /// earlier would interrupt a system call of the program's thread that created the ring.
    tried: Vec<Ring>,
}

impl poll::Pending for Pending<'_> {
    fn is_done(&mut self) -> bool {
        Pending::is_done(self)
    }

    fn sleep(&mut self, ns: u64) -> bool {
        Pending::sleep(self, ns)
    }

    fn now_ns(&self) -> u64 {
        now_ns()
    }
}

impl FileDevice {
    pub fn new(file: impl Into<Arc<SwapFile>>, avoid_io_uring: bool) -> Self {
        Self::guarded(file.into(), None, avoid_io_uring)
    }

    /// Makes the rings keep `claimed` open, the same file or device with the claim of the tree.
    pub(crate) fn holding(mut self, claimed: Arc<SwapFile>) -> Self {
        self.claimed = Some(claimed);
        self
    }

    /// Creates a device that writes only while `guard` allows it.
    pub(crate) fn guarded(
        file: Arc<SwapFile>,
        guard: Option<MapGuard>,
        avoid_io_uring: bool,
    ) -> Self {
        let first_ring =
            if avoid_io_uring { None } else { attached(Ring::new(LANE_ENTRIES), &file).ok() };
        let io_uring = first_ring.is_some();
        let mut tried = Vec::new();
        let device_polling = io_uring && file.is_direct() && supports_iopoll(&file, &mut tried);
        let device_polling = AtomicBool::new(device_polling);
        Self {
            file,
            guard,
            claimed: None,
            io_uring,
            first_ring,
            device_polling,
            registered: None,
            tried,
        }
    }

    fn ready(&self, ring: io::Result<Ring>) -> io::Result<Ring> {
        let claimed = self.guard.as_ref().map(MapGuard::file).or(self.claimed.as_deref());
        let mut ring = ring?;
        match claimed {
            None => ring.attach(self.file.as_fd())?,
            Some(claimed) => ring.attach_holding(self.file.as_fd(), claimed.as_fd())?,
        }
        if let Some(registered) = &self.registered {
            // Without a shared registration, the kernel looks up the buffer of each request.
            let _ = ring.share_registered(registered);
        }
        Ok(ring)
    }

    /// Lets the kernel sleep and poll. Returns `None` if that is not supported or not selected.
    fn read_hybrid(
        &self,
        rings: &mut Rings,
        offset: u64,
        buf: &mut [u8],
        polling: &Polling,
    ) -> Option<io::Result<usize>> {
        let ring = rings.hybrid.as_mut().filter(|ring| ring.is_usable())?;
        if !polling.allows_kernel_polling() {
            return None;
        }
        match ring.read(Target::Attached, buf, offset) {
            Err(error) if !ring.is_usable() || is_unsupported(&error) => {
                ring.retire();
                None
            }
            result => {
                polling.kernel_polled();
                Some(result)
            }
        }
    }

    /// Polls the device. Returns `None` without support for it, which may be detected only now.
    fn read_iopoll(
        &self,
        rings: &mut Rings,
        offset: u64,
        buf: &mut [u8],
        meanwhile: impl FnOnce(&mut Pending<'_>),
    ) -> Option<io::Result<usize>> {
        let ring = rings.iopoll.as_mut().filter(|ring| ring.is_usable())?;
        match ring.read_while(Target::Attached, buf, offset, meanwhile) {
            Err(error) if !ring.is_usable() || is_unsupported(&error) => {
                self.device_polling.store(false, Relaxed);
                ring.retire();
                None
            }
            result => Some(result),
        }
    }

    fn step_page(
        &self,
        lane: &mut Lane,
        offset: u64,
        buf: &mut [u8],
        polling: &Polling,
    ) -> io::Result<usize> {
        let plan = polling.decide(PAGE_SIZE, now_ns());
        if let Lane::Rings(rings) = lane
            && plan.is_polling()
        {
            if let Some(result) = self.read_hybrid(rings, offset, buf, polling) {
                return result;
            }
            let wait = |pending: &mut Pending<'_>| polling.wait(plan, pending);
            if let Some(result) = self.read_iopoll(rings, offset, buf, wait) {
                return result;
            }
            match rings.irq.read_while(Target::Attached, buf, offset, wait) {
                Err(_) if !rings.irq.is_usable() => drop_rings(lane),
                result => return result,
            }
        }
        // One blocking call is cheaper than a submission and a wait. If the program has closed the
        // file's descriptor, the ring can still read.
        match self.file.read_at(buf, offset) {
            Err(error) if error.raw_os_error() == Some(errno::EBADF) => {
                self.step_read(lane, offset, buf)
            }
            result => result,
        }
    }

    fn check_map(
        &self,
        is_same: fn(&MapGuard) -> bool,
        operation: Operation,
        (offset, length): (u64, u64),
    ) -> Result<(), IoError> {
        if self.guard.as_ref().is_none_or(is_same) {
            return Ok(());
        }
        let has_stopped = self.guard.as_ref().is_some_and(MapGuard::has_stopped);
        let kind = IoErrorKind::Message(if has_stopped { MOVED } else { UNKNOWN });
        Err(IoError { kind, operation, offset, length, transferred: 0 })
    }

    /// Fails if a file is guarded: its area has all its pages from the start.
    fn check_resizable(
        &self,
        operation: Operation,
        offset: u64,
        length: u64,
    ) -> Result<(), IoError> {
        if self.guard.is_none() {
            return Ok(());
        }
        let unsupported = io::Error::from_raw_os_error(errno::EOPNOTSUPP);
        Err(IoError::from_os(operation, offset, length, &unsupported))
    }

    fn read_one(&self, lane: &mut Lane, piece: &mut Piece<&mut [u8]>) -> Result<(), IoError> {
        transfer_whole(Operation::Read, piece.offset, piece.buf.len(), |done| {
            self.step_read(lane, piece.offset + done as u64, &mut piece.buf[done..])
        })
    }

    fn write_one(&self, lane: &mut Lane, piece: &Piece<&[u8]>) -> Result<(), IoError> {
        // A previous attempt may have taken long.
        let range = (piece.offset, piece.buf.len() as u64);
        self.check_map(MapGuard::allows_writes, Operation::Write, range)?;
        transfer_whole(Operation::Write, piece.offset, piece.buf.len(), |done| {
            let (at, rest) = (piece.offset + done as u64, &piece.buf[done..]);
            self.file.check_limit(at + rest.len() as u64)?;
            self.step(
                lane,
                |ring| ring.write(Target::Attached, rest, at),
                |file| file.write_at(rest, at),
            )
        })
    }

    fn step_read(&self, lane: &mut Lane, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        // Both closures need the buffer, one after the other.
        let buf = std::cell::RefCell::new(buf);
        self.step(
            lane,
            |ring| ring.read(Target::Attached, &mut buf.borrow_mut(), offset),
            |file| file.read_at(&mut buf.borrow_mut(), offset),
        )
    }

    /// Makes one transfer. If the ring itself fails, drops it and repeats the transfer, of the same
    /// bytes at the same offset, with a system call.
    fn step(
        &self,
        lane: &mut Lane,
        through_ring: impl FnOnce(&mut Ring) -> io::Result<usize>,
        without_ring: impl FnOnce(&SwapFile) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if let Lane::Rings(rings) = lane {
            match through_ring(&mut rings.irq) {
                Err(_) if !rings.irq.is_usable() => drop_rings(lane),
                result => return result,
            }
        }
        without_ring(&self.file)
    }
}

fn drop_rings(lane: &mut Lane) {
    // Forget the rings. A drop would call the C library in a fault handler, and close a descriptor
    // number that the program may have reused.
    std::mem::forget(std::mem::replace(lane, Lane::Plain));
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(errno::EOPNOTSUPP | errno::EINVAL))
}

impl Device for FileDevice {
    fn open_lane(&self) -> Lane {
        if !self.io_uring {
            return Lane::Plain;
        }
        let Ok(irq) = self.ready(Ring::new(LANE_ENTRIES)) else { return Lane::Plain };
        let (mut iopoll, mut hybrid) = (None, None);
        if self.device_polling.load(Relaxed) {
            iopoll = self.ready(Ring::new_polling(1)).ok();
            hybrid = self.ready(Ring::new_hybrid_polling(1)).ok();
        }
        Lane::Rings(Rings { irq, iopoll, hybrid })
    }

    fn expect_buffers(&mut self, range: Option<StaticRange>) {
        let Some(mut ring) = self.first_ring.take() else { return };
        // Through the page cache the data is copied, so registration gains nothing.
        let Some(range) = range.filter(|_| self.file.is_direct()) else {
            return self.tried.push(ring);
        };
        let shared = ring.register(range).and_then(|()| {
            // Keep the registration only if lanes can share it: otherwise the pages count against
            // RLIMIT_MEMLOCK once per lane.
            let mut tried = Ring::new(1)?;
            let shared = tried.share_registered(&ring);
            self.tried.push(tried);
            shared
        });
        match shared {
            Ok(()) => self.registered = Some(ring),
            Err(_) => {
                // An unused registration must not count against RLIMIT_MEMLOCK.
                let _ = ring.unregister();
                self.tried.push(ring);
            }
        }
    }

    fn read_pieces(
        &self,
        lane: &mut Lane,
        pieces: &mut [Piece<&mut [u8]>],
        polling: Option<&Polling>,
    ) -> Result<(), IoError> {
        debug_assert!(pieces.len() <= MAX_PIECES);
        let plan = match (&mut *pieces, polling) {
            ([page], Some(polling)) if page.buf.len() == PAGE_SIZE => {
                return transfer_whole(Operation::Read, page.offset, page.buf.len(), |done| {
                    let at = page.offset + done as u64;
                    self.step_page(lane, at, &mut page.buf[done..], polling)
                });
            }
            ([piece], None) => return self.read_one(lane, piece),
            (several, Some(polling)) => {
                polling.decide(several.iter().map(|piece| piece.buf.len()).sum(), now_ns())
            }
            (_, None) => Plan::default(),
        };
        let done = batch(lane, pieces.len(), |ring, results| match polling {
            Some(polling) if plan.is_polling() => {
                let wait = |pending: &mut Pending<'_>| polling.wait(plan, pending);
                ring.read_batch_while(Target::Attached, pieces, results, wait)
            }
            _ => ring.read_batch(Target::Attached, pieces, results),
        });
        // A piece that is repeated alone is completed, or fails with its own error.
        let mut left = pieces.iter_mut().zip(done).filter(|(piece, done)| *done != piece.buf.len());
        left.try_for_each(|(piece, _)| self.read_one(lane, piece))
    }

    fn write_pieces(&self, lane: &mut Lane, pieces: &[Piece<&[u8]>]) -> Result<(), IoError> {
        debug_assert!(pieces.len() <= MAX_PIECES);
        let bytes: usize = pieces.iter().map(|piece| piece.buf.len()).sum();
        let first = pieces.first().map_or(0, |piece| piece.offset);
        self.check_map(MapGuard::allows_writes, Operation::Write, (first, bytes as u64))?;
        let ends = pieces.iter().map(|piece| piece.offset + piece.buf.len() as u64);
        let end = ends.max().unwrap_or(0);
        // Beyond a limit the pieces are written one by one, up to the first that exceeds it.
        let done = match pieces.len() > 1 && self.file.check_limit(end).is_ok() {
            true => batch(lane, pieces.len(), |ring, results| {
                ring.write_batch(Target::Attached, pieces, results)
            }),
            false => [0; MAX_PIECES],
        };
        let mut left = pieces.iter().zip(done).filter(|(piece, done)| *done != piece.buf.len());
        left.try_for_each(|(piece, _)| self.write_one(lane, piece))
    }

    fn grow(&self, from: u64, bytes: u64) -> Result<(), IoError> {
        self.check_resizable(Operation::Grow, from, bytes)?;
        self.file
            .allocate(from, bytes)
            .map_err(|error| IoError::from_os(Operation::Grow, from, bytes, &error))
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), IoError> {
        self.check_map(MapGuard::allows_writes, Operation::Discard, (offset, bytes))?;
        self.file
            .discard(offset, bytes)
            .map_err(|error| IoError::from_os(Operation::Discard, offset, bytes, &error))
    }

    fn truncate(&self, offset: u64) -> Result<(), IoError> {
        self.check_resizable(Operation::Shrink, offset, 0)?;
        self.file
            .truncate(offset)
            .map_err(|error| IoError::from_os(Operation::Shrink, offset, 0, &error))
    }

    fn free_bytes(&self) -> Result<u64, IoError> {
        if self.guard.is_some() {
            return Ok(0);
        }
        self.file.free_bytes().map_err(|error| IoError::from_os(Operation::Measure, 0, 0, &error))
    }

    fn check_place(&self, offset: u64) -> Result<(), IoError> {
        self.check_map(MapGuard::check, Operation::Read, (offset, PAGE_SIZE as u64))
    }

    fn inherit(&self) -> bool {
        // The open file of a named area is its claim, which the child must keep.
        !self.file.is_unnamed() || self.file.become_reader()
    }

    fn describe(&self) -> DeviceProperties {
        let device_polling = self.device_polling.load(Relaxed);
        let fixed_buffers = self.registered.is_some();
        DeviceProperties {
            io_uring: self.io_uring,
            direct: self.file.is_direct(),
            device_polling,
            fixed_buffers,
            remote: false,
        }
    }
}

/// Returns the bytes of each transfer: 0 if it or the ring failed, or if there is no ring.
fn batch(
    lane: &mut Lane,
    count: usize,
    through_ring: impl FnOnce(&mut Ring, &mut [io::Result<usize>]) -> io::Result<()>,
) -> [usize; MAX_PIECES] {
    let mut results = [const { Ok(0) }; MAX_PIECES];
    if let Lane::Rings(rings) = lane
        && through_ring(&mut rings.irq, &mut results[..count]).is_err()
    {
        return [0; MAX_PIECES];
    }
    results.map(|result| result.unwrap_or(0))
}

fn attached(ring: io::Result<Ring>, file: &SwapFile) -> io::Result<Ring> {
    let mut ring = ring?;
    ring.attach(file.as_fd())?;
    Ok(ring)
}

/// Tests polling for completions. A queue without support reports that only in the completion, so
/// this reads a page; an empty file gets one. Older kernels (6.1) wait for the interrupt instead.
fn supports_iopoll(file: &SwapFile, tried: &mut Vec<Ring>) -> bool {
    if file.queue_polls() == Some(false) {
        return false;
    }
    let mut try_it = || -> io::Result<usize> {
        let page = &mut reserve_pages(1)?[0].0;
        let mut ring = attached(Ring::new_polling(1), file)?;
        let read = ring.read(Target::Attached, page, 0);
        tried.push(ring);
        read
    };
    let read = match file.len_bytes() {
        Ok(0) => file.with_a_page(try_it).and_then(|tried| tried),
        Ok(_) => try_it(),
        Err(error) => Err(error),
    };
    matches!(read, Ok(PAGE_SIZE))
}

#[cfg(test)]
#[path = "file_device_tests.rs"]
mod tests;
