//! The `exec` family: the kernel reads path, argv and envp with no chance to
//! bring anything in.

use super::copies::{Copies, Readable, Strings};
use super::environment::environment;
use super::search;
use crate::guard::{Arguments, issue};
use crate::masks;
use crate::raw_calls::Answer;
use crate::real::{c_result, real};
use crate::start;
use softswap_sys::raw;
use std::ffi::c_char;

/// Issues the call itself, with what it is given outside managed memory.
///
/// # Safety
/// As the call.
pub(super) unsafe fn issue_exec(number: i64, arguments: Arguments) -> isize {
    // SAFETY: the caller's promise.
    masks::as_believed(|| unsafe { raw::syscall(number, arguments) })
}

/// Issues execve or execveat with everything copied out of managed memory.
/// The kernel's result; returns only on failure.
///
/// # Safety
/// As the call: a path, and arrays of strings.
unsafe fn exec(number: i64, mut arguments: Arguments, path_at: usize) -> isize {
    let path = arguments[path_at] as *const c_char;
    let argv = arguments[path_at + 1] as Strings;
    let envp = arguments[path_at + 2] as Strings;
    // SAFETY: the caller's promise.
    unsafe {
        let mut readable = Readable::new();
        let room =
            readable.text_room(path) + readable.strings_room(argv) + readable.strings_room(envp);
        let Some(mut copies) = Copies::with_room(room) else {
            return -(libc::E2BIG as isize);
        };
        arguments[path_at] = copies.put_text(path) as usize;
        arguments[path_at + 1] = copies.put_strings(argv) as usize;
        arguments[path_at + 2] = copies.put_strings(envp) as usize;
        issue_exec(number, arguments)
    }
}

/// exec that trapped: made by a raw system call or inside the C library.
pub(crate) fn answer_exec(number: i64, arguments: Arguments) -> isize {
    let path_at = usize::from(number == libc::SYS_execveat);
    // SAFETY: the program's own arguments.
    unsafe { exec(number, arguments, path_at) }
}

/// The answers to raw calls of `exec`.
pub(crate) fn room_of(number: i64) -> Option<Answer> {
    start::engine()?;
    match number {
        libc::SYS_execve => Some(|arguments| answer_exec(libc::SYS_execve, arguments)),
        libc::SYS_execveat => Some(|arguments| answer_exec(libc::SYS_execveat, arguments)),
        _ => None,
    }
}

/// # Safety
/// As `execve(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> i32 {
    let arguments = [path as usize, argv as usize, envp as usize, 0, 0, 0];
    if start::engine().is_none() {
        return c_result(issue(libc::SYS_execve, arguments)) as i32;
    }
    // SAFETY: the caller's promise.
    c_result(unsafe { exec(libc::SYS_execve, arguments, 0) }) as i32
}

/// # Safety
/// As `execv(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { execve(path, argv, environment()) }
}

/// # Safety
/// As `fexecve(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: i32, argv: Strings, envp: Strings) -> i32 {
    let empty = c"".as_ptr() as usize;
    let flags = libc::AT_EMPTY_PATH as usize;
    let arguments = [fd as usize, empty, argv as usize, envp as usize, flags, 0];
    // SAFETY: the caller's promise.
    c_result(unsafe { exec(libc::SYS_execveat, arguments, 1) }) as i32
}

/// # Safety
/// As `execvpe(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> i32 {
    real!(execvpe: fn(*const c_char, Strings, Strings) -> i32);
    // SAFETY: the caller's promise.
    unsafe {
        if start::engine().is_none() {
            return execvpe()(file, argv, envp);
        }
        c_result(search::exec(file, argv, envp)) as i32
    }
}

/// # Safety
/// As `execvp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { execvpe(file, argv, environment()) }
}

/// How a variadic exec finds its arguments: five in registers, the rest on
/// the stack.
const IN_REGISTERS: usize = 5;
/// Most arguments of a variadic exec.
const MAX_LISTED: usize = 2000;

/// Which exec a variadic function stands for.
#[derive(PartialEq)]
enum Listed {
    Path,
    PathAndEnvironment,
    File,
}

/// # Safety
/// `registers` holds the first five variadic words, `stack` the others, of
/// which a null pointer ends the list.
unsafe fn exec_listed(
    path: *const c_char,
    registers: *const usize,
    stack: *const usize,
    kind: &Listed,
) -> i32 {
    let word = |index: usize| {
        // SAFETY: the caller's promise.
        unsafe {
            if index < IN_REGISTERS {
                *registers.add(index)
            } else {
                *stack.add(index - IN_REGISTERS)
            }
        }
    };
    let mut argv = [std::ptr::null::<c_char>(); MAX_LISTED];
    let mut count = 0;
    while word(count) != 0 {
        if count + 1 == MAX_LISTED {
            return c_result(-(libc::E2BIG as isize)) as i32;
        }
        argv[count] = word(count) as *const c_char;
        count += 1;
    }
    // SAFETY: `argv` ends with a null pointer; the strings are the program's.
    unsafe {
        match kind {
            Listed::Path => execv(path, argv.as_ptr()),
            Listed::PathAndEnvironment => execve(path, argv.as_ptr(), word(count + 1) as Strings),
            Listed::File => execvp(path, argv.as_ptr()),
        }
    }
}

/// Defines a variadic exec: saves the register arguments below the return
/// address and hands both places on.
macro_rules! listed {
    ($name:ident, $inner:ident, $kind:expr) => {
        unsafe extern "C" fn $inner(
            path: *const c_char,
            registers: *const usize,
            stack: *const usize,
        ) -> i32 {
            // SAFETY: both places were set up by the function below.
            unsafe { exec_listed(path, registers, stack, &$kind) }
        }

        /// # Safety
        /// As the C library's function of the same name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "lea rdx, [rsp + 48]",
                "call {inner}",
                "add rsp, 40",
                "ret",
                inner = sym $inner,
            )
        }
    };
}

listed!(execl, execl_inner, Listed::Path);
listed!(execle, execle_inner, Listed::PathAndEnvironment);
listed!(execlp, execlp_inner, Listed::File);
