//! Delivers the engine's signals to the program if they do not concern the engine.

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
/// Called in a handler, with its `info` and `context`.
pub(crate) unsafe fn deliver(signal: i32, info: *mut siginfo_t, context: *mut c_void) {
    if let Some(engine) = instance::engine() {
        engine.stats().add(Counter::SignalsPassedOn, 1);
    }
    // SAFETY: the details passed to the handler.
    let details = unsafe { &*info };
    if signals::has_lost_details(details) && pending::is_engines() {
        // The signal was probably sent to interrupt a call of an engine thread.
        return;
    }
    // SAFETY: the context passed to the handler.
    let pointer = unsafe { signals::interrupted_stack(context) };
    let is_engines_code = signal_stack::contains(pointer);
    if is_poke(details) {
        let takes = waiting::takes(signal);
        if takes && is_engines_code {
            // SAFETY: the handler's own context.
            unsafe { end_call(pointer, context) };
        } else if takes {
            // SAFETY: the handler's own context.
            unsafe { deliver_held(context) };
        }
        return;
    }
    let was_sent = details.si_code <= 0;
    let is_blocked = virtual_mask::get() & signals::bit(signal) != 0;
    if was_sent && (is_blocked || is_engines_code || pending::takes_no_signals()) {
        pending::hold(signal, details);
        waiting::recheck_held_signals();
        if is_engines_code && !is_blocked {
            // SAFETY: the handler's own context.
            unsafe { end_call(pointer, context) };
        }
        return;
    }
    if let Some(call) = guarded_call::context_above(pointer) {
        // The guard could not access the program's memory. The call is not issued; the thread makes
        // it again after the signal's handler.
        // SAFETY: the context of the call that this thread handles. The next pin releases the pins
        // of its guard, because it finds their frames gone.
        unsafe {
            TrappedCall::make_again(call, guarded_call::number());
            guarded_call::drop_all();
            act_on_signal(signal, info, call);
            resume(call);
        }
    }
    // SAFETY: the handler's own details and context.
    unsafe { act_on_signal(signal, info, context) };
}

/// Ends the call in which the guard waits: a signal is held for this thread, which was interrupted
/// in the engine's code at `pointer`. The guard then delivers the signal.
///
/// # Safety
/// `context` is the context of the running handler.
unsafe fn end_call(pointer: usize, context: *mut c_void) {
    if guarded_call::context_above(pointer).is_some() {
        // SAFETY: the handler's own context.
        unsafe { waiting_call::interrupt(context) };
    }
}

/// Acts on a signal for the thread with `context`: starts the program's handler, or kills the
/// process.
///
/// # Safety
/// The details are valid; `context` is the context of a running handler.
unsafe fn act_on_signal(signal: i32, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the details are valid.
    let was_sent = unsafe { (*info).si_code } <= 0;
    let is_blocked = virtual_mask::get() & signals::bit(signal) != 0;
    let action = of_engines(signal).take_action();
    match action.handler {
        // As in the kernel, a synchronous signal that is ignored or blocked kills; one that was
        // sent is dropped.
        libc::SIG_IGN if was_sent => return,
        libc::SIG_IGN | libc::SIG_DFL => {}
        _ if is_blocked => {}
        _ if signal_stack::contains(context as usize) => {
            // The handler's stack may be swapped out.
            signals::set_mask(closed());
            // SAFETY: the kernel's context, on the engine's stack.
            unsafe { handler_frame::push(signal, &action, info, context, None) };
            return;
        }
        _ => {
            // SAFETY: the details and the context that the kernel passed to the running handler.
            unsafe { call_handler(signal, &action, info, context) };
            return;
        }
    }
    signals::set_default(signal);
    // SAFETY: the details and the context that the kernel passed to the running handler.
    unsafe { force_signal(signal, info, context) };
}

/// Starts the handlers of held signals that this thread does not block, when the running handler
/// returns to the program.
///
/// # Safety
/// `context` is the one that the kernel restores next, on the engine's stack.
pub(crate) unsafe fn deliver_held(context: *mut c_void) {
    for signal in kinds(engine_signals()) {
        while virtual_mask::get() & signals::bit(signal) == 0
            && !pending::takes_no_signals()
            && let Some(mut info) = pending::take(signal)
        {
            // SAFETY: details that a handler received for this signal, and the context.
            unsafe { act_on_signal(signal, &raw mut info, context) };
        }
    }
}

/// Delivers the signals that arrived while the guard handled a call.
///
/// # Safety
/// `context` is the context of the SIGSYS handler, on the engine's stack.
pub(crate) unsafe fn deliver_deferred(context: *mut c_void) {
    // SAFETY: the kernel's context.
    if signal_stack::contains(unsafe { signals::interrupted_stack(context) }) {
        return;
    }
    if let Some(deferred) = guarded_call::take_deferred() {
        let guarded_call::Deferred { signal, action, info, temporary, .. } = &deferred;
        // SAFETY: the kernel's context, and the kernel's details of the deferred signal.
        unsafe { handler_frame::push(*signal, action, &raw const *info, context, *temporary) };
    }
    // SAFETY: the kernel's context.
    unsafe { deliver_held(context) };
}

/// Calls the program's handler in a thread without a stack of the engine.
///
/// # Safety
/// Called in a handler, with its `info` and `context`.
unsafe fn call_handler(signal: i32, action: &Action, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the context that the kernel passed to the running handler.
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
    // SAFETY: the context that the kernel passed to the running handler, which alone uses it.
    let mask = unsafe { &mut *signals::interrupted_mask(context) };
    let wanted = *mask & engine_signals();
    *mask &= !engine_signals();
    virtual_mask::settle(wanted);
}
