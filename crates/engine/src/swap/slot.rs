//! Slots: which pages of the area are taken.
//!
//! On the way out reclaim asks for a run of slots, so that a batch of victims
//! leaves in one write; on the way in, and when memory is given up, single
//! slots come back from any thread.
//!
//! The area is cut into clusters of 512 slots. Each processor allocates from a
//! current cluster of its own under a lock that nobody else wants in the common
//! case. Only the holder of a current cluster sets bits in it, so what it sees
//! free stays free; whoever frees clears bits without any lock. Clusters that
//! are nobody's are kept on lists by how full they are, and the lists' lock is
//! taken only when a cluster moves between them. A full one is on no list: the
//! first slot freed in it brings it back.
//!
//! Where the storage wants to be told what is not needed, an emptied cluster
//! first waits to be discarded. Whoever discards it holds it meanwhile, so that
//! nobody allocates from it; one that still waits is taken as it is before
//! anybody goes without.
//!
//! [`frozen`] keeps freed slots from being used again, [`service`] takes slots
//! and clusters out of service.
//!
//! Locks: a processor's, then the lists'. Never two processors' at once.

mod frozen;
mod service;

use super::cluster::{Bits, CLUSTER_SLOTS, WORDS, find_run, masks};
use crate::primitive::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use crate::primitive::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard};
use crate::primitive::{current_cpu, in_one_order, reserve_u32, reserve_u64};
use crossbeam_utils::CachePadded;
use std::io;
use std::ops::Range;
use std::sync::PoisonError;

/// Counters that threads share the load of.
const STRIPES: usize = 16;

/// Where a cluster is. The first four are lists, the best to take from first.
const FREE: u32 = 0;
const ROOMY: u32 = 1;
const TIGHT: u32 = 2;
const WAITING: u32 = 3;
const FULL: u32 = 4;
/// A processor's, or being discarded.
const CURRENT: u32 = 5;
/// Given up at the end of the area.
const GONE: u32 = 6;
const LISTS: usize = 4;

const NONE: u32 = u32::MAX;

/// Something was to be freed that was not in use: a bug of the caller. The
/// part of the run that was in use has been freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("slots {first}+{len} were to be freed, but not all of them are in use: a bug in softswap")]
pub struct NotInUse {
    /// The first slot of the run.
    pub first: u64,
    /// Its length.
    pub len: usize,
}

/// The slots of one area.
#[derive(Debug)]
pub struct SlotAllocator {
    /// Clusters handed to the allocator so far, of those the tables can hold.
    clusters: AtomicU32,
    capacity: u32,
    bits: &'static [AtomicU64],
    place: &'static [AtomicU32],
    next: &'static [AtomicU32],
    prev: &'static [AtomicU32],
    lists: Mutex<Lists>,
    free_clusters: AtomicU32,
    waiting_clusters: AtomicU32,
    /// Whether clusters are discarded before they are free.
    discards: AtomicBool,
    /// A bit per cluster whose storage holds nothing since it was discarded.
    clean: &'static [AtomicU64],
    /// Clusters below this have been allocated from.
    touched: AtomicU32,
    current: Box<[CachePadded<Mutex<Option<u32>>>]>,
    in_use: Box<[CachePadded<AtomicU64>]>,
    retired_slots: AtomicU64,
    retired: &'static [AtomicU64],
    frozen: AtomicU32,
    freezing: Mutex<()>,
    /// Slots freed while frozen, and a bit per cluster that may have some.
    limbo: &'static [AtomicU64],
    limbo_clusters: &'static [AtomicU64],
}

/// Ends of the lists; the links are in the tables.
#[derive(Debug)]
struct Lists {
    head: [u32; LISTS],
    tail: [u32; LISTS],
}

impl SlotAllocator {
    /// An allocator without slots yet, for up to `capacity_clusters`.
    ///
    /// # Errors
    /// When the address space for its tables cannot be reserved.
    pub fn new(capacity_clusters: u32, cpus: usize) -> io::Result<Self> {
        let clusters = capacity_clusters as usize;
        let words = clusters * WORDS;
        Ok(Self {
            clusters: AtomicU32::new(0),
            capacity: capacity_clusters,
            bits: reserve_u64(words)?,
            place: reserve_u32(clusters)?,
            next: reserve_u32(clusters)?,
            prev: reserve_u32(clusters)?,
            lists: Mutex::new(Lists { head: [NONE; LISTS], tail: [NONE; LISTS] }),
            free_clusters: AtomicU32::new(0),
            waiting_clusters: AtomicU32::new(0),
            discards: AtomicBool::new(false),
            clean: reserve_u64(clusters.div_ceil(64))?,
            touched: AtomicU32::new(0),
            current: (0..cpus.max(1)).map(|_| CachePadded::new(Mutex::new(None))).collect(),
            in_use: (0..STRIPES).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            retired_slots: AtomicU64::new(0),
            retired: reserve_u64(words)?,
            frozen: AtomicU32::new(0),
            freezing: Mutex::new(()),
            limbo: reserve_u64(words)?,
            limbo_clusters: reserve_u64(clusters.div_ceil(64))?,
        })
    }

