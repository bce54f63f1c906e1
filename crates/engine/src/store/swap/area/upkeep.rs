//! Discards, and detection of failed storage.
//!
//! Emptied clusters are discarded in the background: a device can reuse the flash, a file returns
//! its blocks. An area whose writes fail repeatedly, or that accepts none, is tried last.

use super::health::Discarded;
use super::{AreaFull, SwapArea};
use crate::store::io::IoError;
use crate::store::swap::cluster::{CLUSTER_SLOTS, PAGE_BYTES};
use softswap_sys::raw::now_ns;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

impl SwapArea {
    /// Discards one waiting cluster. No thread allocates from it during the discard.
    pub(crate) fn discard_one(&self) -> Discarded {
        let Some(cluster) = self.slots.take_waiting() else { return Discarded::Nothing };
        let result = self.discard(u64::from(cluster) * CLUSTER_SLOTS as u64, CLUSTER_SLOTS);
        if self.is_growing && matches!(result, Discarded::Bytes(_)) {
            let bit = 1 << (cluster % 64);
            self.punched[cluster as usize / 64].fetch_or(bit, AcqRel);
            self.has_punched.store(true, Release);
        }
        self.slots.discarded(cluster);
        self.return_surplus();
        result
    }

    pub(crate) fn discarded_at_start(&self) -> Discarded {
        self.discarded_at_start
    }

    /// Discards a run of slots. After an error, clusters are never discarded again.
    pub(super) fn discard(&self, first: u64, count: usize) -> Discarded {
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

    /// Returns true if writes failed repeatedly, until one succeeds.
    pub(crate) fn has_failed(&self) -> bool {
        self.health.has_failed()
    }

    /// Returns true if slots are allocated here last: after failures or recently refused writes.
    pub(crate) fn is_last(&self) -> bool {
        self.has_failed() || self.health.was_paused() && self.health.is_paused(now_ns())
    }

    /// Returns why the area accepts no writes; `None` if only single slots are bad.
    pub(crate) fn refusal(&self, error: &IoError) -> Option<AreaFull> {
        let is_whole = error.is_no_space() || error.is_of_device() || self.has_failed();
        is_whole.then(|| AreaFull::refused_write(self.size_bytes(), *error))
    }

    /// Returns true if the area's pages must move to another area.
    pub(crate) fn is_evacuating(&self) -> bool {
        self.has_failed() && self.used_slots() > 0 && !self.health.is_abandoned.load(Relaxed)
    }

    pub(crate) fn abandon_pages(&self) {
        self.health.is_abandoned.store(true, Relaxed);
    }
}
