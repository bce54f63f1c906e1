//! Raises a signal for the interrupted instruction, like the kernel's force_sig.

use softswap_sys::signals::{self, Context, never_blocked, siginfo_t};

fn is_ignored(signal: i32) -> bool {
    signals::action_of(signal).is_ok_and(|action| action.handler == libc::SIG_IGN)
}

/// The signal arrives when the handler returns. If it is blocked or ignored, it kills the process.
pub(crate) fn force_signal(signal: i32, info: &siginfo_t, context: Context<'_>) {
    let mut mask = context.mask();
    if mask & signals::bit(signal) != 0 || is_ignored(signal) {
        mask &= !signals::bit(signal);
        signals::set_default(signal);
    }
    if signals::raise_with(signal, info).is_err() {
        std::process::abort();
    }
    context.set_mask(mask & !never_blocked());
}
