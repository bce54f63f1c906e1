//! Reads: one kernel call if they wait or have message boundaries, otherwise in pieces.
//!
//! A read at the file's own position first claims its part of the file by one `lseek` over it. So
//! two concurrent readers get separate contiguous parts, as with one kernel call each.

use super::buffers::{Buffers, RECEIVED, Strategy, managed_bytes, shorten, total_bytes, whole};
use super::chunks::in_chunks;
use super::descriptor_kind::{Kind, drops_truncated, is_direct, kind_of, seek};
use super::transfer_call::Call;
use libc::iovec;
use softswap_engine::api::engine::Engine;
use softswap_sys::PAGE_SIZE;
use softswap_sys::exemption;

/// Returns the limit in bytes for the pins of a call that may wait.
pub(super) fn max_waiting(engine: &Engine) -> usize {
    (engine.call_limit_bytes() / 4).max(64 << 10)
}

pub(super) fn read(engine: &Engine, call: &Call, originals: &mut [iovec]) -> isize {
    if let Some(buffers) = Buffers::pinned(engine, originals, max_waiting(engine)) {
        return call.issue(buffers.vectors());
    }
    if call.number == libc::SYS_getrandom {
        return in_chunks(engine, originals, |vectors, _| call.issue(vectors).into());
    }
    match (kind_of(call.fd(), false), call.position()) {
        (Kind::Endless, _) => in_chunks(engine, originals, |vectors, _| call.issue(vectors).into()),
        (Kind::File { .. } | Kind::Disk { .. }, Some(position)) => {
            in_chunks(engine, originals, |vectors, step| {
                call.at(position + step.done).issue_piece(vectors, step).into()
            })
        }
        (Kind::File { len, .. } | Kind::Disk { len }, None) => {
            claimed(engine, call, originals, len)
        }
        (Kind::Stream, _) if waits_for_all(call.flags()) => {
            in_chunks(engine, originals, |vectors, _| call.issue(vectors).into())
        }
        _ => in_one(engine, call, originals, RECEIVED),
    }
}

/// Returns true if all vectors are aligned to the smallest device block.
pub(super) fn are_blocks(vectors: &[iovec]) -> bool {
    const BLOCK: usize = 512;
    vectors.iter().all(|vector| (vector.iov_base as usize | vector.iov_len).is_multiple_of(BLOCK))
}

/// Returns true if the call waits for all requested bytes and removes them from the socket's queue.
pub(super) fn waits_for_all(flags: usize) -> bool {
    const NOT: i32 = libc::MSG_PEEK | libc::MSG_ERRQUEUE | libc::MSG_TRUNC;
    flags & libc::MSG_WAITALL as usize != 0 && flags & NOT as usize == 0
}

fn in_one(engine: &Engine, call: &Call, originals: &[iovec], strategy: Strategy) -> isize {
    let mut dropped = 0;
    let result = whole(engine, originals, strategy, max_waiting(engine), |vectors| {
        let result = call.issue(vectors);
        let truncates = call.flags() & libc::MSG_TRUNC as usize != 0;
        if truncates && drops_truncated(call.fd()) {
            dropped = result.max(0);
        }
        result - dropped
    });
    result + dropped
}

fn claimed(engine: &Engine, call: &Call, originals: &mut [iovec], len: u64) -> isize {
    let wanted = total_bytes(originals);
    let position = seek(call.fd(), 0);
    let left = (len as i64 - position as i64).max(0) as usize;
    // A short read is one call: a file's end, or a file that the kernel generates on reading.
    let bytes = managed_bytes(originals);
    let in_one = || in_one(engine, call, originals, Strategy::In(bytes.min(left)));
    let is_direct = is_direct(call.fd());
    if position < 0 || left <= max_waiting(engine) {
        return in_one();
    }
    // With direct I/O the kernel may reject all vectors if one is not whole blocks.
    if is_direct
        && !are_blocks(originals)
        && let Some(buffers) = Buffers::undivided(engine, originals)
    {
        return call.issue(buffers.vectors());
    }
    // The program's own filter may forbid all calls except this one.
    if exemption::is_in_force() {
        return in_chunks(engine, originals, |vectors, _| call.issue(vectors).into());
    }
    let wanted = wanted.min(if is_direct { left.next_multiple_of(PAGE_SIZE) } else { left });
    let end = seek(call.fd(), wanted as isize);
    if end < 0 {
        return in_one();
    }
    let start = end as usize - wanted;
    shorten(originals, wanted);
    let result = in_chunks(engine, originals, |vectors, step| {
        call.at(start + step.done).issue_piece(vectors, step).into()
    });
    let unread = wanted as isize - result.max(0);
    if unread > 0 {
        seek(call.fd(), -unread);
    }
    result
}
