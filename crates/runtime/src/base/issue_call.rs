//! System calls: the program's, which its own filters judge, and the engine's.

use super::real::Real;
use softswap_sys::raw;
use std::ffi::c_char;

pub(crate) type Arguments = [usize; 6];

/// Answers a call as the kernel would: a result, or a negative error number.
pub(crate) type Answer = fn(Arguments) -> isize;

/// Issues a call of the program's whose pointers can be read.
#[inline]
pub(crate) fn issue(number: i64, arguments: Arguments) -> isize {
    // SAFETY: a call that the program makes with these arguments: what it does to the
    // program's memory the program has asked for. Bad pointers the kernel refuses.
    unsafe { raw::syscall_for_program(number, arguments) }
}

/// Asks the kernel something that only the engine wants to know.
#[inline]
pub(crate) fn ask(number: i64, arguments: Arguments) -> isize {
    // SAFETY: such calls are about descriptors, or about memory that the runtime has mapped
    // for itself; they write to locals, or nowhere. Bad pointers the kernel refuses.
    unsafe { raw::syscall(number, arguments) }
}

/// The C library's `syscall`.
pub(crate) static SYSCALL: Real = Real::new(c"syscall");

/// Makes a call as the program would, whose pointers may be managed: the kernel's result.
pub(crate) fn pass_on(number: i64, [a, b, c, d, e, f]: Arguments) -> isize {
    type Call = unsafe extern "C" fn(i64, usize, usize, usize, usize, usize, usize) -> isize;
    // SAFETY: the C library's `syscall`, which has this signature.
    let call: Call = unsafe { std::mem::transmute(SYSCALL.get()) };
    // SAFETY: a call that the program makes with these arguments.
    match unsafe { call(number, a, b, c, d, e, f) } {
        -1 => -(std::io::Error::last_os_error().raw_os_error().unwrap_or(0) as isize),
        result => result,
    }
}

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
