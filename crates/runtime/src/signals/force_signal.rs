//! Raises a signal for the interrupted instruction, like the kernel's force_sig.

use softswap_sys::signals::{self, never_blocked, siginfo_t};
use std::ffi::c_void;

fn is_ignored(signal: i32) -> bool {
    signals::action_of(signal).is_ok_and(|action| action.handler == libc::SIG_IGN)
}

/// Makes a signal arrive when the handler returns, as if the kernel had raised it for the
/// interrupted instruction. If the signal is blocked or ignored, it kills the process.
///
/// # Safety
/// `info` is valid; `context` is the running handler's.
pub(crate) unsafe fn force_signal(signal: i32, info: *const siginfo_t, context: *mut c_void) {
    // SAFETY: `context` is that of the running handler.
    let mask = unsafe { &mut *signals::interrupted_mask(context) };
    if *mask & signals::bit(signal) != 0 || is_ignored(signal) {
        *mask &= !signals::bit(signal);
        signals::set_default(signal);
    }
    // SAFETY: `info` is valid; the kernel copies it.
    if unsafe { signals::raise_with(signal, info) }.is_err() {
        std::process::abort();
    }
    *mask &= !never_blocked();
}
