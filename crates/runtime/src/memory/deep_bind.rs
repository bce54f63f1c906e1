//! `dlopen` without `RTLD_DEEPBIND` in a managed process, and with a look at the loaded code.
//!
//! A library that is opened with it finds the C library's functions before the runtime's: its
//! mappings, threads, forks and signal handlers bypass the engine. A handler of SIGBUS would get
//! the engine's page faults. Without the flag the library finds what all other libraries find. Its
//! own symbols no longer precede those of the executable, and `dlmopen` is left alone.

use crate::base::real::Real;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

/// The C library's `dlopen`, or that of another library between.
static NEXT: Real = Real::new(c"dlopen");
type Open = unsafe extern "C-unwind" fn(*const c_char, i32) -> *mut c_void;

/// Called after a library was opened by its path; set in a managed process.
static LOOK: OnceLock<fn()> = OnceLock::new();

/// Drops `RTLD_DEEPBIND` from now on, and calls `look` after a library was opened by its path.
pub(crate) fn drop_flag(look: fn()) {
    LOOK.get_or_init(|| look);
}

/// The flags that [`dlopen`] passes on.
fn passed_on(flags: i32) -> i32 {
    if LOOK.get().is_some() { flags & !libc::RTLD_DEEPBIND } else { flags }
}

/// Opens a library by its path, and has its code looked at. The C library searches its caller's
/// path only for names without a path and for `$ORIGIN`.
///
/// # Safety
/// As `dlopen(3)`.
unsafe extern "C-unwind" fn open_and_look(path: *const c_char, flags: i32) -> *mut c_void {
    // SAFETY: the C library's function, which has this type, with the program's arguments.
    let handle = unsafe {
        let next: Open = std::mem::transmute(NEXT.get());
        next(path, flags)
    };
    if !handle.is_null()
        && let Some(look) = LOOK.get()
    {
        look();
    }
    handle
}

/// Where [`dlopen`] jumps to, and with which flags.
#[repr(C)]
struct Target {
    function: *const c_void,
    flags: usize,
}

/// # Safety
/// `path` is the program's, a C string or null.
unsafe extern "C" fn target_of(path: *const c_char, flags: i32) -> Target {
    let is_searched = LOOK.get().is_some() && flags & libc::RTLD_NOLOAD == 0 && !path.is_null();
    let is_absolute = is_searched && {
        // SAFETY: a C string.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        path.starts_with(b"/") && !path.contains(&b'$')
    };
    let next = NEXT.get().cast_const();
    let function = if is_absolute { open_and_look as *const c_void } else { next };
    Target { function, flags: passed_on(flags) as usize }
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
        "push rdi",
        "call {target_of}",
        "pop rdi",
        "mov esi, edx",
        "jmp rax",
        target_of = sym target_of,
    )
}
