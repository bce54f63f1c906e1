//! Free-list sets: the home of each cluster, and the lists.
//!
//! Each processor has a free-list set: its current cluster, and its earlier ones by fill level. The
//! common set holds clusters that no processor has used since they were added, and those whose
//! storage could not be claimed ([`SlotAllocator::set_aside`]). A cluster's home is the set whose
//! lock protects its position and links. Both locks are held while it moves to another home.
//! A processor that uses only its own clusters takes no other set's lock.

use super::SlotAllocator;
use super::free_lists::{
    ABSENT, CURRENT, FREE, FULL, Lists, MOSTLY_FREE, MOSTLY_USED, NONE, WAITING,
};
use softswap_sys::primitive::Ordering::{Relaxed, SeqCst};
use softswap_sys::primitive::{MutexGuard, in_one_order};

const STATE_BITS: u32 = 3;
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;

const COMMON: usize = 0;

/// Their table entries share a cache line, which avoids false sharing between processors.
const GROUP_CLUSTERS: u32 = 16;

impl SlotAllocator {
    pub(super) fn set_of(&self, cpu: usize) -> usize {
        1 + cpu % (self.sets.len() - 1)
    }

    /// Iterates over all sets by distance. The common one is last: taking one of its free clusters
    /// makes it the processor's own, and the storage of its waiting ones could not be claimed.
    pub(super) fn sets_from(&self, own: usize) -> impl Iterator<Item = usize> {
        let cpus = self.sets.len() - 1;
        let others = (1..cpus).map(move |distance| 1 + (own - 1 + distance) % cpus);
        [own].into_iter().chain(others).chain([COMMON])
    }

    /// May change immediately, unless the caller holds the lock of the cluster's list.
    pub(super) fn state(&self, cluster: u32) -> u32 {
        self.positions.load(cluster) & STATE_MASK
    }

    pub(super) fn home(&self, cluster: u32) -> usize {
        (self.positions.load(cluster) >> STATE_BITS) as usize
    }

    /// Sets the position of a cluster. Its home must be locked, and the new home too if it differs.
    fn set_position(&self, lists: &mut Lists, cluster: u32, home: usize, state: u32) {
        lists.changes += 1;
        let position = (home as u32) << STATE_BITS | state;
        self.positions.position[cluster as usize].store(position, SeqCst);
    }

    pub(super) fn set_state(&self, lists: &mut Lists, cluster: u32, state: u32) {
        self.set_position(lists, cluster, self.home(cluster), state);
    }

    /// While this count is constant, no cluster changes its position and no slot is allocated.
    pub(super) fn changes(&self) -> u64 {
        self.sets.iter().map(|lists| lists.lock().changes).sum()
    }

    /// Locks one or two free-list sets in the order of their indexes.
    fn lock_both(
        &self,
        own: usize,
        other: usize,
    ) -> (MutexGuard<'_, Lists>, Option<MutexGuard<'_, Lists>>) {
        let lower = (other < own).then(|| self.sets[other].lock());
        let lists = self.sets[own].lock();
        let higher = (other > own).then(|| self.sets[other].lock());
        (lists, lower.or(higher))
    }

    pub(super) fn lock_with_common(
        &self,
        lists: usize,
    ) -> (MutexGuard<'_, Lists>, Option<MutexGuard<'_, Lists>>) {
        self.lock_both(lists, COMMON)
    }

    /// Appends an unlisted cluster to a common list. Its home and the common set are locked.
    pub(super) fn link_common(
        &self,
        mut home: MutexGuard<'_, Lists>,
        common: Option<MutexGuard<'_, Lists>>,
        cluster: u32,
        to: u32,
    ) {
        self.set_position(&mut home, cluster, COMMON, self.state(cluster));
        self.link(&mut common.unwrap_or(home), cluster, to, false);
    }

