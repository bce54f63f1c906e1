//! Starts handlers of the program, with their frames on the stack that Linux would use.

use super::alternate_stack;
use super::force_signal::force_signal;
use super::sets::engine_signals;
use super::virtual_mask;
use crate::base::{instance, uaccess};
use softswap_sys::signal_frame::{Frame, start_handler};
use softswap_sys::signals::{self, Action, Mask, SIGSEGV, siginfo_t};
use std::ffi::c_void;

unsafe extern "C" {
    /// The code that the program's handlers return to (`handler_return`).
    fn softswap_handler_return();
}

/// Returns the address that the program's handlers return to.
pub(super) fn return_address() -> usize {
    softswap_handler_return as *const () as usize
}

/// Prepares the call of a handler: writes the program's emulated mask into the context, and returns
/// the handler's mask in the kernel's form.
///
/// # Safety
/// `context` is the running handler's.
pub(super) unsafe fn begin(
    context: *mut c_void,
    signal: i32,
    action: &Action,
    temporary: Option<Mask>,
) -> Mask {
    let mut named = action.mask;
    if action.flags & libc::SA_NODEFER as u64 == 0 {
        named |= signals::bit(signal);
    }
    let blocked = virtual_mask::get();
    // SAFETY: the context that the kernel passed to the running handler, which alone uses it.
    let mask = unsafe { &mut *signals::interrupted_mask(context) };
    let in_force = temporary.unwrap_or(*mask);
    *mask |= blocked;
    virtual_mask::set(blocked | named & engine_signals());
    (in_force | named) & !engine_signals()
}

/// Makes the return of the running handler start one of the program, as if the kernel had
/// interrupted the thread for it. `temporary` is the mask in force if it is not the context's.
/// SIGBUS must not be blocked: the stack may be swapped out.
///
/// # Safety
/// `context` is the context of the running handler, on the engine's stack, for a thread that is on
/// a stack of the program. The details are valid.
pub(super) unsafe fn push(
    signal: i32,
    action: &Action,
    info: *const siginfo_t,
    context: *mut c_void,
    temporary: Option<Mask>,
) {
    // SAFETY: the kernel wrote the context.
    let pointer = unsafe { signals::interrupted_stack(context) };
    let place = alternate_stack::place(pointer, action.flags & libc::SA_ONSTACK as u64 != 0);
    // SAFETY: the same context.
    let frame = unsafe { Frame::below(place.top, context) };
    let range = frame.range();
    let is_within = place.within.is_none_or(|within| within.start < range.start);
    if !is_within || !can_write(range.start, range.len()) {
        // SAFETY: the same context.
        unsafe { refuse(signal, context) };
        return;
    }
    // SAFETY: the frame is writable and the stack is free there; details and context are the
    // kernel's.
    unsafe {
        let mask = begin(context, signal, action, temporary);
        let saved = *signals::interrupted_mask(context);
        frame.write(context, info, saved, alternate_stack::save(), return_address());
        start_handler(context, &frame, signal, action.handler, mask);
    }
}

/// Returns true if a part of a stack can be written, and faults it in.
fn can_write(address: usize, len: usize) -> bool {
    if address.checked_add(len).is_none_or(|end| end > uaccess::TASK_SIZE) {
        return false;
    }
    loop {
        let could_wake = instance::may_wake();
        if uaccess::is_writable(address, len) {
            return true;
        }
        if !could_wake || !instance::is_in_window(address) {
            return false;
        }
        // The kernel cannot write there while the window is being registered.
        instance::await_waking();
        if instance::may_wake() {
            return uaccess::is_writable(address, len);
        }
    }
}

/// Raises SIGSEGV because the stack has no space for a handler's frame, as the kernel does. Kills
/// the process if the signal itself was SIGSEGV.
///
/// # Safety
/// `context` is the context of the running handler.
unsafe fn refuse(signal: i32, context: *mut c_void) {
    if signal == SIGSEGV {
        signals::set_default(SIGSEGV);
    }
    let info = signals::kernel_info(SIGSEGV);
    // SAFETY: valid details, and the handler's context.
    unsafe { force_signal(SIGSEGV, &raw const info, context) };
}
