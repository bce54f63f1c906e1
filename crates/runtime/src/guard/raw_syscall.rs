//! `syscall(2)`: raw system calls that are made through the C library.
//!
//! What a raw call does to signals, descriptors or threads, the interposed
//! functions would not see. So `syscall` looks at the number first: a call that
//! the runtime answers for is answered, with the kernel's conventions; every
//! other goes on to the C library's `syscall` in the caller's own frame, as if
//! nobody had looked (a child of a raw `clone` returns from it, too).
//!
//! Calls made by an instruction of the program's own reach the engine through
//! the filter alone.

use super::transfers::interposed;
use super::{credentials, kernel_async_io, pinned_call, signal_calls};
use crate::base::errno::{c_result, refused};
use crate::base::issue_call::{Answer, SYSCALL, ask, is_our_own};
use crate::memory::mappings;
use crate::process::spawn::exec_call;
use crate::process::{clone, descriptors, thread_end};
use std::ffi::c_void;

/// What answers for a call, if the runtime does; by its first two arguments where it
/// depends on those.
fn answer_for(number: i64, a: usize, b: usize) -> Option<Answer> {
    credentials::answer_for(number)
        .or_else(|| mappings::memory_calls::answer_for(number))
        .or_else(|| kernel_async_io::answer_for(number))
        .or_else(|| descriptors::answer_for(number, a, b))
        .or_else(|| clone::answer_for(number, a, b))
        .or_else(|| signal_calls::answer_for(number))
        .or_else(|| exec_call::answer_for(number))
        .or_else(|| thread_end::answer_for(number))
        .or_else(|| interposed::answer_for(number))
        .or_else(|| pinned_call::answer_for(number))
}

/// Where `syscall` goes on with a call: to [`answered`], or to the C library.
extern "C" fn target_of(number: i64, a: usize, b: usize, caller: usize) -> *const c_void {
    if is_our_own(caller) {
        return own as *const c_void;
    }
    match answer_for(number, a, b) {
        Some(_) => answered as *const c_void,
        None => SYSCALL.get(),
    }
}

/// A call that the runtime answers for, with C's conventions.
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

/// A call of the engine's, with C's conventions.
extern "C" fn own(
    number: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    c_result(ask(number, [a, b, c, d, e, f]))
}

/// # Safety
/// As `syscall(2)`.
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