    /// Adds clusters at the end of the area; returns how many the tables took.
    ///
    /// Slot 0 is never handed out: zero stays free to mean "no slot".
    pub fn grow(&self, clusters: u32) -> u32 {
        let mut lists = lock(&self.lists);
        let old = self.clusters.load(Relaxed);
        let new = old.saturating_add(clusters).min(self.capacity);
        if old == 0 && new > 0 {
            self.withhold(0, 1);
        }
        for cluster in old..new {
            // Storage that was just added holds nothing.
            self.set_clean(cluster, true);
            let to = self.place_for(cluster);
            self.link(&mut lists, cluster, to, false);
        }
        self.clusters.store(new, SeqCst);
        new - old
    }

    /// Takes up to `want` adjacent slots, as many as can be had in one piece
    /// without searching far; returns the first and their number.
    #[must_use]
    pub fn alloc_run(&self, cpu: usize, want: usize) -> Option<(u64, usize)> {
        let want = want.clamp(1, CLUSTER_SLOTS);
        let own = cpu % self.current.len();
        let run = self.alloc_own(own, want);
        // Nothing on the lists: what is left is in other processors' hands.
        run.or_else(|| {
            (1..self.current.len()).find_map(|distance| {
                let other = lock(&self.current[(own + distance) % self.current.len()]);
                self.carve((*other)?, want, 1)
            })
        })
    }

    fn alloc_own(&self, own: usize, want: usize) -> Option<(u64, usize)> {
        let mut current = lock(&self.current[own]);
        loop {
            // A fresh cluster is better than a short run, any run better than
            // a search through clusters that are no better than this one.
            let fresh = self.free_clusters.load(Relaxed) > 0;
            if let Some(cluster) = *current {
                let least = if fresh { want } else { 1 };
                if let Some(run) = self.carve(cluster, want, least) {
                    return Some(run);
                }
            }
            let mut lists = lock(&self.lists);
            let next = self.take(&mut lists);
            // Put back after taking, lest it be the one that is taken. With no
            // other to be had it is kept, for what may be freed in it.
            if let Some(next) = next {
                if let Some(old) = current.replace(next) {
                    self.let_go(&mut lists, old);
                }
                continue;
            }
            drop(lists);
            return (*current).and_then(|cluster| self.carve(cluster, want, 1));
        }
    }

    /// Takes a run out of a current cluster, whose lock the caller holds.
    fn carve(&self, cluster: u32, want: usize, least: usize) -> Option<(u64, usize)> {
        let base = cluster as usize * WORDS;
        let mut seen: Bits = [0; WORDS];
        for (word, bits) in seen.iter_mut().enumerate() {
            *bits = self.bits[base + word].load(Acquire);
        }
        let run = find_run(&seen, want).filter(|run| run.len() >= least)?;
        self.stripe().fetch_add(run.len() as u64, Relaxed);
        for (word, mask) in masks(run.clone()) {
            let before = self.bits[base + word].fetch_or(mask, AcqRel);
            debug_assert_eq!(before & mask, 0, "only the holder sets bits");
        }
        Some((u64::from(cluster) * CLUSTER_SLOTS as u64 + run.start as u64, run.len()))
    }

    /// Gives a run back. While frozen the slots stay taken until the thaw.
    ///
    /// # Errors
    /// When some of the run is not in use; the rest is freed all the same.
    pub fn free(&self, first: u64, len: usize) -> Result<(), NotInUse> {
        self.owned(first, len, |word, mask| match self.frozen.load(SeqCst) {
            0 => self.release(word, mask),
            _ => self.remember(word, mask),
        })
    }

    /// Gives back what was taken and never used, whether frozen or not: nobody
    /// knows of it.
    ///
    /// # Errors
    /// When some of the run is not in use; the rest is freed all the same.
    pub fn give_back(&self, first: u64, len: usize) -> Result<(), NotInUse> {
        self.owned(first, len, |word, mask| self.release(word, mask))
    }

