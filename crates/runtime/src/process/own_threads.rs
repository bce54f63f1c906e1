//! IDs of the engine's threads.

use crate::memory::libc_memory::outside_the_window;
use softswap_engine::memory::context::PREFETCH_THREADS;
use softswap_sys::threads as kernel;
use softswap_sys::{futex, raw};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Number of engine threads: reclaim, shared budget, control socket, and read-ahead.
pub(super) const COUNT: usize = 3 + PREFETCH_THREADS;

const MAX_TURNS: usize = 1_000;

/// Process that has the threads; 0: none.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// 1 while the thread runs.
pub(super) static RUNNING: [AtomicU32; COUNT] = [const { AtomicU32::new(0) }; COUNT];
/// Thread IDs; 0 before a thread runs.
static NUMBERS: [AtomicI32; COUNT] = [const { AtomicI32::new(0) }; COUNT];

pub(super) fn owner() -> u32 {
    OWNER.load(Ordering::Relaxed)
}

pub(super) fn own() {
    OWNER.store(raw::current_process(), Ordering::Relaxed);
}

/// Needed because a forked child may have its parent's PID, in a new PID namespace.
pub(super) fn disown() {
    if owner() != 0 {
        OWNER.store(u32::MAX, Ordering::Relaxed);
    }
}

pub(super) fn begin(at: usize) {
    NUMBERS[at].store(raw::current_thread(), Ordering::Release);
}

pub(super) fn forget(at: usize) {
    NUMBERS[at].store(0, Ordering::Relaxed);
}

pub(super) fn number(at: usize) -> i32 {
    NUMBERS[at].load(Ordering::Acquire)
}

pub(super) fn cpu_ns() -> u64 {
    let numbers = (0..COUNT).map(number).filter(|number| *number != 0);
    numbers.map(raw::cpu_ns_of).sum()
}

pub(super) fn is_own(thread: i32) -> bool {
    owner() == raw::current_process() && (0..COUNT).any(|at| number(at) == thread)
}

pub(crate) fn is_this() -> bool {
    is_own(raw::current_thread())
}

/// Returns true if only engine threads would keep the process alive. Returns false if that is
/// unknown: if /proc is missing, or an engine thread is being created.
pub(super) fn is_last_of_program() -> bool {
    let is_running = |at: &usize| RUNNING[*at].load(Ordering::Acquire) == 1;
    let numbers = || (0..COUNT).filter(is_running).map(number);
    if owner() != raw::current_process() || numbers().next().is_none() {
        return false;
    }
    let are_known = || numbers().all(|number| number != 0);
    let waited = (0..MAX_TURNS).take_while(|_| !are_known()).inspect(|_| futex::sleep_a_moment());
    if waited.count() == MAX_TURNS {
        return false;
    }
    let is_of_program = |thread: i32| {
        thread != raw::current_thread()
            && !numbers().any(|number| number == thread)
            && !kernel::is_io_worker(thread)
            // The main thread stays in the list until the process exits.
            && !matches!(kernel::activity(thread), Ok(kernel::Activity::Exited))
    };
    // The program's heap may be managed, and this thread is about to exit.
    outside_the_window(|| kernel::all().is_ok_and(|all| !all.into_iter().any(is_of_program)))
}
