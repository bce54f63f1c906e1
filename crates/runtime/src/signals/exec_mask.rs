//! The program's signal mask and actions, which a started program inherits.

use super::program_actions::of_engines;
use super::sets::{engine_signals, kinds, set_of};
use super::virtual_mask;
use crate::base::{guarded_call, instance};
use libc::sigset_t;
use softswap_sys::signals::{self, Action, Mask};

/// Calls `exec` with the program's blocked and ignored signals. Returns only if exec fails.
///
/// Meanwhile no page can be faulted in; `exec` touches none, and the stack is resident. Only a
/// forked process, which usually has one thread, changes the shared ignored signals. In the guard,
/// `exec` receives the mask to install for the call.
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
    // The new program inherits held signals from the kernel; a `vfork` child has none.
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

pub(crate) fn mask_to_inherit() -> sigset_t {
    set_of(signals::current_mask() | virtual_mask::get())
}
