//! Starts handlers of the program, with their frames on the stack that Linux would use.

use super::alternate_stack;
use super::force_signal::force_signal;
use super::sets::engine_signals;
use super::virtual_mask;
use crate::base::{instance, uaccess};
use softswap_sys::signal_frame::{Frame, start_handler};
use softswap_sys::signals::{self, Action, Context, Mask, SIGSEGV, siginfo_t};

unsafe extern "C" {
    fn softswap_handler_return();
}

pub(super) fn return_address() -> usize {
    softswap_handler_return as *const () as usize
}

/// Adds the emulated mask to the context's. Returns the handler's mask for the kernel.
pub(super) fn begin(
    context: Context<'_>,
    signal: i32,
    action: &Action,
    temporary: Option<Mask>,
) -> Mask {
    let mut added = action.mask;
    if action.flags & libc::SA_NODEFER as u64 == 0 {
        added |= signals::bit(signal);
    }
    let blocked = virtual_mask::get();
    let in_force = temporary.unwrap_or(context.mask());
    context.set_mask(context.mask() | blocked);
    virtual_mask::set(blocked | added & engine_signals());
    (in_force | added) & !engine_signals()
}

/// Makes the return of the running handler start a handler of the program. `temporary` is the mask
/// in force if it is not the context's. SIGBUS must not be blocked: the stack may be swapped out.
///
/// # Safety
/// `context` is the running handler's, on the engine's stack; it interrupted code on the program's.
pub(super) unsafe fn push(
    signal: i32,
    action: &Action,
    info: &siginfo_t,
    context: Context<'_>,
    temporary: Option<Mask>,
) {
    let wants_alternate = action.flags & libc::SA_ONSTACK as u64 != 0;
    let space = alternate_stack::frame_space(context.stack(), wants_alternate);
    let frame = Frame::below(space.top, context);
    let range = frame.range();
    let is_within = space.within.is_none_or(|within| within.start < range.start);
    if !is_within || !can_write(range.start, range.len()) {
        return raise_stack_fault(signal, context);
    }
    let mask = begin(context, signal, action, temporary);
    // SAFETY: the frame is writable, on a free part of the stack; the handler is the program's.
    unsafe {
        frame.write(context, info, alternate_stack::save(), return_address());
        start_handler(context, &frame, signal, action.handler, mask);
    }
}

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

/// Reports a stack without space as the kernel does. Kills the process if `signal` is SIGSEGV.
fn raise_stack_fault(signal: i32, context: Context<'_>) {
    if signal == SIGSEGV {
        signals::set_default(SIGSEGV);
    }
    force_signal(SIGSEGV, &signals::kernel_info(SIGSEGV), context);
}
