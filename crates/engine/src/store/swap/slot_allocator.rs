//! Allocator of the area's slots.
//!
//! Reclaim allocates runs of slots. Swap-ins and unmaps free single slots, from any thread.
//!
//! The area is divided into clusters of 512 slots. Each processor allocates from its own current
//! cluster, under a lock that is rarely contended. Only the holder sets bits in it, so free bits
//! stay free. Any thread clears bits without a lock. Other clusters are on lists by fill level, in
//! the [free-list set](free_lists) of a processor. The states of a cluster:
//!
//! ```text
//! ABSENT --grow, add--> FREE, MOSTLY_FREE, MOSTLY_USED or WAITING: on the list of its fill level
//!    ^                   |                        ^          ^
//!    +--shrink, remove---+--take--> CURRENT --release        |
//!                                      |                first free
//!                                      +--release--> FULL: on no list
//! ```
//!
//! An emptied cluster first waits for its discard, during which no thread allocates from it. If
//! nothing else is free, a waiting cluster is used without a discard.
//!
//! Lock order: growing and shrinking, then up to two free-list sets in the order of their indexes.

mod cluster_bits;
mod tables;
mod free_lists;
mod percpu_clusters;
mod service;
mod frozen;
mod sparse;

use super::cluster::{Bits, CLUSTER_SLOTS, PAGE_BYTES, WORDS, find_run};
use cluster_bits::{ClusterBits, Touched};
use crossbeam_utils::CachePadded;
use free_lists::{
    ABSENT, CURRENT, FREE, FULL, FreeListSet, Lists, MOSTLY_FREE, MOSTLY_USED, WAITING, lock,
};
use softswap_sys::bitmap::words_of;
use softswap_sys::primitive::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use softswap_sys::primitive::{
    AtomicBool, AtomicU32, AtomicU64, Mutex, current_cpu, in_one_order, reserve_u64,
};
use std::io;
use std::ops::Range;
use tables::{Freezes, Positions, Retired, Surplus};

/// Number of counters that spread the load of the threads.
const STRIPES: usize = 16;

/// A processor replaces its current cluster if the longest free run is shorter.
const SHORT_SLOTS: usize = 8;

/// Some freed slots were not in use: a bug of the caller. The others have been freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "slots {first}..{} were freed, but not all of them were in use: a bug in softswap; please \
     report it",
    first.saturating_add(*len as u64)
)]
pub struct NotInUse {
    pub(crate) first: u64,
    pub(crate) len: usize,
}

/// Tables are reserved for `capacity` clusters; their pages are populated by use.
#[derive(Debug, Default)]
pub struct SlotAllocator {
    clusters: AtomicU32,
    capacity: u32,
    /// Held while the area grows or shrinks.
    resizing: Mutex<()>,
    /// A bit for each slot that is used, in limbo or retired.
    bits: &'static [AtomicU64],
    /// The number of used slots, in parts.
    in_use: Box<[CachePadded<AtomicU64>]>,
    /// The free-list sets: the common one, then one for each processor.
    sets: Box<[CachePadded<FreeListSet>]>,
    positions: Positions,
    /// Clusters whose storage is empty since its discard.
    clean: ClusterBits,
    discards: AtomicBool,
    touched: Touched,
    retired: Retired,
    freezes: Freezes,
    surplus: Surplus,
    /// True if other processes have clusters of the same area.
    is_sparse: bool,
}

impl SlotAllocator {
    /// Fails if the address space for the tables cannot be reserved.
    pub fn new(capacity_clusters: u32, cpus: usize) -> io::Result<Self> {
        let clusters = capacity_clusters as usize;
        let words = clusters * WORDS;
        Ok(Self {
            capacity: capacity_clusters,
            bits: reserve_u64(words)?,
            in_use: (0..STRIPES).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            sets: (0..=cpus.max(1)).map(|_| CachePadded::new(FreeListSet::new())).collect(),
            positions: Positions::new(clusters)?,
            clean: ClusterBits::new(clusters)?,
            touched: Touched::new(clusters)?,
            retired: Retired::new(words)?,
            freezes: Freezes::new(clusters)?,
            surplus: Surplus::new(),
            ..SlotAllocator::default()
        })
    }

