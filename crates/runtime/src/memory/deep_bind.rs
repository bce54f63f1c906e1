//! `dlopen` without `RTLD_DEEPBIND` in a managed process.
//!
//! A library that is opened with it finds the C library's functions before the runtime's: its
//! mappings, threads, forks and signal handlers bypass the engine. A handler of SIGBUS would get
//! the engine's page faults. Without the flag the library finds what all other libraries find. Its
//! own symbols no longer precede those of the executable, and `dlmopen` is left alone.

use crate::base::real::Real;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The flags that [`dlopen`] passes on.
static PASSED_ON: AtomicU32 = AtomicU32::new(u32::MAX);
/// The C library's `dlopen`, or that of another library between: null before the first call.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Drops `RTLD_DEEPBIND` from now on.
pub(crate) fn drop_flag() {
    PASSED_ON.store(!(libc::RTLD_DEEPBIND as u32), Ordering::Relaxed);
}

extern "C" fn find_next() -> *mut c_void {
    static DLOPEN: Real = Real::new(c"dlopen");
    let next = DLOPEN.get();
    NEXT.store(next, Ordering::Relaxed);
    next
}

/// Jumps to the next `dlopen`, which finds its caller by the return address: that library's
/// search path applies.
///
/// # Safety
/// As `dlopen(3)`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen() {
    core::arch::naked_asm!(
        "and esi, dword ptr [rip + {passed_on}]",
        "mov rax, qword ptr [rip + {next}]",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find_next}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        passed_on = sym PASSED_ON,
        next = sym NEXT,
        find_next = sym find_next,
    )
}
