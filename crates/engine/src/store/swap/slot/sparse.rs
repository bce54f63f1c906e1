//! Addition and removal of single clusters, for an area that several processes share.
//!
//! The tables cover the whole area, and at first every cluster is `GONE`. A cluster that the
//! process gets is added as free; a cluster that it returns is `GONE` again. Emptied clusters are
//! soon returned, because other processes may need them; a few stay free on each processor's shelf.

use super::SlotAllocator;
use super::shelf::{FREE, GONE, NONE};
use softswap_sys::primitive::Ordering::{Relaxed, SeqCst};
use std::io;

impl SlotAllocator {
    /// Creates an allocator for `clusters`, none of which it has yet.
    pub(crate) fn sparse(clusters: u32, cpus: usize) -> io::Result<Self> {
        let slots = Self { is_sparse: true, ..Self::new(clusters, cpus)? };
        // Slot 0 is the header's.
        slots.withhold(0, 1);
        slots.clusters.store(clusters, SeqCst);
        Ok(slots)
    }

    /// Adds a cluster that is `GONE`; its storage is empty.
    pub(crate) fn add(&self, cluster: u32) {
        self.set_clean(cluster, true);
        let (home, common) = self.lock_with_common(self.home(cluster));
        if self.state(cluster) == GONE {
            self.link_common(home, common, cluster, self.state_for(cluster));
        }
    }

    pub(crate) fn set_keep(&self, clusters: u32) {
        self.keep.store(clusters, Relaxed);
    }

    /// Checks for a surplus after a shelf got a free cluster.
    pub(super) fn look_for_surplus(&self, shelf: usize) {
        if self.shelves[shelf].count(FREE) > self.keep.load(Relaxed) {
            self.has_surplus.store(true, Relaxed);
        }
    }

    /// Removes a free cluster from a processor's shelf that has more than it keeps.
    #[must_use]
    pub(crate) fn take_surplus(&self) -> Option<u32> {
        if !self.has_surplus.load(Relaxed) {
            return None;
        }
        let keep = self.keep.load(Relaxed);
        // Skips the common shelf: its clusters were requested and go to a processor next.
        let taken = (1..self.shelves.len()).find_map(|shelf| self.take_from(shelf, keep));
        if taken.is_none() {
            self.has_surplus.store(false, Relaxed);
        }
        taken
    }

    /// Removes a free cluster, unless at most `keep` are free.
    #[must_use]
    pub(crate) fn take_spare(&self, keep: u32) -> Option<u32> {
        if keep == 0 && self.free_clusters() == 0 {
            self.let_go_of_empty();
        }
        let is_spare = self.free_clusters() > keep;
        is_spare.then(|| (0..self.shelves.len()).find_map(|shelf| self.take_from(shelf, 0)))?
    }

    /// Removes the free cluster of a shelf that would be taken last, if it has more than `keep`.
    fn take_from(&self, shelf: usize, keep: u32) -> Option<u32> {
        if self.shelves[shelf].count(FREE) <= keep {
            return None;
        }
        let mut holds = self.shelves[shelf].lock();
        let cluster = Some(holds.tail[FREE as usize]).filter(|cluster| *cluster != NONE)?;
        self.unlink(&mut holds, cluster);
        self.set_state(&mut holds, cluster, GONE);
        Some(cluster)
    }
}
