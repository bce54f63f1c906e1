//! `sendmsg`, `recvmsg` and related calls.
//!
//! The buffers of messages are listed one by one: data, address, control data.

use super::buffers::{
    Buffers, EMPTY, INLINE_COUNT, MAX_RANGES, MAX_TRANSFER_BYTES, MAX_VECTORS, RECEIVED, cut,
    space_for,
};
use super::chunks::{Moved, in_chunks};
use super::descriptor_kind::{Kind, drops_truncated, kind_of};
use super::reading::{max_waiting, waits_for_all};
use super::writing::{piece_flags, undivided};
use crate::base::errno::refused;
use crate::base::guarded_call::issue_waiting;
use crate::base::issue_call::Arguments;
use crate::base::uaccess;
use crate::memory::pins::Pins;
use libc::{iovec, mmsghdr, msghdr, timespec};
use softswap_engine::api::engine::Engine;

const OTHERS: usize = 2;
const MAX_ADDRESS_BYTES: usize = 128;
/// Maximum number of messages that the kernel accepts in one call.
const MAX_MESSAGES: usize = 1024;
/// Number of messages that are stored on the stack; more need a mapping.
const INLINE_MESSAGES: usize = 4;

/// Returns false if the buffers cannot be read, or the kernel must reject them.
fn list_buffers(message: &msghdr, list: &mut [iovec]) -> bool {
    let (data, others) = list.split_at_mut(message.msg_iovlen);
    let address_len = (message.msg_namelen as usize).min(MAX_ADDRESS_BYTES);
    others[0] = iovec { iov_base: message.msg_name, iov_len: address_len };
    others[1] = iovec { iov_base: message.msg_control, iov_len: message.msg_controllen };
    let are_read = uaccess::get_user_array(message.msg_iov as usize, data);
    are_read && cut(data) && cut(others)
}

/// Returns the number of buffers of a message; `None` if it exceeds the kernel's limit.
fn buffers_of(message: &msghdr) -> Option<usize> {
    (message.msg_iovlen <= MAX_VECTORS).then_some(message.msg_iovlen + OTHERS)
}

fn refer_to(message: &mut msghdr, buffers: &[iovec]) {
    let (data, others) = buffers.split_at(buffers.len() - OTHERS);
    message.msg_iov = data.as_ptr().cast_mut();
    message.msg_iovlen = data.len();
    message.msg_name = others[0].iov_base;
    message.msg_control = others[1].iov_base;
}

fn hand_back(
    buffers: &Buffers<'_, '_>,
    first: usize,
    end: usize,
    bytes: usize,
    original: usize,
    received: &msghdr,
) -> Option<isize> {
    buffers.hand_back(first, end - OTHERS, bytes);
    buffers.hand_back(end - 2, end - 1, received.msg_namelen as usize);
    buffers.hand_back(end - 1, end, received.msg_controllen);
    return_header(original, received)
}

/// Returns EFAULT if the program's header cannot be written.
fn return_header(original: usize, received: &msghdr) -> Option<isize> {
    let header = original as *mut msghdr;
    // Field by field: the test writes a byte, and the program may use the fields between these.
    let fields = [
        (std::mem::offset_of!(msghdr, msg_namelen), size_of_val(&received.msg_namelen)),
        (std::mem::offset_of!(msghdr, msg_controllen), size_of_val(&received.msg_controllen)),
        (std::mem::offset_of!(msghdr, msg_flags), size_of_val(&received.msg_flags)),
    ];
    if !fields.iter().all(|(offset, len)| uaccess::is_writable(original + offset, *len)) {
        return Some(refused(libc::EFAULT));
    }
    // SAFETY: `is_writable` found these fields of the program's structure writable.
    unsafe {
        (&raw mut (*header).msg_namelen).write_unaligned(received.msg_namelen);
        (&raw mut (*header).msg_controllen).write_unaligned(received.msg_controllen);
        (&raw mut (*header).msg_flags).write_unaligned(received.msg_flags);
    }
    None
}

