//! `dlopen` in a managed process.
//!
//! The runtime drops the flag `RTLD_DEEPBIND`. With it, a library would find the C library's
//! functions before the runtime's: its mappings, threads, forks and signal handlers would bypass
//! the engine. Without it, the library's own symbols no longer precede those of the executable.
//! `dlmopen` is not changed.
//!
//! If the call names a path, the new libraries are searched for system calls before their functions
//! run ([`inline_calls`]). If it names only a file, the C library derives the search path from the
//! return address, so the runtime jumps to the C library's function.

use super::inline_calls;
use crate::base::instance;
use crate::base::real::Real;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

static FLAGS_MASK: AtomicU32 = AtomicU32::new(u32::MAX);
/// The next `dlopen` in search order: the C library's, or another preloaded library's.
static NEXT: Real = Real::new(c"dlopen");

type Open = unsafe extern "C-unwind" fn(*const c_char, i32) -> *mut c_void;

pub(crate) fn manage() {
    FLAGS_MASK.store(!(libc::RTLD_DEEPBIND as u32), Ordering::Relaxed);
}

/// Returns the function that completes the call.
///
/// # Safety
/// `name` is null or a C string.
unsafe extern "C" fn target_of(name: *const c_char) -> *const c_void {
    instance::note_plug_in();
    // SAFETY: `name` is not null here, so the caller passes a C string.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes());
    let is_path = name.is_some_and(|name| name.contains(&b'/') && !name.contains(&b'$'));
    if is_path && FLAGS_MASK.load(Ordering::Relaxed) != u32::MAX {
        open_path as *const c_void
    } else {
        NEXT.get()
    }
}

unsafe extern "C-unwind" fn open_path(name: *const c_char, flags: i32) -> *mut c_void {
    inline_calls::skip_loaded();
    // SAFETY: `NEXT` is a definition of `dlopen`, which has this type.
    let open: Open = unsafe { std::mem::transmute(NEXT.get()) };
    // SAFETY: the program passes the arguments of `dlopen`.
    let library = unsafe { open(name, flags) };
    inline_calls::trap_new_objects();
    library
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen() {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {target_of}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "and esi, dword ptr [rip + {passed_on}]",
        "jmp rax",
        target_of = sym target_of,
        passed_on = sym FLAGS_MASK,
    )
}