    pub(super) fn lock_home(&self, cluster: u32) -> MutexGuard<'_, Lists> {
        loop {
            let home = self.home(cluster);
            let lists = self.sets[home].lock();
            // The cluster may have moved before the lock was taken.
            if self.home(cluster) == home {
                return lists;
            }
        }
    }

    /// Takes a run of the emptiest cluster, first of the own set, which becomes current.
    pub(super) fn alloc_next(&self, own: usize, want: usize) -> Option<(u64, usize)> {
        [FREE, MOSTLY_FREE, MOSTLY_USED, WAITING].into_iter().find_map(|list| {
            if list == FREE {
                self.assign_group(own);
            }
            self.sets_from(own).find_map(|from| {
                if self.sets[from].count(list) == 0 {
                    return None;
                }
                let (mut lists, mut other) = self.lock_both(own, from);
                let source = other.as_deref_mut().unwrap_or(&mut lists);
                let next = source.first(list)?;
                self.unlink(source, next);
                self.set_position(source, next, own, CURRENT);
                drop(other);
                self.clean.remove(next);
                self.touched.insert(next);
                // The old cluster is released after the choice, so that it is not chosen again.
                if let Some(old) = lists.current.replace(next) {
                    self.relist(&mut lists, old);
                }
                self.carve(&mut lists, want, 1)
            })
        })
    }

    /// Moves a group of free clusters from the common set, if the processor's set has none.
    fn assign_group(&self, own: usize) {
        if self.sets[own].count(FREE) > 0 || self.sets[COMMON].count(FREE) == 0 {
            return;
        }
        let mut common = self.sets[COMMON].lock();
        let mut lists = self.sets[own].lock();
        let group = common.first(FREE).map(|cluster| cluster / GROUP_CLUSTERS);
        while let Some(cluster) = common.first(FREE)
            && Some(cluster / GROUP_CLUSTERS) == group
        {
            self.unlink(&mut common, cluster);
            self.set_position(&mut common, cluster, own, FULL);
            self.link(&mut lists, cluster, FREE, false);
        }
    }

    pub(super) fn relist(&self, home: &mut Lists, cluster: u32) {
        self.set_state(home, cluster, FULL);
        self.update_list(home, cluster);
    }

    pub(super) fn update_list(&self, home: &mut Lists, cluster: u32) {
        loop {
            let state = self.state(cluster);
            in_one_order();
            let wanted = self.state_for(cluster);
            if state == CURRENT || state == ABSENT || state == wanted {
                return;
            }
            self.unlink(home, cluster);
            // Insert free clusters at the front: rewriting storage is cheaper than writing it for
            // the first time. Insert partly used ones at the end: those that waited longest have
            // the most free slots and the longest runs.
            self.link(home, cluster, wanted, matches!(wanted, FREE | WAITING));
            if wanted == FREE {
                self.check_surplus(self.home(cluster));
            }
            // Slots may have been freed before the new state was visible: check again.
        }
    }

    fn set_next(&self, home: &mut Lists, list: usize, before: u32, next: u32) {
        match before {
            NONE => home.head[list] = next,
            before => self.positions.next[before as usize].store(next, Relaxed),
        }
    }

    fn set_prev(&self, home: &mut Lists, list: usize, after: u32, prev: u32) {
        match after {
            NONE => home.tail[list] = prev,
            after => self.positions.prev[after as usize].store(prev, Relaxed),
        }
    }

    pub(super) fn link(&self, home: &mut Lists, cluster: u32, to: u32, in_front: bool) {
        if let list @ FREE..=WAITING = to {
            let list = list as usize;
            let (before, after) =
                if in_front { (NONE, home.head[list]) } else { (home.tail[list], NONE) };
            self.positions.prev[cluster as usize].store(before, Relaxed);
            self.positions.next[cluster as usize].store(after, Relaxed);
            self.set_next(home, list, before, cluster);
            self.set_prev(home, list, after, cluster);
            self.sets[self.home(cluster)].counts[list].fetch_add(1, Relaxed);
        }
        self.set_state(home, cluster, to);
    }

    pub(super) fn unlink(&self, home: &mut Lists, cluster: u32) {
        let list @ FREE..=WAITING = self.state(cluster) else {
            return;
        };
        let list = list as usize;
        let before = self.positions.prev[cluster as usize].load(Relaxed);
        let after = self.positions.next[cluster as usize].load(Relaxed);
        self.set_next(home, list, before, after);
        self.set_prev(home, list, after, before);
        self.sets[self.home(cluster)].counts[list].fetch_sub(1, Relaxed);
    }

    /// Checks the own set first, because the other counts are in other processors' caches.
    pub(super) fn has_free_cluster(&self, own: usize) -> bool {
        self.sets_from(own).any(|index| self.sets[index].count(FREE) > 0)
    }

    pub(super) fn has_gaps(&self, own: usize) -> bool {
        [MOSTLY_FREE, MOSTLY_USED].into_iter().any(|list| self.sets[own].count(list) > 0)
    }

    pub(crate) fn free_clusters(&self) -> u32 {
        self.sets.iter().map(|lists| lists.count(FREE)).sum()
    }

    pub(crate) fn waiting_clusters(&self) -> u32 {
        self.sets.iter().map(|lists| lists.count(WAITING)).sum()
    }
}
