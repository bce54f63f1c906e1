//! Interposed calls whose buffers are behind the pointer that the filter sees.
//!
//! If that pointer is managed, the call traps and the guard handles it. Otherwise these functions
//! check the inner pointers before the call is issued. Structures that they cannot read are left to
//! the kernel.

use super::buffers::MAX_VECTORS;
use super::dispatch::answer;
use super::{other_process, vectors};
use crate::base::cancellation::until_cancelled;
use crate::base::errno::c_result;
use crate::base::issue_call::{Answer, Arguments, issue};
use crate::base::real::real;
use crate::base::{instance, uaccess};
use crate::signals::user_mode;
use libc::{iovec, mmsghdr, msghdr};

/// Returns true if a call would hide managed memory from the filter: the array itself is not
/// managed (else it traps), but one of its buffers is.
fn hides(vectors: usize, count: usize) -> bool {
    let is_hidden = |index| {
        let vector = vectors as *const iovec;
        // SAFETY: the array was found readable.
        let vector = unsafe { vector.add(index).read_unaligned() };
        instance::is_managed(vector.iov_base as usize)
    };
    !instance::is_managed(vectors)
        && count <= MAX_VECTORS
        && uaccess::is_readable(vectors, count * size_of::<iovec>())
        && (0..count).any(is_hidden)
}

fn message_hides(message: usize) -> bool {
    if instance::engine().is_none() || instance::is_managed(message) {
        return false;
    }
    // SAFETY: any bytes are a header.
    let Some(header) = (unsafe { uaccess::get_user::<msghdr>(message) }) else { return false };
    let inside = [header.msg_name, header.msg_control, header.msg_iov.cast()];
    inside.iter().any(|pointer| instance::is_managed(*pointer as usize))
        || hides(header.msg_iov as usize, header.msg_iovlen)
}

fn any_hides(messages: usize, count: usize) -> bool {
    const MAX_MESSAGES: usize = 1024;
    instance::engine().is_some()
        && !instance::is_managed(messages)
        && (0..count.min(MAX_MESSAGES))
            .any(|index| message_hides(messages.wrapping_add(index * size_of::<mmsghdr>())))
}

/// Returns true if a structure that a call points to names managed memory.
fn has_managed_buffers(number: i64, arguments: Arguments) -> bool {
    let [_, second, third, ..] = arguments;
    match number {
        libc::SYS_sendmsg | libc::SYS_recvmsg => message_hides(second),
        libc::SYS_sendmmsg | libc::SYS_recvmmsg => any_hides(second, third as u32 as usize),
        _ if vectors::has_vectors(number) => hides(second, third),
        _ => {
            debug_assert!(false, "call {number} has a handler, but no case in has_managed_buffers");
            false
        }
    }
}

/// Records such a call of a multi-threaded sleeping process, because the process may wake before
/// the call has started. If it is waking now, waits for the end.
fn note_asleep(number: i64, arguments: Arguments) {
    if !instance::emulates_signals() || !instance::may_wake() {
        return;
    }
    user_mode::note_hidden(number, arguments);
    if !instance::is_asleep() {
        instance::await_waking();
    }
}

/// Handles a call that hides managed buffers. Returns `None` for other calls, which the C library
/// issues.
fn hidden(number: i64, arguments: Arguments) -> Option<isize> {
    note_asleep(number, arguments);
    let engine = instance::engine()?;
    if has_managed_buffers(number, arguments) { answer(engine, number, arguments) } else { None }
}

/// Does the same as [`hidden`] for a cancellation point: as in the C library, the thread can be
/// cancelled at any moment during the call. Its pins are released when the thread exits
/// ([`crate::memory::pins`]).
fn hidden_until_cancelled(number: i64, arguments: Arguments) -> Option<isize> {
    note_asleep(number, arguments);
    let engine = instance::engine()?;
    if !has_managed_buffers(number, arguments) {
        return None;
    }
    until_cancelled(|| answer(engine, number, arguments))
}

/// Defines the handlers of raw calls with these numbers.
macro_rules! raw_handlers {
    ($($number:ident)*) => {
        /// Returns the handler of a raw call through the C library's `syscall`.
        pub(crate) fn answer_for(number: i64) -> Option<Answer> {
            match number {
                $(libc::$number => Some(|arguments| {
                    hidden(libc::$number, arguments)
                        .unwrap_or_else(|| issue(libc::$number, arguments))
                }),)*
                _ => None,
            }
        }
    };
}

