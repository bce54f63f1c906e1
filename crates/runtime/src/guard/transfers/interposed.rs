//! Interposed calls whose buffers are behind the pointer that the filter sees.
//!
//! If that pointer is managed, the call traps. Otherwise these functions check the inner pointers.
//! For structures that they cannot read, the kernel reports the error.

use super::buffers::MAX_VECTORS;
use super::dispatch::transfer;
use super::{other_process, vectors};
use crate::base::cancellation::until_cancelled;
use crate::base::errno::c_result;
use crate::base::issue_call::{Answer, Arguments, answered_by, issue, padded, pass_on};
use crate::base::real::real;
use crate::base::{instance, uaccess};
use crate::signals::user_mode;
use libc::{iovec, mmsghdr, msghdr, pid_t, timespec};

/// Returns true if the array is not managed (else the call traps), but one of its buffers is.
fn has_nested(vectors: usize, count: usize) -> bool {
    let is_managed = |index| {
        let vector = vectors as *const iovec;
        // SAFETY: the array was found readable.
        let vector = unsafe { vector.add(index).read_unaligned() };
        instance::is_managed(vector.iov_base as usize)
    };
    !instance::is_managed(vectors)
        && count <= MAX_VECTORS
        && uaccess::is_readable(vectors, count * size_of::<iovec>())
        && (0..count).any(is_managed)
}

fn message_is_nested(message: usize) -> bool {
    if instance::engine().is_none() || instance::is_managed(message) {
        return false;
    }
    let Some(header) = uaccess::get_user::<msghdr>(message) else { return false };
    let inside = [header.msg_name, header.msg_control, header.msg_iov.cast()];
    inside.iter().any(|pointer| instance::is_managed(*pointer as usize))
        || has_nested(header.msg_iov as usize, header.msg_iovlen)
}

fn any_is_nested(messages: usize, count: usize) -> bool {
    const MAX_MESSAGES: usize = 1024;
    instance::engine().is_some()
        && !instance::is_managed(messages)
        && (0..count.min(MAX_MESSAGES))
            .any(|index| message_is_nested(messages.wrapping_add(index * size_of::<mmsghdr>())))
}

fn has_managed_buffers(number: i64, arguments: Arguments) -> bool {
    let [_, second, third, ..] = arguments;
    match number {
        libc::SYS_sendmsg | libc::SYS_recvmsg => message_is_nested(second),
        libc::SYS_sendmmsg | libc::SYS_recvmmsg => any_is_nested(second, third as u32 as usize),
        _ if vectors::has_vectors(number) => has_nested(second, third),
        _ => {
            debug_assert!(false, "call {number} has a handler, but no case in has_managed_buffers");
            false
        }
    }
}

/// Records a call of a multi-threaded sleeping process that may have nested buffers, because the
/// process may wake before the call has started. If the process is waking, waits until it is awake.
pub(crate) fn note_asleep(number: i64, arguments: Arguments) {
    if !instance::emulates_signals() || !instance::may_wake() {
        return;
    }
    user_mode::note_nested(number, arguments);
    if !instance::is_asleep() {
        instance::await_waking();
    }
}

/// Returns `None` for calls without managed nested buffers, which the C library issues.
fn handle_nested(number: i64, arguments: Arguments) -> Option<isize> {
    note_asleep(number, arguments);
    let engine = instance::engine()?;
    if has_managed_buffers(number, arguments) { transfer(engine, number, arguments) } else { None }
}

/// As [`handle_nested`], for a cancellation point. A thread that exits releases its pins.
fn handle_nested_until_cancelled(number: i64, arguments: Arguments) -> Option<isize> {
    note_asleep(number, arguments);
    let engine = instance::engine()?;
    if !has_managed_buffers(number, arguments) {
        return None;
    }
    until_cancelled(|| transfer(engine, number, arguments))
}

macro_rules! raw_handlers {
    ($($number:ident)*) => {
        pub(crate) fn answer_for(number: i64) -> Option<Answer> {
            match number {
                $(libc::$number => Some(|arguments| {
                    handle_nested(libc::$number, arguments)
                        .unwrap_or_else(|| issue(libc::$number, arguments))
                }),)*
                _ => copy_handler(number),
            }
        }
    };
}