    /// Calls `act` for each word of bits that a run touches, with the run's bits
    /// in it but for retired ones: these look used for ever, and nobody owns
    /// them. It returns how many were in use.
    fn owned(
        &self,
        first: u64,
        len: usize,
        act: impl Fn(usize, u64) -> u32,
    ) -> Result<(), NotInUse> {
        let mut in_use = 0;
        for (cluster, run) in self.by_cluster(first, len) {
            for (word, mask) in masks(run) {
                let word = cluster as usize * WORDS + word;
                in_use += act(word, mask & !self.retired[word].load(Relaxed));
            }
        }
        if in_use as usize == len { Ok(()) } else { Err(NotInUse { first, len }) }
    }

    /// Clears bits of one word; returns how many were set.
    fn release(&self, word: usize, mask: u64) -> u32 {
        let freed = (self.bits[word].fetch_and(!mask, SeqCst) & mask).count_ones();
        if freed == 0 {
            return 0;
        }
        let cluster = (word / WORDS) as u32;
        self.stripe().fetch_sub(u64::from(freed), Relaxed);
        // Who moves a cluster looks at its bits afterwards, who clears bits
        // looks at the place afterwards: one of them sees the other.
        in_one_order();
        let place = self.place[cluster as usize].load(SeqCst);
        let moves = match place {
            CURRENT | GONE => false,
            FULL => true,
            // Counting is for where the count matters.
            TIGHT => self.place_for(cluster) != TIGHT,
            _ => self.is_empty(cluster),
        };
        if moves {
            self.settle(&mut lock(&self.lists), cluster);
        }
        freed
    }

    /// The parts of a run that lie in the area, cluster by cluster.
    fn by_cluster(&self, first: u64, len: usize) -> impl Iterator<Item = (u32, Range<usize>)> {
        by_cluster(first, first.saturating_add(len as u64).min(self.total_slots()))
    }

    /// Takes the emptiest cluster that the lists have.
    fn take(&self, lists: &mut Lists) -> Option<u32> {
        let list = (0..LISTS).find(|&list| lists.head[list] != NONE)?;
        let cluster = lists.head[list];
        self.unlink(lists, cluster);
        self.place[cluster as usize].store(CURRENT, SeqCst);
        self.set_clean(cluster, false);
        self.touched.fetch_max(cluster + 1, Relaxed);
        Some(cluster)
    }

    /// Puts a cluster that its holder gives up where its count belongs.
    fn let_go(&self, lists: &mut Lists, cluster: u32) {
        self.place[cluster as usize].store(FULL, SeqCst);
        self.settle(lists, cluster);
    }

    /// Moves a cluster that is nobody's to where its count belongs.
    fn settle(&self, lists: &mut Lists, cluster: u32) {
        loop {
            let place = self.place[cluster as usize].load(SeqCst);
            in_one_order();
            let wanted = self.place_for(cluster);
            if place == CURRENT || place == GONE || place == wanted {
                return;
            }
            self.unlink(lists, cluster);
            // To the front: storage that was written before is cheaper to
            // write again than storage that never was.
            self.link(lists, cluster, wanted, true);
            // Slots may have been freed before the new place showed: look again.
        }
    }

    fn link(&self, lists: &mut Lists, cluster: u32, to: u32, in_front: bool) {
        if let list @ 0..LISTS = to as usize {
            let (before, after) =
                if in_front { (NONE, lists.head[list]) } else { (lists.tail[list], NONE) };
            self.prev[cluster as usize].store(before, Relaxed);
            self.next[cluster as usize].store(after, Relaxed);
            match before {
                NONE => lists.head[list] = cluster,
                before => self.next[before as usize].store(cluster, Relaxed),
            }
            match after {
                NONE => lists.tail[list] = cluster,
                after => self.prev[after as usize].store(cluster, Relaxed),
            }
        }
        if let Some(count) = self.spare_count(to) {
            count.fetch_add(1, Relaxed);
        }
        self.place[cluster as usize].store(to, SeqCst);
    }

