//! The two queues of an io_uring, which a forked child does not inherit: it could submit requests
//! that its parent would execute. MADV_DONTFORK also works if no fork handler runs.

use crate::descriptor;
use crate::memory;
use crate::own_descriptors;
use crate::raw;
use io_uring::squeue::Entry;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

// <linux/io_uring.h>
const OFFSET_RINGS: usize = 0;
const OFFSET_ENTRIES: usize = 0x1000_0000;
const SETUP_IOPOLL: u32 = 1 << 0;
const FEATURE_SINGLE_MMAP: u32 = 1 << 0;
const FEATURE_EXT_ARG: u32 = 1 << 8;
const SQ_CQ_OVERFLOW: u32 = 1 << 1;
const SQ_TASKRUN: u32 = 1 << 2;
const ENTER_GETEVENTS: usize = 1 << 0;
const ENTER_EXT_ARG: usize = 1 << 3;
const REGISTER_BUFFERS: usize = 0;
const UNREGISTER_BUFFERS: usize = 1;
const REGISTER_FILES: usize = 2;
const REGISTER_CLONE_BUFFERS: usize = 30;

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Parameters {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    sq: SubmissionOffsets,
    cq: CompletionOffsets,
}

#[repr(C)]
#[derive(Default)]
struct SubmissionOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    user_addr: u64,
}

#[repr(C)]
#[derive(Default)]
struct CompletionOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    reserved: u32,
    user_addr: u64,
}

/// `struct io_uring_cqe`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    user_data: u64,
    result: i32,
    flags: u32,
}

impl Parameters {
    pub(super) fn of(flags: u32) -> Parameters {
        Parameters { flags, ..Parameters::default() }
    }
}

const _: () = assert!(size_of::<Parameters>() == 120 && size_of::<Entry>() == 64);

struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(ring: &OwnedFd, offset: usize, len: usize) -> io::Result<Mapping> {
        let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_SHARED | libc::MAP_POPULATE) as usize;
        let args = [0, len, access, flags, ring.as_raw_fd() as usize, offset];
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = raw::check(unsafe { raw::syscall(libc::SYS_mmap, args) })?;
        let mapping = Mapping { start: start as *mut u8, len };
        // SAFETY: no content changes. Children have no copy and use none (`Ring::is_usable`).
        unsafe { memory::advise(start, len, libc::MADV_DONTFORK)? };
        Ok(mapping)
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset + size_of::<T>() <= self.len && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: the `T` is within the mapping, as the assertion has checked.
        unsafe { self.start.add(offset).cast() }
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the word is in the mapping of `self`, and the kernel changes it atomically.
        unsafe { &*self.at::<AtomicU32>(offset as usize) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and no reference to it remains.
        unsafe { memory::unmap(self.start as usize, self.len) };
    }
}

pub(super) struct Queues {
    /// Ring of indices and ring of completions.
    rings: Mapping,
    /// Submission entries, which the ring of indices refers to.
    entries: Mapping,
    parameters: Parameters,
    /// Released when the value is dropped; a forked child never drops it.
    fd: Option<OwnedFd>,
    process: u32,
}

// SAFETY: the mappings are accessed only through this value, by `&mut self` or atomically.
unsafe impl Send for Queues {}
// SAFETY: methods with `&self` make atomic loads and system calls only.
unsafe impl Sync for Queues {}

impl Queues {
    /// Maps the queues of `ring`, which has `parameters`. Fails before Linux 5.4.
    pub(super) fn map(ring: OwnedFd, parameters: Parameters) -> io::Result<Queues> {
        if parameters.features & FEATURE_SINGLE_MMAP == 0 {
            descriptor::release(ring);
            return Err(io::ErrorKind::Unsupported.into());
        }
        match Self::mappings(&ring, &parameters) {
            Ok((rings, entries)) => {
                let process = raw::current_process();
                own_descriptors::withhold(ring.as_raw_fd());
                Ok(Queues { rings, entries, parameters, fd: Some(ring), process })
            }
            Err(error) => {
                descriptor::release(ring);
                Err(error)
            }
        }
    }

    fn mappings(ring: &OwnedFd, parameters: &Parameters) -> io::Result<(Mapping, Mapping)> {
        let Parameters { sq_entries, cq_entries, sq, cq, .. } = parameters;
        let numbers_end = sq.array as usize + *sq_entries as usize * size_of::<u32>();
        let completions_end = cq.cqes as usize + *cq_entries as usize * size_of::<Completion>();
        let rings = Mapping::new(ring, OFFSET_RINGS, numbers_end.max(completions_end))?;
        let entries =
            Mapping::new(ring, OFFSET_ENTRIES, *sq_entries as usize * size_of::<Entry>())?;
        // Each index of the ring refers to the entry at the same position.
        for index in 0..*sq_entries {
            rings.word(sq.array + index * size_of::<u32>() as u32).store(index, Relaxed);
        }
        Ok((rings, entries))
    }

    pub(super) fn capacity(&self) -> usize {
        self.parameters.sq_entries as usize
    }

