//! SIGBUS and SIGSYS to the program, where they are not the engine's own business.

use super::force_signal::force_signal;
use super::handler_entry as entry;
use super::pending::is_poke;
use super::program_actions::{ON_SIGBUS, ON_SIGSYS};
use super::sets::OURS;
use super::{alternate_stack, pending, virtual_mask, waiting};
use crate::base::instance;
use softswap_engine::base::stats::Counter;
use softswap_sys::signals::{self, Action, SIGBUS, siginfo_t};
use std::ffi::c_void;

/// Gives one of the engine's signals to the program, as if the engine were
/// not there.
///
/// # Safety
/// Called in a handler, with its `info` and `context`.
pub(crate) unsafe fn deliver(signal: i32, info: *mut siginfo_t, context: *mut c_void) {
    if let Some(engine) = instance::engine() {
        engine.stats().add(Counter::SignalsPassedOn, 1);
    }
    let remembered = if signal == SIGBUS { &ON_SIGBUS } else { &ON_SIGSYS };
    // SAFETY: the handler's own details.
    let details = unsafe { &*info };
    if signals::has_lost_details(details) && pending::is_engines() {
        // Sent to interrupt a call, in all likelihood.
        return;
    }
    if is_poke(details) {
        waiting::look(signal);
        return;
    }
    let was_sent = details.si_code <= 0;
    let is_blocked = virtual_mask::get() & signals::bit(signal) != 0;
    if was_sent && (is_blocked || pending::takes_nothing()) {
        pending::hold(signal, details);
        waiting::look_again();
        return;
    }
    let action = remembered.take_action();
    match action.handler {
        // The kernel kills for a synchronous signal that is ignored or blocked; one that
        // was sent is dropped.
        libc::SIG_IGN if was_sent => return,
        libc::SIG_IGN | libc::SIG_DFL => {}
        _ if is_blocked => {}
        _ => {
            // SAFETY: the details and the context that the kernel gave to the running handler.
            unsafe { call_handler(signal, &action, info, context) };
            return;
        }
    }
    signals::set_default(signal);
    // SAFETY: the details and the context that the kernel gave to the running handler.
    unsafe { force_signal(signal, info, context) };
}

/// Calls the program's handler, with the mask in force that it asked for.
///
/// # Safety
/// Called in a handler, with its `info` and `context`.
unsafe fn call_handler(signal: i32, action: &Action, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the context is this handler's; it comes before the mask.
    let mask = unsafe { *signals::interrupted_mask(context) };
    let mut named = action.mask;
    if action.flags & libc::SA_NODEFER as u64 == 0 {
        named |= signals::bit(signal);
    }
    // SAFETY: the context that the kernel gave to the running handler.
    unsafe {
        entry::begin(context, named);
        alternate_stack::begin(context, action.flags & libc::SA_ONSTACK as u64 != 0);
    }
    signals::set_mask((mask | named) & !OURS);
    if action.flags & libc::SA_SIGINFO as u64 != 0 {
        // SAFETY: the program installed a three-argument handler.
        let handler: signals::Handler = unsafe { std::mem::transmute(action.handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: the program installed a one-argument handler.
        let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(action.handler) };
        handler(signal);
    }
    // SAFETY: the context that the kernel gave to the running handler.
    unsafe { entry::end(context) };
}
