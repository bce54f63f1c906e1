//! Slots: which pages of the area are taken.
//!
//! On the way out reclaim asks for runs of slots, so that a batch of victims leaves
//! in few writes; on the way in, and when memory is given up, single slots come
//! back from any thread.
//!
//! The area is cut into clusters of 512 slots. Each processor allocates from a
//! current cluster of its own under a lock that nobody else wants in the common
//! case. Only the holder of a current cluster sets bits in it, so what it sees
//! free stays free; whoever frees clears bits without any lock. Clusters that
//! are nobody's are kept on lists by how full they are, the lists on shelves, a
//! [`shelf`] for each processor; its lock is taken only when a cluster moves
//! between lists. A full one is on no list: the first slot freed in it brings
//! it back.
//!
//! Where the storage wants to be told what is not needed, an emptied cluster
//! first waits to be discarded. Whoever discards it holds it meanwhile, so that
//! nobody allocates from it; one that still waits is taken as it is before
//! anybody goes without.
//!
//! [`frozen`] keeps freed slots from being used again, [`service`] takes slots
//! and clusters out of service. [`sparse`] has clusters come and go one by one,
//! where the area is not this process's alone.
//!
//! Locks: that for growing and shrinking, then those of up to two shelves, in
//! their order.

mod shelf;
mod homes;
mod service;
mod frozen;
mod sparse;

use super::cluster::{Bits, CLUSTER_SLOTS, PAGE_BYTES, WORDS, find_run, masks};
use crossbeam_utils::CachePadded;
use shelf::{CURRENT, FREE, FULL, GONE, Holds, ROOMY, Shelf, TIGHT, WAITING, lock};
use softswap_sys::primitive::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use softswap_sys::primitive::{AtomicBool, AtomicU32, AtomicU64, Mutex};
use softswap_sys::primitive::{current_cpu, in_one_order, reserve_u32, reserve_u64};
use std::io;
use std::ops::Range;

/// Counters that threads share the load of.
const STRIPES: usize = 16;

/// A processor leaves a cluster whose longest run is shorter for another one.
const SHORT_SLOTS: usize = 8;

/// Something was to be freed that was not in use: a bug of the caller. The
/// part of the run that was in use has been freed.
///
/// ```
/// use softswap_engine::store::swap::slot::SlotAllocator;
/// let slots = SlotAllocator::new(1, 1).unwrap();
/// slots.grow(1);
/// assert!(slots.free(7, 1).unwrap_err().to_string().starts_with("slots 7+1"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("slots {first}+{len} were to be freed, but not all of them are in use: a bug in softswap")]
pub struct NotInUse {
    /// The first slot of the run.
    pub(crate) first: u64,
    /// Its length.
    pub(crate) len: usize,
}

