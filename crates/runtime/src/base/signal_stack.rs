//! Where this thread's signal stack is, on which all handlers run.

use softswap_sys::signals;
use std::cell::Cell;

thread_local! {
    /// Its base; 0: there is none.
    static BASE: Cell<usize> = const { Cell::new(0) };
}

/// This thread has a signal stack at `base`; 0: none any more.
#[inline]
pub(crate) fn set(base: usize) {
    BASE.set(base);
}

/// Whether this thread has a signal stack of the engine's.
#[inline]
pub(crate) fn exists() -> bool {
    BASE.get() != 0
}

/// Whether an address is on this thread's.
#[inline]
pub(crate) fn contains(address: usize) -> bool {
    let base = BASE.get();
    base != 0 && signals::stack_at(base).contains(&address)
}

/// Whether a jump to a frame at `target` leaves one at `frame`: the signal stack comes on top of
/// the others.
pub(crate) fn is_left(frame: usize, target: usize) -> bool {
    match (contains(frame), contains(target)) {
        (true, false) => true,
        (false, true) => false,
        _ => frame < target,
    }
}
