//! Which threads are the engine's own, by the kernel's numbers.

use softswap_engine::memory::context::PREFETCH_THREADS;
use softswap_sys::raw;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Reclaim, the shared budget and the control socket, and those that read ahead.
pub(super) const COUNT: usize = 3 + PREFETCH_THREADS;

/// The process that has them.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Their numbers: 0 before they run.
static NUMBERS: [AtomicI32; COUNT] = [const { AtomicI32::new(0) }; COUNT];

/// The process that has them, 0 where none does.
pub(super) fn owner() -> u32 {
    OWNER.load(Ordering::Relaxed)
}

/// This process has them from now on.
pub(super) fn own() {
    OWNER.store(raw::current_process(), Ordering::Relaxed);
}

/// In a forked child: they are its parent's. It may have the parent's number, in a name space of
/// its own.
pub(super) fn forget_all() {
    if owner() != 0 {
        OWNER.store(u32::MAX, Ordering::Relaxed);
    }
}

/// One of them has a number.
pub(super) fn begin(at: usize) {
    NUMBERS[at].store(raw::current_thread(), Ordering::Release);
}

/// It has none any more, or not yet.
pub(super) fn forget(at: usize) {
    NUMBERS[at].store(0, Ordering::Relaxed);
}

/// The number of one of them.
pub(super) fn number(at: usize) -> i32 {
    NUMBERS[at].load(Ordering::Acquire)
}

/// Whether a thread of this process is one of them.
pub(super) fn is_own(thread: i32) -> bool {
    owner() == raw::current_process() && (0..COUNT).any(|at| number(at) == thread)
}

/// Whether this thread is one of them.
pub(crate) fn is_this() -> bool {
    is_own(raw::current_thread())
}
