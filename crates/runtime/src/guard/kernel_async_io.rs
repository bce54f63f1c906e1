//! Memory that the kernel writes later, after the call has returned: io_uring, and
//! Linux's asynchronous I/O.
//!
//! The guard brings in what a call is given and keeps it until the call returns.
//! What these calls are given is used afterwards, named in memory that is shared
//! with the kernel, where nobody sees it: a page that was out would be refused
//! (EFAULT), and one that leaves meanwhile would miss what is written. So a
//! managed program is told that it cannot have them, as where they are switched
//! off (kernel.io_uring_disabled) or not built: programs that use them have another
//! way. The engine's own rings are not the program's.
//!
//! What only *reads* memory later (vmsplice, MSG_ZEROCOPY) needs nothing: the
//! kernel keeps the page that it was given, whose content the program must not
//! change until it is told; a page that is so kept is not moved.
//!
//! Seen are calls through the C library's `syscall`, through liburing's and libaio's
//! own functions, and raw ones that name managed memory.

use crate::base::errno::refused;
use crate::base::instance;
use crate::base::issue_call::Answer;
use crate::base::real::Real;
use softswap_sys::pointer_arguments::{Class, class_of};
use std::ffi::{CStr, c_void};

/// Returns what a managed program gets instead of the call, or `None` for calls that are not
/// refused.
pub(crate) fn refusal(number: i64) -> Option<isize> {
    class_of(number).and_then(Class::refusal).map(refused)
}

/// The answer to a raw call that is one of these.
pub(crate) fn answer_for(number: i64) -> Option<Answer> {
    let answer: Answer = match number {
        libc::SYS_io_uring_setup => |_| refusal(libc::SYS_io_uring_setup).unwrap_or(0),
        libc::SYS_io_setup => |_| refusal(libc::SYS_io_setup).unwrap_or(0),
        _ => return None,
    };
    instance::awake().map(|_| answer)
}

/// liburing and libaio give a negative error number; what has the same name and is
/// another library's is left alone.
extern "C" fn refused_ring() -> i32 {
    -libc::EPERM
}

extern "C" fn refused_context() -> i32 {
    -libc::ENOSYS
}

/// Where a function goes on: to its refusal, or to the definition in `real`.
fn target(real: &Real, library: &[u8], refused: *const c_void) -> *const c_void {
    const LIBRARIES: [&CStr; 3] = [c"liburing.so.2", c"liburing.so.1", c"libaio.so.1"];
    let Some(address) = real.find().or_else(|| real.find_in(&LIBRARIES)) else { return refused };
    if file_of(address).is_some_and(|name| contains(name, library)) && instance::awake().is_some() {
        return refused;
    }
    address
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The file that an address was loaded from.
fn file_of(address: *const c_void) -> Option<&'static [u8]> {
    // SAFETY: all-zero is a valid Dl_info to write over.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about; the name lives as long as the library.
    unsafe {
        if libc::dladdr(address, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        Some(CStr::from_ptr(info.dli_fname).to_bytes())
    }
}

/// Defines functions of liburing's and libaio's that make a ring or a context. They
/// pass on whatever arguments there are to whoever defines the name next.
macro_rules! making {
    ($($name:ident($library:literal, $refused:ident);)*) => {$(
        #[allow(missing_docs, reason = "as the library has it")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            extern "C" fn target_of() -> *const c_void {
                static REAL: Real = Real::new(
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("not a C string"),
                    },
                );
                target(&REAL, $library, $refused as *const c_void)
            }
            core::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9",
                "push rax",
                "call {target_of}",
                "mov r11, rax",
                "pop rax",
                "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                target_of = sym target_of,
            )
        }
    )*};
}

making! {
    io_uring_queue_init(b"liburing", refused_ring);
    io_uring_queue_init_params(b"liburing", refused_ring);
    io_uring_queue_init_mem(b"liburing", refused_ring);
    io_uring_setup(b"liburing", refused_ring);
    io_setup(b"libaio", refused_context);
    io_queue_init(b"libaio", refused_context);
}