raw_handlers! {
    SYS_readv SYS_writev SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2 SYS_vmsplice
    SYS_process_vm_readv SYS_process_vm_writev
    SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: i32, vectors: *const iovec, count: i32) -> isize {
    real!(readv: fn(i32, *const iovec, i32) -> isize);
    match plain(libc::SYS_readv, fd, vectors, count, [0; 3]) {
        Some(result) => result,
        // SAFETY: the C library's function of this name, with the program's arguments.
        None => unsafe { readv()(fd, vectors, count) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: i32, vectors: *const iovec, count: i32) -> isize {
    real!(writev: fn(i32, *const iovec, i32) -> isize);
    match plain(libc::SYS_writev, fd, vectors, count, [0; 3]) {
        Some(result) => result,
        // SAFETY: the C library's function of this name, with the program's arguments.
        None => unsafe { writev()(fd, vectors, count) },
    }
}

/// Handles a call over iovecs that hides managed buffers.
fn plain(
    number: i64,
    fd: i32,
    vectors: *const iovec,
    count: i32,
    rest: [usize; 3],
) -> Option<isize> {
    let count = usize::try_from(count).ok().filter(|count| *count > 0)?;
    let [d, e, f] = rest;
    let arguments = [fd as usize, vectors as usize, count, d, e, f];
    let is_between_processes =
        matches!(number, libc::SYS_process_vm_readv | libc::SYS_process_vm_writev);
    let answer = if is_between_processes { hidden } else { hidden_until_cancelled };
    answer(number, arguments).map(c_result)
}

/// Defines the positioned calls, which differ only in name and number.
macro_rules! positioned {
    ($($name:ident $number:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            fd: i32, vectors: *const iovec, count: i32, offset: i64,
        ) -> isize {
            real!($name: fn(i32, *const iovec, i32, i64) -> isize);
                    match plain(libc::$number, fd, vectors, count, [offset as usize, 0, 0]) {
                Some(result) => result,
                // SAFETY: the C library's function of this name, with the program's arguments.
                None => unsafe { $name()(fd, vectors, count, offset) },
            }
        }
    )*};
}

positioned! {
    preadv SYS_preadv;
    preadv64 SYS_preadv;
    pwritev SYS_pwritev;
    pwritev64 SYS_pwritev;
}

macro_rules! positioned_with_flags {
    ($($name:ident $number:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            fd: i32, vectors: *const iovec, count: i32, offset: i64, flags: i32,
        ) -> isize {
            real!($name: fn(i32, *const iovec, i32, i64, i32) -> isize);
            let rest = [offset as usize, 0, flags as usize];
                    match plain(libc::$number, fd, vectors, count, rest) {
                Some(result) => result,
                // SAFETY: the C library's function of this name, with the program's arguments.
                None => unsafe { $name()(fd, vectors, count, offset, flags) },
            }
        }
    )*};
}

positioned_with_flags! {
    preadv2 SYS_preadv2;
    preadv64v2 SYS_preadv2;
    pwritev2 SYS_pwritev2;
    pwritev64v2 SYS_pwritev2;
}

/// Converts a count. Counts beyond the kernel's limit become -1, which the kernel rejects.
fn signed(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(-1)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(
    fd: i32,
    vectors: *const iovec,
    count: usize,
    flags: u32,
) -> isize {
    real!(vmsplice: fn(i32, *const iovec, usize, u32) -> isize);
    let rest = [flags as usize, 0, 0];
    match plain(libc::SYS_vmsplice, fd, vectors, signed(count), rest) {
        Some(result) => result,
        // SAFETY: the C library's function of this name, with the program's arguments.
        None => unsafe { vmsplice()(fd, vectors, count, flags) },
    }
}

macro_rules! between_processes {
    ($($name:ident $number:ident $make:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pid: libc::pid_t,
            own_vectors: *const iovec,
            count: libc::c_ulong,
            remote_vectors: *const iovec,
            their_count: libc::c_ulong,
            flags: libc::c_ulong,
        ) -> isize {
            type Count = libc::c_ulong;
            real!($name: fn(libc::pid_t, *const iovec, Count, *const iovec, Count, Count) -> isize);
            let rest = [remote_vectors as usize, their_count as usize, flags as usize];
            let call = || match plain(libc::$number, pid, own_vectors, signed(count as usize), rest) {
                Some(result) => result,
                // SAFETY: the C library's function of this name, with the program's arguments.
                None => unsafe { $name()(pid, own_vectors, count, remote_vectors, their_count, flags) },
            };
            $make(pid, remote_vectors as usize, their_count as usize, call)
        }
    )*};
}

between_processes! {
    process_vm_readv SYS_process_vm_readv other_process::read;
    process_vm_writev SYS_process_vm_writev other_process::write;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: i32, message: *const msghdr, flags: i32) -> isize {
    real!(sendmsg: fn(i32, *const msghdr, i32) -> isize);
    let arguments = [fd as usize, message as usize, flags as usize, 0, 0, 0];
    match hidden_until_cancelled(libc::SYS_sendmsg, arguments) {
        Some(result) => c_result(result),
        // SAFETY: the C library's function of this name, with the program's arguments.
        None => unsafe { sendmsg()(fd, message, flags) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: i32, message: *mut msghdr, flags: i32) -> isize {
    real!(recvmsg: fn(i32, *mut msghdr, i32) -> isize);
    let arguments = [fd as usize, message as usize, flags as usize, 0, 0, 0];
    match hidden_until_cancelled(libc::SYS_recvmsg, arguments) {
        Some(result) => c_result(result),
        // SAFETY: the C library's function of this name, with the program's arguments.
        None => unsafe { recvmsg()(fd, message, flags) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(fd: i32, messages: *mut mmsghdr, count: u32, flags: i32) -> i32 {
    real!(sendmmsg: fn(i32, *mut mmsghdr, u32, i32) -> i32);
    let arguments = [fd as usize, messages as usize, count as usize, flags as usize, 0, 0];
    match hidden_until_cancelled(libc::SYS_sendmmsg, arguments) {
        Some(result) => c_result(result) as i32,
        // SAFETY: the C library's function of this name, with the program's arguments.
        None => unsafe { sendmmsg()(fd, messages, count, flags) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: i32,
    messages: *mut mmsghdr,
    count: u32,
    flags: i32,
    time: *mut libc::timespec,
) -> i32 {
    real!(recvmmsg: fn(i32, *mut mmsghdr, u32, i32, *mut libc::timespec) -> i32);
    let arguments =
        [fd as usize, messages as usize, count as usize, flags as usize, time as usize, 0];
    match hidden_until_cancelled(libc::SYS_recvmmsg, arguments) {
        Some(result) => c_result(result) as i32,
        // SAFETY: the C library's function of this name, with the program's arguments.
        None => unsafe { recvmmsg()(fd, messages, count, flags, time) },
    }
}
