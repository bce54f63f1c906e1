//! `execvp` and related functions, which search for the file in the directories of PATH.
//!
//! A new program inherits the blocked signals, so each exec call may need a mask under which no
//! page can be faulted in. The C library's own search reads PATH and writes to its stack between
//! two such calls. So the runtime searches, using copies.

use super::argument_copies::{Copies, Readable, Strings, count};
use super::carried;
use super::exec_call::issue_exec;
use super::started_program::{self, Scratch, takes_library};
use crate::base::errno::refused;
use crate::base::issue_call::engine_syscall;
use std::ffi::{CStr, c_char};

const DEFAULT_PATH: &CStr = c"/bin:/usr/bin";
const SHELL: &CStr = c"/bin/sh";
const MAX_NAME_BYTES: usize = libc::FILENAME_MAX as usize;
const MAX_NAME: usize = 255;
/// The C library skips PATH entries longer than this if PATH itself is longer.
const MAX_PATH: usize = MAX_NAME_BYTES - 1;

/// Upper bound of the words for rounding up, and for the shell's additional arguments.
const ROUNDING_WORDS: usize = 8;

struct Program {
    file: &'static [u8],
    argv: Strings,
    envp: Strings,
    /// Environment for a program that cannot load this library.
    envp_without: Strings,
    scratch: Scratch,
    name: *mut u8,
    /// Space for the arguments of a shell that reads the file.
    for_shell: *mut *const c_char,
    count: usize,
}

/// `execvpe(3)`. Returns the kernel's result of the last meaningful attempt.
pub(super) unsafe fn exec(file: *const c_char, argv: Strings, envp: Strings) -> isize {
    let path = search_path();
    let mut readable = Readable::new();
    let (path_room, file_room) = (readable.text_bytes(path), readable.text_bytes(file));
    if file_room == 0 {
        return refused(libc::EFAULT);
    }
    let argv_bytes = readable.strings_bytes(argv);
    let envp_bytes = readable.strings_bytes(envp);
    let envp_bytes = 2 * (envp_bytes + carried::environment_bytes(envp_bytes));
    // The shell's argument list needs up to two more words than argv; ROUNDING_WORDS covers them.
    let capacity = 2 * (path_room + file_room + argv_bytes)
        + envp_bytes
        + started_program::SCRATCH_BYTES
        + SHELL.count_bytes()
        + ROUNDING_WORDS * size_of::<usize>();
    let Some(mut copies) = Copies::with_capacity(capacity) else { return refused(libc::E2BIG) };
    // SAFETY: both strings were found readable, and are copied.
    let (file, path) = unsafe {
        let file: &'static CStr = CStr::from_ptr(copies.copy_text(file));
        let path: &'static CStr = CStr::from_ptr(copies.copy_text(path));
        (file.to_bytes_with_nul(), path.to_bytes())
    };
    let argv = copies.copy_strings(argv);
    let [envp, envp_without] =
        [true, false].map(|takes| carried::copy_environment(&mut copies, envp, takes));
    let count = if argv_bytes == 0 || argv.is_null() {
        0
    } else {
        // SAFETY: the copy ends with a null pointer, like the original.
        unsafe { count(argv) }
    };
    let scratch = Scratch::take(&mut copies);
    let name = copies.take(path.len() + file.len() + 1);
    let for_shell = copies.take((count + 3) * size_of::<usize>()).cast();
    copies.keep_for_exec();
    search(&Program { file, argv, envp, envp_without, scratch, name, for_shell, count }, path)
}

fn search(program: &Program, path: &[u8]) -> isize {
    let len = program.file.len() - 1;
    if len == 0 {
        return refused(libc::ENOENT);
    }
    if program.file.contains(&b'/') {
        return attempt(program, &[]);
    }
    if len > MAX_NAME {
        return refused(libc::ENAMETOOLONG);
    }
    let mut denied = false;
    let mut result = refused(libc::ENOENT);
    for directory in path.split(|byte| *byte == b':') {
        if directory.len() > MAX_PATH {
            continue;
        }
        result = attempt(program, directory);
        match -result as i32 {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ESTALE | libc::ENOTDIR | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return result,
        }
    }
    if denied { refused(libc::EACCES) } else { result }
}

/// Uses a shell if the kernel does not recognize the format. Returns only on failure.
fn attempt(program: &Program, directory: &[u8]) -> isize {
    write_name(program.name, [directory, program.file, b""]);
    let name = program.name as usize;
    let is_full =
        !carried::is_set() || takes_library(program.scratch, libc::AT_FDCWD, name as *const c_char);
    let envp = if is_full { program.envp } else { program.envp_without };
    let result = call(name, program.argv, envp);
    if result != refused(libc::ENOEXEC) {
        return result;
    }
    // SAFETY: `for_shell` has space for `count + 3` words; `argv` has `count` arguments.
    unsafe {
        let words = program.for_shell;
        words.write(SHELL.as_ptr());
        words.add(1).write(name as *const c_char);
        let rest = program.count.saturating_sub(1);
        for index in 0..rest {
            words.add(2 + index).write(*program.argv.add(1 + index));
        }
        words.add(2 + rest).write(std::ptr::null());
    }
    call(SHELL.as_ptr() as usize, program.for_shell, program.envp)
}

fn call(name: usize, argv: Strings, envp: Strings) -> isize {
    // SAFETY: the arguments are copies, or pointers that the kernel rejects.
    unsafe { issue_exec(libc::SYS_execve, [name, argv as usize, envp as usize, 0, 0, 0]) }
}

fn search_path() -> *const c_char {
    // SAFETY: by C's rules no other thread changes the environment meanwhile.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    if path.is_null() { DEFAULT_PATH.as_ptr() } else { path }
}

pub(super) fn path_bytes(file: *const c_char) -> usize {
    let mut readable = Readable::new();
    2 * readable.text_bytes(search_path()) + 2 * readable.text_bytes(file) + size_of::<usize>()
}

pub(super) fn takes_library_of(copies: &mut Copies, scratch: Scratch, file: *const c_char) -> bool {
    let path = copies.copy_text(search_path());
    // The kernel later rejects a pointer that cannot be read.
    let Some(file) = Readable::new().text(file) else { return true };
    // SAFETY: the copy ends with a zero.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let name = copies.take(path.len() + file.len() + 2);
    let directories = path.split(|byte| *byte == b':');
    let is_path = file.contains(&b'/');
    for directory in directories.map(|it| if is_path { b"" } else { it }) {
        write_name(name, [directory, file, b"\0"]);
        let executable = [libc::AT_FDCWD as usize, name as usize, libc::X_OK as usize, 0, 0, 0];
        if engine_syscall(libc::SYS_faccessat, executable) == 0 {
            return takes_library(scratch, libc::AT_FDCWD, name.cast());
        }
    }
    true
}

fn write_name(name: *mut u8, [directory, file, end]: [&[u8]; 3]) {
    let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
    let mut at = name;
    for part in [directory, slash, file, end] {
        // SAFETY: `name` has space for the longest directory, a slash, the file's name and a zero.
        unsafe {
            std::ptr::copy_nonoverlapping(part.as_ptr(), at, part.len());
            at = at.add(part.len());
        }
    }
}
