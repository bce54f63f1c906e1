//! `syscall(2)`: raw system calls made through the C library.
//!
//! Interposed functions do not see the effects of raw calls, so `syscall` handles the numbers that
//! the runtime knows. Every other call jumps to the C library's `syscall` in the caller's own
//! frame, because a child of a raw `clone` also returns from it.

use super::transfers::interposed;
use super::{advertised_memory, credentials, kernel_async_io, pinned_call, signal_calls};
use crate::base::errno::{c_result, refused};
use crate::base::issue_call::{Answer, SYSCALL, engine_syscall, is_our_own};
use crate::memory::mappings;
use crate::process::spawn::exec_call;
use crate::process::{clone, descriptors, thread_exit};
use std::ffi::c_void;

/// For some calls the handler depends on the first two arguments.
fn answer_for(number: i64, a: usize, b: usize) -> Option<Answer> {
    credentials::answer_for(number)
        .or_else(|| mappings::memory_calls::answer_for(number))
        .or_else(|| kernel_async_io::answer_for(number))
        .or_else(|| descriptors::answer_for(number, a, b))
        .or_else(|| clone::answer_for(number, a, b))
        .or_else(|| signal_calls::answer_for(number))
        .or_else(|| exec_call::answer_for(number))
        .or_else(|| thread_exit::answer_for(number))
        .or_else(|| interposed::answer_for(number))
        .or_else(|| advertised_memory::answer_for(number))
        .or_else(|| pinned_call::answer_for(number))
}

/// Returns the function that continues `syscall`: [`answered`], [`own`], or the C library's.
extern "C" fn target_of(number: i64, a: usize, b: usize, caller: usize) -> *const c_void {
    if is_our_own(caller) {
        return own as *const c_void;
    }
    match answer_for(number, a, b) {
        Some(_) => answered as *const c_void,
        None => SYSCALL.get(),
    }
}

extern "C" fn answered(
    number: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let Some(answer) = answer_for(number, a, b) else { return c_result(refused(libc::ENOSYS)) };
    c_result(answer([a, b, c, d, e, f]))
}

extern "C" fn own(
    number: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    c_result(engine_syscall(number, [a, b, c, d, e, f]))
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "mov rcx, [rsp + 48]",
        "sub rsp, 8",
        "call {target_of}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        target_of = sym target_of,
    )
}
