//! The code that the program's handlers return to.
//!
//! The kernel cannot restore the frame of a program's handler itself: the frame may be swapped out,
//! its mask may contain the engine's signals, and its alternate stack is the program's. So the
//! context is copied to the engine's stack, with all signals blocked, and restored from there.

use super::deliver::deliver_held;
use super::sets::engine_signals;
use super::{alternate_stack, virtual_mask};
use crate::base::guarded_call::closed;
use crate::base::{instance, signal_stack};
use softswap_sys::raw;
use softswap_sys::signal_frame::{copy_context, copy_place};
use softswap_sys::signals::{self, Context};

/// Runs on the handler's stack. Blocks all signals and returns an address on the engine's stack for
/// a copy of the context, or 0 if the kernel can read the context itself.
extern "C" fn place_of(context: Context<'_>) -> usize {
    if !instance::emulates_signals() {
        return 0;
    }
    let Some(stack) = signal_stack::addresses() else {
        restore_mask(context);
        return 0;
    };
    // A handler that started before signals were emulated may have blocked SIGBUS.
    signals::set_mask(closed());
    copy_place(context, stack.end)
}

fn restore_mask(context: Context<'_>) {
    virtual_mask::set(context.mask() & engine_signals());
    context.set_mask(context.mask() & !engine_signals());
}

/// Copies the context to `place` on the engine's stack; this function runs below that address.
extern "C" fn copy_context_back(context: Context<'_>, place: usize) -> Context<'_> {
    // SAFETY: `place_of` has chosen the place.
    let copy = unsafe { copy_context(context, place) };
    raw::preserving_errno(|| {
        // SAFETY: only this thread uses the copy.
        let stack = unsafe { &mut (*copy.as_ptr()).uc_stack };
        alternate_stack::restore(*stack, copy.stack());
        if let Some(engines) = signal_stack::alternate() {
            *stack = engines;
        }
        restore_mask(copy);
        deliver_held(copy);
    });
    copy
}

// A signal frame for unwinders. At its first instruction the stack pointer is at the context, which
// contains all registers. Each rule is an expression: the word at an offset from rsp (register 7).
// The frame also covers the handler's return address minus one.
core::arch::global_asm!(
    ".hidden softswap_handler_return; .globl softswap_handler_return; .type softswap_handler_return, @function",
    ".p2align 4",
    ".cfi_startproc",
    ".cfi_signal_frame",
    // DW_CFA_def_cfa_expression: DW_OP_breg7 160, DW_OP_deref.
    ".cfi_escape 0x0f, 4, 0x77, 0xa0, 0x01, 0x06",
    // DW_CFA_expression, register, length: DW_OP_breg7 offset.
    ".cfi_escape 0x10, 8, 2, 0x77, 40; .cfi_escape 0x10, 9, 2, 0x77, 48; .cfi_escape 0x10, 10, 2, 0x77, 56",
    ".cfi_escape 0x10, 11, 3, 0x77, 0xc0, 0x00; .cfi_escape 0x10, 12, 3, 0x77, 0xc8, 0x00; .cfi_escape 0x10, 13, 3, 0x77, 0xd0, 0x00",
    ".cfi_escape 0x10, 14, 3, 0x77, 0xd8, 0x00; .cfi_escape 0x10, 15, 3, 0x77, 0xe0, 0x00; .cfi_escape 0x10, 5, 3, 0x77, 0xe8, 0x00",
    ".cfi_escape 0x10, 4, 3, 0x77, 0xf0, 0x00; .cfi_escape 0x10, 6, 3, 0x77, 0xf8, 0x00; .cfi_escape 0x10, 3, 3, 0x77, 0x80, 0x01",
    ".cfi_escape 0x10, 1, 3, 0x77, 0x88, 0x01; .cfi_escape 0x10, 0, 3, 0x77, 0x90, 0x01; .cfi_escape 0x10, 2, 3, 0x77, 0x98, 0x01",
    ".cfi_escape 0x10, 16, 3, 0x77, 0xa8, 0x01",
    "nop",
    "softswap_handler_return:",
    "mov rdi, rsp",
    "call {place_of}",
    "test rax, rax",
    "jz 2f",
    "mov rdi, rsp",
    "mov rsi, rax",
    "mov rsp, rax",
    "call {copy_context_back}",
    "mov rsp, rax",
    "2:",
    "mov eax, {sigreturn}",
    "syscall",
    ".cfi_endproc",
    ".size softswap_handler_return, . - softswap_handler_return",
    place_of = sym place_of,
    copy_context_back = sym copy_context_back,
    sigreturn = const libc::SYS_rt_sigreturn,
);
