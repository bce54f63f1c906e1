//! Long writes to regular files.
//!
//! Up to the limit for calls, a write is one call over pinned buffers. A longer one is split into
//! pinned pieces, under a lock for its file ([`crate::process::file_write_locks`]):
//!
//! - With an explicit position, each piece has its own explicit position.
//! - At the file's own position, the call first claims its part by one `lseek` over it, as in
//!   `reading`. For unwritten bytes the position is moved back.
//! - At the end of a file, and under the program's own filter, which may forbid `lseek`, each piece
//!   follows the previous one. If another write comes between them, the call ends with a short
//!   count, so an append within [`crate::memory::pins::undivided_limit_bytes`] is not split.
//!
//! If RLIMIT_FSIZE is reached between two pieces, the count is short, and there is no signal.

use super::buffers::{Buffers, too_long, total_bytes};
use super::chunks::{Moved, Step, in_chunks};
use super::descriptor_kind::{Kind, appends, file_len, is_direct, kind_of, seek};
use super::reading::are_blocks;
use super::transfer_call::Call;
use crate::base::issue_call::engine_syscall;
use crate::process::file_write_locks::{self, FileWriteLock};
use libc::iovec;
use softswap_engine::api::engine::Engine;
use softswap_sys::exemption;

/// Returns true if a short write needs the file's lock, too: another thread may be writing pieces.
pub(super) fn needs_lock(call: &Call) -> bool {
    file_write_locks::are_in_use() && matches!(kind_of(call.fd(), true), Kind::File { .. })
}

pub(super) fn write(engine: &Engine, call: &Call, originals: &[iovec], inode: u64) -> isize {
    let _lock = FileWriteLock::take(inode);
    let is_append = is_append(call);
    let is_whole = is_append || call.is_atomic() || is_direct(call.fd()) && !are_blocks(originals);
    let whole = if is_whole {
        Buffers::undivided(engine, originals)
    } else {
        Buffers::pinned(engine, originals, engine.hold_limit_bytes())
    };
    if let Some(buffers) = whole {
        return call.issue(buffers.vectors());
    }
    if call.is_atomic() {
        return too_long(engine, originals);
    }
    let bytes = total_bytes(originals);
    let mut part = Part::of(call, is_append, bytes);
    let result = in_chunks(engine, originals, |vectors, step| {
        if step.done > 0 && !part.may_follow(step.done) {
            return Moved { result: 0, may_continue: false };
        }
        let result = part.call(call, step).issue_piece(vectors, step);
        Moved { result, may_continue: part.is_undisturbed(result) }
    });
    if let Part::Claimed { .. } = part {
        let unwritten = bytes as isize - result.max(0);
        if unwritten > 0 {
            seek(call.fd(), -unwritten);
        }
    }
    result
}

fn is_append(call: &Call) -> bool {
    const RWF_APPEND: usize = 0x10;
    const RWF_NOAPPEND: usize = 0x20;
    match call.write_flags() {
        flags if flags & RWF_NOAPPEND != 0 => false,
        flags => flags & RWF_APPEND != 0 || appends(call.fd()),
    }
}

enum Part {
    Explicit {
        start: usize,
    },
    /// The file's own position has been moved over the part.
    Claimed {
        start: usize,
    },
    /// Each piece starts at the end of the previous one. `end_of` returns the current end.
    Next {
        fd: usize,
        end: Option<usize>,
        end_of: fn(usize) -> Option<usize>,
    },
}

impl Part {
    fn of(call: &Call, is_append: bool, bytes: usize) -> Part {
        let fd = call.fd();
        let next = |end_of: fn(usize) -> Option<usize>| Part::Next { fd, end: end_of(fd), end_of };
        if is_append {
            return next(file_len);
        }
        if let Some(start) = call.position() {
            return Part::Explicit { start };
        }
        let position = |fd| usize::try_from(seek(fd, 0)).ok();
        if exemption::is_in_force() {
            return next(position);
        }
        match usize::try_from(seek(fd, bytes as isize)) {
            Ok(end) => Part::Claimed { start: end - bytes },
            Err(_) => next(position),
        }
    }

    /// Returns true if the next piece directly follows the last, within the file size limit.
    fn may_follow(&self, done: usize) -> bool {
        let at = match self {
            Part::Explicit { start } | Part::Claimed { start } => Some(start + done),
            Part::Next { fd, end, end_of } => end_of(*fd).filter(|now| Some(*now) == *end),
        };
        at.is_some_and(|at| at < file_limit_bytes())
    }

    fn call(&self, call: &Call, step: Step) -> Call {
        match self {
            Part::Explicit { start } | Part::Claimed { start } => call.at(start + step.done),
            Part::Next { .. } => *call,
        }
    }

    /// Records the new end after a piece. Returns true if only this piece moved it.
    fn is_undisturbed(&mut self, result: isize) -> bool {
        let Part::Next { fd, end, end_of } = self else { return true };
        let now = end_of(*fd);
        let is_alone = now.is_some() && now == end.map(|end| end + result.max(0) as usize);
        *end = now;
        is_alone
    }
}

fn file_limit_bytes() -> usize {
    let mut limit = [u64::MAX; 2];
    let at = &raw mut limit as usize;
    engine_syscall(libc::SYS_prlimit64, [0, libc::RLIMIT_FSIZE as usize, 0, at, 0, 0]);
    limit[0] as usize
}
