//! Sets of signals: the engine's and the C library's own; conversion of `sigset_t`.

use libc::sigset_t;
use softswap_sys::signals::{self, Mask, SIGBUS, SIGSEGV, SIGSYS, never_blocked};

#[inline]
pub(crate) fn engine_signals() -> Mask {
    never_blocked()
}

/// Signals that the C library uses internally (cancellation, setxid).
pub(crate) const INTERNAL: Mask = signals::bit(32) | signals::bit(33);

/// Returns true if programs may pass this signal to the C library.
pub(super) fn is_for_programs(signal: i32) -> bool {
    signals::SIGNALS.contains(&signal) && INTERNAL & signals::bit(signal) == 0
}

pub(super) fn kinds(of: Mask) -> impl Iterator<Item = i32> {
    [SIGBUS, SIGSYS, SIGSEGV].into_iter().filter(move |signal| of & signals::bit(*signal) != 0)
}

/// # Safety
/// `set` is a valid sigset_t.
pub(super) unsafe fn bits(set: *const sigset_t) -> Mask {
    // SAFETY: a sigset_t starts with the kernel's 64 bits.
    unsafe { set.cast::<Mask>().read_unaligned() }
}

pub(super) fn set_bits(set: &mut sigset_t, mask: Mask) {
    // SAFETY: a sigset_t starts with the kernel's 64 bits; it is exclusively borrowed.
    unsafe { std::ptr::from_mut(set).cast::<Mask>().write_unaligned(mask) };
}

pub(super) fn set_of(mask: Mask) -> sigset_t {
    let mut set = softswap_sys::AnyBits::zeroed();
    set_bits(&mut set, mask);
    set
}
