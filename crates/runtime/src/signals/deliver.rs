//! Delivers those of the engine's signals to the program that are not for the engine.

use super::force_signal::force_signal;
use super::handler_frame;
use super::pending::is_poke;
use super::program_actions::of_engines;
use super::sets::{engine_signals, kinds};
use super::{pending, virtual_mask, waiting};
use crate::base::guarded_call::{self, closed};
use crate::base::{instance, signal_stack};
use softswap_engine::base::stats::Counter;
use softswap_sys::signal_frame::resume;
use softswap_sys::signals::{self, Action, TrappedCall, siginfo_t};
use softswap_sys::waiting_call;
use std::ffi::c_void;

/// Delivers one of the engine's signals to the program, as the kernel would without the engine.
///
/// # Safety
/// `info` and `context` are those of the running handler.
pub(crate) unsafe fn deliver(signal: i32, info: *mut siginfo_t, context: *mut c_void) {
    if let Some(engine) = instance::engine() {
        engine.stats().add(Counter::SignalsPassedOn, 1);
    }
    // SAFETY: `info` is that of the running handler.
    let siginfo = unsafe { &*info };
    if signals::has_lost_details(siginfo) && pending::is_engines() {
        // The signal was probably sent to interrupt a call of an engine thread.
        return;
    }
    // SAFETY: `context` is that of the running handler.
    let pointer = unsafe { signals::interrupted_stack(context) };
    let is_in_engine = signal_stack::contains(pointer);
    if is_poke(siginfo) {
        let takes = waiting::handle_poke(signal);
        if takes && is_in_engine {
            // SAFETY: `context` is that of the running handler.
            unsafe { end_call(pointer, context) };
        } else if takes {
            // SAFETY: `context` is that of the running handler.
            unsafe { deliver_held(context) };
        }
        return;
    }
    let was_sent = siginfo.si_code <= 0;
    let is_blocked = virtual_mask::get() & signals::bit(signal) != 0;
    if was_sent && (is_blocked || is_in_engine || pending::takes_no_signals()) {
        pending::hold(signal, siginfo);
        waiting::recheck_held_signals();
        if is_in_engine && !is_blocked {
            // SAFETY: `context` is that of the running handler.
            unsafe { end_call(pointer, context) };
        }
        return;
    }
    if let Some(call) = guarded_call::context_above(pointer) {
        // The guard has failed to access the program's memory, before it issued the call. The
        // thread makes the call again after the program's handler.
        // SAFETY: `call` is the context of the call that this thread handles. The next pin releases
        // the pins of the guard, whose frames no longer exist.
        unsafe {
            TrappedCall::make_again(call, guarded_call::number());
            guarded_call::drop_all();
            act_on_signal(signal, info, call);
            resume(call);
        }
    }
    // SAFETY: `info` and `context` are those of the running handler.
    unsafe { act_on_signal(signal, info, context) };
}

/// Interrupts the call in which the guard of this thread waits, because a signal is held for the
/// thread. The guard then delivers the signal. `pointer` is the stack pointer of the interrupted
/// code of the engine.
///
/// # Safety
/// `context` is the context of the running handler.
unsafe fn end_call(pointer: usize, context: *mut c_void) {
    if guarded_call::context_above(pointer).is_some() {
        // SAFETY: `context` is that of the running handler.
        unsafe { waiting_call::interrupt(context) };
    }
}

/// Acts on a signal for the thread with `context`: starts the program's handler, ignores the
/// signal, or kills the process.
///
/// # Safety
/// `info` is valid; `context` is the context of a running handler.
unsafe fn act_on_signal(signal: i32, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: `info` is valid.
    let was_sent = unsafe { (*info).si_code } <= 0;
    let is_blocked = virtual_mask::get() & signals::bit(signal) != 0;
    let action = of_engines(signal).take_action();
    match action.handler {
        // As in the kernel, a sent signal that is ignored is dropped. A synchronous one that is
        // ignored or blocked kills the process.
        libc::SIG_IGN if was_sent => return,
        libc::SIG_IGN | libc::SIG_DFL => {}
        _ if is_blocked => {}
        _ if signal_stack::contains(context as usize) => {
            // The handler's stack may be swapped out.
            signals::set_mask(closed());
            // SAFETY: `context` is that of the running handler, on the engine's stack.
            unsafe { handler_frame::push(signal, &action, info, context, None) };
            return;
        }
        _ => {
            // SAFETY: `info` and `context` are valid for the running handler.
            unsafe { call_handler(signal, &action, info, context) };
            return;
        }
    }
    signals::set_default(signal);
    // SAFETY: `info` and `context` are valid for the running handler.
    unsafe { force_signal(signal, info, context) };
}

/// Makes the return of the running handler start the program's handlers of held signals that this
/// thread does not block.
///
/// # Safety
/// `context` is the one that the kernel restores next; it is on the engine's stack.
pub(crate) unsafe fn deliver_held(context: *mut c_void) {
    for signal in kinds(engine_signals()) {
        while virtual_mask::get() & signals::bit(signal) == 0
            && !pending::takes_no_signals()
            && let Some(mut info) = pending::take(signal)
        {
            // SAFETY: a handler received this `info`; `context` is that of the running handler.
            unsafe { act_on_signal(signal, &raw mut info, context) };
        }
    }
}

/// Delivers the signals that arrived while the guard handled a call.
///
/// # Safety
/// `context` is the context of the SIGSYS handler, on the engine's stack.
pub(crate) unsafe fn deliver_deferred(context: *mut c_void) {
    // SAFETY: `context` is that of the running handler.
    if signal_stack::contains(unsafe { signals::interrupted_stack(context) }) {
        return;
    }
    if let Some(deferred) = guarded_call::take_deferred() {
        let guarded_call::Deferred { signal, action, info, temporary, .. } = &deferred;
        // SAFETY: the kernel wrote `context`, and `info` of the deferred signal.
        unsafe { handler_frame::push(*signal, action, &raw const *info, context, *temporary) };
    }
    // SAFETY: `context` is that of the running handler.
    unsafe { deliver_held(context) };
}

/// Calls the program's handler directly, in a thread without a stack of the engine.
///
/// # Safety
/// `info` and `context` are those of the running handler.
unsafe fn call_handler(signal: i32, action: &Action, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: `context` is that of the running handler.
    signals::set_mask(unsafe { handler_frame::begin(context, signal, action, None) });
    if action.flags & libc::SA_SIGINFO as u64 != 0 {
        // SAFETY: the program installed a three-argument handler.
        let handler: signals::Handler = unsafe { std::mem::transmute(action.handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: the program installed a one-argument handler.
        let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(action.handler) };
        handler(signal);
    }
    // SAFETY: `context` is that of the running handler, and nothing else uses it.
    let mask = unsafe { &mut *signals::interrupted_mask(context) };
    let wanted = *mask & engine_signals();
    *mask &= !engine_signals();
    virtual_mask::set_and_deliver(wanted);
}
