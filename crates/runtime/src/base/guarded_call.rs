//! The caught system call that this thread is in, if it is in one.
//!
//! All signals are blocked while the guard answers a call, except while the kernel waits in it
//! ([`issue_waiting`]). As in a kernel no handler of the program's runs on top of the guard: a
//! signal that arrives meanwhile ends the call, and its handler starts when the guard is done,
//! from the context of the trapped call.

use super::issue_call::{Arguments, issue};
use super::signal_stack;
use softswap_sys::signals::{self, Action, Mask, bit, never_blocked, siginfo_t};
use softswap_sys::waiting_call::waiting_call;
use std::cell::Cell;
use std::ffi::c_void;

const NONE: i64 = -1;

/// The mask in force in the guard.
#[inline]
pub(crate) fn closed() -> Mask {
    !never_blocked()
}

/// A signal whose handler starts when the guard is done.
#[derive(Clone, Copy)]
pub(crate) struct Deferred {
    pub(crate) signal: i32,
    pub(crate) action: Action,
    pub(crate) info: siginfo_t,
    /// The mask that the call had put in force while it waited.
    pub(crate) temporary: Option<Mask>,
}

thread_local! {
    /// The call that this thread's guard answers, innermost; -1 for none.
    static ANSWERING: Cell<i64> = const { Cell::new(NONE) };
    /// What a filter of the program's own said as it trapped that call.
    static TRAPPED: Cell<Option<i32>> = const { Cell::new(None) };
    /// The innermost caught call: its context, which its frames are below.
    static CONTEXT: Cell<usize> = const { Cell::new(0) };
    static DEFERRED: Cell<Option<Deferred>> = const { Cell::new(None) };
    /// The innermost caught call has changed nothing yet.
    static IS_UNTOUCHED: Cell<bool> = const { Cell::new(false) };
    /// Releases the resources of the innermost caught call.
    static RELEASE: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// What the call around a caught one is: [`end`] puts it back.
pub(crate) struct Outer {
    number: i64,
    trapped: Option<i32>,
    context: usize,
}

/// A call was caught.
#[inline]
pub(crate) fn begin(number: i64, context: *const c_void) -> Outer {
    let (number, trapped) = (ANSWERING.replace(number), TRAPPED.take());
    IS_UNTOUCHED.set(true);
    Outer { number, trapped, context: CONTEXT.replace(context as usize) }
}

/// The call ends: what a filter of the program's own said, if it trapped it.
#[inline]
pub(crate) fn end(outer: &Outer) -> Option<i32> {
    CONTEXT.set(outer.context);
    ANSWERING.set(outer.number);
    IS_UNTOUCHED.set(false);
    TRAPPED.replace(outer.trapped)
}

/// Returns true if the innermost caught call has this number.
#[inline]
pub(crate) fn is_answering(number: i64) -> bool {
    ANSWERING.get() == number
}

/// The number of the innermost caught call.
pub(crate) fn number() -> i64 {
    ANSWERING.get()
}

/// A filter of the program's own has trapped the innermost call, with this value.
#[inline]
pub(crate) fn note_trapped(said: i32) {
    TRAPPED.set(Some(said));
}

/// The context of the innermost caught call, if a frame at `address` is the guard's.
pub(crate) fn context_above(address: usize) -> Option<*mut c_void> {
    let context = CONTEXT.get();
    (context > address && signal_stack::contains(address)).then_some(context as *mut c_void)
}

/// The context of the caught call that this code answers, if it answers one.
pub(crate) fn answered_context() -> Option<*mut c_void> {
    let local = 0_u8;
    context_above(&raw const local as usize)
}

/// The mask of that call.
pub(crate) fn open_mask() -> Option<Mask> {
    // SAFETY: the context of a call that is being answered, which outlives its guard.
    answered_context().map(|context| unsafe { *signals::interrupted_mask(context) })
}

/// From now on the innermost caught call cannot begin anew.
pub(crate) fn note_effect() {
    IS_UNTOUCHED.set(false);
}

/// As [`answered_context`], if the call may begin anew.
pub(crate) fn untouched_context() -> Option<*mut c_void> {
    answered_context().filter(|_| IS_UNTOUCHED.get())
}

/// Has `release` called if the caught call is left before this is called again.
pub(crate) fn release_by(release: Option<fn()>) {
    RELEASE.set(release);
}

/// Returns true if a signal is pending that ends the process: as in Linux, such a signal ends a
/// long transfer from or to a file.
pub(crate) fn is_killed() -> bool {
    const HARMLESS: Mask = bit(libc::SIGCHLD)
        | bit(libc::SIGCONT)
        | bit(libc::SIGURG)
        | bit(libc::SIGWINCH)
        | bit(libc::SIGTSTP)
        | bit(libc::SIGTTIN)
        | bit(libc::SIGTTOU);
    let blocked = open_mask().unwrap_or_else(signals::current_mask);
    let pending = signals::pending() & !blocked & !HARMLESS;
    let kills = |signal: i32| {
        signals::action_of(signal).is_ok_and(|action| action.handler == libc::SIG_DFL)
    };
    pending != 0 && signals::SIGNALS.filter(|signal| pending & bit(*signal) != 0).any(kills)
}

/// Issues a call of the program's that may wait; in the guard, with the program's signals open.
/// Returns [`softswap_sys::waiting_call::MADE_AGAIN`] if a signal came first.
pub(crate) fn issue_waiting(number: i64, arguments: Arguments) -> isize {
    note_effect();
    match open_mask() {
        // SAFETY: as `issue`. Handlers that run meanwhile are `handler_entry`'s and `deliver`'s.
        Some(open) => unsafe { waiting_call(number, arguments, open, closed(), true) },
        None => issue(number, arguments),
    }
}

/// Keeps a signal until the guard is done. There is one at most: afterwards all are blocked.
pub(crate) fn defer(deferred: Deferred) {
    DEFERRED.set(Some(deferred));
}

/// Takes the signal that was kept.
pub(crate) fn take_deferred() -> Option<Deferred> {
    DEFERRED.take()
}

/// This thread leaves the call that it was answering.
#[inline]
pub(crate) fn leave() {
    CONTEXT.set(0);
    ANSWERING.set(NONE);
    TRAPPED.set(None);
    if let Some(release) = RELEASE.take() {
        release();
    }
}