pub(super) fn send(engine: &Engine, arguments: Arguments) -> isize {
    send_by(engine, arguments, |fd, message, flags| {
        issue_waiting(libc::SYS_sendmsg, [fd, message as usize, flags, 0, 0, 0])
    })
}

/// Sends one message by `sendmmsg`, because the program's own filter may forbid `sendmsg`.
fn send_first(engine: &Engine, arguments: Arguments) -> isize {
    send_by(engine, arguments, |fd, message, flags| {
        let Some(message) = uaccess::get_user::<msghdr>(message as usize) else {
            return issue_waiting(libc::SYS_sendmmsg, [fd, message as usize, 1, flags, 0, 0]);
        };
        let mut header = mmsghdr { msg_hdr: message, msg_len: 0 };
        match issue_waiting(libc::SYS_sendmmsg, [fd, &raw mut header as usize, 1, flags, 0, 0]) {
            1 => header.msg_len as isize,
            error => error,
        }
    })
}

fn send_by(
    engine: &Engine,
    arguments: Arguments,
    issue_one: impl Fn(usize, *const msghdr, usize) -> isize,
) -> isize {
    let [fd, original, flags, ..] = arguments;
    let Some(mut message) = uaccess::get_user::<msghdr>(original) else {
        // The kernel reports the bad pointer.
        return issue_one(fd, original as *const msghdr, flags);
    };
    let issue = |message: &msghdr, flags| issue_one(fd, message, flags);
    let Some(count) = buffers_of(&message) else { return issue(&message, flags) };
    let (mut pins, mut inline) = (Pins::<MAX_RANGES>::new(engine), [EMPTY; INLINE_COUNT]);
    let Some(list) = space_for(&mut pins, &mut inline, count) else { return refused(libc::ENOMEM) };
    if !list_buffers(&message, list) {
        return issue(&message, flags);
    }
    if let Some(buffers) = Buffers::pinned(engine, list, engine.call_limit_bytes()) {
        refer_to(&mut message, buffers.vectors());
        return issue(&message, flags);
    }
    let kind = kind_of(fd, true);
    if kind == Kind::Stream {
        let (data, others) = list.split_at(count - OTHERS);
        for other in others {
            pins.add(other.iov_base as usize, other.iov_len, usize::MAX);
        }
        return in_chunks(engine, data, |vectors, step| {
            message.msg_iov = vectors.as_ptr().cast_mut();
            message.msg_iovlen = vectors.len();
            if step.done > 0 {
                message.msg_controllen = 0;
            }
            issue(&message, piece_flags(flags, step)).into()
        });
    }
    undivided(engine, list, kind, |vectors| {
        let mut message = message;
        refer_to(&mut message, vectors);
        issue(&message, flags)
    })
}

pub(super) fn receive(engine: &Engine, arguments: Arguments) -> isize {
    let [fd, original, flags, ..] = arguments;
    let issue_unchanged = || issue_waiting(libc::SYS_recvmsg, arguments);
    let Some(mut message) = uaccess::get_user::<msghdr>(original) else {
        return issue_unchanged();
    };
    let issue = |message: &mut msghdr| {
        issue_waiting(libc::SYS_recvmsg, [fd, std::ptr::from_mut(message) as usize, flags, 0, 0, 0])
    };
    let Some(count) = buffers_of(&message) else { return issue(&mut message) };
    let (mut pins, mut inline) = (Pins::<MAX_RANGES>::new(engine), [EMPTY; INLINE_COUNT]);
    let Some(list) = space_for(&mut pins, &mut inline, count) else { return refused(libc::ENOMEM) };
    if !list_buffers(&message, list) {
        return issue_unchanged();
    }
    let most = max_waiting(engine);
    let pinned = Buffers::pinned(engine, list, most);
    if pinned.is_none() && waits_for_all(flags) && kind_of(fd, false) == Kind::Stream {
        let (data, others) = list.split_at(count - OTHERS);
        return receive_all_of(engine, message, data, others, original, issue);
    }
    let buffers = match pinned.map_or_else(|| Buffers::new(engine, list, RECEIVED, most), Ok) {
        Ok(buffers) => buffers,
        Err(error) => return error,
    };
    refer_to(&mut message, buffers.vectors());
    let result = issue(&mut message);
    if result < 0 {
        return result;
    }
    let dropped = flags & libc::MSG_TRUNC as usize != 0 && drops_truncated(fd);
    let bytes = if dropped { 0 } else { result as usize };
    hand_back(&buffers, 0, count, bytes, original, &message).unwrap_or(result)
}