    /// Returns the number that fitted into the tables. Slot 0 is never allocated: it is "no slot".
    pub fn grow(&self, clusters: u32) -> u32 {
        let _alone = lock(&self.resizing);
        let old = self.clusters.load(Relaxed);
        let new = old.saturating_add(clusters).min(self.capacity);
        if old == 0 && new > 0 {
            self.withhold(0, 1);
        }
        // Publish the size before the links: allocated slots must be inside the area.
        self.clusters.store(new, SeqCst);
        for cluster in old..new {
            // New storage has no content to discard.
            self.clean.insert(cluster);
            let (home, common) = self.lock_with_common(self.home(cluster));
            self.link_common(home, common, cluster, self.state_for(cluster));
        }
        new - old
    }

    /// Takes adjacent slots without searching far. Returns the first one and their number.
    #[must_use]
    pub fn alloc_slots(&self, cpu: usize, want: usize) -> Option<(u64, usize)> {
        let want = want.clamp(1, CLUSTER_SLOTS);
        let own = self.set_of(cpu);
        // 1. A whole run of the current cluster.
        if let Some(run) = self.alloc_current(own, want, want) {
            return Some(run);
        }
        // 2. A shorter run of it, if nothing else is better. A free cluster is better: the gaps
        // grow meanwhile. So is a partly used cluster of the own set, for runs below
        // `SHORT_SLOTS`.
        let least = match self.has_free_cluster(own) {
            true => want,
            false if self.has_gaps(own) => want.min(SHORT_SLOTS),
            false => 1,
        };
        if least < want
            && let Some(run) = self.alloc_current(own, want, least)
        {
            return Some(run);
        }
        // 3. A run of the emptiest cluster, which becomes the current one.
        // 4. Any run.
        self.alloc_next(own, want).or_else(|| self.alloc_any(own, want))
    }

    /// Takes a run from any cluster. Returns `None` only if nothing was free at one moment: repeats
    /// the search if clusters moved or slots were allocated meanwhile.
    fn alloc_any(&self, own: usize, want: usize) -> Option<(u64, usize)> {
        loop {
            let before = self.changes();
            let run = self
                .alloc_next(own, want)
                .or_else(|| self.sets_from(own).find_map(|set| self.alloc_current(set, want, 1)));
            if run.is_some() || self.changes() == before {
                return run;
            }
        }
    }

    fn alloc_current(&self, set: usize, want: usize, least: usize) -> Option<(u64, usize)> {
        self.carve(&mut self.sets[set].lock(), want, least)
    }

    fn carve(&self, lists: &mut Lists, want: usize, least: usize) -> Option<(u64, usize)> {
        let cluster = lists.current?;
        let base = cluster as usize * WORDS;
        let mut seen: Bits = [0; WORDS];
        for (word, bits) in seen.iter_mut().enumerate() {
            *bits = self.bits[base + word].load(Acquire);
        }
        let run = find_run(&seen, want).filter(|run| run.len() >= least)?;
        lists.changes += 1;
        self.stripe().fetch_add(run.len() as u64, Relaxed);
        for (word, mask) in words_of(run.clone()) {
            let before = self.bits[base + word].fetch_or(mask, AcqRel);
            debug_assert_eq!(before & mask, 0, "only the holder sets bits");
        }
        Some((u64::from(cluster) * CLUSTER_SLOTS as u64 + run.start as u64, run.len()))
    }

    /// Frees a run. Fails if some slots are not in use; the others are freed.
    pub fn free(&self, first: u64, len: usize) -> Result<(), NotInUse> {
        self.owned(first, len, |word, mask| self.release_or_keep(word, mask))
    }

    /// Frees slots that were never used, even during a freeze: no page refers to them.
    pub(crate) fn free_unused(&self, first: u64, len: usize) -> Result<(), NotInUse> {
        self.owned(first, len, |word, mask| self.release(word, mask))
    }

    /// Calls `act` for each word of a run, without retired bits, which stay set and have no owner.
    /// `act` returns the number of bits that were in use.
    fn owned(
        &self,
        first: u64,
        len: usize,
        act: impl Fn(usize, u64) -> u32,
    ) -> Result<(), NotInUse> {
        let mut in_use = 0;
        for (cluster, run) in self.by_cluster(first, len) {
            for (word, mask) in words_of(run) {
                let word = cluster as usize * WORDS + word;
                in_use += act(word, mask & !self.retired.bits(word));
            }
        }
        if in_use as usize == len { Ok(()) } else { Err(NotInUse { first, len }) }
    }

