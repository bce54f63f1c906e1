//! Writing: what Linux writes in one piece is written in one piece.
//!
//! So is a record that is appended to a file, or written at a position that others
//! share, a packet, what a terminal is given. A stream takes pieces, and a disk.

use super::buffers::{Buffers, Way, shorten, whole};
use super::chunks::{Step, in_chunks};
use super::descriptor_kind::{Kind, kind_of};
use super::transfer_call::Call;
use crate::base::issue_call::issue;
use crate::memory::spare_files::file_limit_bytes;
use libc::{iovec, msghdr};
use softswap_engine::door::engine::Engine;
use softswap_sys::exemption;

pub(super) fn write(engine: &Engine, call: &Call, originals: &mut [iovec]) -> isize {
    let most = engine.call_limit_bytes();
    if let Some(buffers) = Buffers::pinned(engine, originals, most) {
        return call.go(buffers.vectors());
    }
    let kind = kind_of(call.fd(), true);
    if matches!(kind, Kind::File { .. }) {
        // No file gets longer. A byte there is, so that the kernel says so where it is.
        shorten(originals, file_limit_bytes().max(1));
    }
    let originals = &*originals;
    let in_one = |most| whole(engine, originals, Way::Out, most, |vectors| call.go(vectors));
    match (kind, call.position()) {
        // It does not look, and so it does not fault.
        (Kind::Sink, _) => call.go(originals),
        (Kind::Pipe | Kind::Endless, _) => {
            in_chunks(engine, originals, |vectors, _| call.go(vectors).into())
        }
        // A piece is another call, which a filter of the program's own may forbid.
        (Kind::Stream, _) if exemption::is_in_force() => in_one(most),
        (Kind::Stream, _) => {
            in_chunks(engine, originals, |vectors, step| send_piece(call, vectors, step).into())
        }
        (Kind::Disk { .. }, Some(position)) => in_chunks(engine, originals, |vectors, step| {
            call.at(position + step.done).go(vectors).into()
        }),
        (Kind::Disk { .. }, None) => {
            in_chunks(engine, originals, |vectors, _| call.go(vectors).into())
        }
        (Kind::File { .. }, _) => in_one(engine.hold_limit_bytes()),
        (Kind::Whole, _) => in_one(most),
    }
}

/// Sends a piece of a stream. Linux tells of a broken connection by a signal only
/// when nothing was sent.
fn send_piece(call: &Call, vectors: &[iovec], step: Step) -> isize {
    // SAFETY: all-zero is a valid msghdr.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_ptr().cast_mut();
    message.msg_iovlen = vectors.len();
    if call.number == libc::SYS_sendto && step.done == 0 {
        message.msg_name = call.arguments[4] as *mut _;
        message.msg_namelen = call.arguments[5] as u32;
    }
    let flags = piece_flags(call.flags(), step);
    issue(libc::SYS_sendmsg, [call.fd(), &raw const message as usize, flags, 0, 0, 0])
}

/// The flags for one piece of what is sent: urgent data is its last byte, and a
/// connection is opened by the first piece.
pub(super) fn piece_flags(flags: usize, step: Step) -> usize {
    let mut flags = flags;
    if !step.is_last {
        flags &= !((libc::MSG_OOB | libc::MSG_EOR) as usize);
    }
    if step.done > 0 {
        flags &= !(libc::MSG_FASTOPEN as usize);
        flags |= libc::MSG_NOSIGNAL as usize;
    }
    flags
}