fn receive_all_of(
    engine: &Engine,
    mut message: msghdr,
    data: &[iovec],
    others: &[iovec],
    original: usize,
    issue: impl Fn(&mut msghdr) -> isize,
) -> isize {
    let mut pins = Pins::<OTHERS>::new(engine);
    for other in others {
        pins.add(other.iov_base as usize, other.iov_len, usize::MAX);
    }
    let mut received = message;
    let result = in_chunks(engine, data, |vectors, _| {
        message.msg_iov = vectors.as_ptr().cast_mut();
        message.msg_iovlen = vectors.len();
        let mut piece = message;
        let result = issue(&mut piece);
        if result >= 0 {
            received = piece;
        }
        Moved { result, may_continue: piece.msg_controllen == 0 }
    });
    if result < 0 {
        return result;
    }
    return_header(original, &received).unwrap_or(result)
}

struct Messages<'p> {
    headers: &'p mut [mmsghdr],
    buffers: &'p mut [iovec],
}

/// `None` if the kernel must report an error, or if there is no memory.
fn read_headers<'p>(
    pins: &mut Pins<'_, MAX_RANGES>,
    inline: &'p mut [mmsghdr],
    inline_buffers: &'p mut [iovec],
    original: usize,
    count: usize,
) -> Option<Messages<'p>> {
    let headers = space_for(pins, inline, count)?;
    if !uaccess::get_user_array(original, headers) {
        return None;
    }
    let counts = headers.iter().map(|header| buffers_of(&header.msg_hdr));
    let total = counts.sum::<Option<usize>>()?;
    let buffers = space_for(pins, inline_buffers, total)?;
    let mut rest = &mut *buffers;
    for header in headers.iter() {
        let (list, others) = rest.split_at_mut(buffers_of(&header.msg_hdr)?);
        if !list_buffers(&header.msg_hdr, list) {
            return None;
        }
        rest = others;
    }
    Some(Messages { headers, buffers })
}

fn is_readable(original: usize, index: usize) -> bool {
    let header = uaccess::get_user::<mmsghdr>(original + index * size_of::<mmsghdr>());
    header.is_some_and(|header| {
        let message = &header.msg_hdr;
        buffers_of(message).is_some()
            && uaccess::is_readable(
                message.msg_iov as usize,
                message.msg_iovlen * size_of::<iovec>(),
            )
    })
}

fn places(headers: &[mmsghdr]) -> impl Iterator<Item = (usize, usize)> {
    let mut end = 0;
    headers.iter().map(move |header| {
        let first = end;
        end += header.msg_hdr.msg_iovlen + OTHERS;
        (first, end)
    })
}

fn no_messages() -> [mmsghdr; INLINE_MESSAGES] {
    [softswap_sys::AnyBits::zeroed(); INLINE_MESSAGES]
}

/// Sends messages by one call if all can be pinned, otherwise one by one, as the kernel does.
pub(super) fn send_all(engine: &Engine, mut arguments: Arguments) -> isize {
    let (original, count) = (arguments[1], (arguments[2] as u32 as usize).min(MAX_MESSAGES));
    let mut pins = Pins::<MAX_RANGES>::new(engine);
    let (mut inline, mut inline_buffers) = (no_messages(), [EMPTY; INLINE_COUNT]);
    let most = engine.call_limit_bytes();
    if let Some(messages) =
        read_headers(&mut pins, &mut inline, &mut inline_buffers, original, count)
        && let Some(buffers) = Buffers::pinned(engine, messages.buffers, most)
    {
        let count = messages.headers.len();
        for index in 0..count {
            let Some((first, end)) = places(messages.headers).nth(index) else { break };
            refer_to(&mut messages.headers[index].msg_hdr, &buffers.vectors()[first..end]);
        }
        arguments[1] = messages.headers.as_ptr() as usize;
        arguments[2] = count;
        let result = issue_waiting(libc::SYS_sendmmsg, arguments);
        for index in 0..result.max(0) as usize {
            if !return_len(original, index, messages.headers[index].msg_len) {
                return if index > 0 { index as isize } else { refused(libc::EFAULT) };
            }
        }
        return result;
    }
    drop(pins);
    send_each(engine, arguments, count)
}

