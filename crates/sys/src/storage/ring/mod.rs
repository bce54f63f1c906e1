//! A small io_uring that transfers pages between bounce buffers and a device.
//!
//! Ownership of a ring moves between threads with its context, so a ring uses no mode that ties it
//! to one thread. Every call returns with an empty ring: all submitted requests have completed.
//! This also makes the safe interface sound: the kernel accesses a buffer until it posts the
//! completion, so a call that borrows buffers must not return earlier, even after an error.

mod queues;
mod request;
mod setup;
mod sleep;

use crate::file::errno;
use crate::segment::StaticRange;
use crate::{descriptor, futex, program_filter};
use io_uring::squeue::Entry;
use queues::Queues;
use request::{clear, outcome_of, read_entry, write_entry};
use setup::{CLAMP, HYBRID_IOPOLL, IOPOLL, build, set_up};
use sleep::{sleep, with_exact_timers};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

pub use request::{Piece, Target};
pub use sleep::timer_overshoot_ns;

/// Failed attempts to enter a ring, with back-off, after which the ring counts as broken.
const MAX_REFUSALS: u32 = 10_000;

pub struct Ring {
    /// Dropped only in the process that created them: a forked child has no such mappings.
    queues: ManuallyDrop<Queues>,
    entries: usize,
    next_request: u64,
    broken: bool,
    polls_device: bool,
    registered: Option<StaticRange>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("entries", &self.entries)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// Creates a ring for up to `entries` requests in flight.
    pub fn new(entries: u32) -> io::Result<Self> {
        Self::with(build(entries)?, false)
    }

    /// Creates a polling ring (IOPOLL). Without support, requests complete with EOPNOTSUPP.
    pub fn new_polling(entries: u32) -> io::Result<Self> {
        Self::with(set_up(entries, IOPOLL | CLAMP)?, true)
    }

    /// Creates a ring that polls after half of the shortest request time (Linux 6.13).
    pub fn new_hybrid_polling(entries: u32) -> io::Result<Self> {
        Self::with(set_up(entries, IOPOLL | CLAMP | HYBRID_IOPOLL)?, true)
    }

    fn with(queues: Queues, polls_device: bool) -> io::Result<Self> {
        let entries = queues.capacity();
        Ok(Self {
            queues: ManuallyDrop::new(queues),
            entries,
            next_request: 0,
            broken: false,
            polls_device,
            registered: None,
        })
    }

    /// Registers `range` as a fixed buffer, which the kernel pins until [`Ring::unregister`]. Fails
    /// beyond RLIMIT_MEMLOCK, or if a buffer is registered already.
    pub fn register(&mut self, range: StaticRange) -> io::Result<()> {
        // SAFETY: the range stays mapped until the process exits. The kernel accesses it only for
        // requests, each of which borrows its buffer.
        unsafe { self.queues.register_buffer(range.base(), range.len_bytes())? };
        self.registered = Some(range);
        Ok(())
    }

    pub fn unregister(&mut self) -> io::Result<()> {
        self.registered = None;
        self.queues.unregister_buffers()
    }

    /// Registers `other`'s buffer, which counts only once against RLIMIT_MEMLOCK (Linux 6.12).
    pub fn share_registered(&mut self, other: &Ring) -> io::Result<()> {
        self.queues.clone_buffers(other.as_raw_fd())?;
        self.registered = other.registered;
        Ok(())
    }

    /// Registers the ring's one file, for [`Target::Attached`]: the kernel skips the descriptor
    /// look-up, and a program that closes unknown descriptors cannot redirect the requests.
    pub fn attach(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.queues.register_files(&[file.as_raw_fd()])
    }

    /// Keeps `held` open until the last request has completed, even if the process is killed.
    pub fn attach_holding(&mut self, file: BorrowedFd<'_>, held: BorrowedFd<'_>) -> io::Result<()> {
        self.queues.register_files(&[file.as_raw_fd(), held.as_raw_fd()])
    }

    /// Returns false after a failure, in a forked child, and under the program's own filter.
    pub fn is_usable(&self) -> bool {
        !self.broken && !program_filter::is_in_force() && self.queues.is_of_this_process()
    }

    pub fn retire(&mut self) {
        self.broken = true;
    }

    /// Reads once, maybe less than the buffer. Fails with the request's or the ring's error.
    pub fn read(
        &mut self,
        target: Target<'_>,
        buf: &mut [u8],
        offset_bytes: u64,
    ) -> io::Result<usize> {
        let entry = read_entry(self.registered, target, buf, offset_bytes);
        let mut result = Err(io::Error::from_raw_os_error(errno::EIO));
        // SAFETY: the entry's buffer is `buf`, which is borrowed exclusively until `run` returns;
        // neither closure panics.
        unsafe { self.run(1, |_| entry.clone(), |_, outcome| result = outcome)? };
        result
    }

