//! Slots and clusters out of service, permanently or for a while: storage that is missing or bad,
//! clusters being discarded, and the area's end when it shrinks.

use super::free_lists::{ABSENT, CURRENT, FREE, WAITING, lock};
use super::{NotInUse, SlotAllocator, by_cluster};
use crate::store::swap::cluster::{CLUSTER_SLOTS, WORDS};
use softswap_sys::bitmap::words_of;
use softswap_sys::primitive::Ordering::{Acquire, Relaxed, SeqCst};

impl SlotAllocator {
    /// Withholds slots that [`Self::grow`] has not added yet. Ignores slots beyond the tables.
    pub(crate) fn withhold(&self, first: u64, len: usize) {
        let mut withheld = 0;
        let end = (first + len as u64).min(u64::from(self.capacity) * CLUSTER_SLOTS as u64);
        for (cluster, run) in by_cluster(first, end) {
            for (word, mask) in words_of(run) {
                let at = cluster as usize * WORDS + word;
                withheld += self.retired.insert(at, mask);
                self.bits[at].fetch_or(mask, SeqCst);
            }
        }
        // Slot 0 does not count: it never holds a page.
        let lost = withheld - u32::from(first == 0 && withheld > 0);
        self.retired.slots.fetch_add(u64::from(lost), Relaxed);
    }

    pub(crate) fn set_discards(&self, discards: bool) {
        self.discards.store(discards, SeqCst);
        if !discards {
            // Waiting clusters are never discarded now, so they become free.
            for lists in &self.sets {
                let mut lists = lists.lock();
                while let Some(cluster) = lists.first(WAITING) {
                    self.update_list(&mut lists, cluster);
                }
            }
        }
    }

    /// Takes a waiting cluster. No thread allocates from it until [`Self::discarded`] returns it.
    #[must_use]
    pub(crate) fn take_waiting(&self) -> Option<u32> {
        // The list may still hold clusters set aside by [`Self::set_aside`].
        if !self.discards.load(SeqCst) {
            return None;
        }
        // The common set is last: its waiting clusters have nothing to discard.
        self.sets_from(self.set_of(0)).find_map(|lists| {
            let mut lists = self.sets[lists].lock();
            let cluster = lists.first(WAITING)?;
            self.unlink(&mut lists, cluster);
            self.set_state(&mut lists, cluster, CURRENT);
            Some(cluster)
        })
    }

    pub(crate) fn discarded(&self, cluster: u32) {
        self.clean.insert(cluster);
        self.relist(&mut self.lock_home(cluster), cluster);
    }

    /// Frees a run whose storage cannot be claimed now. Its cluster is then taken last.
    pub(crate) fn set_aside(&self, first: u64, len: usize) {
        let _ = self.free_unused(first, len);
        let cluster = (first / CLUSTER_SLOTS as u64) as u32;
        for index in 0..self.sets.len() {
            let (mut lists, common) = self.lock_with_common(index);
            if lists.current.take_if(|current| *current == cluster).is_none() {
                continue;
            }
            if self.is_empty(cluster) {
                // On its home free-list set, the cluster would be taken first.
                self.link_common(lists, common, cluster, WAITING);
            } else {
                self.relist(&mut lists, cluster);
            }
        }
    }

    /// Removes free clusters from the end, down to `least`. Returns the number removed.
    pub(crate) fn shrink(&self, least: u32) -> u32 {
        let _alone = lock(&self.resizing);
        self.release_empty();
        let old = self.clusters.load(SeqCst);
        let mut new = old;
        while new > least.max(1) && self.remove_if_free(new - 1) {
            new -= 1;
        }
        self.clusters.store(new, SeqCst);
        old - new
    }

    /// Releases the processors' current clusters that have no used slot.
    pub(super) fn release_empty(&self) {
        for lists in &self.sets {
            let mut lists = lists.lock();
            if let Some(cluster) = lists.current.take_if(|cluster| self.is_empty(*cluster)) {
                self.relist(&mut lists, cluster);
            }
        }
    }

    fn remove_if_free(&self, cluster: u32) -> bool {
        let mut home = self.lock_home(cluster);
        let is_free = matches!(self.state(cluster), FREE | WAITING);
        if is_free {
            self.unlink(&mut home, cluster);
            self.set_state(&mut home, cluster, ABSENT);
        }
        is_free
    }

    /// Retires slots with bad storage. Fails if some are not in use; the others are retired.
    pub(crate) fn retire(&self, first: u64, len: usize) -> Result<(), NotInUse> {
        self.owned(first, len, |word, mask| {
            let mask = mask & self.bits[word].load(Acquire) & !self.freezes.limbo(word);
            let count = self.retired.insert(word, mask);
            self.stripe().fetch_sub(u64::from(count), Relaxed);
            self.retired.slots.fetch_add(u64::from(count), Relaxed);
            count
        })
    }

    pub(crate) fn retired_slots(&self) -> u64 {
        self.retired.slots.load(Relaxed)
    }
}
