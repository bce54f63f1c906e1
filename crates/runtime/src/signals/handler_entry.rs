//! The kernel-level handler for every signal that the program handles.
//!
//! It runs on the engine's stack with all signals blocked. Its return starts the program's handler
//! ([`handler_frame`]). So the engine's stack is free while that handler runs, even if it never
//! returns.

use super::program_actions::PROGRAM_ACTIONS;
use super::{handler_frame, temporary_mask};
use crate::base::guarded_call::{self, Deferred, closed};
use crate::base::signal_stack;
use softswap_sys::signals::{self, siginfo_t};
use softswap_sys::{raw, waiting_call};
use std::ffi::c_void;

/// Handles the arrival of such a signal. Returns 0 if sigreturn with the kernel's frame starts the
/// handler. Otherwise this thread has no stack of the engine, the frame is already on the right
/// stack, and the result is the handler's address.
unsafe extern "C" fn enter(signal: i32, info: *mut siginfo_t, context: *mut c_void) -> usize {
    // SAFETY: the kernel passed these arguments to the entry.
    raw::preserving_errno(|| unsafe { enter_with_errno(signal, info, context) })
}

unsafe fn enter_with_errno(signal: i32, info: *mut siginfo_t, context: *mut c_void) -> usize {
    let action = PROGRAM_ACTIONS[signal as usize].get();
    // SAFETY: the kernel passed these arguments to the entry, which alone uses them.
    unsafe {
        let temporary = temporary_mask::take(context);
        if !signal_stack::contains(context as usize) {
            signals::set_mask(handler_frame::begin(context, signal, &action, temporary));
            return action.handler;
        }
        if signal_stack::contains(signals::interrupted_stack(context)) {
            // The interrupted code is the guard. There, signals are only unblocked while a call
            // waits in the kernel.
            guarded_call::defer(Deferred { signal, action, info: *info, temporary });
            waiting_call::interrupt(context);
            *signals::interrupted_mask(context) = closed();
        } else {
            handler_frame::push(signal, &action, info, context, temporary);
        }
    }
    0
}

// At entry the stack pointer is at the kernel's frame: the return address, the context of 304
// bytes, the details, which start with the signal's number.
core::arch::global_asm!(
    ".hidden softswap_signal_entry",
    ".globl softswap_signal_entry",
    ".type softswap_signal_entry, @function",
    "softswap_signal_entry:",
    ".cfi_startproc",
    "sub rsp, 8",
    ".cfi_def_cfa_offset 16",
    "call {enter}",
    "add rsp, 8",
    ".cfi_def_cfa_offset 8",
    "test rax, rax",
    "jnz 2f",
    "add rsp, 8",
    ".cfi_def_cfa_offset 0",
    "mov eax, {sigreturn}",
    "syscall",
    "2:",
    ".cfi_def_cfa_offset 8",
    "lea rdx, [rsp + 8]",
    "lea rsi, [rsp + 312]",
    "mov edi, [rsi]",
    "jmp rax",
    ".cfi_endproc",
    ".size softswap_signal_entry, . - softswap_signal_entry",
    enter = sym enter,
    sigreturn = const libc::SYS_rt_sigreturn,
);

unsafe extern "C" {
    fn softswap_signal_entry();
}

pub(super) fn address() -> usize {
    softswap_signal_entry as *const () as usize
}
