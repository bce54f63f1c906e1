//! Queue of requests and the worker threads that carry them out.

use super::aio_request::{ControlBlock, List, MAX_PRIORITY, Operation, Request};
use super::completion::{announce, perform, store_result};
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
const IDLE_NS: u64 = 1_000_000_000;

#[derive(Default)]
pub(super) struct State {
    /// Requests not started yet. Those of one descriptor are in the order of execution.
    pub(super) waiting: Vec<Request>,
    pub(super) busy: Vec<i32>,
    workers: usize,
    idle: usize,
}

impl State {
    fn add(&mut self, request: Request) {
        let runs_after =
            |other: &Request| other.fd == request.fd && other.priority > request.priority;
        let at = self.waiting.iter().position(runs_after).unwrap_or(self.waiting.len());
        self.waiting.insert(at, request);
    }

    fn take(&mut self) -> Option<Request> {
        let at = self.waiting.iter().position(|request| !self.busy.contains(&request.fd))?;
        let request = self.waiting.remove(at);
        self.busy.push(request.fd);
        Some(request)
    }

    fn finish(&mut self, fd: i32) {
        if let Some(at) = self.busy.iter().position(|busy| *busy == fd) {
            self.busy.swap_remove(at);
        }
    }

    fn needs_worker(&self) -> bool {
        let is_first = |at: usize, fd: i32| self.waiting[..at].iter().all(|other| other.fd != fd);
        let ready = |(at, request): &(usize, &Request)| {
            !self.busy.contains(&request.fd) && is_first(*at, request.fd)
        };
        self.workers < MAX_WORKERS
            && self.waiting.iter().enumerate().filter(ready).count() > self.idle
    }
}

pub(super) struct Queue(Locked<Option<State>>);

// SAFETY: only the thread that holds a request accesses its control block. The program does not use
// the block until the request is done.
unsafe impl Send for State {}

pub(super) static QUEUE: Queue = Queue(Locked::new(None));

/// Number of submitted requests, as a futex.
static SUBMITTED: AtomicU32 = AtomicU32::new(0);

impl Queue {
    /// Runs `body` under the lock. `body` must not touch the program's memory.
    pub(super) fn with<R>(&self, body: impl FnOnce(&mut State) -> R) -> R {
        self.0.with(|state| body(state.get_or_insert_default()))
    }
}

pub(crate) fn lock_for_fork() {
    QUEUE.0.lock_for_fork();
}

pub(crate) fn unlock_after_fork() {
    QUEUE.0.unlock_after_fork();
}

pub(crate) fn become_child() {
    let left = QUEUE.with(std::mem::take);
    drop(left);
}

extern "C" fn work(_: *mut c_void) -> *mut c_void {
    loop {
        let seen = SUBMITTED.load(Ordering::Acquire);
        let next = QUEUE.with(|state| {
            let request = state.take();
            state.idle += usize::from(request.is_none());
            request
        });
        if let Some(request) = next {
            let fd = request.fd;
            perform(request);
            QUEUE.with(|state| state.finish(fd));
            continue;
        }
        futex::wait(&SUBMITTED, seen, Some(IDLE_NS));
        let exits = QUEUE.with(|state| {
            state.idle -= 1;
            let exits = state.waiting.iter().all(|request| state.busy.contains(&request.fd))
                && SUBMITTED.load(Ordering::Acquire) == seen;
            state.workers -= usize::from(exits);
            exits
        });
        if exits {
            return std::ptr::null_mut();
        }
    }
}

/// # Safety
/// `block` is a valid control block until its request is done.
pub(super) unsafe fn submit(
    block: *mut ControlBlock,
    operation: Operation,
    list: Option<Arc<List>>,
) -> Result<(), i32> {
    // SAFETY: the program passes a control block that it does not use until the request is done.
    let fields = unsafe { &mut *block };
    let is_sync = matches!(operation, Operation::Sync | Operation::DataSync);
    if !is_sync && !(0..=MAX_PRIORITY).contains(&fields.priority) {
        // SAFETY: the program passes a control block for which no request exists yet.
        unsafe { store_result(block, Err(libc::EINVAL)) };
        return Err(libc::EINVAL);
    }
    fields.result = 0;
    fields.error.store(libc::EINPROGRESS, Ordering::Release);
    let request = Request {
        block,
        operation,
        fd: fields.fd,
        buffer: fields.buffer as usize,
        bytes: fields.bytes,
        offset: fields.offset,
        // A sync follows all existing requests.
        priority: if is_sync { MAX_PRIORITY } else { fields.priority },
        event: fields.event,
        list,
    };
    let starts = QUEUE.with(|state| {
        state.add(request);
        let starts = state.needs_worker();
        state.workers += usize::from(starts);
        starts
    });
    announce(&SUBMITTED);
    if !starts || start_worker() || !withdraw(block) {
        return Ok(());
    }
    // SAFETY: the request was withdrawn, so no other thread uses the program's control block.
    unsafe { store_result(block, Err(libc::EAGAIN)) };
    Err(libc::EAGAIN)
}

/// Starts a worker that is already counted. Returns false on failure.
fn start_worker() -> bool {
    // Only the program's own threads handle its signals. The C library's stay unblocked: a `setuid`
    // in progress holds a lock that thread creation needs.
    let blocked = !(INTERNAL | never_blocked());
    signals::with_blocked(blocked, || start_thread(work, std::ptr::null_mut(), std::ptr::null()))
}

/// Uncounts a worker that did not start. If there is no other, withdraws the request of `block` and
/// returns true.
fn withdraw(block: *const ControlBlock) -> bool {
    QUEUE
        .with(|state| {
            state.workers -= 1;
            let at = state.waiting.iter().position(|request| std::ptr::eq(request.block, block));
            at.filter(|_| state.workers == 0).map(|at| state.waiting.remove(at))
        })
        .is_some()
}
