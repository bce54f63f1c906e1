//! The trapped system call that this thread is handling, if any.
//!
//! All signals are blocked while the guard handles a call, except while the call waits in the
//! kernel ([`issue_waiting`]). A signal that arrives then interrupts the call. The program's
//! handler starts only after the guard returns, from the context of the trapped call.

use super::issue_call::{Arguments, issue};
use super::signal_stack;
use softswap_sys::signals::{self, Action, Context, Mask, bit, never_blocked, siginfo_t};
use softswap_sys::waiting_call::waiting_call;
use std::cell::Cell;

const NONE: i64 = -1;

#[inline]
pub(crate) fn closed() -> Mask {
    !never_blocked()
}

/// A signal whose handler starts after the guard returns.
#[derive(Clone, Copy)]
pub(crate) struct Deferred {
    pub(crate) signal: i32,
    pub(crate) action: Action,
    pub(crate) info: siginfo_t,
    /// The temporary mask of the call while it waited (as in `sigsuspend`).
    pub(crate) temporary: Option<Mask>,
}

thread_local! {
    /// Number of the innermost call that this thread's guard handles; -1 for none.
    static ANSWERING: Cell<i64> = const { Cell::new(NONE) };
    /// Value of the program's own filter (SECCOMP_RET_TRAP) for the innermost call.
    static TRAPPED: Cell<Option<i32>> = const { Cell::new(None) };
    /// Address of the innermost call's signal context, above the guard's frames; 0: none.
    static CONTEXT: Cell<usize> = const { Cell::new(0) };
    static DEFERRED: Cell<Option<Deferred>> = const { Cell::new(None) };
    /// True until the innermost call has had an effect.
    static IS_UNTOUCHED: Cell<bool> = const { Cell::new(false) };
    static RELEASE: Cell<Option<fn()>> = const { Cell::new(None) };
}

pub(crate) struct Outer {
    number: i64,
    trapped: Option<i32>,
    context: usize,
}

#[inline]
pub(crate) fn begin(number: i64, context: Context<'_>) -> Outer {
    let (number, trapped) = (ANSWERING.replace(number), TRAPPED.take());
    IS_UNTOUCHED.set(true);
    Outer { number, trapped, context: CONTEXT.replace(context.as_ptr() as usize) }
}

#[inline]
pub(crate) fn end(outer: &Outer) -> Option<i32> {
    CONTEXT.set(outer.context);
    ANSWERING.set(outer.number);
    IS_UNTOUCHED.set(false);
    TRAPPED.replace(outer.trapped)
}

#[inline]
pub(crate) fn is_answering(number: i64) -> bool {
    ANSWERING.get() == number
}

pub(crate) fn number() -> i64 {
    ANSWERING.get()
}

#[inline]
pub(crate) fn note_trapped(value: i32) {
    TRAPPED.set(Some(value));
}

/// Returns the context of the innermost call, if a frame at `address` belongs to the guard. The
/// context must not be used after the call has ended.
pub(crate) fn context_above(address: usize) -> Option<Context<'static>> {
    let context = CONTEXT.get();
    // SAFETY: the context of a call outlives the guard's handling of it, and so this frame.
    (context > address && signal_stack::contains(address))
        .then(|| unsafe { Context::of(context as *mut _) })
}

pub(crate) fn answered_context() -> Option<Context<'static>> {
    let local = 0_u8;
    context_above(&raw const local as usize)
}

pub(crate) fn open_mask() -> Option<Mask> {
    answered_context().map(Context::mask)
}

/// Afterwards the innermost call can no longer be restarted.
pub(crate) fn note_effect() {
    IS_UNTOUCHED.set(false);
}

pub(crate) fn untouched_context() -> Option<Context<'static>> {
    answered_context().filter(|_| IS_UNTOUCHED.get())
}

/// Sets the function to call if the handling of the trapped call ends without returning.
pub(crate) fn release_by(release: Option<fn()>) {
    RELEASE.set(release);
}

/// Returns true if a signal is pending that kills the process. As in Linux, such a signal
/// interrupts a long transfer from or to a file.
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

/// Issues a call of the program that may wait, from the guard, with the program's signal mask.
/// Returns [`softswap_sys::waiting_call::RESTART`] if a signal arrived first.
pub(crate) fn issue_waiting(number: i64, arguments: Arguments) -> isize {
    note_effect();
    match open_mask() {
        // SAFETY: the program makes this call, as in `issue`. Handlers that run meanwhile are those
        // of `handler_entry` and `deliver`.
        Some(open) => unsafe { waiting_call(number, arguments, open, closed(), true) },
        None => issue(number, arguments),
    }
}

/// Stores a signal until the guard returns. At most one: all signals are blocked afterwards.
pub(crate) fn defer(deferred: Deferred) {
    DEFERRED.set(Some(deferred));
}

pub(crate) fn take_deferred() -> Option<Deferred> {
    DEFERRED.take()
}

#[inline]
pub(crate) fn drop_all() {
    CONTEXT.set(0);
    ANSWERING.set(NONE);
    TRAPPED.set(None);
    if let Some(release) = RELEASE.take() {
        release();
    }
}
