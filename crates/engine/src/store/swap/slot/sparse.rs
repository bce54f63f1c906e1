//! Clusters that come and go one by one: those of an area that several processes share.
//!
//! The tables span the whole area, and all clusters are gone to begin with. One that the process
//! gets is added and free, one that it gives up is gone again. What has emptied is given up soon,
//! but for a few free clusters on each processor's shelf: others may need it.

use super::SlotAllocator;
use super::shelf::{FREE, GONE, NONE};
use softswap_sys::primitive::Ordering::{Relaxed, SeqCst};
use std::io;

impl SlotAllocator {
    /// An allocator that spans `clusters`, of which it has none yet.
    ///
    /// # Errors
    /// When the address space for its tables cannot be reserved.
    pub(crate) fn sparse(clusters: u32, cpus: usize) -> io::Result<Self> {
        let slots = Self { is_sparse: true, ..Self::new(clusters, cpus)? };
        // The header's.
        slots.withhold(0, 1);
        slots.clusters.store(clusters, SeqCst);
        Ok(slots)
    }

    /// Adds a cluster that is gone, as one that holds nothing.
    pub(crate) fn add(&self, cluster: u32) {
        self.set_clean(cluster, true);
        let (home, common) = self.lock_with_common(self.home(cluster));
        if self.state(cluster) == GONE {
            self.link_common(home, common, cluster, self.state_for(cluster));
        }
    }

    /// From now on so many free clusters are kept on each processor's shelf.
    pub(crate) fn set_keep(&self, clusters: u32) {
        self.keep.store(clusters, Relaxed);
    }

    /// A shelf has one more free cluster.
    pub(super) fn look_for_surplus(&self, shelf: usize) {
        if self.shelves[shelf].count(FREE) > self.keep.load(Relaxed) {
            self.has_surplus.store(true, Relaxed);
        }
    }

    /// Takes a free cluster off the lists for good, from a processor's shelf that has more than it
    /// is to keep.
    #[must_use]
    pub(crate) fn take_surplus(&self) -> Option<u32> {
        if !self.has_surplus.load(Relaxed) {
            return None;
        }
        let keep = self.keep.load(Relaxed);
        // What lies on the common shelf was asked for and comes to a processor next.
        let taken = (1..self.shelves.len()).find_map(|shelf| self.take_from(shelf, keep));
        if taken.is_none() {
            self.has_surplus.store(false, Relaxed);
        }
        taken
    }

    /// Takes a free cluster off the lists for good, unless there are no more than `keep`.
    #[must_use]
    pub(crate) fn take_spare(&self, keep: u32) -> Option<u32> {
        if keep == 0 && self.free_clusters() == 0 {
            self.let_go_of_empty();
        }
        let is_spare = self.free_clusters() > keep;
        is_spare.then(|| (0..self.shelves.len()).find_map(|shelf| self.take_from(shelf, 0)))?
    }

    /// The free cluster of a shelf that would be taken last, if there are more than `keep`.
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