/// The slots of one area.
///
/// ```
/// use softswap_engine::store::swap::slot::SlotAllocator;
/// let slots = SlotAllocator::new(4, 1).unwrap();
/// slots.grow(4);
/// let (first, count) = slots.alloc_run(0, 32).unwrap();
/// assert!(first > 0 && count == 32); // Slot 0 is the header's.
/// assert_eq!(slots.free(first, count), Ok(()));
/// ```
#[derive(Debug)]
pub struct SlotAllocator {
    /// Clusters handed to the allocator so far, of those the tables can hold.
    clusters: AtomicU32,
    capacity: u32,
    /// Held while the area grows or shrinks.
    resizing: Mutex<()>,
    bits: &'static [AtomicU64],
    place: &'static [AtomicU32],
    next: &'static [AtomicU32],
    prev: &'static [AtomicU32],
    shelves: Box<[CachePadded<Shelf>]>,
    /// Whether clusters are discarded before they are free.
    discards: AtomicBool,
    /// A bit per cluster whose storage holds nothing since it was discarded.
    clean: &'static [AtomicU64],
    /// A bit per cluster that has been allocated from, their number, and that of the words
    /// with any.
    touched: &'static [AtomicU64],
    touched_clusters: AtomicU32,
    touched_words: AtomicU32,
    /// Clusters come and go one by one.
    is_sparse: bool,
    /// Free clusters that a processor's shelf keeps, and whether one may have more.
    keep: AtomicU32,
    has_surplus: AtomicBool,
    in_use: Box<[CachePadded<AtomicU64>]>,
    retired_slots: AtomicU64,
    retired: &'static [AtomicU64],
    frozen: AtomicU32,
    freezing: Mutex<()>,
    /// Slots that were in use at a freeze that has not ended.
    kept: &'static [AtomicU64],
    /// Those of them that were freed since, and a bit per cluster that may have some.
    limbo: &'static [AtomicU64],
    limbo_clusters: &'static [AtomicU64],
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
            resizing: Mutex::new(()),
            bits: reserve_u64(words)?,
            place: reserve_u32(clusters)?,
            next: reserve_u32(clusters)?,
            prev: reserve_u32(clusters)?,
            shelves: (0..=cpus.max(1)).map(|_| CachePadded::new(Shelf::new())).collect(),
            discards: AtomicBool::new(false),
            clean: reserve_u64(clusters.div_ceil(64))?,
            touched: reserve_u64(clusters.div_ceil(64))?,
            touched_clusters: AtomicU32::new(0),
            touched_words: AtomicU32::new(0),
            is_sparse: false,
            keep: AtomicU32::new(u32::MAX),
            has_surplus: AtomicBool::new(false),
            in_use: (0..STRIPES).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            retired_slots: AtomicU64::new(0),
            retired: reserve_u64(words)?,
            frozen: AtomicU32::new(0),
            freezing: Mutex::new(()),
            kept: reserve_u64(words)?,
            limbo: reserve_u64(words)?,
            limbo_clusters: reserve_u64(clusters.div_ceil(64))?,
        })
    }

    /// Adds clusters at the end of the area; returns how many the tables took.
    ///
    /// Slot 0 is never handed out: zero stays free to mean "no slot".
    pub fn grow(&self, clusters: u32) -> u32 {
        let _alone = lock(&self.resizing);
        let old = self.clusters.load(Relaxed);
        let new = old.saturating_add(clusters).min(self.capacity);
        if old == 0 && new > 0 {
            self.withhold(0, 1);
        }
        // First: slots that are handed out lie in the area.
        self.clusters.store(new, SeqCst);
        for cluster in old..new {
            // Storage that was just added holds nothing.
            self.set_clean(cluster, true);
            let (home, common) = self.lock_with_common(self.home(cluster));
            self.link_common(home, common, cluster, self.state_for(cluster));
        }
        new - old
    }

    /// Takes up to `want` adjacent slots, as many as can be had in one piece
    /// without searching far; returns the first and their number.
    #[must_use]
    pub fn alloc_run(&self, cpu: usize, want: usize) -> Option<(u64, usize)> {
        let want = want.clamp(1, CLUSTER_SLOTS);
        let own = self.shelf_of(cpu);
        self.alloc_held(own, want, want)
            .or_else(|| {
                // A fresh cluster is better than a short run, and so is the best of those
                // that wait, while there are some of its own: what is left of this one
                // grows longer meanwhile. With none of its own any run is better than
                // another processor's.
                let least = match self.has_free_cluster(own) {
                    true => want,
                    false if self.has_gaps(own) => want.min(SHORT_SLOTS),
                    false => 1,
                };
                let short = if least < want { self.alloc_held(own, want, least) } else { None };
                short.or_else(|| self.alloc_next(own, want))
            })
            .or_else(|| self.alloc_any(own, want))
    }

    /// Takes a run from wherever there is one, other processors' current clusters
    /// included. With nothing found nothing was free at one moment: as long as
    /// clusters change their places, or slots are taken, one may have been missed.
    fn alloc_any(&self, own: usize, want: usize) -> Option<(u64, usize)> {
        loop {
            let before = self.changes();
            let run = self.alloc_next(own, want).or_else(|| {
                self.shelves_from(own).find_map(|shelf| self.alloc_held(shelf, want, 1))
            });
            if run.is_some() || self.changes() == before {
                return run;
            }
        }
    }

    /// Takes a run out of the current cluster of a shelf.
    fn alloc_held(&self, shelf: usize, want: usize, least: usize) -> Option<(u64, usize)> {
        let mut shelf = self.shelves[shelf].lock();
        self.carve(&mut shelf, want, least)
    }

    /// Takes a run out of the current cluster of a shelf that is locked.
    fn carve(&self, shelf: &mut Holds, want: usize, least: usize) -> Option<(u64, usize)> {
        let cluster = shelf.current?;
        let base = cluster as usize * WORDS;
        let mut seen: Bits = [0; WORDS];
        for (word, bits) in seen.iter_mut().enumerate() {
            *bits = self.bits[base + word].load(Acquire);
        }
        let run = find_run(&seen, want).filter(|run| run.len() >= least)?;
        shelf.changes += 1;
        self.stripe().fetch_add(run.len() as u64, Relaxed);
        for (word, mask) in masks(run.clone()) {
            let before = self.bits[base + word].fetch_or(mask, AcqRel);
            debug_assert_eq!(before & mask, 0, "only the holder sets bits");
        }
        Some((u64::from(cluster) * CLUSTER_SLOTS as u64 + run.start as u64, run.len()))
    }

    /// Gives a run back. Slots that were in use at a freeze stay taken until the thaw.
    ///
    /// # Errors
    /// When some of the run is not in use; the rest is freed all the same.
    pub fn free(&self, first: u64, len: usize) -> Result<(), NotInUse> {
        self.owned(first, len, |word, mask| self.release_or_remember(word, mask))
    }

    /// Gives back what was taken and never used, whether frozen or not: nobody
    /// knows of it.
    ///
    /// # Errors
    /// When some of the run is not in use; the rest is freed all the same.
    pub(crate) fn give_back(&self, first: u64, len: usize) -> Result<(), NotInUse> {
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
        let moves = match self.state(cluster) {
            CURRENT | GONE => false,
            FULL => true,
            // Counting is for where the count matters.
            TIGHT => self.state_for(cluster) != TIGHT,
            _ => self.is_empty(cluster),
        };
        if moves {
            self.settle(&mut self.lock_home(cluster), cluster);
        }
        freed
    }

    /// The parts of a run that lie in the area, cluster by cluster.
    fn by_cluster(&self, first: u64, len: usize) -> impl Iterator<Item = (u32, Range<usize>)> {
        by_cluster(first, first.saturating_add(len as u64).min(self.total_slots()))
    }

    fn touch(&self, cluster: u32) {
        let (word, bit) = (&self.touched[cluster as usize / 64], 1 << (cluster % 64));
        if word.load(Relaxed) & bit != 0 {
            return;
        }
        let before = word.fetch_or(bit, Relaxed);
        self.touched_clusters.fetch_add(u32::from(before & bit == 0), Relaxed);
        self.touched_words.fetch_add(u32::from(before == 0), Relaxed);
    }

    /// The clusters that have been allocated from.
    fn touched(&self) -> impl Iterator<Item = usize> {
        self.touched.iter().enumerate().flat_map(|(at, word)| {
            let mut bits = word.load(Relaxed);
            std::iter::from_fn(move || {
                let cluster = (bits != 0).then(|| at * 64 + bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(cluster)
            })
        })
    }

    fn set_clean(&self, cluster: u32, clean: bool) {
        let (word, bit) = (&self.clean[cluster as usize / 64], 1 << (cluster % 64));
        if (word.load(SeqCst) & bit != 0) == clean {
            return;
        }
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
    fn state_for(&self, cluster: u32) -> u32 {
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
    pub(crate) fn used_slots(&self) -> u64 {
        let sum = |sum: u64, count: u64| sum.wrapping_add(count);
        let total = self.in_use.iter().map(|count| count.load(Relaxed)).fold(0, sum);
        // Read while they change, they may be off by what is on its way.
        (total as i64).max(0) as u64
    }

    /// Slots out of service.
    #[must_use]
    pub(crate) fn retired_slots(&self) -> u64 {
        self.retired_slots.load(Relaxed)
    }

    /// Slots of the area, slot 0 included.
    #[must_use]
    pub(crate) fn total_slots(&self) -> u64 {
        u64::from(self.clusters.load(Acquire)) * CLUSTER_SLOTS as u64
    }

    /// Clusters that the tables have room for.
    #[must_use]
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Clusters that the tables have room for beyond the present ones.
    #[must_use]
    pub(crate) fn room_clusters(&self) -> u32 {
        self.capacity - self.clusters.load(Acquire)
    }

    /// Clusters ever allocated from, and so with bookkeeping in DRAM.
    #[must_use]
    pub(crate) fn touched_clusters(&self) -> u32 {
        self.touched_clusters.load(Relaxed)
    }

    /// DRAM that the tables take so far.
    #[must_use]
    pub(crate) fn metadata_bytes(&self) -> u64 {
        /// Four bits for each slot, and three half words for each cluster of the area.
        const BITS_BYTES: u64 = 4 * (CLUSTER_SLOTS as u64 / 8);
        const LINKS_BYTES: u64 = 12;
        if self.is_sparse {
            // Few lie together: of each table a page, in the worst case.
            const TABLES: u64 = 7;
            let (words, clusters) = (self.touched_words.load(Relaxed), self.clusters.load(Relaxed));
            let most = u64::from(clusters) * (BITS_BYTES + LINKS_BYTES);
            return most.min(u64::from(words) * TABLES * PAGE_BYTES);
        }
        u64::from(self.touched_clusters()) * BITS_BYTES
            + u64::from(self.clusters.load(Relaxed)) * LINKS_BYTES
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

#[cfg(all(test, not(feature = "loom")))]
mod history_tests;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

#[cfg(all(test, feature = "loom"))]
mod model;
