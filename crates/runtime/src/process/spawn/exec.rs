//! The `exec` family.

use super::argument_copies::Strings;
use super::carried;
use super::environment::environment;
use super::exec_call::exec;
use super::path_search;
use crate::base::errno::{c_result, refused};
use crate::base::instance;
use crate::base::issue_call::{Arguments, issue};
use crate::base::real::real;
use std::ffi::c_char;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> i32 {
    // SAFETY: the program passes the path and arrays.
    unsafe { call(libc::SYS_execve, [path as usize, argv as usize, envp as usize, 0, 0, 0], 0) }
}

/// Executes a program, with the library if this process passes it on.
///
/// # Safety
/// As for [`exec`].
unsafe fn call(number: i64, arguments: Arguments, path_at: usize) -> i32 {
    if !instance::emulates_signals() && !carried::is_set() {
        return c_result(issue(number, arguments)) as i32;
    }
    // SAFETY: as the caller promises; the kernel rejects unreadable paths and arrays.
    c_result(unsafe { exec(number, arguments, path_at) }) as i32
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> i32 {
    // SAFETY: the program passes the arguments; the environment is an array of strings.
    unsafe { execve(path, argv, environment()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: i32, argv: Strings, envp: Strings) -> i32 {
    if fd < 0 || argv.is_null() || envp.is_null() {
        return c_result(refused(libc::EINVAL)) as i32;
    }
    let empty = c"".as_ptr() as usize;
    let flags = libc::AT_EMPTY_PATH as usize;
    let arguments = [fd as usize, empty, argv as usize, envp as usize, flags, 0];
    // SAFETY: the program passes the path and arrays; the kernel rejects unreadable ones.
    c_result(unsafe { exec(libc::SYS_execveat, arguments, 1) }) as i32
}

/// `execveat(2)`, a function of glibc 2.34 and newer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    directory: i32,
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    flags: i32,
) -> i32 {
    let arguments =
        [directory as usize, path as usize, argv as usize, envp as usize, flags as usize, 0];
    // SAFETY: the program passes the path and arrays.
    unsafe { call(libc::SYS_execveat, arguments, 1) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> i32 {
    real!(execvpe: fn(*const c_char, Strings, Strings) -> i32);
    // SAFETY: the program passes arrays and strings as C requires; unreadable ones are not copied.
    unsafe {
        if !instance::emulates_signals() && !carried::is_set() {
            return execvpe()(file, argv, envp);
        }
        c_result(path_search::exec(file, argv, envp)) as i32
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> i32 {
    // SAFETY: the program passes the arguments; the environment is an array of strings.
    unsafe { execvpe(file, argv, environment()) }
}

/// Number of variadic arguments in registers; the rest are on the stack.
const IN_REGISTERS: usize = 5;
const MAX_LISTED: usize = 8192;

#[derive(PartialEq)]
enum Listed {
    Path,
    PathAndEnvironment,
    File,
}

/// # Safety
/// `registers` contains the first five variadic words, `stack` the others up to a null pointer.
unsafe fn exec_listed(
    path: *const c_char,
    registers: *const usize,
    stack: *const usize,
    kind: &Listed,
) -> i32 {
    let word = |index: usize| {
        // SAFETY: reads the variadic words up to the null pointer that ends them; `registers`
        // contains the first five, `stack` the others.
        unsafe {
            if index < IN_REGISTERS {
                *registers.add(index)
            } else {
                *stack.add(index - IN_REGISTERS)
            }
        }
    };
    let mut count = 0;
    while word(count) != 0 {
        count += 1;
    }
    // Handlers on small signal stacks call these functions, so few arguments need little stack. The
    // array is neither in the heap nor in a mapping, which would remain after `vfork`.
    match count {
        0..16 => exec_array::<16>(path, word, count, kind),
        16..64 => exec_array::<64>(path, word, count, kind),
        64..256 => exec_array::<256>(path, word, count, kind),
        256..1024 => exec_array::<1024>(path, word, count, kind),
        1024..MAX_LISTED => exec_array::<MAX_LISTED>(path, word, count, kind),
        _ => c_result(refused(libc::E2BIG)) as i32,
    }
}

#[inline(never)]
fn exec_array<const SPACE: usize>(
    path: *const c_char,
    word: impl Fn(usize) -> usize,
    count: usize,
    kind: &Listed,
) -> i32 {
    let mut argv = [std::ptr::null::<c_char>(); SPACE];
    for (index, argument) in argv[..count].iter_mut().enumerate() {
        *argument = word(index) as *const c_char;
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

/// Defines a variadic exec. It saves the register arguments below the return address, and passes
/// the addresses of these and of the stack arguments.
macro_rules! listed {
    ($name:ident, $inner:ident, $kind:expr) => {
        unsafe extern "C" fn $inner(
            path: *const c_char,
            registers: *const usize,
            stack: *const usize,
        ) -> i32 {
            // SAFETY: the function below passes the addresses of the variadic arguments.
            unsafe { exec_listed(path, registers, stack, &$kind) }
        }

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