    fn unlink(&self, lists: &mut Lists, cluster: u32) {
        let place = self.place[cluster as usize].load(SeqCst);
        let list @ 0..LISTS = place as usize else {
            return;
        };
        let before = self.prev[cluster as usize].load(Relaxed);
        let after = self.next[cluster as usize].load(Relaxed);
        match before {
            NONE => lists.head[list] = after,
            before => self.next[before as usize].store(after, Relaxed),
        }
        match after {
            NONE => lists.tail[list] = before,
            after => self.prev[after as usize].store(before, Relaxed),
        }
        if let Some(count) = self.spare_count(place) {
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

    fn set_clean(&self, cluster: u32, clean: bool) {
        let (word, bit) = (&self.clean[cluster as usize / 64], 1 << (cluster % 64));
        if clean {
            word.fetch_or(bit, SeqCst)
        } else {
            word.fetch_and(!bit, SeqCst)
        };
    }

    fn is_clean(&self, cluster: u32) -> bool {
        self.clean[cluster as usize / 64].load(SeqCst) & 1 << (cluster % 64) != 0
    }

    /// The bits of a cluster, all in one cache line: counting them costs less
    /// than a counter that neighbours share a line with.
    fn bits_of(&self, cluster: u32) -> &[AtomicU64] {
        &self.bits[cluster as usize * WORDS..][..WORDS]
    }

    fn is_empty(&self, cluster: u32) -> bool {
        self.bits_of(cluster).iter().all(|word| word.load(SeqCst) == 0)
    }

    /// Where a cluster that is nobody's belongs. Its bits are only cleared
    /// meanwhile: whoever clears the last one sees that the others are clear.
    fn place_for(&self, cluster: u32) -> u32 {
        const HALF: u32 = CLUSTER_SLOTS as u32 / 2;
        const ALL: u32 = CLUSTER_SLOTS as u32;
        let used = self.bits_of(cluster).iter().map(|word| word.load(SeqCst).count_ones());
        match used.sum::<u32>() {
            0 if self.discards.load(SeqCst) && !self.is_clean(cluster) => WAITING,
            0 => FREE,
            1..=HALF => ROOMY,
            ALL => FULL,
            _ => TIGHT,
        }
    }

    /// This processor's counter. What one adds another may take away, so each
    /// may wrap; their sum does not.
    fn stripe(&self) -> &AtomicU64 {
        &self.in_use[current_cpu() % STRIPES]
    }

    /// Slots that are taken, those in limbo included, the retired ones not.
    #[must_use]
    pub fn used_slots(&self) -> u64 {
        let sum = |sum: u64, count: u64| sum.wrapping_add(count);
        let total = self.in_use.iter().map(|count| count.load(Relaxed)).fold(0, sum);
        // Read while they change, they may be off by what is on its way.
        (total as i64).max(0) as u64
    }

    /// Slots out of service.
    #[must_use]
    pub fn retired_slots(&self) -> u64 {
        self.retired_slots.load(Relaxed)
    }

    /// Slots of the area, slot 0 included.
    #[must_use]
    pub fn total_slots(&self) -> u64 {
        u64::from(self.clusters.load(Acquire)) * CLUSTER_SLOTS as u64
    }

    /// Clusters that the tables have room for beyond the present ones.
    #[must_use]
    pub fn room_clusters(&self) -> u32 {
        self.capacity - self.clusters.load(Acquire)
    }

    /// Clusters with no slot taken and no processor to use them.
    #[must_use]
    pub fn free_clusters(&self) -> u32 {
        self.free_clusters.load(Relaxed)
    }

    /// Clusters with no slot taken that wait to be discarded.
    #[must_use]
    pub fn waiting_clusters(&self) -> u32 {
        self.waiting_clusters.load(Relaxed)
    }

    /// Clusters ever allocated from, and so with bookkeeping in DRAM.
    #[must_use]
    pub fn touched_clusters(&self) -> u32 {
        self.touched.load(Relaxed)
    }

    /// DRAM that the tables take so far.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        // Three bits per slot, and three half words per cluster of the area.
        let bits = u64::from(self.touched_clusters()) * 3 * (CLUSTER_SLOTS as u64 / 8);
        bits + u64::from(self.clusters.load(Relaxed)) * 12
    }
}

/// The slots `[first, end)`, cluster by cluster.
fn by_cluster(first: u64, end: u64) -> impl Iterator<Item = (u32, Range<usize>)> {
    let mut at = first;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let cluster = at / CLUSTER_SLOTS as u64;
        let base = cluster * CLUSTER_SLOTS as u64;
        let stop = end.min(base + CLUSTER_SLOTS as u64);
        let run = (at - base) as usize..(stop - base) as usize;
        at = stop;
        Some((cluster as u32, run))
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod model;
