//! Addition and removal of single clusters, for an area that several processes share.
//!
//! At first every cluster is `ABSENT`. Emptied clusters are soon returned, because other processes
//! may need them; a few stay free on each processor's free-list set.

use super::SlotAllocator;
use super::free_lists::{ABSENT, FREE, NONE};
use softswap_sys::primitive::Ordering::{Relaxed, SeqCst};
use std::io;

impl SlotAllocator {
    pub(crate) fn sparse(clusters: u32, cpus: usize) -> io::Result<Self> {
        let slots = Self { is_sparse: true, ..Self::new(clusters, cpus)? };
        // Slot 0 contains the header.
        slots.withhold(0, 1);
        slots.clusters.store(clusters, SeqCst);
        Ok(slots)
    }

    /// Adds a cluster that is `ABSENT`; its storage is empty.
    pub(crate) fn add(&self, cluster: u32) {
        self.clean.insert(cluster);
        let (home, common) = self.lock_with_common(self.home(cluster));
        if self.state(cluster) == ABSENT {
            self.link_common(home, common, cluster, self.state_for(cluster));
        }
    }

    pub(crate) fn set_keep(&self, clusters: u32) {
        self.surplus.keep.store(clusters, Relaxed);
    }

    pub(super) fn check_surplus(&self, set: usize) {
        if self.sets[set].count(FREE) > self.surplus.keep.load(Relaxed) {
            self.surplus.is_present.store(true, Relaxed);
        }
    }

    #[must_use]
    pub(crate) fn take_surplus(&self) -> Option<u32> {
        if !self.surplus.is_present.load(Relaxed) {
            return None;
        }
        let keep = self.surplus.keep.load(Relaxed);
        // Skip the common set: its clusters were taken for a processor, which gets them next.
        let taken = (1..self.sets.len()).find_map(|set| self.take_from(set, keep));
        if taken.is_none() {
            self.surplus.is_present.store(false, Relaxed);
        }
        taken
    }

    #[must_use]
    pub(crate) fn take_spare(&self, keep: u32) -> Option<u32> {
        if keep == 0 && self.free_clusters() == 0 {
            self.release_empty();
        }
        let is_spare = self.free_clusters() > keep;
        is_spare.then(|| (0..self.sets.len()).find_map(|set| self.take_from(set, 0)))?
    }

    /// Removes the free cluster that would be taken last, if the set has more than `keep`.
    fn take_from(&self, set: usize, keep: u32) -> Option<u32> {
        if self.sets[set].count(FREE) <= keep {
            return None;
        }
        let mut lists = self.sets[set].lock();
        let cluster = Some(lists.tail[FREE as usize]).filter(|cluster| *cluster != NONE)?;
        self.unlink(&mut lists, cluster);
        self.set_state(&mut lists, cluster, ABSENT);
        Some(cluster)
    }
}
