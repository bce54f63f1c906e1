//! Which request is done next, and by whom.

use super::aio_request::{ControlBlock, List, MOST_PRIORITY, Operation, Request};
use super::completion::{announce, perform, settle};
use super::worker_thread::start_thread;
use crate::signals::sets::INTERNAL;
use libc::c_void;
use softswap_sys::futex;
use softswap_sys::locked::Locked;
use softswap_sys::signals::{self, never_blocked};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// As many as glibc starts, if it is not told otherwise.
const MOST_WORKERS: usize = 20;
/// How long a worker waits for more to do.
const IDLE_NS: u64 = 1_000_000_000;

#[derive(Default)]
pub(super) struct State {
    /// In the order in which they will be done, as far as they are about one descriptor.
    pub(super) waiting: Vec<Request>,
    /// Descriptors of which a request is being done.
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

    /// Whether what could be done now is more than those that wait for it can do.
    fn wants_worker(&self) -> bool {
        let is_first = |at: usize, fd: i32| self.waiting[..at].iter().all(|other| other.fd != fd);
        let ready = |(at, request): &(usize, &Request)| {
            !self.busy.contains(&request.fd) && is_first(*at, request.fd)
        };
        self.workers < MOST_WORKERS
            && self.waiting.iter().enumerate().filter(ready).count() > self.idle
    }
}

/// What is made when it is first wanted.
pub(super) struct Queue(Locked<Option<State>>);

// SAFETY: the blocks that requests point to are the program's, which leaves them to
// whichever thread has the request.
unsafe impl Send for State {}

pub(super) static QUEUE: Queue = Queue(Locked::new(None));

/// Counts what was given to the workers.
static GIVEN: AtomicU32 = AtomicU32::new(0);

impl Queue {
    /// `body` touches no memory of the program's.
    pub(super) fn with<R>(&self, body: impl FnOnce(&mut State) -> R) -> R {
        self.0.with(|state| body(state.get_or_insert_default()))
    }
}

/// Keeps the queue as it is while a child is made.
pub(crate) fn lock_for_fork() {
    QUEUE.0.lock_for_fork();
}

pub(crate) fn unlock_after_fork() {
    QUEUE.0.unlock_after_fork();
}

/// A child inherits no requests, and no workers.
pub(crate) fn become_child() {
    let left = QUEUE.with(std::mem::take);
    drop(left);
}

extern "C" fn work(_: *mut c_void) -> *mut c_void {
    loop {
        let given = GIVEN.load(Ordering::Acquire);
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
        futex::wait(&GIVEN, given, Some(IDLE_NS));
        let ends = QUEUE.with(|state| {
            state.idle -= 1;
            let ends = state.waiting.iter().all(|request| state.busy.contains(&request.fd))
                && GIVEN.load(Ordering::Acquire) == given;
            state.workers -= usize::from(ends);
            ends
        });
        if ends {
            return std::ptr::null_mut();
        }
    }
}

/// Gives a request to the workers.
///
/// # Safety
/// `block` is a valid control block that stays until its request is done.
pub(super) unsafe fn submit(
    block: *mut ControlBlock,
    operation: Operation,
    list: Option<Arc<List>>,
) -> Result<(), i32> {
    // SAFETY: the program's control block, which it leaves alone until the request is done.
    let asked = unsafe { &mut *block };
    let is_sync = matches!(operation, Operation::Sync | Operation::DataSync);
    if !is_sync && !(0..=MOST_PRIORITY).contains(&asked.priority) {
        // SAFETY: the program's control block, of which no thread has a request yet.
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
        // It comes after all that there is.
        priority: if is_sync { MOST_PRIORITY } else { asked.priority },
        event: asked.event,
        list,
    };
    let starts = QUEUE.with(|state| {
        state.add(request);
        let starts = state.wants_worker();
        state.workers += usize::from(starts);
        starts
    });
    announce(&GIVEN);
    if !starts || start_worker() || !take_back(block) {
        return Ok(());
    }
    // SAFETY: the program's control block, whose request was taken back: no other thread has it.
    unsafe { settle(block, Err(libc::EAGAIN)) };
    Err(libc::EAGAIN)
}

/// Starts one more worker, which is counted already; whether that could be.
fn start_worker() -> bool {
    // The program's signals are the program's. Not the C library's own: a `setuid`
    // under way has a lock that is needed here.
    let blocked = !(INTERNAL | never_blocked());
    signals::with_blocked(blocked, || start_thread(work, std::ptr::null_mut(), std::ptr::null()))
}

/// A worker that was counted did not start. Whether the request was taken back, as there is no
/// other one to do it.
fn take_back(block: *const ControlBlock) -> bool {
    QUEUE
        .with(|state| {
            state.workers -= 1;
            let at = state.waiting.iter().position(|request| std::ptr::eq(request.block, block));
            at.filter(|_| state.workers == 0).map(|at| state.waiting.remove(at))
        })
        .is_some()
}
