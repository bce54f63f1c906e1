//! What an area's storage is told, and what it tells.
//!
//! Clusters that became empty are discarded in the background, if that is
//! wanted: a device may then reuse the flash below, a file gives its blocks
//! back. And an area whose storage fails write after write, or takes nothing, is asked last.

use super::health::Discarded;
use super::{Area, AreaFull};
use crate::store::io::IoError;
use crate::store::swap::cluster::{CLUSTER_SLOTS, PAGE_BYTES};
use softswap_sys::raw::now_ns;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

impl Area {
    /// Discards one cluster that waits for it. Nobody allocates from it
    /// meanwhile.
    pub(crate) fn discard_one(&self) -> Discarded {
        let Some(cluster) = self.slots.take_waiting() else { return Discarded::Nothing };
        let result = self.discard(u64::from(cluster) * CLUSTER_SLOTS as u64, CLUSTER_SLOTS);
        if self.is_growing && matches!(result, Discarded::Bytes(_)) {
            let bit = 1 << (cluster % 64);
            self.hollow[cluster as usize / 64].fetch_or(bit, AcqRel);
            self.has_hollow.store(true, Release);
        }
        self.slots.discarded(cluster);
        self.give_surplus();
        result
    }

    /// Discards everything but the header, before anything is stored.
    pub(super) fn discard_all(&self) -> Discarded {
        let pages = self.extents.pages();
        self.discard(1, (pages as usize).saturating_sub(1))
    }

    /// What discarding all of it before its first use came to, if that was
    /// wanted.
    #[must_use]
    pub(crate) fn discarded_at_start(&self) -> Discarded {
        self.discarded_at_start
    }

    /// Stops at the first error; then clusters are not discarded any more.
    fn discard(&self, first: u64, count: usize) -> Discarded {
        for (offset, bytes) in self.pieces(first, count) {
            if let Err(error) = self.device.discard(offset, bytes) {
                self.slots.set_discards(false);
                return match error.is_unsupported() {
                    true => Discarded::Unsupported,
                    false => Discarded::Failed,
                };
            }
        }
        Discarded::Bytes(count as u64 * PAGE_BYTES)
    }

    /// Whether writes failed again and again. It is asked for room last then; a
    /// write that succeeds makes up for it.
    #[must_use]
    pub(crate) fn has_failed(&self) -> bool {
        self.health.has_failed()
    }

    /// Whether it is asked for room last: it has failed, or took nothing a short time ago.
    #[must_use]
    pub(crate) fn is_last(&self) -> bool {
        self.has_failed() || self.health.has_rested() && self.health.rests(now_ns())
    }

    /// Why it takes nothing now, where a failed write says that; `None` where a place was bad.
    #[must_use]
    pub(crate) fn refusal(&self, error: &IoError) -> Option<AreaFull> {
        let is_whole = error.is_no_space() || error.is_of_device() || self.has_failed();
        is_whole.then(|| AreaFull::refused_write(self.size_bytes(), *error))
    }

    /// Whether what it holds is to be brought elsewhere.
    #[must_use]
    pub(crate) fn is_leaving(&self) -> bool {
        self.has_failed() && self.used_slots() > 0 && !self.health.is_given_up.load(Relaxed)
    }

    /// What it still holds cannot be read now.
    pub(crate) fn give_up(&self) {
        self.health.is_given_up.store(true, Relaxed);
    }
}
