//! How an area that a tree of processes shares gets clusters, and gives them back.
//!
//! It begins without any and takes a few at a time, the fewer the less is left. What becomes free
//! goes back at once, but for about as much again, and all of it once the area is nearly
//! full. Who finds no cluster free first reaps what the dead have left.

use super::errors::AreaFull;
use super::share::Share;
use super::{Area, lock};
use crate::store::swap::cluster::{CLUSTER_BYTES, PAGE_BYTES};
use softswap_sys::raw::now_ns;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

/// Of the clusters that are free a process takes so small a part at a time, and no more than so
/// many: it may not need them, and others do.
const FREE_PART: usize = 64;
const MOST_CLUSTERS: usize = 8;
/// How long what is free in the tree is taken for what it was.
const LOOK_NS: u64 = 250_000_000;

/// Clusters that are taken at once, and kept by each processor when they have become free, where
/// so many are free in the tree.
fn few_of(free: usize) -> usize {
    (free / FREE_PART).min(MOST_CLUSTERS)
}

impl Area {
    /// In a forked child: the device and its clusters are the parent's, who may still need them.
    /// Returns false if there are slots that cannot be read.
    pub(crate) fn inherit(&self) -> bool {
        let is_readable = self.device.inherit();
        if let Some(share) = &self.share {
            share.is_own.store(false, Relaxed);
            self.slots.set_keep(u32::MAX);
        }
        is_readable || self.used_slots() == 0
    }

    /// Notes what is free in the tree. Returns how many clusters that are.
    pub(super) fn look_around(&self, share: &Share) -> usize {
        let free = share.table.free_count();
        let capacity_bytes = self.size_bytes() + free as u64 * CLUSTER_BYTES;
        self.capacity_bytes.store(capacity_bytes, Relaxed);
        self.slots.set_keep(few_of(free) as u32);
        share.next_look_ns.store(now_ns() + LOOK_NS, Relaxed);
        free
    }

    /// Whether clusters are so many that a process may have one before it must.
    pub(super) fn is_plentiful(&self) -> bool {
        let free_bytes = self.capacity_bytes.load(Relaxed).saturating_sub(self.size_bytes());
        few_of((free_bytes / CLUSTER_BYTES) as usize) > 0
    }

    /// Takes some clusters of those that are free. The area's growth is locked.
    pub(super) fn take_clusters(&self, share: &Share) -> Result<(), AreaFull> {
        if share.is_own.load(Relaxed) {
            let mut free = self.look_around(share);
            if few_of(free) == 0 && share.reap() > 0 {
                free = self.look_around(share);
            }
            let taken = (0..few_of(free).max(1)).map_while(|_| self.take_cluster(share));
            if taken.count() > 0 {
                return Ok(());
            }
        }
        let own_bytes = self.size_bytes();
        Err(AreaFull::Shared { size_bytes: self.extents.pages() * PAGE_BYTES, own_bytes })
    }

    fn take_cluster(&self, share: &Share) -> Option<()> {
        let cluster = share.table.take(share.mark, share.next.load(Relaxed))?;
        share.next.store(cluster + 1, Relaxed);
        self.size_bytes.fetch_add(CLUSTER_BYTES, AcqRel);
        // Last: from here on the slots are handed out.
        self.slots.add(cluster);
        Some(())
    }

    /// Gives clusters back that have just become free, but for a few.
    pub(super) fn give_surplus(&self) {
        let Some(share) = self.share.as_ref().filter(|share| share.is_own.load(Relaxed)) else {
            return;
        };
        while let Some(cluster) = self.slots.take_surplus() {
            self.give_cluster(share, cluster);
        }
    }

    /// Gives free clusters back as far as others may need them. Returns their bytes.
    pub(super) fn give_spare(&self, share: &Share) -> u64 {
        if !share.is_own.load(Relaxed) || now_ns() < share.next_look_ns.load(Relaxed) {
            return 0;
        }
        let _held = lock(&self.growth);
        let keep = few_of(self.look_around(share)) * 2;
        let spare = std::iter::from_fn(|| self.slots.take_spare(keep as u32));
        spare.inspect(|cluster| self.give_cluster(share, *cluster)).count() as u64 * CLUSTER_BYTES
    }

    fn give_cluster(&self, share: &Share, cluster: u32) {
        debug_assert!(share.is_own.load(Relaxed), "cluster {cluster} is a parent's");
        self.size_bytes.fetch_sub(CLUSTER_BYTES, AcqRel);
        // False only where the table was overwritten; then it is another's.
        share.table.free(share.mark, cluster);
    }
}

#[cfg(test)]
#[path = "sharing_tests.rs"]
mod tests;
