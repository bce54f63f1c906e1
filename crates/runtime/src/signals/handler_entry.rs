//! The kernel-level handler for every signal that the program handles.
//!
//! It runs on the engine's stack with all signals blocked. Its return starts the program's handler
//! ([`handler_frame`]), so the engine's stack is free even if that handler never returns.

use super::program_actions::PROGRAM_ACTIONS;
use super::{handler_frame, temporary_mask};
use crate::base::guarded_call::{self, Deferred, closed};
use crate::base::signal_stack;
use softswap_sys::signals::{self, Context, siginfo_t};
use softswap_sys::{raw, waiting_call};

/// Returns 0 if sigreturn with the kernel's frame starts the program's handler. In a thread without
/// a stack of the engine, returns the handler's address: the frame is already on the right stack.
extern "C" fn enter(signal: i32, info: &siginfo_t, context: Context<'_>) -> usize {
    raw::preserving_errno(|| {
        let action = PROGRAM_ACTIONS[signal as usize].get();
        let temporary = temporary_mask::take(context);
        if !signal_stack::contains(context.as_ptr() as usize) {
            signals::set_mask(handler_frame::begin(context, signal, &action, temporary));
            return action.handler;
        }
        if signal_stack::contains(context.stack()) {
            guarded_call::defer(Deferred { signal, action, info: *info, temporary });
            // SAFETY: the guard, which the signal interrupted, waits in a call in the kernel.
            unsafe { waiting_call::interrupt(context) };
            context.set_mask(closed());
        } else {
            // SAFETY: both stacks were checked: the context is on the engine's, and its code is not.
            unsafe { handler_frame::push(signal, &action, info, context, temporary) };
        }
        0
    })
}

// At entry the stack pointer is at the kernel's frame: the return address, the context of 304
// bytes, and the siginfo_t, which starts with the signal's number.
core::arch::global_asm!(
    ".hidden softswap_signal_entry; .globl softswap_signal_entry; .type softswap_signal_entry, @function",
    "softswap_signal_entry:",
    ".cfi_startproc",
    "sub rsp, 8; .cfi_def_cfa_offset 16",
    "call {enter}",
    "add rsp, 8; .cfi_def_cfa_offset 8",
    "test rax, rax",
    "jnz 2f",
    "add rsp, 8; .cfi_def_cfa_offset 0",
    "mov eax, {sigreturn}",
    "syscall",
    "2: .cfi_def_cfa_offset 8",
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
