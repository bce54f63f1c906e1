//! Transfers cut into pieces that can be pinned.

use super::buffers::{EMPTY, INLINE_COUNT, MAX_RANGES, space_for, total_bytes};
use crate::base::errno::refused;
use crate::base::{guarded_call, instance};
use crate::memory::pins::Pins;
use libc::iovec;
use softswap_engine::api::engine::Engine;

#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) done: usize,
    pub(super) is_last: bool,
}

pub(super) struct Moved {
    pub(super) result: isize,
    pub(super) may_continue: bool,
}

impl From<isize> for Moved {
    fn from(result: isize) -> Moved {
        Moved { result, may_continue: true }
    }
}

/// Ends after a piece that is moved in part. Returns the bytes moved, or the first piece's error.
pub(super) fn in_chunks(
    engine: &Engine,
    originals: &[iovec],
    mut issue: impl FnMut(&[iovec], Step) -> Moved,
) -> isize {
    let mut kept = Pins::new(engine);
    let mut inline = [EMPTY; INLINE_COUNT];
    let Some(vectors) = space_for(&mut kept, &mut inline, originals.len()) else {
        return refused(libc::ENOMEM);
    };
    let mut progress = Progress { originals, index: 0, skip: 0 };
    let mut total = 0_usize;
    loop {
        let mut pins = Pins::new(engine);
        let (count, bytes) = progress.take(&mut pins, vectors, engine.call_limit_bytes());
        let step = Step { done: total, is_last: progress.is_at_end() };
        let moved = issue(&vectors[..count], step);
        drop(pins);
        if moved.result < 0 {
            return if total > 0 { total as isize } else { moved.result };
        }
        total += moved.result as usize;
        let is_done = (moved.result as usize) < bytes || step.is_last || !moved.may_continue;
        if is_done || guarded_call::is_killed() {
            return total as isize;
        }
    }
}

struct Progress<'v> {
    originals: &'v [iovec],
    index: usize,
    /// Completed bytes of the vector at `index`.
    skip: usize,
}

impl Progress<'_> {
    fn is_at_end(&self) -> bool {
        total_bytes(&self.originals[self.index..]) <= self.skip
    }

    /// Pins the next piece, of up to `most` managed bytes. Returns its vectors and bytes.
    fn take(
        &mut self,
        pins: &mut Pins<'_, MAX_RANGES>,
        vectors: &mut [iovec],
        most: usize,
    ) -> (usize, usize) {
        let (mut count, mut bytes, mut left) = (0, 0, most);
        while let Some(original) = self.originals.get(self.index) {
            let base = original.iov_base as usize + self.skip;
            let wanted = original.iov_len - self.skip;
            let mut len = wanted;
            if wanted > 0 && instance::is_managed(base) {
                if left == 0 || pins.free_entries() == 0 {
                    break;
                }
                let (tried, pinned) = pins.add_some(base, wanted.min(left));
                // If a part is inaccessible, pass all of it: the kernel reports the bad pointer.
                len = if pinned == tried { tried } else { wanted };
                // If other calls hold the rest of the limit, the piece ends here.
                left = if tried < wanted { 0 } else { left - tried };
            }
            vectors[count] = iovec { iov_base: base as *mut _, iov_len: len };
            count += 1;
            bytes += len;
            if len < wanted {
                self.skip += len;
                break;
            }
            self.index += 1;
            self.skip = 0;
        }
        (count, bytes)
    }
}
