//! Raises a signal for the interrupted instruction, like the kernel's force_sig.

use softswap_sys::signals::{self, never_blocked, siginfo_t};
use std::ffi::c_void;

fn is_ignored(signal: i32) -> bool {
    signals::action_of(signal).is_ok_and(|action| action.handler == libc::SIG_IGN)
}

/// Makes a signal arrive when the handler returns, as if the kernel had raised it for the
/// interrupted instruction. A blocked or ignored signal kills.
///
/// # Safety
/// `info` is valid; `context` is the running handler's.
pub(crate) unsafe fn force_signal(signal: i32, info: *const siginfo_t, context: *mut c_void) {
    // SAFETY: the handler's own context.
    let mask = unsafe { &mut *signals::interrupted_mask(context) };
    if *mask & signals::bit(signal) != 0 || is_ignored(signal) {
        *mask &= !signals::bit(signal);
        signals::set_default(signal);
    }
    // SAFETY: valid details of a signal; they are copied.
    if unsafe { signals::raise_with(signal, info) }.is_err() {
        std::process::abort();
    }
    *mask &= !never_blocked();
}