raw_handlers! {
    SYS_readv SYS_writev SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2 SYS_vmsplice
    SYS_sendmsg SYS_recvmsg SYS_sendmmsg SYS_recvmmsg
}

macro_rules! nested_calls {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $result:ty: $number:ident[$($word:ident)*];)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $result {
            real!($name: fn($($ty),*) -> $result);
            match handle_nested_until_cancelled(libc::$number, padded([$($word as usize),*])) {
                Some(result) => c_result(result) as $result,
                // SAFETY: the C library's function of this name; the program passes the arguments.
                None => unsafe { $name()($($arg),*) },
            }
        }
    )*};
}

/// Upper half of an offset, which a 64-bit kernel ignores.
const ZERO: usize = 0;

type Vectors = *const iovec;

nested_calls! {
    readv(fd: i32, vectors: Vectors, count: i32) -> isize: SYS_readv[fd vectors count];
    writev(fd: i32, vectors: Vectors, count: i32) -> isize: SYS_writev[fd vectors count];
    preadv(fd: i32, vectors: Vectors, count: i32, at: i64) -> isize: SYS_preadv[fd vectors count at];
    preadv64(fd: i32, vectors: Vectors, count: i32, at: i64) -> isize:
        SYS_preadv[fd vectors count at];
    pwritev(fd: i32, vectors: Vectors, count: i32, at: i64) -> isize:
        SYS_pwritev[fd vectors count at];
    pwritev64(fd: i32, vectors: Vectors, count: i32, at: i64) -> isize:
        SYS_pwritev[fd vectors count at];
    preadv2(fd: i32, vectors: Vectors, count: i32, at: i64, flags: i32) -> isize:
        SYS_preadv2[fd vectors count at ZERO flags];
    preadv64v2(fd: i32, vectors: Vectors, count: i32, at: i64, flags: i32) -> isize:
        SYS_preadv2[fd vectors count at ZERO flags];
    pwritev2(fd: i32, vectors: Vectors, count: i32, at: i64, flags: i32) -> isize:
        SYS_pwritev2[fd vectors count at ZERO flags];
    pwritev64v2(fd: i32, vectors: Vectors, count: i32, at: i64, flags: i32) -> isize:
        SYS_pwritev2[fd vectors count at ZERO flags];
    vmsplice(fd: i32, vectors: Vectors, count: usize, flags: u32) -> isize:
        SYS_vmsplice[fd vectors count flags];
    sendmsg(fd: i32, message: *const msghdr, flags: i32) -> isize: SYS_sendmsg[fd message flags];
    recvmsg(fd: i32, message: *mut msghdr, flags: i32) -> isize: SYS_recvmsg[fd message flags];
    sendmmsg(fd: i32, messages: *mut mmsghdr, count: u32, flags: i32) -> i32:
        SYS_sendmmsg[fd messages count flags];
    recvmmsg(fd: i32, messages: *mut mmsghdr, count: u32, flags: i32, time: *mut timespec) -> i32:
        SYS_recvmmsg[fd messages count flags time];
}

pub(crate) fn copy_handler(number: i64) -> Option<Answer> {
    match number {
        libc::SYS_process_vm_readv => {
            Some(|arguments| copy_between(libc::SYS_process_vm_readv, arguments))
        }
        libc::SYS_process_vm_writev => {
            Some(|arguments| copy_between(libc::SYS_process_vm_writev, arguments))
        }
        _ => None,
    }
}

/// Not a cancellation point.
fn copy_between(number: i64, arguments: Arguments) -> isize {
    other_process::copy(number, arguments, |number, arguments| {
        handle_nested(number, arguments).unwrap_or_else(|| pass_on(number, arguments))
    })
}

answered_by! {
    process_vm_readv(pid: pid_t, own: Vectors, count: usize, theirs: Vectors, their_count: usize,
        flags: usize) -> isize: |arguments| copy_between(libc::SYS_process_vm_readv, arguments);
    process_vm_writev(pid: pid_t, own: Vectors, count: usize, theirs: Vectors, their_count: usize,
        flags: usize) -> isize: |arguments| copy_between(libc::SYS_process_vm_writev, arguments);
}
