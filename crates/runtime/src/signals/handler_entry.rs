//! The handler that the kernel has for every handler of the program's.
//!
//! The program's handler sees in its context what the program has blocked, and may
//! change that; before the kernel puts the context's mask in force, the engine's signals
//! are taken out of it.

use super::program_actions::ASKED;
use super::sets::OURS;
use super::{alternate_stack, virtual_mask};
use softswap_sys::signals::{self, Mask, siginfo_t};
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// A handler begins: `named` is blocked from now on, as far as the program knows.
///
/// # Safety
/// `context` is the running handler's.
pub(super) unsafe fn begin(context: *mut c_void, named: Mask) {
    let blocked = virtual_mask::get();
    // SAFETY: the context that the kernel gave to the running handler, which alone has it.
    unsafe { *signals::interrupted_mask(context) |= blocked };
    virtual_mask::set(blocked | named & OURS);
}

/// A handler ends.
///
/// # Safety
/// As [`begin`].
pub(super) unsafe fn end(context: *mut c_void) {
    // SAFETY: the context that the kernel gave to the running handler, which alone has it.
    let mask = unsafe { &mut *signals::interrupted_mask(context) };
    let wanted = *mask & OURS;
    *mask &= !OURS;
    virtual_mask::settle(wanted);
}

/// The program's handler for a signal that has arrived.
unsafe extern "C" fn enter(signal: i32, _info: *mut siginfo_t, context: *mut c_void) -> usize {
    let asked = &ASKED[signal as usize];
    let on_stack = asked.flags.load(Ordering::Relaxed) & libc::SA_ONSTACK as u64 != 0;
    // SAFETY: the kernel's own context.
    unsafe {
        begin(context, asked.mask.load(Ordering::Relaxed));
        alternate_stack::begin(context, on_stack);
    }
    asked.handler.load(Ordering::Acquire)
}

unsafe extern "C" fn leave(context: *mut c_void) {
    // SAFETY: the kernel's own context.
    unsafe { end(context) };
}

// In assembly, because a handler may be left by an unwinding (`pthread_exit`, a C++
// exception), which must not meet a frame of Rust's. The stack is aligned after one push;
// 24 bytes keep the arguments, 8 the alignment.
core::arch::global_asm!(
    ".hidden softswap_signal_entry",
    ".globl softswap_signal_entry",
    ".type softswap_signal_entry, @function",
    "softswap_signal_entry:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "sub rsp, 32",
    "mov [rbp - 8], rdi",
    "mov [rbp - 16], rsi",
    "mov [rbp - 24], rdx",
    "call {enter}",
    "mov rdi, [rbp - 8]",
    "mov rsi, [rbp - 16]",
    "mov rdx, [rbp - 24]",
    "call rax",
    "mov rdi, [rbp - 24]",
    "call {leave}",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size softswap_signal_entry, . - softswap_signal_entry",
    enter = sym enter,
    leave = sym leave,
);

unsafe extern "C" {
    fn softswap_signal_entry();
}

/// Where the kernel goes with a signal that the program handles.
pub(super) fn address() -> usize {
    softswap_signal_entry as *const () as usize
}
