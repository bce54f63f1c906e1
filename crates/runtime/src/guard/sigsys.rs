//! SIGSYS: a system call received a pointer to managed memory, or an object has made a call by its
//! own system-call instruction ([`crate::memory::inline_calls`]).
//!
//! The guard pins the memory and issues the call again from an instruction that the filter allows.
//! A signal of the program interrupts the call; its handler starts after the guard returns, from
//! the trapped call's context.
//!
//! The program's own filter judges the call that the guard issues again. If it traps that call, the
//! program's handler receives the original call after the guard returns.

use super::pinned_call::pinned_call;
use super::transfers::{dispatch, interposed};
use super::{credentials, kernel_async_io, signal_calls};
use crate::base::errno::refused;
use crate::base::guarded_call::{self, closed};
use crate::base::instance;
use crate::base::issue_call::{Arguments, issue};
use crate::memory::mappings::memory_calls;
use crate::process::spawn::exec_call;
use crate::process::thread_exit;
use crate::signals::deliver::{deliver, deliver_deferred};
use softswap_engine::api::engine::Engine;
use softswap_engine::base::stats::Counter;
use softswap_sys::raw;
use softswap_sys::seccomp::BY_CALLER;
use softswap_sys::signals::{self, Action, Context, SIGSYS, TrappedCall, siginfo_t};
use softswap_sys::threads;
use softswap_sys::waiting_call::RESTART;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) fn install() -> io::Result<Action> {
    // `guarded_call::issue_waiting` unblocks the program's signals in calls that wait.
    signals::install(SIGSYS, on_sigsys, closed(), libc::SA_NODEFER)
}

/// Returns true if a filter inherited through exec covers the window: a second one would only slow
/// down calls. Fails if the inherited filter also traps calls from the gate.
pub(crate) fn is_inherited(engine: &Engine) -> Result<bool, String> {
    PROBED.store(false, Ordering::Relaxed);
    // This call does not use the gate, so a filter traps it. Otherwise it fails: no path is there.
    // SAFETY: access(2) only reads the string, if it is readable.
    unsafe { raw::syscall_through_guard(libc::SYS_access, [engine.window().0, 0, 0, 0]) };
    if !PROBED.swap(false, Ordering::Relaxed) {
        return Ok(false);
    }
    PROBING.store(true, Ordering::Relaxed);
    issue(libc::SYS_access, [engine.window().0, 0, 0, 0, 0, 0]);
    PROBING.store(false, Ordering::Relaxed);
    if PROBED.load(Ordering::Relaxed) {
        return Err(
            "this program inherited the seccomp filter of a softswap process, but not its \
             environment variables; start it with the SOFTSWAP_* variables of its parent"
                .into(),
        );
    }
    Ok(true)
}

/// Returns true if an inherited filter traps calls with pointers to `address`.
pub(crate) fn is_trapped(address: usize) -> bool {
    // SAFETY: the call takes no pointers and changes nothing.
    let mode =
        unsafe { raw::syscall(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) };
    if mode == 0 {
        return false;
    }
    // A blocked SIGSYS would kill the process, so assume that the filter traps.
    if signals::current_mask() & signals::bit(SIGSYS) != 0 {
        return true;
    }
    PROBING.store(true, Ordering::Relaxed);
    PROBED.store(false, Ordering::Relaxed);
    let before = install();
    // SAFETY: access(2) only reads the string, if it is readable.
    unsafe { raw::syscall_through_guard(libc::SYS_access, [address, 0, 0, 0]) };
    if let Ok(before) = before {
        // SAFETY: `before` was in force before this test.
        let _ = unsafe { signals::change_action(SIGSYS, Some(&before)) };
    }
    PROBING.store(false, Ordering::Relaxed);
    PROBED.swap(false, Ordering::Relaxed)
}

static PROBING: AtomicBool = AtomicBool::new(false);
/// True if a call has been trapped since the last test began.
static PROBED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_sigsys(_signal: i32, info: &mut siginfo_t, context: Context<'_>) {
    raw::preserving_errno(|| {
        if threads::is_interruption(info) {
            return;
        }
        if threads::is_request_to_wake(info) {
            instance::awake();
            return;
        }
        let TrappedCall { by_filter, number, caller, arguments } = TrappedCall::of(info, context);
        let is_from_gate = by_filter && raw::is_in_gate(caller);
        let is_early = by_filter && !instance::is_loaded();
        if (is_from_gate || is_early) && PROBING.load(Ordering::Relaxed) {
            PROBED.store(true, Ordering::Relaxed);
            return;
        }
        if is_from_gate && guarded_call::is_answering(number) {
            // The program's filter has trapped the guard's own call: note it for the outer handler.
            guarded_call::note_trapped(info.si_errno);
            // SAFETY: a filter has trapped the call.
            unsafe { TrappedCall::set_result(context, refused(libc::ENOSYS)) };
            return;
        }
        let is_caught = by_filter && !raw::is_in_gate(caller);
        if is_caught
            && instance::engine().is_none()
            && arguments.iter().any(|argument| instance::is_in_window(*argument))
        {
            instance::await_waking();
        }
        // Without an engine (waking failed) no page is absent.
        let concerns_guard = |argument: &usize| match instance::engine() {
            Some(engine) => engine.contains(*argument),
            None => instance::is_in_window(*argument),
        };
        let is_by_caller = is_caught && info.si_errno == i32::from(BY_CALLER);
        if !is_by_caller && (!is_caught || !arguments.iter().any(concerns_guard)) {
            // The program's own filter has trapped the call, or a process has sent the signal.
            deliver(SIGSYS, info, context);
            return;
        }
        let outer = guarded_call::begin(number, context);
        let answer_for =
            || memory_calls::answer_for(number).or_else(|| interposed::copy_handler(number));
        let result = match is_by_caller.then(answer_for).flatten() {
            Some(answer) => answer(arguments),
            None => handle_trapped(number, arguments, context),
        };
        let trapped = guarded_call::end(&outer);
        match (trapped, result) {
            (Some(filter_data), _) => {
                info.si_errno = filter_data;
                deliver(SIGSYS, info, context);
            }
            // SAFETY: a filter has trapped this call. The context of a call that was not issued is
            // unchanged.
            (None, RESTART) => unsafe { TrappedCall::restart_syscall(context, number) },
            // SAFETY: as above.
            (None, result) => unsafe { TrappedCall::set_result(context, result) },
        }
        deliver_deferred(context);
    });
}

fn handle_trapped(number: i64, arguments: Arguments, context: Context<'_>) -> isize {
    let Some(engine) = instance::engine() else {
        if interposed::answer_for(number).is_some() {
            interposed::note_asleep(number, arguments);
        }
        let answer = signal_calls::answer_trapped(number, arguments, context);
        return answer.unwrap_or_else(|| guarded_call::issue_waiting(number, arguments));
    };
    PROBED.store(true, Ordering::Relaxed);
    engine.stats().add(Counter::GuardedCalls, 1);
    thread_exit::note_call(engine);
    let result = memory_calls::handle(engine, number, arguments)
        .or_else(|| kernel_async_io::refusal(number))
        .or_else(|| signal_calls::answer_trapped(number, arguments, context))
        .or_else(|| dispatch::transfer(engine, number, arguments))
        .or_else(|| Some(credentials::answer_for_trapped(number)?(arguments)));
    if let Some(result) = result {
        return result;
    }
    match number {
        libc::SYS_execve | libc::SYS_execveat => exec_call::answer_exec(number, arguments),
        _ => pinned_call(engine, number, arguments),
    }
}