    fn release(&self, word: usize, mask: u64) -> u32 {
        let freed = (self.bits[word].fetch_and(!mask, SeqCst) & mask).count_ones();
        if freed == 0 {
            return 0;
        }
        let cluster = (word / WORDS) as u32;
        self.stripe().fetch_sub(u64::from(freed), Relaxed);
        // A thread that moves a cluster reads its bits afterwards; a thread that clears bits reads
        // the state afterwards. So at least one of them sees the other's change.
        in_one_order();
        let changes_list = match self.state(cluster) {
            CURRENT | ABSENT => false,
            FULL => true,
            // Count the bits only if the count matters.
            MOSTLY_USED => self.state_for(cluster) != MOSTLY_USED,
            _ => self.is_empty(cluster),
        };
        if changes_list {
            self.update_list(&mut self.lock_home(cluster), cluster);
        }
        freed
    }

    fn by_cluster(&self, first: u64, len: usize) -> impl Iterator<Item = (u32, Range<usize>)> {
        by_cluster(first, first.saturating_add(len as u64).min(self.total_slots()))
    }

    /// They share one cache line: counting them is cheaper than a counter on a shared line.
    fn bits_of(&self, cluster: u32) -> &[AtomicU64] {
        &self.bits[cluster as usize * WORDS..][..WORDS]
    }

    fn is_empty(&self, cluster: u32) -> bool {
        self.bits_of(cluster).iter().all(|word| word.load(SeqCst) == 0)
    }

    /// Returns the state for a cluster that no processor holds. Its bits are then only cleared: the
    /// thread that clears the last one sees that the others are clear.
    fn state_for(&self, cluster: u32) -> u32 {
        const HALF: u32 = CLUSTER_SLOTS as u32 / 2;
        const ALL: u32 = CLUSTER_SLOTS as u32;
        let used = self.bits_of(cluster).iter().map(|word| word.load(SeqCst).count_ones());
        match used.sum::<u32>() {
            0 if self.discards.load(SeqCst) && !self.clean.contains(cluster) => WAITING,
            0 => FREE,
            1..=HALF => MOSTLY_FREE,
            ALL => FULL,
            _ => MOSTLY_USED,
        }
    }

    /// Another processor may subtract what this one added: counters may wrap, their sum does not.
    fn stripe(&self) -> &AtomicU64 {
        &self.in_use[current_cpu() % STRIPES]
    }

    /// Returns the number of used slots, including those in limbo but not retired ones.
    pub(crate) fn used_slots(&self) -> u64 {
        let sum = |sum: u64, count: u64| sum.wrapping_add(count);
        let total = self.in_use.iter().map(|count| count.load(Relaxed)).fold(0, sum);
        // The sum is not a snapshot, so it may be briefly off, even below 0.
        (total as i64).max(0) as u64
    }

    pub(crate) fn total_slots(&self) -> u64 {
        u64::from(self.clusters.load(Acquire)) * CLUSTER_SLOTS as u64
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) fn capacity_clusters(&self) -> u32 {
        self.capacity - self.clusters.load(Acquire)
    }

    pub(crate) fn touched_clusters(&self) -> u32 {
        self.touched.clusters()
    }

    pub(crate) fn metadata_bytes(&self) -> u64 {
        /// Four bits for each slot, and three 4-byte words for each cluster of the area.
        const BITS_BYTES: u64 = 4 * (CLUSTER_SLOTS as u64 / 8);
        const LINKS_BYTES: u64 = 12;
        if self.is_sparse {
            // Used clusters are scattered: at worst each nonzero word needs a page of each table.
            const TABLES: u64 = 7;
            let (words, clusters) = (self.touched.words(), self.clusters.load(Relaxed));
            let most = u64::from(clusters) * (BITS_BYTES + LINKS_BYTES);
            return most.min(u64::from(words) * TABLES * PAGE_BYTES);
        }
        u64::from(self.touched_clusters()) * BITS_BYTES
            + u64::from(self.clusters.load(Relaxed)) * LINKS_BYTES
    }
}

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
