//! Growth and shrinking of an area that is stored alone in an unnamed file.
//!
//! The area starts empty and grows by chunks, up to its limit or the file system's reserve. If most
//! of it is free, it shrinks from its end, down to the last used cluster.

use super::errors::AreaFull;
use super::{AreaConfig, SwapArea, lock, whole_clusters};
use crate::store::swap::cluster::{CLUSTER_BYTES, CLUSTER_SLOTS, PAGE_BYTES};
use crate::store::swap::extent_map::AppendError;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Used share below which an area grows only if no slot is free. Above it, new clusters are worth
/// their disk space: gaps in old clusters would divide every batch into single pages.
const GROW_ABOVE_USED_PERCENT: u64 = 50;
/// Used share below which an area shrinks: so low that it does not grow again soon.
const SHRINK_BELOW_USED_PERCENT: u64 = 25;

impl SwapArea {
    /// Grows before slots run out, if runs have become scarce.
    pub(super) fn grow_ahead(&self) {
        let total = match &self.share {
            Some(_) if !self.may_take_ahead() => return,
            Some(_) => self.size_bytes() / PAGE_BYTES,
            None if !self.is_growing => return,
            None => self.slots.total_slots(),
        };
        let spare = self.slots.free_clusters() + self.slots.waiting_clusters();
        let scarce = spare == 0 && total > 0;
        if !scarce || self.slots.used_slots() * 100 < total * GROW_ABOVE_USED_PERCENT {
            return;
        }
        // A race on the counter only shifts the next attempt.
        let pause = self.growth_pause.load(Relaxed);
        if pause > 0 {
            self.growth_pause.store(pause - 1, Relaxed);
            return;
        }
        if let Ok(held) = self.growth.try_lock()
            && self.grow(&held).is_err()
        {
            // Retry after this many allocations.
            self.growth_pause.store(4096, Relaxed);
        }
    }

    pub(super) fn grow(&self, _held: &MutexGuard<'_, ()>) -> Result<(), AreaFull> {
        if self.slots.free_clusters() > 0 {
            return Ok(());
        }
        let size_bytes = self.size_bytes();
        if let Some(share) = &self.share {
            return self.take_clusters(share);
        }
        if !self.is_growing {
            return Err(AreaFull::Fixed { size_bytes });
        }
        let mut bytes = self.growth_bytes(size_bytes)?;
        let first_page = size_bytes / PAGE_BYTES;
        let first_block = first_page + self.gap_blocks * self.extents.count() as u64;
        while let Err(cause) = self.device.grow(first_block * PAGE_BYTES, bytes) {
            if !cause.is_no_space() || bytes <= CLUSTER_BYTES {
                return Err(AreaFull::refused(size_bytes, cause));
            }
            // The remaining space is often smaller than a chunk.
            bytes = whole_clusters(bytes / 2).max(CLUSTER_BYTES);
        }
        match self.extents.append(first_page, bytes / PAGE_BYTES, first_block) {
            Ok(()) => {}
            Err(
                AppendError::TooMany { .. }
                | AppendError::BadLength
                | AppendError::NotAdjacent { .. },
            ) => {
                return Err(AreaFull::Tables { size_bytes });
            }
        }
        self.size_bytes.store(size_bytes + bytes, Release);
        // Add the slots last: from here on they can be allocated.
        self.slots.grow((bytes / CLUSTER_BYTES) as u32);
        Ok(())
    }

    /// Returns the bytes to grow by: a chunk, or the rest below limit, tables and reserve.
    fn growth_bytes(&self, size_bytes: u64) -> Result<u64, AreaFull> {
        let AreaConfig { limit_bytes, chunk_bytes, .. } = self.config;
        let below_limit = limit_bytes.unwrap_or(u64::MAX).saturating_sub(size_bytes);
        if let Some(limit_bytes) = limit_bytes
            && below_limit < CLUSTER_BYTES
        {
            return Err(AreaFull::Limit { limit_bytes });
        }
        let table_bytes = u64::from(self.slots.capacity_clusters()) * CLUSTER_BYTES;
        if table_bytes == 0 {
            return Err(AreaFull::Tables { size_bytes });
        }
        let spare_bytes = self.spare_bytes(size_bytes)?;
        let most = chunk_bytes.min(below_limit).min(table_bytes).min(spare_bytes);
        Ok(whole_clusters(most))
    }

