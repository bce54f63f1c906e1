//! Decides if a program that is started can load this library.

use super::argument_copies::Copies;
use crate::base::issue_call::engine_syscall;
use softswap_sys::program_file::sanitizer;
use std::ffi::c_char;

/// Bytes of a program's file that are read. In practice they contain its program headers.
const HEAD_BYTES: usize = 4096;
pub(super) const SCRATCH_BYTES: usize = HEAD_BYTES + size_of::<libc::stat>();
const DEPTH: usize = 5;
const LOADER: &[u8] = b"ld-linux-x86-64.so.2";
const CLASS_64: u8 = 2;
const X86_64: u16 = 62;
const PT_INTERP: u32 = 3;
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const GROUP_EXECUTE: u32 = 0o010;

/// Memory outside the window, for reading a program's headers.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
    head: *mut u8,
    status: *mut libc::stat,
}

impl Scratch {
    pub(super) fn take(copies: &mut Copies) -> Scratch {
        let status = copies.take(size_of::<libc::stat>()).cast();
        Scratch { head: copies.take(HEAD_BYTES), status }
    }
}

/// Returns false for programs of another C library, another processor, or 32 bits, for programs
/// built with a sanitizer, and for setuid and setgid programs. For a script, its interpreter
/// decides.
///
/// Returns true for a file that cannot be read, and for a static program: it ignores the library
/// and passes the variables on to the programs that it starts.
pub(super) fn takes_library(
    Scratch { head, status }: Scratch,
    directory: i32,
    path: *const c_char,
) -> bool {
    let (mut directory, mut path) = (directory, path as usize);
    for _ in 0..DEPTH {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        let fd =
            engine_syscall(libc::SYS_openat, [directory as usize, path, flags as usize, 0, 0, 0]);
        if fd < 0 {
            return true;
        }
        let got = engine_syscall(
            libc::SYS_pread64,
            [fd as usize, head as usize, HEAD_BYTES - 1, 0, 0, 0],
        );
        // SAFETY: `head` has space for `HEAD_BYTES`, which nothing else refers to.
        let bytes = unsafe { std::slice::from_raw_parts_mut(head, HEAD_BYTES) };
        let bytes = &mut bytes[..=usize::try_from(got).unwrap_or(0)];
        let verdict = match bytes {
            _ if gains_rights(fd as usize, status) => Some(false),
            [0x7F, b'E', b'L', b'F', ..] => {
                Some(has_our_loader(fd as usize, bytes) && !is_sanitized(fd as usize, head))
            }
            [b'#', b'!', ..] => None,
            _ => Some(true),
        };
        engine_syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
        if let Some(verdict) = verdict {
            return verdict;
        }
        let Some(interpreter) = interpreter(bytes) else { return true };
        // The kernel looks an interpreter up from the current directory.
        (directory, path) = (libc::AT_FDCWD, interpreter);
    }
    true
}

/// Returns the address of a script's interpreter, after terminating it with a zero.
fn interpreter(bytes: &mut [u8]) -> Option<usize> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = 2 + bytes[2..].iter().position(|byte| !is_blank(byte))?;
    let is_end = |byte: &u8| is_blank(byte) || matches!(byte, b'\n' | 0);
    // The last byte of the buffer is not part of the file.
    let len = bytes[start..].iter().position(is_end).unwrap_or(bytes.len() - 1 - start);
    *bytes.get_mut(start + len)? = 0;
    (len > 0).then(|| bytes[start..].as_ptr() as usize)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<usize> {
    let mut word = [0; size_of::<usize>()];
    word[..N].copy_from_slice(bytes.get(at..at.checked_add(N)?)?);
    Some(usize::from_le_bytes(word))
}

/// Returns true if an ELF program names the loader of this library's C library, or none.
fn has_our_loader(fd: usize, bytes: &mut [u8]) -> bool {
    if bytes.len() < HEADER_BYTES {
        return true;
    }
    if bytes[4] != CLASS_64 || number::<2>(bytes, 18) != Some(usize::from(X86_64)) {
        return false;
    }
    let (Some(table), Some(count)) = (number::<8>(bytes, 32), number::<2>(bytes, 56)) else {
        return true;
    };
    let header = |index: usize| table.checked_add(index * PROGRAM_HEADER_BYTES);
    let is_interpreter =
        |at: &usize| number::<4>(bytes, *at).is_some_and(|kind| kind == PT_INTERP as usize);
    let Some(at) = (0..count).filter_map(header).find(is_interpreter) else { return true };
    let (Some(offset), Some(len)) = (number::<8>(bytes, at + 8), number::<8>(bytes, at + 32))
    else {
        return true;
    };
    let len = len.min(bytes.len());
    let got =
        engine_syscall(libc::SYS_pread64, [fd, bytes.as_mut_ptr() as usize, len, offset, 0, 0]);
    let name = &bytes[..usize::try_from(got).unwrap_or(0)];
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    name.is_empty() || name.rsplit(|byte| *byte == b'/').next() == Some(LOADER)
}

fn is_sanitized(fd: usize, head: *mut u8) -> bool {
    // SAFETY: `head` has space for `HEAD_BYTES`, which nothing else refers to any more.
    let buffer = unsafe { std::slice::from_raw_parts_mut(head, HEAD_BYTES) };
    let read_at = |bytes: &mut [u8], at: u64| {
        let at = usize::try_from(at).ok()?;
        let got = engine_syscall(
            libc::SYS_pread64,
            [fd, bytes.as_mut_ptr() as usize, bytes.len(), at, 0, 0],
        );
        usize::try_from(got).ok()
    };
    sanitizer(buffer, read_at).is_some()
}

/// The loader ignores LD_PRELOAD if the kernel runs the program as another user or group.
fn gains_rights(fd: usize, status: *mut libc::stat) -> bool {
    if engine_syscall(libc::SYS_fstat, [fd, status as usize, 0, 0, 0, 0]) < 0 {
        return false;
    }
    // SAFETY: `fstat` has filled `status`.
    let libc::stat { st_mode, st_uid, st_gid, .. } = unsafe { *status };
    let sets_user = st_mode & libc::S_ISUID != 0;
    let sets_group = st_mode & libc::S_ISGID != 0 && st_mode & GROUP_EXECUTE != 0;
    if !sets_user && !sets_group {
        return false;
    }
    let is = |number, id| engine_syscall(number, [0; 6]) == id as isize;
    let gains =
        sets_user && !is(libc::SYS_geteuid, st_uid) || sets_group && !is(libc::SYS_getegid, st_gid);
    gains
        && engine_syscall(libc::SYS_prctl, [libc::PR_GET_NO_NEW_PRIVS as usize, 0, 0, 0, 0, 0]) != 1
}
