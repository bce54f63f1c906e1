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
use softswap_sys::signals::{self, Action, Context, TrappedCall, siginfo_t};
use softswap_sys::waiting_call;

pub(crate) fn deliver(signal: i32, info: &mut siginfo_t, context: Context<'_>) {
    if let Some(engine) = instance::engine() {
        engine.stats().add(Counter::SignalsPassedOn, 1);
    }
    if signals::has_lost_details(info) && pending::is_engines() {
        // The signal was probably sent to interrupt a call of an engine thread.
        return;
    }
    let is_in_engine = signal_stack::contains(context.stack());
    if is_poke(info) {
        let takes = waiting::handle_poke(signal);
        if takes && is_in_engine {
            end_call(context);
        } else if takes {
            deliver_held(context);
        }
        return;
    }
    let was_sent = info.si_code <= 0;
    let is_blocked = virtual_mask::get() & signals::bit(signal) != 0;
    if was_sent && (is_blocked || is_in_engine || pending::takes_no_signals()) {
        pending::hold(signal, info);
        waiting::recheck_held_signals();
        if is_in_engine && !is_blocked {
            end_call(context);
        }
        return;
    }
    if let Some(call) = guarded_call::context_above(context.stack()) {
        // The guard failed to access memory before its call, which is repeated after the handler.
        // SAFETY: `call` is this thread's call. The next pin releases the pins of lost frames.
        unsafe {
            TrappedCall::restart_syscall(call, guarded_call::number());
            guarded_call::drop_all();
            act_on_signal(signal, info, call);
            resume(call);
        }
    }
    act_on_signal(signal, info, context);
}

/// Interrupts the call in which this thread's guard waits; the guard then delivers the held signal.
fn end_call(context: Context<'_>) {
    if guarded_call::context_above(context.stack()).is_some() {
        // SAFETY: the guard unblocks signals only while such a call waits.
        unsafe { waiting_call::interrupt(context) };
    }
}

/// Starts the program's handler, ignores the signal, or kills the process.
fn act_on_signal(signal: i32, info: &mut siginfo_t, context: Context<'_>) {
    let was_sent = info.si_code <= 0;
    let is_blocked = virtual_mask::get() & signals::bit(signal) != 0;
    let action = of_engines(signal).take_action();
    match action.handler {
        // As in the kernel, only a sent signal is dropped if ignored; others kill the process.
        libc::SIG_IGN if was_sent => return,
        libc::SIG_IGN | libc::SIG_DFL => {}
        _ if is_blocked => {}
        _ if signal_stack::contains(context.as_ptr() as usize) => {
            // Unblock the engine's signals: the handler's stack may be swapped out.
            signals::set_mask(closed());
            // SAFETY: the context is on the engine's stack, and is one of the program's code.
            return unsafe { handler_frame::push(signal, &action, info, context, None) };
        }
        _ => return call_handler(signal, &action, info, context),
    }
    signals::set_default(signal);
    force_signal(signal, info, context);
}

/// Makes the return of the running handler start the program's handlers of held, unblocked signals.
/// `context` is the one that the kernel restores next; it is on the engine's stack.
pub(crate) fn deliver_held(context: Context<'_>) {
    for signal in kinds(engine_signals()) {
        while virtual_mask::get() & signals::bit(signal) == 0
            && !pending::takes_no_signals()
            && let Some(mut info) = pending::take(signal)
        {
            act_on_signal(signal, &mut info, context);
        }
    }
}

/// Delivers signals that arrived during the guarded call of `context`.
pub(crate) fn deliver_deferred(context: Context<'_>) {
    if signal_stack::contains(context.stack()) {
        return;
    }
    if let Some(deferred) = guarded_call::take_deferred() {
        let guarded_call::Deferred { signal, action, info, temporary, .. } = &deferred;
        // SAFETY: the context is on the engine's stack, and its code was found not to be.
        unsafe { handler_frame::push(*signal, action, info, context, *temporary) };
    }
    deliver_held(context);
}

/// Calls the program's handler directly, in a thread without a stack of the engine.
fn call_handler(signal: i32, action: &Action, info: &mut siginfo_t, context: Context<'_>) {
    signals::set_mask(handler_frame::begin(context, signal, action, None));
    if action.flags & libc::SA_SIGINFO as u64 != 0 {
        // SAFETY: the program installed a three-argument handler.
        let handler: signals::Handler = unsafe { std::mem::transmute(action.handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: the program installed a one-argument handler.
        let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(action.handler) };
        handler(signal);
    }
    let mask = context.mask();
    context.set_mask(mask & !engine_signals());
    virtual_mask::set_and_deliver(mask & engine_signals());
}
