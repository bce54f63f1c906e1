//! Where the clusters are that nobody allocates from, and who has the others.
//!
//! Each processor has a shelf: its current cluster, and lists of those it had
//! last, by how full they are. One more shelf holds clusters that no processor
//! has had yet. A cluster's home is the shelf whose lock guards its place in the
//! tables, its links included; it changes home when a processor takes it from
//! another's shelf, with the old home's lock held. So what one processor fills
//! and empties is its own business, as long as it finds what it needs at home.

use super::{NONE, SlotAllocator, lock};
use crate::primitive::Ordering::{Relaxed, SeqCst};
use crate::primitive::{AtomicU32, MutexGuard, in_one_order};

/// Where a cluster is: the low bits of its place, its home above them. A table
/// of zeroes is a table of clusters that have not been added yet.
pub(super) const GONE: u32 = 0;
/// The lists, the best to take from first.
pub(super) const FREE: u32 = 1;
pub(super) const ROOMY: u32 = 2;
pub(super) const TIGHT: u32 = 3;
pub(super) const WAITING: u32 = 4;
/// On no list: the first slot freed in it brings it back.
pub(super) const FULL: u32 = 5;
/// A processor's, or being discarded.
pub(super) const CURRENT: u32 = 6;

const STATE_BITS: u32 = 3;
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;

/// The shelf of clusters that no processor has had.
const COMMON: usize = 0;

/// One shelf; the lists' links are in the tables.
#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) current: Option<u32>,
    /// By list; the first is none.
    head: [u32; WAITING as usize + 1],
    tail: [u32; WAITING as usize + 1],
}

impl Shelf {
    pub(super) fn new() -> Self {
        let none = [NONE; WAITING as usize + 1];
        Self { current: None, head: none, tail: none }
    }

    /// The first of a list.
    pub(super) fn first(&self, list: u32) -> Option<u32> {
        Some(self.head[list as usize]).filter(|cluster| *cluster != NONE)
    }
}

impl SlotAllocator {
    /// The shelf of a processor.
    pub(super) fn shelf_of(&self, cpu: usize) -> usize {
        1 + cpu % (self.shelves.len() - 1)
    }

    /// All shelves, the given one first, then the common one and the others by
    /// distance.
    fn shelves_from(&self, own: usize) -> impl Iterator<Item = usize> {
        [own, COMMON].into_iter().chain(self.other_shelves(own))
    }

    /// The shelves of the other processors, by distance.
    pub(super) fn other_shelves(&self, own: usize) -> impl Iterator<Item = usize> {
        let cpus = self.shelves.len() - 1;
        (1..cpus).map(move |distance| 1 + (own - 1 + distance) % cpus)
    }

    /// What the place of a cluster says now. Without its home's lock it may
    /// change at once.
    pub(super) fn state(&self, cluster: u32) -> u32 {
        self.place[cluster as usize].load(SeqCst) & STATE_MASK
    }

    fn home(&self, cluster: u32) -> usize {
        (self.place[cluster as usize].load(SeqCst) >> STATE_BITS) as usize
    }

    /// Sets the place of a cluster whose home's lock the caller holds.
    fn set_place(&self, cluster: u32, home: usize, state: u32) {
        self.place[cluster as usize].store((home as u32) << STATE_BITS | state, SeqCst);
    }

    /// Sets where a cluster is that stays at home.
    pub(super) fn set_state(&self, cluster: u32, state: u32) {
        self.set_place(cluster, self.home(cluster), state);
    }

    /// Locks a cluster's home.
    pub(super) fn lock_home(&self, cluster: u32) -> MutexGuard<'_, Shelf> {
        loop {
            let home = self.home(cluster);
            let shelf = lock(&self.shelves[home]);
            // It may have been taken away before the lock was had.
            if self.home(cluster) == home {
                return shelf;
            }
        }
    }

    /// Takes the emptiest cluster there is for a processor's shelf; of equal
    /// ones its own first.
    ///
    /// A cluster that changes lists meanwhile can be missed. That is as if the
    /// area had been full a moment ago, which whoever asks must cope with.
    pub(super) fn take_best(&self, own: usize) -> Option<u32> {
        [FREE, ROOMY, TIGHT, WAITING].into_iter().find_map(|list| {
            if self.spare_count(list).is_some_and(|count| count.load(Relaxed) == 0) {
                return None;
            }
            self.shelves_from(own).find_map(|index| {
                let mut shelf = lock(&self.shelves[index]);
                let cluster = shelf.first(list)?;
                self.unlink(&mut shelf, cluster);
                self.set_place(cluster, own, CURRENT);
                self.set_clean(cluster, false);
                self.touched.fetch_max(cluster + 1, Relaxed);
                Some(cluster)
            })
        })
    }

    /// Puts a cluster that its holder gives up where its count belongs.
    pub(super) fn let_go(&self, home: &mut Shelf, cluster: u32) {
        self.set_state(cluster, FULL);
        self.settle(home, cluster);
    }

    /// Moves a cluster that is nobody's to where its count belongs.
    pub(super) fn settle(&self, home: &mut Shelf, cluster: u32) {
        loop {
            let state = self.state(cluster);
            in_one_order();
            let wanted = self.state_for(cluster);
            if state == CURRENT || state == GONE || state == wanted {
                return;
            }
            self.unlink(home, cluster);
            // To the front: storage that was written before is cheaper to
            // write again than storage that never was.
            self.link(home, cluster, wanted, true);
            // Slots may have been freed before the new place showed: look again.
        }
    }

    pub(super) fn link(&self, home: &mut Shelf, cluster: u32, to: u32, in_front: bool) {
        if let list @ FREE..=WAITING = to {
            let list = list as usize;
            let (before, after) =
                if in_front { (NONE, home.head[list]) } else { (home.tail[list], NONE) };
            self.prev[cluster as usize].store(before, Relaxed);
            self.next[cluster as usize].store(after, Relaxed);
            match before {
                NONE => home.head[list] = cluster,
                before => self.next[before as usize].store(cluster, Relaxed),
            }
            match after {
                NONE => home.tail[list] = cluster,
                after => self.prev[after as usize].store(cluster, Relaxed),
            }
        }
        if let Some(count) = self.spare_count(to) {
            count.fetch_add(1, Relaxed);
        }
        self.set_state(cluster, to);
    }

    /// Takes a cluster off its list, if it is on one. Its place is not changed.
    pub(super) fn unlink(&self, home: &mut Shelf, cluster: u32) {
        let list @ FREE..=WAITING = self.state(cluster) else {
            return;
        };
        let before = self.prev[cluster as usize].load(Relaxed);
        let after = self.next[cluster as usize].load(Relaxed);
        match before {
            NONE => home.head[list as usize] = after,
            before => self.next[before as usize].store(after, Relaxed),
        }
        match after {
            NONE => home.tail[list as usize] = before,
            after => self.prev[after as usize].store(before, Relaxed),
        }
        if let Some(count) = self.spare_count(list) {
            count.fetch_sub(1, Relaxed);
        }
    }

    fn spare_count(&self, list: u32) -> Option<&AtomicU32> {
        match list {
            FREE => Some(&self.free_clusters),
            WAITING => Some(&self.waiting_clusters),
            _ => None,
        }
    }
}
