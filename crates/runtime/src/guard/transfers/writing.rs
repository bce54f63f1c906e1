//! Writes to streams, disks and everything else except regular files ([`file_writing`]).
//!
//! Under the program's own filter, pieces use the program's call, which the filter judges.

use super::buffers::{Buffers, Strategy, total_bytes};
use super::chunks::{Step, in_chunks};
use super::descriptor_kind::{Kind, kind_of};
use super::file_writing;
use super::transfer_call::Call;
use crate::base::errno::refused;
use crate::base::guarded_call::issue_waiting;
use libc::{iovec, msghdr};
use softswap_engine::api::engine::Engine;
use softswap_sys::exemption;

pub(super) fn write(engine: &Engine, call: &Call, originals: &mut [iovec]) -> isize {
    let most = engine.call_limit_bytes();
    if !file_writing::needs_lock(call)
        && let Some(buffers) = Buffers::pinned(engine, originals, most)
    {
        return call.issue(buffers.vectors());
    }
    let originals = &*originals;
    match (kind_of(call.fd(), true), call.position()) {
        (Kind::Sink, _) => call.issue(originals),
        (Kind::File { inode, .. }, _) => file_writing::write(engine, call, originals, inode),
        (Kind::Stream, _) if !exemption::is_in_force() => {
            in_chunks(engine, originals, |vectors, step| send_piece(call, vectors, step).into())
        }
        (Kind::Disk { .. }, Some(position)) => in_chunks(engine, originals, |vectors, step| {
            call.at(position + step.done).issue_piece(vectors, step).into()
        }),
        (Kind::Disk { .. }, None) => {
            in_chunks(engine, originals, |vectors, step| call.issue_piece(vectors, step).into())
        }
        // Such a write is atomic.
        (kind @ Kind::Pipe, _) if total_bytes(originals) <= libc::PIPE_BUF => {
            undivided(engine, originals, kind, |vectors| call.issue(vectors))
        }
        (Kind::Pipe | Kind::Endless | Kind::Stream, _) => {
            in_chunks(engine, originals, |vectors, _| call.issue(vectors).into())
        }
        (kind @ (Kind::Messages | Kind::Whole), _) => {
            undivided(engine, originals, kind, |vectors| call.issue(vectors))
        }
    }
}

pub(super) fn undivided(
    engine: &Engine,
    originals: &[iovec],
    kind: Kind,
    issue: impl Fn(&[iovec]) -> isize,
) -> isize {
    match Buffers::new(engine, originals, Strategy::Out, engine.call_limit_bytes()) {
        Ok(buffers) => issue(buffers.vectors()),
        // The kernel reports a message that is too long, and sends none that it cannot read.
        Err(error) if kind == Kind::Messages => match issue(originals) {
            result if result == refused(libc::EFAULT) => error,
            result => result,
        },
        Err(error) => error,
    }
}

/// Linux reports a broken connection by a signal only if no byte was sent.
fn send_piece(call: &Call, vectors: &[iovec], step: Step) -> isize {
    let mut message: msghdr = softswap_sys::AnyBits::zeroed();
    message.msg_iov = vectors.as_ptr().cast_mut();
    message.msg_iovlen = vectors.len();
    if call.number == libc::SYS_sendto && step.done == 0 {
        message.msg_name = call.arguments[4] as *mut _;
        message.msg_namelen = call.arguments[5] as u32;
    }
    let flags = piece_flags(call.flags(), step);
    issue_waiting(libc::SYS_sendmsg, [call.fd(), &raw const message as usize, flags, 0, 0, 0])
}

/// Returns the flags for one piece. Only the last piece sends urgent data or ends a record, and
/// only the first opens a connection or is sent without a copy.
pub(super) fn piece_flags(flags: usize, step: Step) -> usize {
    let mut flags = flags;
    if !step.is_last {
        flags &= !((libc::MSG_OOB | libc::MSG_EOR) as usize);
    }
    if step.done > 0 {
        // Notifications are numbered by calls: one for the first piece; the others are copied.
        flags &= !((libc::MSG_FASTOPEN | libc::MSG_ZEROCOPY) as usize);
        flags |= libc::MSG_NOSIGNAL as usize;
    }
    flags
}