    /// Reads once. Runs `meanwhile`, which may poll, after submission; then waits for completion.
    pub fn read_while(
        &mut self,
        target: Target<'_>,
        buf: &mut [u8],
        offset_bytes: u64,
        meanwhile: impl FnOnce(&mut Pending<'_>),
    ) -> io::Result<usize> {
        let mut request = [Piece { offset: offset_bytes, buf }];
        let mut result = [Ok(0)];
        self.read_batch_while(target, &mut request, &mut result, meanwhile)?;
        let [result] = result;
        result
    }

    /// Reads a batch. Panics if `results` is not as long as `requests`, or the ring is too small.
    pub fn read_batch_while(
        &mut self,
        target: Target<'_>,
        requests: &mut [Piece<&mut [u8]>],
        results: &mut [io::Result<usize>],
        meanwhile: impl FnOnce(&mut Pending<'_>),
    ) -> io::Result<()> {
        let count = requests.len();
        assert!(count == results.len() && count <= self.entries);
        clear(results);
        if !self.is_usable() {
            return Err(io::Error::from_raw_os_error(errno::ESTALE));
        }
        let base = self.next_request;
        self.next_request = base.wrapping_add(count as u64);
        for (index, Piece { offset, buf }) in requests.iter_mut().enumerate() {
            let entry = read_entry(self.registered, target, buf, *offset);
            let entry = entry.user_data(base.wrapping_add(index as u64));
            // SAFETY: the entry's buffer is borrowed exclusively for this call, and the drop of
            // `Pending` waits for all requests, even in a panic. The queue was empty and holds
            // `entries` requests.
            let is_pushed = unsafe { self.queues.push(&entry) };
            debug_assert!(is_pushed, "the last call left the queue empty");
        }
        let mut failure = None;
        {
            let mut pending =
                Pending { ring: self, base, remaining: count, results, failure: &mut failure };
            // An error recurs when the drop of `Pending` waits, and is handled there.
            let _ = pending.ring.queues.enter(0, None);
            meanwhile(&mut pending);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Writes once, maybe less than the buffer.
    pub fn write(
        &mut self,
        target: Target<'_>,
        buf: &[u8],
        offset_bytes: u64,
    ) -> io::Result<usize> {
        let request = [Piece { offset: offset_bytes, buf }];
        let mut result = [Ok(0)];
        self.write_batch(target, &request, &mut result)?;
        let [result] = result;
        result
    }

    /// Stores each result at its index; requests that a failed ring did not execute have an error,
    /// too. Panics if `results` is not as long as `requests`.
    pub fn write_batch(
        &mut self,
        target: Target<'_>,
        requests: &[Piece<&[u8]>],
        results: &mut [io::Result<usize>],
    ) -> io::Result<()> {
        assert_eq!(requests.len(), results.len());
        clear(results);
        let registered = self.registered;
        let entry = |index: usize| {
            let Piece { offset, buf } = &requests[index];
            write_entry(registered, target, buf, *offset)
        };
        // SAFETY: the entries' buffers are borrowed until `run` returns, and the kernel only reads
        // them. Both closures get indices below the length of `requests` and `results`, so they do
        // not panic.
        unsafe { self.run(requests.len(), entry, |index, outcome| results[index] = outcome) }
    }

    /// Reads like [`Ring::write_batch`] writes.
    pub fn read_batch(
        &mut self,
        target: Target<'_>,
        requests: &mut [Piece<&mut [u8]>],
        results: &mut [io::Result<usize>],
    ) -> io::Result<()> {
        assert_eq!(requests.len(), results.len());
        clear(results);
        let (count, registered) = (requests.len(), self.registered);
        let entry = |index: usize| {
            let Piece { offset, buf } = &mut requests[index];
            read_entry(registered, target, buf, *offset)
        };
        // SAFETY: the entries' buffers are borrowed exclusively until `run` returns. Both closures
        // get indices below the length of `requests` and `results`, so they do not panic.
        unsafe { self.run(count, entry, |index, outcome| results[index] = outcome) }
    }

    /// # Safety
    /// The entries' buffers must stay borrowed until this returns, those of reads exclusively.
    /// `entry` and `deliver` must not panic for an index below `count`.
    unsafe fn run(
        &mut self,
        count: usize,
        mut entry: impl FnMut(usize) -> Entry,
        mut deliver: impl FnMut(usize, io::Result<usize>),
    ) -> io::Result<()> {
        let mut done = 0;
        while done < count {
            if !self.is_usable() {
                return Err(io::Error::from_raw_os_error(errno::ESTALE));
            }
            let load = (count - done).min(self.entries);
            let base = self.next_request;
            self.next_request = base.wrapping_add(load as u64);
            for index in 0..load {
                let entry = entry(done + index).user_data(base.wrapping_add(index as u64));
                // SAFETY: the caller promises that the entry's buffer stays borrowed until this
                // function returns, which is after `finish` has seen its completion. The queue was
                // empty and holds `entries` requests.
                let is_pushed = unsafe { self.queues.push(&entry) };
                debug_assert!(is_pushed, "the last call left the queue empty");
            }
            let mut deliver_done = |index: usize, outcome| deliver(done + index, outcome);
            self.finish(base, load, load, &mut deliver_done)?;
            done += load;
        }
        Ok(())
    }

    /// Submits the queued requests of a batch of `load` requests, and waits for the `pending` ones.
    fn finish(
        &mut self,
        base: u64,
        load: usize,
        mut pending: usize,
        deliver: &mut impl FnMut(usize, io::Result<usize>),
    ) -> io::Result<()> {
        let (mut refusals, mut turns) = (0, 0);
        while pending > 0 {
            match self.queues.enter(pending, None) {
                Ok(_) => refusals = 0,
                Err(error) => match error.raw_os_error() {
                    Some(errno::EINTR) => {}
                    // Temporarily out of memory or of space for completions.
                    Some(errno::EAGAIN | libc::EBUSY) if refusals < MAX_REFUSALS => {
                        refusals += 1;
                        futex::relax(&mut turns);
                    }
                    _ => {
                        self.abandon(base, load, pending, deliver);
                        return Err(error);
                    }
                },
            }
            pending -= self.reap(base, load, deliver);
        }
        Ok(())
    }

    /// The queue of completions never overflows: it is twice as long as that of requests.
    fn reap(
        &mut self,
        base: u64,
        load: usize,
        deliver: &mut impl FnMut(usize, io::Result<usize>),
    ) -> usize {
        let mut reaped = 0;
        while let Some((request, result)) = self.queues.pop() {
            let index = request.wrapping_sub(base) as usize;
            if index < load {
                deliver(index, outcome_of(result));
                reaped += 1;
            }
        }
        reaped
    }

    /// Handles a ring that cannot be entered any more, for example because the program closed it.
    /// Waits for requests that the kernel took, because it uses their buffers: they complete into
    /// the mapped queue. The others stay queued for ever. A ring that polls the device would post
    /// no completions, so the process is aborted.
    fn abandon(
        &mut self,
        base: u64,
        load: usize,
        mut pending: usize,
        deliver: &mut impl FnMut(usize, io::Result<usize>),
    ) {
        self.broken = true;
        let not_taken = self.queues.queued();
        let mut turns = 0;
        loop {
            pending -= self.reap(base, load, deliver);
            if pending <= not_taken {
                return;
            }
            if self.polls_device {
                descriptor::lost("an io_uring of its swap areas");
            }
            // After some turns `relax` makes a call, in which the kernel can post completions.
            futex::relax(&mut turns);
        }
    }
}

/// Submitted requests. Dropping the value waits for their completion.
pub struct Pending<'r> {
    ring: &'r mut Ring,
    base: u64,
    remaining: usize,
    results: &'r mut [io::Result<usize>],
    failure: &'r mut Option<io::Error>,
}

impl Pending<'_> {
    /// Polls once; returns true if all requests have completed.
    pub fn is_done(&mut self) -> bool {
        // With IOPOLL the call polls the device; otherwise the kernel signals if it needs a call.
        if self.ring.polls_device || self.ring.queues.needs_call() {
            let _ = self.ring.queues.enter(0, None);
        }
        self.reap()
    }

    /// Sleeps for `ns`, or until all requests complete (Linux 5.11). Returns true if they have.
    pub fn sleep(&mut self, ns: u64) -> bool {
        with_exact_timers(|| {
            if self.ring.polls_device || !self.ring.queues.has_timed_waits() {
                sleep(ns);
                return;
            }
            // ETIME reports the time-out; other errors recur in a later call.
            let _ = self.ring.queues.enter(self.remaining, Some(ns));
        });
        self.reap()
    }

    /// Polls at intervals: the kernel's wait would occupy a processor. Returns false on failure.
    fn poll_with_backoff(&mut self) -> bool {
        const FIRST_SLEEP_NS: u64 = 50_000;
        const MAX_SLEEP_NS: u64 = 1_000_000;
        let mut sleep_ns = FIRST_SLEEP_NS;
        loop {
            let entered = self.ring.queues.enter(0, None);
            if self.reap() {
                return true;
            }
            match entered.map_err(|error| error.raw_os_error()) {
                Ok(_) | Err(Some(errno::EINTR | errno::EAGAIN | libc::EBUSY)) => {}
                Err(_) => return false,
            }
            sleep(sleep_ns);
            sleep_ns = (2 * sleep_ns).min(MAX_SLEEP_NS);
        }
    }

    fn reap(&mut self) -> bool {
        if self.remaining > 0 {
            let Pending { ring, base, results, .. } = self;
            let load = results.len();
            self.remaining -= ring.reap(*base, load, &mut |index, result| results[index] = result);
        }
        self.remaining == 0
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.reap() {
            return;
        }
        if self.ring.polls_device && self.poll_with_backoff() {
            return;
        }
        let Pending { ring, base, remaining, results, failure } = self;
        let load = results.len();
        let deliver = &mut |index: usize, result| results[index] = result;
        **failure = ring.finish(*base, load, *remaining, deliver).err();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.queues.is_of_this_process() {
            // SAFETY: `drop` runs once, and does not use the queues afterwards.
            unsafe { ManuallyDrop::drop(&mut self.queues) };
        }
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.queues.number()
    }
}

#[cfg(test)]
mod tests;
