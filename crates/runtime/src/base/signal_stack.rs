//! Where this thread's signal stack is, on which all signals arrive.

use libc::stack_t;
use softswap_sys::signals;
use std::cell::Cell;
use std::ops::Range;

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

/// The addresses of this thread's, if it has one.
pub(crate) fn addresses() -> Option<Range<usize>> {
    exists().then(|| signals::stack_at(BASE.get()))
}

/// This thread's, as the kernel knows it.
pub(crate) fn alternate() -> Option<stack_t> {
    exists().then(|| signals::alternate_stack_at(BASE.get()))
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