fn send_each(engine: &Engine, arguments: Arguments, count: usize) -> isize {
    let [fd, original, _, flags, ..] = arguments;
    let mut sent = 0;
    for index in 0..count {
        let header = original.wrapping_add(index * size_of::<mmsghdr>());
        let result = send_first(engine, [fd, header, flags, 0, 0, 0]);
        if result >= 0 && return_len(original, index, result as u32) {
            sent += 1;
            // The kernel, too, sends nothing after a message that it has sent in part.
            if (result as usize) < message_bytes(header) {
                return sent;
            }
            continue;
        }
        let error = if result < 0 { result } else { refused(libc::EFAULT) };
        return if sent > 0 { sent } else { error };
    }
    sent
}

/// Returns the bytes of a message that one call sends; 0 if the message cannot be read.
fn message_bytes(header: usize) -> usize {
    let Some(message) = uaccess::get_user::<msghdr>(header) else { return 0 };
    let vector =
        |index| uaccess::get_user::<iovec>(message.msg_iov as usize + index * size_of::<iovec>());
    let sum = |sum: usize, vector: iovec| sum.saturating_add(vector.iov_len);
    (0..message.msg_iovlen).map_while(vector).fold(0, sum).min(MAX_TRANSFER_BYTES)
}

fn return_len(original: usize, index: usize, len: u32) -> bool {
    let at = original + index * size_of::<mmsghdr>() + std::mem::offset_of!(mmsghdr, msg_len);
    uaccess::copy_to_user(at, &len.to_ne_bytes())
}

pub(super) fn receive_all(engine: &Engine, mut arguments: Arguments) -> isize {
    let (original, count) = (arguments[1], (arguments[2] as u32 as usize).min(MAX_MESSAGES));
    let mut pins = Pins::<MAX_RANGES>::new(engine);
    let (mut inline, mut inline_buffers) = (no_messages(), [EMPTY; INLINE_COUNT]);
    // The kernel receives messages up to the first bad pointer.
    let count = (0..count).take_while(|index| is_readable(original, *index)).count();
    let messages = if count > 0 {
        read_headers(&mut pins, &mut inline, &mut inline_buffers, original, count)
    } else {
        None
    };
    let Some(Messages { headers, buffers: list }) = messages else {
        return issue_waiting(libc::SYS_recvmmsg, arguments);
    };
    pins.add(arguments[4], size_of::<timespec>(), usize::MAX);
    let buffers = match Buffers::new(engine, list, RECEIVED, max_waiting(engine)) {
        Ok(buffers) => buffers,
        Err(error) => return error,
    };
    for index in 0..headers.len() {
        let Some((first, end)) = places(headers).nth(index) else { break };
        refer_to(&mut headers[index].msg_hdr, &buffers.vectors()[first..end]);
    }
    arguments[1] = headers.as_ptr() as usize;
    arguments[2] = headers.len();
    let result = issue_waiting(libc::SYS_recvmmsg, arguments);
    for (index, (first, end)) in places(headers).take(result.max(0) as usize).enumerate() {
        let at = original + index * size_of::<mmsghdr>();
        let mmsghdr { msg_hdr: header, msg_len: len } = &headers[index];
        if hand_back(&buffers, first, end, *len as usize, at, header).is_some()
            || !return_len(original, index, *len)
        {
            return if index > 0 { index as isize } else { refused(libc::EFAULT) };
        }
    }
    result
}
