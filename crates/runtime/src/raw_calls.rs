//! `syscall(2)`: raw system calls that are made through the C library.
//!
//! What a raw call does to signals, descriptors or threads, the interposed
//! functions would not see. So `syscall` looks at the number first: a call that
//! has a room of its own is answered there, with the kernel's conventions; every
//! other goes on to the C library's `syscall` in the caller's own frame, as if
//! nobody had looked (a child of a raw `clone` returns from it, too).
//!
//! Calls made by an instruction of the program's own reach the engine through
//! the filter alone.

use crate::credentials;
use crate::guard::{Arguments, ask};
use crate::masks;
use crate::real::{Real, c_result};
use crate::{descriptors, fork, thread_end};
use std::ffi::{c_char, c_void};

/// Answers a raw call as the kernel would: a result, or a negative error number.
pub(crate) type Answer = fn(Arguments) -> isize;

/// The room that answers for a call, if one does; by its first two arguments
/// where it depends on those.
fn room_of(number: i64, a: usize, b: usize) -> Option<Answer> {
    credentials::room_of(number)
        .or_else(|| crate::mappings::raw_room(number))
        .or_else(|| crate::later::raw_room(number))
        .or_else(|| descriptors::room_of(number, a, b))
        .or_else(|| fork::room_of(number, a, b))
        .or_else(|| masks::room_of(number))
        .or_else(|| crate::spawn::room_of(number))
        .or_else(|| thread_end::room_of(number))
        .or_else(|| crate::transfers::room_of(number))
}

static SYSCALL: Real = Real::new(c"syscall");

unsafe extern "C" {
    // Where this library begins, and where its code ends: set by the linker.
    static __ehdr_start: c_char;
    static etext: c_char;
}

/// Whether an address is in this library. If it makes a call itself (the standard
/// library's locks in it, what enters its rings), that is the engine's.
pub(crate) fn is_our_own(caller: usize) -> bool {
    (&raw const __ehdr_start as usize..&raw const etext as usize).contains(&caller)
}

/// Where `syscall` goes on with a call: to [`answered`], or to the C library.
extern "C" fn target_of(number: i64, a: usize, b: usize, caller: usize) -> *const c_void {
    if is_our_own(caller) {
        return own as *const c_void;
    }
    match room_of(number, a, b) {
        Some(_) => answered as *const c_void,
        None => SYSCALL.get(),
    }
}

/// Makes a call as the program would, whose pointers may be managed: the kernel's result.
pub(crate) fn pass_on(number: i64, [a, b, c, d, e, f]: Arguments) -> isize {
    type Call = unsafe extern "C" fn(i64, usize, usize, usize, usize, usize, usize) -> isize;
    // SAFETY: the C library's `syscall`, which has this signature.
    let call: Call = unsafe { std::mem::transmute(SYSCALL.get()) };
    // SAFETY: the program's own call.
    match unsafe { call(number, a, b, c, d, e, f) } {
        -1 => -(std::io::Error::last_os_error().raw_os_error().unwrap_or(0) as isize),
        result => result,
    }
}

/// A call that a room of the runtime's answers for, with C's conventions.
extern "C" fn answered(
    number: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let Some(answer) = room_of(number, a, b) else { return c_result(-(libc::ENOSYS as isize)) };
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
