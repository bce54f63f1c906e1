//! Signal mask and actions that a started program inherits: those that this program has set, not
//! the engine's.

use super::program_actions::of_engines;
use super::sets::{engine_signals, kinds, set_of};
use super::virtual_mask;
use crate::base::{guarded_call, instance};
use libc::sigset_t;
use softswap_sys::signals::{self, Action, Mask};

/// Makes the kernel block and ignore the signals that the program has blocked and ignored, so that
/// the new program inherits them, and calls `exec`. Returns only if exec fails.
///
/// Meanwhile no page can be faulted in; `exec` touches none, and the stack is resident. All threads
/// share the ignored signals, so they are only changed in a forked process, which usually has one
/// thread. In the guard, `exec` receives the mask to install for the call.
pub(crate) fn with_program_mask<R>(exec: impl FnOnce(Option<Mask>) -> R) -> R {
    let local = 0_u8;
    let open = guarded_call::open_mask();
    if !instance::emulates_signals() || instance::is_managed(&raw const local as usize) {
        return exec(open);
    }
    let blocked = virtual_mask::get();
    let is_forked = virtual_mask::is_forked();
    let ignored =
        || kinds(engine_signals()).filter(|signal| is_forked && of_engines(*signal).is_ignored());
    if blocked == 0 && ignored().next().is_none() {
        return exec(open);
    }
    let mask = signals::current_mask();
    signals::set_mask(mask | blocked);
    // Return the held signals to the kernel, which passes them on to the new program. The child of
    // a `vfork` does not inherit its parent's pending signals.
    if !virtual_mask::is_borrowing() {
        virtual_mask::resend_held(blocked);
    }
    let ignore = Action::new(libc::SIG_IGN, 0, 0);
    let mut before = [None; 3];
    for (before, signal) in before.iter_mut().zip(ignored()) {
        // SAFETY: no handler is installed.
        let action = unsafe { signals::change_action(signal, Some(&ignore)) };
        *before = action.ok().map(|action| (signal, action));
    }
    let result = exec(open.map(|open| open | blocked));
    for (signal, action) in before.into_iter().flatten() {
        // SAFETY: `action` is the engine's, which was in force before.
        let _ = unsafe { signals::change_action(signal, Some(&action)) };
    }
    signals::set_mask(mask);
    result
}

/// Returns the mask for a started program.
pub(crate) fn mask_to_inherit() -> sigset_t {
    set_of(signals::current_mask() | virtual_mask::get())
}