    /// Returns true if a wait can have a time-out (Linux 5.11).
    pub(super) fn has_timed_waits(&self) -> bool {
        self.parameters.features & FEATURE_EXT_ARG != 0
    }

    /// Queues a request; returns false if the queue is full.
    ///
    /// # Safety
    /// The entry's buffers and files must stay valid until its completion was taken.
    pub(super) unsafe fn push(&mut self, entry: &Entry) -> bool {
        let tail = self.rings.word(self.parameters.sq.tail);
        let at = tail.load(Relaxed);
        if self.queued() == self.capacity() {
            return false;
        }
        let index = at & (self.parameters.sq_entries - 1);
        let place = self.entries.at::<Entry>(index as usize * size_of::<Entry>());
        // SAFETY: the place is mapped and free: the kernel reads only entries before the tail.
        unsafe { place.write(entry.clone()) };
        tail.store(at.wrapping_add(1), Release);
        true
    }

    /// Returns the number of requests that the kernel has not taken.
    pub(super) fn queued(&self) -> usize {
        let head = self.rings.word(self.parameters.sq.head).load(Acquire);
        self.rings.word(self.parameters.sq.tail).load(Relaxed).wrapping_sub(head) as usize
    }

    fn flags(&self) -> u32 {
        self.rings.word(self.parameters.sq.flags).load(Acquire)
    }

    /// Returns true if the kernel posts completions only in a call.
    pub(super) fn needs_call(&self) -> bool {
        self.flags() & SQ_TASKRUN != 0
    }

    /// Removes the oldest completion; returns the request's user data and result.
    pub(super) fn pop(&mut self) -> Option<(u64, i32)> {
        let Parameters { cq_entries, cq, .. } = &self.parameters;
        let head = self.rings.word(cq.head);
        let at = head.load(Relaxed);
        if at == self.rings.word(cq.tail).load(Acquire) {
            return None;
        }
        let index = (at & (cq_entries - 1)) as usize;
        let place = self.rings.at::<Completion>(cq.cqes as usize + index * size_of::<Completion>());
        // SAFETY: `place` is within the mapping. The kernel wrote the completion before it moved
        // the tail, and reuses the place only after the head has moved.
        let Completion { user_data, result, .. } = unsafe { place.read() };
        head.store(at.wrapping_add(1), Release);
        Some((user_data, result))
    }

    /// Submits the queued requests and waits for `want` completions, at most `limit_ns`.
    pub(super) fn enter(&self, want: usize, limit_ns: Option<u64>) -> io::Result<usize> {
        let needs_events = want > 0
            || self.parameters.flags & SETUP_IOPOLL != 0
            || self.flags() & (SQ_CQ_OVERFLOW | SQ_TASKRUN) != 0;
        let flags = if needs_events { ENTER_GETEVENTS } else { 0 };
        let ns = limit_ns.unwrap_or(0);
        let time = [ns / 1_000_000_000, ns % 1_000_000_000];
        // `struct io_uring_getevents_arg`: no signal mask, and the time-out.
        let limit = [0, 0, time.as_ptr() as u64];
        let (flags, argument, len) = match limit_ns {
            Some(_) => (flags | ENTER_EXT_ARG, limit.as_ptr() as usize, size_of_val(&limit)),
            None => (flags, 0, 0),
        };
        let args = [self.number() as usize, self.queued(), want, flags, argument, len];
        // SAFETY: the kernel reads `limit` and `time`, and executes pushed requests, whose buffers
        // are valid as `push` requires.
        raw::check(unsafe { raw::syscall(libc::SYS_io_uring_enter, args) })
    }

    /// # Safety
    /// The buffer must stay mapped as long as the ring exists.
    pub(super) unsafe fn register_buffer(&self, base: usize, len: usize) -> io::Result<()> {
        let buffer = [base, len];
        self.register(REGISTER_BUFFERS, &raw const buffer as usize, 1)
    }

    pub(super) fn unregister_buffers(&self) -> io::Result<()> {
        self.register(UNREGISTER_BUFFERS, 0, 0)
    }

    pub(super) fn clone_buffers(&self, other: RawFd) -> io::Result<()> {
        // `struct io_uring_clone_buffers`: all of them, into an empty table.
        let from = [other as u32, 0, 0, 0, 0, 0, 0, 0];
        self.register(REGISTER_CLONE_BUFFERS, from.as_ptr() as usize, 1)
    }

    pub(super) fn register_files(&self, files: &[RawFd]) -> io::Result<()> {
        self.register(REGISTER_FILES, files.as_ptr() as usize, files.len())
    }

    fn register(&self, what: usize, argument: usize, count: usize) -> io::Result<()> {
        let args = [self.number() as usize, what, argument, count, 0, 0];
        // SAFETY: the kernel reads the argument, which has the type that `what` needs. It writes to
        // buffers only for requests.
        raw::check(unsafe { raw::syscall(libc::SYS_io_uring_register, args) }).map(drop)
    }

    pub(super) fn number(&self) -> RawFd {
        self.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Returns false in a forked child, which has neither queues nor descriptor.
    pub(super) fn is_of_this_process(&self) -> bool {
        raw::current_process() == self.process
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        descriptor::release(fd);
    }
}
