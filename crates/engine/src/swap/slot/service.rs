//! Slots and clusters that go out of service, for good or for a while: storage
//! that is not there or bad, clusters being discarded, and the area's end when
//! it shrinks.

use super::{
    CLUSTER_SLOTS, CURRENT, FREE, GONE, NONE, NotInUse, SlotAllocator, WAITING, WORDS, by_cluster,
    lock, masks,
};
use crate::primitive::Ordering::{Acquire, Relaxed, SeqCst};

impl SlotAllocator {
    /// Never hands these slots out: they have no storage, or bad one. Only for
    /// slots that [`Self::grow`] has not added yet, and within the tables.
    pub fn withhold(&self, first: u64, len: usize) {
        let mut withheld = 0;
        let end = (first + len as u64).min(u64::from(self.capacity) * CLUSTER_SLOTS as u64);
        for (cluster, run) in by_cluster(first, end) {
            for (word, mask) in masks(run) {
                let at = cluster as usize * WORDS + word;
                let count = (mask & !self.retired[at].fetch_or(mask, SeqCst)).count_ones();
                self.bits[at].fetch_or(mask, SeqCst);
                withheld += count;
            }
        }
        // Slot 0 is nobody's loss.
        let lost = withheld - u32::from(first == 0 && withheld > 0);
        self.retired_slots.fetch_add(u64::from(lost), Relaxed);
    }

    /// From now on emptied clusters wait to be discarded, or no longer do.
    pub fn set_discards(&self, discards: bool) {
        self.discards.store(discards, SeqCst);
        if !discards {
            // Nobody will come for those that wait.
            let mut lists = lock(&self.lists);
            loop {
                let cluster = lists.head[WAITING as usize];
                if cluster == NONE {
                    break;
                }
                self.settle(&mut lists, cluster);
            }
        }
    }

    /// Takes a cluster that waits to be discarded: nobody allocates from it
    /// until [`Self::discarded`] gives it back.
    #[must_use]
    pub fn take_waiting(&self) -> Option<u32> {
        let mut lists = lock(&self.lists);
        let cluster = lists.head[WAITING as usize];
        if cluster == NONE {
            return None;
        }
        self.unlink(&mut lists, cluster);
        self.place[cluster as usize].store(CURRENT, SeqCst);
        Some(cluster)
    }

    /// Gives back what [`Self::take_waiting`] took; its storage holds nothing.
    pub fn discarded(&self, cluster: u32) {
        let mut lists = lock(&self.lists);
        self.set_clean(cluster, true);
        self.let_go(&mut lists, cluster);
    }

    /// Gives back a run of one cluster, whose storage cannot be had now, and
    /// puts the cluster where it is taken last.
    pub fn set_aside(&self, first: u64, len: usize) {
        let _ = self.give_back(first, len);
        let cluster = (first / CLUSTER_SLOTS as u64) as u32;
        for current in &self.current {
            let mut current = lock(current);
            if *current == Some(cluster) {
                *current = None;
                let mut lists = lock(&self.lists);
                if self.is_empty(cluster) {
                    self.link(&mut lists, cluster, WAITING, false);
                } else {
                    self.let_go(&mut lists, cluster);
                }
            }
        }
    }

    /// Gives clusters at the end of the area up as long as they are free, but
    /// never so many that fewer than `least` are left. Returns how many went.
    pub fn shrink(&self, least: u32) -> u32 {
        for current in &self.current {
            self.put_back_if_empty(&mut lock(current));
        }
        let mut lists = lock(&self.lists);
        let old = self.clusters.load(SeqCst);
        let mut new = old;
        while new > least.max(1)
            && matches!(self.place[new as usize - 1].load(SeqCst), FREE | WAITING)
        {
            new -= 1;
            self.unlink(&mut lists, new);
            self.place[new as usize].store(GONE, SeqCst);
        }
        self.clusters.store(new, SeqCst);
        old - new
    }

    /// A processor's cluster in which nothing is in use goes back to the lists.
    fn put_back_if_empty(&self, current: &mut Option<u32>) {
        if let Some(cluster) = *current
            && self.is_empty(cluster)
        {
            self.let_go(&mut lock(&self.lists), cluster);
            *current = None;
        }
    }

    /// Takes slots in use out of service for good: their storage is bad.
    ///
    /// # Errors
    /// When some of the run is not in use; the rest is retired all the same.
    pub fn retire(&self, first: u64, len: usize) -> Result<(), NotInUse> {
        self.owned(first, len, |word, mask| {
            let mask = mask & self.bits[word].load(Acquire) & !self.limbo[word].load(SeqCst);
            let known = self.retired[word].fetch_or(mask, SeqCst);
            let count = (mask & !known).count_ones();
            self.stripe().fetch_sub(u64::from(count), Relaxed);
            self.retired_slots.fetch_add(u64::from(count), Relaxed);
            count
        })
    }
}
