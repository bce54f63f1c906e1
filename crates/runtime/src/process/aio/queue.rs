//! Queue of requests and the worker threads that carry them out.

use super::aio_request::{ControlBlock, List, MAX_PRIORITY, Operation, Request};
use super::completion::{announce, perform, settle};
use super::worker_thread::start_thread;
use crate::signals::sets::INTERNAL;
use libc::c_void;
use softswap_sys::futex;
use softswap_sys::locked::Locked;
use softswap_sys::signals::{self, never_blocked};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of workers: glibc's default.
const MAX_WORKERS: usize = 20;
/// Time that an idle worker waits for a request.
const IDLE_NS: u64 = 1_000_000_000;

#[derive(Default)]
pub(super) struct State {
    /// Waiting requests. Those of one descriptor are in the order of execution.
    pub(super) waiting: Vec<Request>,
    /// Descriptors with a request in progress.
    pub(super) busy: Vec<i32>,
    workers: usize,
    idle: usize,
}

impl State {
    fn add(&mut self, request: Request) {
        let goes_before =
            |other: &Request| other.fd == request.fd && other.priority > request.priority;
        let at = self.waiting.iter().position(goes_before).unwrap_or(self.waiting.len());
        self.waiting.insert(at, request);
    }

    fn take(&mut self) -> Option<Request> {
        let at = self.waiting.iter().position(|request| !self.busy.contains(&request.fd))?;
        let request = self.waiting.remove(at);
        self.busy.push(request.fd);
        Some(request)
    }

    fn done_with(&mut self, fd: i32) {
        if let Some(at) = self.busy.iter().position(|busy| *busy == fd) {
            self.busy.swap_remove(at);
        }
    }

    /// Returns true if more requests are ready than idle workers can take.
    fn needs_worker(&self) -> bool {
        let is_first = |at: usize, fd: i32| self.waiting[..at].iter().all(|other| other.fd != fd);
        let ready = |(at, request): &(usize, &Request)| {
            !self.busy.contains(&request.fd) && is_first(*at, request.fd)
        };
        self.workers < MAX_WORKERS
            && self.waiting.iter().enumerate().filter(ready).count() > self.idle
    }
}

/// Queue whose state is created on first use.
pub(super) struct Queue(Locked<Option<State>>);

// SAFETY: the control blocks are the program's, which does not use them until the requests are
// done; only the thread with the request accesses them.
unsafe impl Send for State {}

pub(super) static QUEUE: Queue = Queue(Locked::new(None));

/// Number of submitted requests, as a futex.
static SUBMITTED: AtomicU32 = AtomicU32::new(0);

impl Queue {
    /// Runs `body` under the lock; it must not touch the program's memory.
    pub(super) fn with<R>(&self, body: impl FnOnce(&mut State) -> R) -> R {
        self.0.with(|state| body(state.get_or_insert_default()))
    }
}

/// Locks the queue during a fork.
pub(crate) fn lock_for_fork() {
    QUEUE.0.lock_for_fork();
}

pub(crate) fn unlock_after_fork() {
    QUEUE.0.unlock_after_fork();
}

/// Drops the parent's requests and workers in a child.
pub(crate) fn become_child() {
    let left = QUEUE.with(std::mem::take);
    drop(left);
}

extern "C" fn work(_: *mut c_void) -> *mut c_void {
    loop {
        let given = SUBMITTED.load(Ordering::Acquire);
        let next = QUEUE.with(|state| {
            let request = state.take();
            state.idle += usize::from(request.is_none());
            request
        });
        if let Some(request) = next {
            let fd = request.fd;
            perform(request);
            QUEUE.with(|state| state.done_with(fd));
            continue;
        }
        futex::wait(&SUBMITTED, given, Some(IDLE_NS));
        let ends = QUEUE.with(|state| {
            state.idle -= 1;
            let ends = state.waiting.iter().all(|request| state.busy.contains(&request.fd))
                && SUBMITTED.load(Ordering::Acquire) == given;
            state.workers -= usize::from(ends);
            ends
        });
        if ends {
            return std::ptr::null_mut();
        }
    }
}

/// Submits a request.
///
/// # Safety
/// `block` is a valid control block until its request is done.
pub(super) unsafe fn submit(
    block: *mut ControlBlock,
    operation: Operation,
    list: Option<Arc<List>>,
) -> Result<(), i32> {
    // SAFETY: the program's control block, which it does not use until the request is done.
    let asked = unsafe { &mut *block };
    let is_sync = matches!(operation, Operation::Sync | Operation::DataSync);
    if !is_sync && !(0..=MAX_PRIORITY).contains(&asked.priority) {
        // SAFETY: the program's control block, for which no request exists yet.
        unsafe { settle(block, Err(libc::EINVAL)) };
        return Err(libc::EINVAL);
    }
    asked.result = 0;
    asked.error.store(libc::EINPROGRESS, Ordering::Release);
    let request = Request {
        block,
        operation,
        fd: asked.fd,
        buffer: asked.buffer as usize,
        bytes: asked.bytes,
        offset: asked.offset,
        // A sync follows all existing requests.
        priority: if is_sync { MAX_PRIORITY } else { asked.priority },
        event: asked.event,
        list,
    };
    let starts = QUEUE.with(|state| {
        state.add(request);
        let starts = state.needs_worker();
        state.workers += usize::from(starts);
        starts
    });
    announce(&SUBMITTED);
    if !starts || start_worker() || !take_back(block) {
        return Ok(());
    }
    // SAFETY: the program's control block, whose request was taken back, so no other thread uses
    // it.
    unsafe { settle(block, Err(libc::EAGAIN)) };
    Err(libc::EAGAIN)
}

/// Starts a worker that is already counted. Returns false on failure.
fn start_worker() -> bool {
    // The program's signals are blocked because they are for the program's threads. The C library's
    // own are not: a `setuid` in progress holds a lock that is needed here.
    let blocked = !(INTERNAL | never_blocked());
    signals::with_blocked(blocked, || start_thread(work, std::ptr::null_mut(), std::ptr::null()))
}

/// Uncounts a worker that did not start. Returns true if the request was taken back because no
/// other worker exists.
fn take_back(block: *const ControlBlock) -> bool {
    QUEUE
        .with(|state| {
            state.workers -= 1;
            let at = state.waiting.iter().position(|request| std::ptr::eq(request.block, block));
            at.filter(|_| state.workers == 0).map(|at| state.waiting.remove(at))
        })
        .is_some()
}
