//! Clusters of an area that a tree of processes shares: how a process gets and returns them.
//!
//! The area takes a few clusters at a time and keeps about as many free ones; none if fewer than 64
//! are free in the tree. If no cluster is free, the process first reaps those of processes that
//! have exited.

use super::errors::AreaFull;
use super::tree_share::TreeShare;
use super::{SwapArea, lock};
use crate::store::swap::cluster::{CLUSTER_BYTES, PAGE_BYTES};
use softswap_sys::raw::now_ns;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

/// Divisor: a process takes at most 1/64 of the free clusters, because others may need them.
const FREE_PART: usize = 64;
/// Maximum number of clusters that a process takes at a time.
const MAX_CLUSTERS: usize = 8;

/// Returns the number of clusters to take together, and to keep for each processor.
fn clusters_per_batch(free: usize) -> usize {
    (free / FREE_PART).min(MAX_CLUSTERS)
}

impl SwapArea {
    /// Marks the storage as the parent's, in a child. Returns false if the child cannot read it.
    pub(crate) fn inherit(&self) -> bool {
        let is_readable = self.device.inherit();
        if let Some(share) = &self.share {
            share.is_own.store(false, Relaxed);
            self.slots.set_keep(u32::MAX);
        }
        is_readable || self.used_slots() == 0
    }

    /// Updates the limits from the free clusters of the tree, and returns their number.
    pub(super) fn update_limits(&self, share: &TreeShare) -> usize {
        let free = share.table.free_count();
        let capacity_bytes = self.size_bytes() + free as u64 * CLUSTER_BYTES;
        self.capacity_bytes.store(capacity_bytes, Relaxed);
        self.slots.set_keep(clusters_per_batch(free) as u32);
        // Interval between checks of the free clusters of the tree: 250 ms.
        share.next_check_ns.store(now_ns() + 250_000_000, Relaxed);
        free
    }

    pub(super) fn may_take_ahead(&self) -> bool {
        let free_bytes = self.capacity_bytes.load(Relaxed).saturating_sub(self.size_bytes());
        clusters_per_batch((free_bytes / CLUSTER_BYTES) as usize) > 0
    }

    /// Takes a batch of the tree's free clusters, at least one. The caller holds `growth`.
    pub(super) fn take_clusters(&self, share: &TreeShare) -> Result<(), AreaFull> {
        if share.is_own.load(Relaxed) {
            let mut free = self.update_limits(share);
            if clusters_per_batch(free) == 0 && share.reap() > 0 {
                free = self.update_limits(share);
            }
            let taken =
                (0..clusters_per_batch(free).max(1)).map_while(|_| self.take_cluster(share));
            if taken.count() > 0 {
                return Ok(());
            }
        }
        let own_bytes = self.size_bytes();
        Err(AreaFull::Shared { size_bytes: self.extents.pages() * PAGE_BYTES, own_bytes })
    }

    fn take_cluster(&self, share: &TreeShare) -> Option<()> {
        let cluster = share.table.take(share.mark, share.next.load(Relaxed))?;
        share.next.store(cluster + 1, Relaxed);
        self.size_bytes.fetch_add(CLUSTER_BYTES, AcqRel);
        self.slots.add(cluster);
        Some(())
    }

    pub(super) fn return_surplus(&self) {
        let Some(share) = self.share.as_ref().filter(|share| share.is_own.load(Relaxed)) else {
            return;
        };
        while let Some(cluster) = self.slots.take_surplus() {
            self.return_cluster(share, cluster);
        }
    }

    pub(super) fn return_spare(&self, share: &TreeShare) -> u64 {
        if !share.is_own.load(Relaxed) || now_ns() < share.next_check_ns.load(Relaxed) {
            return 0;
        }
        let _held = lock(&self.growth);
        let keep = clusters_per_batch(self.update_limits(share)) * 2;
        let spare = std::iter::from_fn(|| self.slots.take_spare(keep as u32));
        spare.inspect(|cluster| self.return_cluster(share, *cluster)).count() as u64 * CLUSTER_BYTES
    }

    fn return_cluster(&self, share: &TreeShare, cluster: u32) {
        debug_assert!(share.is_own.load(Relaxed), "cluster {cluster} belongs to the parent");
        self.size_bytes.fetch_sub(CLUSTER_BYTES, AcqRel);
        // False only if the table was overwritten. Then another process owns the cluster.
        share.table.free(share.mark, cluster);
    }
}

#[cfg(test)]
#[path = "sharing_tests.rs"]
mod tests;
