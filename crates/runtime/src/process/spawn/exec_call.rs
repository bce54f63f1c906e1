//! The system calls `execve` and `execveat`. All arguments are copied out of managed memory,
//! because no page can be faulted in while the kernel reads path, argv and envp.

use super::argument_copies::{Copies, Readable, Strings};
use super::carried;
use super::started_program::{self, Scratch, takes_library};
use crate::base::errno::refused;
use crate::base::guarded_call::closed;
use crate::base::instance;
use crate::base::issue_call::{Answer, Arguments};
use crate::signals::exec_mask;
use softswap_sys::raw;
use softswap_sys::waiting_call::waiting_call;
use std::ffi::c_char;

/// Issues the call, whose arguments are outside managed memory. Safety: as `execve(2)` or
/// `execveat(2)`.
pub(super) unsafe fn issue_exec(number: i64, arguments: Arguments) -> isize {
    exec_mask::with_program_mask(|open| match open {
        // SAFETY: the arguments are copies, or pointers that the kernel rejects (EFAULT). Handlers
        // that run meanwhile are the runtime's.
        Some(open) => unsafe { waiting_call(number, arguments, open, closed(), false) },
        // SAFETY: the arguments are copies, or pointers that the kernel rejects (EFAULT).
        None => unsafe { raw::syscall(number, arguments) },
    })
}

/// Includes the scratch memory for the program's headers.
pub(super) fn program_bytes(path: *const c_char, argv: Strings, envp: Strings) -> usize {
    let mut readable = Readable::new();
    let envp_bytes = readable.strings_bytes(envp);
    let words_bytes = readable.text_bytes(path) + readable.strings_bytes(argv) + envp_bytes;
    words_bytes + carried::environment_bytes(envp_bytes) + started_program::SCRATCH_BYTES
}

/// `path_at` is the index of the path argument. Returns only on failure, with the kernel's error.
/// Safety: as `execve(2)` or `execveat(2)`.
pub(super) unsafe fn exec(number: i64, mut arguments: Arguments, path_at: usize) -> isize {
    let path = arguments[path_at] as *const c_char;
    let directory = if path_at == 0 { libc::AT_FDCWD } else { arguments[0] as i32 };
    let argv = arguments[path_at + 1] as Strings;
    let envp = arguments[path_at + 2] as Strings;
    // SAFETY: `Readable` only reads what is readable; the kernel rejects the rest.
    unsafe {
        let capacity = program_bytes(path, argv, envp) + LINK_BYTES;
        let Some(mut copies) = Copies::with_capacity(capacity) else {
            return refused(libc::E2BIG);
        };
        let copied = copies.copy_text(path);
        let takes_library = !carried::is_set() || {
            // An empty path means the descriptor itself.
            let is_descriptor = Readable::new().text(path) == Some(b"");
            let scratch = Scratch::take(&mut copies);
            let link = copies.take(LINK_BYTES);
            match is_descriptor {
                true => takes_library(scratch, libc::AT_FDCWD, write_link(link, directory)),
                false => takes_library(scratch, directory, copied),
            }
        };
        arguments[path_at] = copied as usize;
        arguments[path_at + 1] = copies.copy_strings(argv) as usize;
        arguments[path_at + 2] =
            carried::copy_environment(&mut copies, envp, takes_library) as usize;
        copies.keep_for_exec();
        issue_exec(number, arguments)
    }
}

const LINK_BYTES: usize = 32;

/// Writes a descriptor's path in /proc; allocates nothing.
///
/// # Safety
/// `link` has space for [`LINK_BYTES`].
unsafe fn write_link(link: *mut u8, fd: i32) -> *const c_char {
    use std::io::Write;
    // SAFETY: `link` has space for these bytes.
    let mut text = unsafe { std::slice::from_raw_parts_mut(link, LINK_BYTES) };
    let _ = write!(text, "/proc/self/fd/{fd}\0");
    link.cast()
}

/// Handles an exec that trapped, or one through the C library's `syscall`.
pub(crate) fn answer_exec(number: i64, arguments: Arguments) -> isize {
    let path_at = usize::from(number == libc::SYS_execveat);
    // SAFETY: the program passes the arguments to its own exec.
    unsafe { exec(number, arguments, path_at) }
}

pub(crate) fn answer_for(number: i64) -> Option<Answer> {
    if !instance::emulates_signals() && !carried::is_set() {
        return None;
    }
    match number {
        libc::SYS_execve => Some(|arguments| answer_exec(libc::SYS_execve, arguments)),
        libc::SYS_execveat => Some(|arguments| answer_exec(libc::SYS_execveat, arguments)),
        _ => None,
    }
}
