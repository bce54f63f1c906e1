//! Calls that let the kernel access memory after they return: io_uring, Linux's asynchronous I/O.
//!
//! The guard pins memory only until a call returns, and does not see the ring that the program
//! shares with the kernel. A request for an absent page would fail with EFAULT, and data written to
//! a page that is then evicted would be lost. So in a managed program these calls fail as if they
//! were disabled or not built in; programs have a fallback.
//!
//! Calls that only *read* memory later (vmsplice, MSG_ZEROCOPY) need no treatment: a page to which
//! the kernel keeps a reference is not moved, and the program must not change it until completion.
//!
//! Detected are calls by the C library's `syscall`, liburing, libaio, or with managed pointers.

use crate::base::errno::refused;
use crate::base::instance;
use crate::base::issue_call::Answer;
use crate::base::real::Real;
use softswap_sys::pointer_lookup::{Class, class_of};
use std::ffi::{CStr, c_void};

pub(crate) fn refusal(number: i64) -> Option<isize> {
    class_of(number).and_then(Class::refusal).map(refused)
}

pub(crate) fn answer_for(number: i64) -> Option<Answer> {
    let answer: Answer = match number {
        libc::SYS_io_uring_setup => |_| refusal(libc::SYS_io_uring_setup).unwrap_or(0),
        libc::SYS_io_setup => |_| refusal(libc::SYS_io_setup).unwrap_or(0),
        _ => return None,
    };
    instance::awake().map(|_| answer)
}

/// liburing and libaio return negative error numbers.
extern "C" fn refused_ring() -> i32 {
    -libc::EPERM
}

extern "C" fn refused_context() -> i32 {
    -libc::ENOSYS
}

/// A definition that is not in `library` is never refused.
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

fn file_of(address: *const c_void) -> Option<&'static [u8]> {
    // SAFETY: all-zero is a valid Dl_info to write over.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address is allowed; the name is valid as long as the library is loaded.
    unsafe {
        if libc::dladdr(address, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        Some(CStr::from_ptr(info.dli_fname).to_bytes())
    }
}

macro_rules! making {
    ($($name:ident($library:literal, $refused:ident);)*) => {$(
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