    pub(super) fn note_free(&self, size_bytes: u64, free_bytes: u64) {
        let AreaConfig { limit_bytes, reserve_bytes, .. } = self.config;
        let most_bytes = size_bytes.saturating_add(free_bytes.saturating_sub(reserve_bytes));
        let capacity_bytes = most_bytes.min(limit_bytes.unwrap_or(u64::MAX));
        self.capacity_bytes.store(capacity_bytes, Relaxed);
    }

    /// Returns the free bytes above the reserve, at least a cluster.
    fn spare_bytes(&self, size_bytes: u64) -> Result<u64, AreaFull> {
        let reserve_bytes = self.config.reserve_bytes;
        let free_bytes =
            self.device.free_bytes().map_err(|cause| AreaFull::Device { size_bytes, cause })?;
        self.note_free(size_bytes, free_bytes);
        let spare_bytes = free_bytes.saturating_sub(reserve_bytes);
        if spare_bytes < CLUSTER_BYTES {
            return Err(AreaFull::Reserve { size_bytes, free_bytes, reserve_bytes });
        }
        Ok(spare_bytes)
    }

    /// Claims returned storage again, for the cluster of a slot.
    pub(super) fn claim_again(&self, first: u64) -> Result<(), AreaFull> {
        let cluster = first / CLUSTER_SLOTS as u64;
        let (word, bit) = (&self.punched[cluster as usize / 64], 1 << (cluster % 64));
        if word.load(Acquire) & bit == 0 {
            return Ok(());
        }
        let size_bytes = self.size_bytes();
        self.spare_bytes(size_bytes)?;
        for (offset, bytes) in self.pieces(cluster * CLUSTER_SLOTS as u64, CLUSTER_SLOTS) {
            // Another processor may do the same; that is harmless.
            let claimed = self.device.grow(offset, bytes);
            claimed.map_err(|cause| AreaFull::refused(size_bytes, cause))?;
        }
        word.fetch_and(!bit, AcqRel);
        Ok(())
    }

    /// Truncates the file, or returns clusters that other processes may need. Returns the bytes.
    pub(crate) fn shrink(&self) -> u64 {
        if let Some(share) = &self.share {
            return self.return_spare(share);
        }
        let total = self.slots.total_slots();
        let is_wide = self.slots.used_slots() * 100 < total * SHRINK_BELOW_USED_PERCENT;
        if !self.is_growing || !is_wide || total * PAGE_BYTES <= 2 * self.config.chunk_bytes {
            return 0;
        }
        let _held = lock(&self.growth);
        let chunk_clusters = (self.config.chunk_bytes / CLUSTER_BYTES) as u32;
        // Keep twice the used slots, and at least a chunk.
        let keep_clusters = (self.slots.used_slots() * 2).div_ceil(CLUSTER_SLOTS as u64) as u32;
        let removed_bytes =
            u64::from(self.slots.shrink(keep_clusters.max(chunk_clusters))) * CLUSTER_BYTES;
        if removed_bytes == 0 {
            return 0;
        }
        let size_bytes = self.size_bytes() - removed_bytes;
        // No slot of the removed part is in use, so no thread looks one up.
        let first_page = size_bytes / PAGE_BYTES;
        let cut = self.extents.lookup(first_page).map(|mapping| mapping.block * PAGE_BYTES);
        self.extents.remove_tail(first_page);
        self.size_bytes.store(size_bytes, Release);
        if let Ok(offset) = cut {
            // On failure the storage stays claimed until the area grows there again.
            let _ = self.device.truncate(offset);
        }
        removed_bytes
    }
}
