//! Standby list: evicted pages that stay in DRAM for a while.
//!
//! Without accessed bits the clock evicts some pages that are in use, and these refault soon. A
//! page on the standby list is copied back instead of read. This is the second list of *segmented
//! FIFO* (R. Turner and H. Levy, 1981), which comes near to LRU without accessed bits. The list
//! takes a share of the budget, but only while that pays.
//!
//! It pays while some pages are used much more often than others: many refaults are then early.
//! With uniform use few are early, and in a loop none.
//!
//! Pages that mostly refault in streams are not kept ([`crate::core::Core`] checks).
//!
//! An entry is named by slot and generation, so it is never stale.

use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::{release_dram, reserve_bytes};
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

/// Pages of the budget for each page that may be kept.
const BUDGET_SHARE: usize = 8;
/// Pages in a set. The slot's number selects the set; the oldest page of a full set is replaced.
const WAYS: usize = 8;
/// Divisor. A refault is early if fewer than 1/16 of the pages now out of memory, and fewer than
/// the list can hold, were evicted after the page. With uniform use 1/16 of the refaults are early.
const EARLY_SHARE: u64 = 16;
/// Divisor: keeping pages starts if at least 1/8 of the refaults are early.
const BEGIN_SHARE: u32 = 8;
/// Divisor: keeping pages stops if fewer than 1/12 of the refaults are early.
const END_SHARE: u32 = 12;
const DECIDE_EVERY: u32 = 256;
/// Maximum number of tables; each has at least twice as many pages as the one before.
const TABLES: usize = 16;
/// Of this many pages without a place, one takes new DRAM. Otherwise a batch would free none.
const GROWTH: usize = 2;

/// Identifies the content of a slot: the slot's number and its generation.
pub(crate) type Tenant = (u64, u32);

#[derive(Debug, Clone, Copy)]
struct Way {
    tenant: Option<Tenant>,
    /// Order in which pages were kept: a larger number is later.
    age: u32,
    has_dram: bool,
}

const EMPTY: Way = Way { tenant: None, age: 0, has_dram: false };

fn capacity_for(budget_pages: usize) -> usize {
    (budget_pages / BUDGET_SHARE).next_multiple_of(WAYS)
}

struct Set {
    ways: [Way; WAYS],
    next_age: u32,
    pages: &'static mut [[u8; PAGE_SIZE]],
}

#[derive(Default)]
pub struct Standby {
    max_pages: AtomicUsize,
    /// Created on first use, and for larger budgets. The last is in use; the others are empty.
    tables: [OnceLock<Box<[Mutex<Set>]>>; TABLES],
    made: AtomicUsize,
    pages: AtomicUsize,
    /// Pages that found no place since a page last took DRAM.
    unplaced: AtomicUsize,
    is_on: AtomicBool,
    /// Refaults since the last decision.
    seen: AtomicU32,
    early: AtomicU32,
    next_set: AtomicUsize,
}

impl Standby {
    pub fn new(budget_pages: usize) -> Standby {
        Standby { max_pages: AtomicUsize::new(capacity_for(budget_pages)), ..Standby::default() }
    }

    pub fn used_bytes(&self) -> usize {
        let tables = self.tables.iter().filter_map(OnceLock::get);
        tables.map(|sets| size_of_val(&**sets)).sum::<usize>()
            + self.pages.load(Relaxed) * PAGE_SIZE
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Records a refault after `left` evictions, while `out` pages are out of memory.
    pub fn note_return(&self, left: u64, out: u64) {
        if left < (out / EARLY_SHARE).min(self.max_pages.load(Relaxed) as u64) {
            self.early.fetch_add(1, Relaxed);
        }
        // One thread decides. The count may wrap.
        if !self.seen.fetch_add(1, Relaxed).wrapping_add(1).is_multiple_of(DECIDE_EVERY) {
            return;
        }
        let early = self.early.swap(0, Relaxed);
        let share = if self.is_on() { END_SHARE } else { BEGIN_SHARE };
        self.is_on.store(early >= DECIDE_EVERY / share, Relaxed);
    }

    /// Does work that a fault may not do: creates tables, and releases DRAM. Returns true while
    /// more work remains. Fails if no address space is left.
    pub fn maintain(&self) -> io::Result<bool> {
        if self.is_on() {
            let most = self.max_pages.load(Relaxed);
            // A smaller increase would create table after table.
            let is_small = self.sets().is_none_or(|sets| 2 * sets.len() * WAYS <= most);
            let made = self.made.load(Relaxed);
            if is_small && made < TABLES {
                // Only one thread runs this function.
                let _ = self.tables[made].set(Standby::make_sets(most)?);
                self.made.store(made + 1, Release);
            }
            let is_too_much = self.pages.load(Relaxed) > most;
            return Ok(is_too_much && self.release() > 0);
        }
        Ok(self.release() > 0)
    }

    pub(crate) fn resize(&self, budget_pages: usize) {
        self.max_pages.store(capacity_for(budget_pages), Relaxed);
    }

    fn sets(&self) -> Option<&[Mutex<Set>]> {
        let last = self.made.load(Acquire).checked_sub(1)?;
        self.tables[last].get().map(|sets| &**sets)
    }

    fn make_sets(max_pages: usize) -> io::Result<Box<[Mutex<Set>]>> {
        let (pages, _) = reserve_bytes(max_pages * PAGE_SIZE)?.as_chunks_mut();
        let set = |pages| Mutex::new(Set { ways: [EMPTY; WAYS], next_age: 0, pages });
        Ok(pages.chunks_exact_mut(WAYS).map(set).collect())
    }

    /// Only tries the lock: on contention the page is not kept, or is read from the slot.
    fn set(&self, slot: u64) -> Option<MutexGuard<'_, Set>> {
        let sets = self.sets()?;
        match sets[slot as usize % sets.len()].try_lock() {
            Ok(set) => Some(set),
            Err(TryLockError::Poisoned(set)) => Some(set.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Keeps a page. `fill` returns false on failure.
    pub fn keep(
        &self,
        tenant: Tenant,
        has_space: impl FnOnce() -> bool,
        fill: impl FnOnce(&mut [u8; PAGE_SIZE]) -> bool,
    ) {
        let Some(mut set) = self.set(tenant.0) else { return };
        let Some(at) = set.place(tenant, || self.may_grow() && has_space()) else { return };
        if !set.ways[at].has_dram {
            self.pages.fetch_add(1, Relaxed);
            self.unplaced.store(0, Relaxed);
        }
        let age = set.next_age;
        set.next_age = age.wrapping_add(1);
        set.ways[at] = Way { tenant: None, age, has_dram: true };
        if fill(&mut set.pages[at]) {
            set.ways[at].tenant = Some(tenant);
        }
    }

    fn may_grow(&self) -> bool {
        let is_within = self.pages.load(Relaxed) < self.max_pages.load(Relaxed);
        is_within && self.unplaced.fetch_add(1, Relaxed) + 1 >= GROWTH
    }

    /// Moves a page to `bytes`. Returns false if the list does not contain it.
    #[must_use]
    pub fn take(&self, tenant: Tenant, bytes: &mut [u8; PAGE_SIZE]) -> bool {
        let Some(mut set) = self.set(tenant.0) else { return false };
        let Some(at) = set.find(tenant) else { return false };
        bytes.copy_from_slice(&set.pages[at]);
        set.ways[at].tenant = None;
        true
    }

    pub(crate) fn release(&self) -> usize {
        // Include older tables: a page may have been kept there while a table was replaced.
        let sets = || self.tables.iter().filter_map(OnceLock::get).flatten();
        let count = sets().count();
        let mut released = 0;
        let mut left = count;
        // Limited, because a thread may wait for the released pages.
        while left > 0 && released < 512 && self.pages.load(Relaxed) > 0 {
            let at = self.next_set.fetch_add(1, Relaxed) % count;
            let Some(set) = sets().nth(at) else { break };
            let pages = set.lock().unwrap_or_else(PoisonError::into_inner).release();
            self.pages.fetch_sub(pages, Relaxed);
            released += pages;
            left -= 1;
        }
        released
    }
}

impl Set {
    fn find(&self, tenant: Tenant) -> Option<usize> {
        self.ways.iter().position(|way| way.tenant == Some(tenant))
    }

    /// Returns the way for a page: its own, an empty one with DRAM, a new one, or the oldest.
    fn place(&self, tenant: Tenant, may_grow: impl FnOnce() -> bool) -> Option<usize> {
        let taken = || self.ways.iter().enumerate().filter(|(_, way)| way.has_dram);
        let free = || taken().find(|(_, way)| way.tenant.is_none()).map(|(at, _)| at);
        if let Some(at) = self.find(tenant).or_else(free) {
            return Some(at);
        }
        if let Some(at) = self.ways.iter().position(|way| !way.has_dram)
            && may_grow()
        {
            return Some(at);
        }
        let since = |way: &Way| self.next_age.wrapping_sub(way.age);
        taken().max_by_key(|(_, way)| since(way)).map(|(at, _)| at)
    }

    fn release(&mut self) -> usize {
        let pages = self.ways.iter().filter(|way| way.has_dram).count();
        if pages > 0 {
            self.ways = [EMPTY; WAYS];
            release_dram(self.pages.as_flattened_mut());
        }
        pages
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn standby() -> Standby {
        let standby = Standby::new(256 * BUDGET_SHARE);
        standby.is_on.store(true, Relaxed);
        assert!(!standby.maintain().unwrap());
        standby
    }

    fn keep_at_once(standby: &Standby, slot: u64, generation: u32, fill: u8) {
        standby.unplaced.store(GROWTH, Relaxed);
        keep(standby, slot, generation, fill, true);
    }

    fn keep(standby: &Standby, slot: u64, generation: u32, fill: u8, has_space: bool) {
        let put = |page: &mut [u8; PAGE_SIZE]| {
            page.fill(fill);
            true
        };
        standby.keep((slot, generation), || has_space, put);
    }

    fn take(standby: &Standby, slot: u64, generation: u32) -> Option<u8> {
        let mut page = [0; PAGE_SIZE];
        standby.take((slot, generation), &mut page).then(|| {
            assert!(page.iter().all(|byte| *byte == page[0]));
            page[0]
        })
    }

    #[test]
    fn standby_page_is_taken_once_for_its_generation() {
        let standby = standby();
        keep_at_once(&standby, 7, 1, 3);
        assert_eq!(take(&standby, 7, 2), None);
        assert_eq!(take(&standby, 39, 1), None, "slot 39 uses the same set");
        assert_eq!(take(&standby, 7, 1), Some(3));
        assert_eq!(take(&standby, 7, 1), None);
    }

    #[test]
    fn unfilled_page_is_not_kept() {
        let standby = standby();
        keep_at_once(&standby, 7, 1, 3);
        assert_eq!(take(&standby, 7, 1), Some(3));
        standby.keep((7, 1), || true, |_| false);
        assert_eq!(take(&standby, 7, 1), None);
    }

    fn used_pages(standby: &Standby) -> usize {
        standby.pages.load(Relaxed)
    }

    #[test]
    fn dram_is_taken_slowly_if_available() {
        let standby = standby();
        (0..100).for_each(|slot| keep(&standby, slot, 1, 1, false));
        assert_eq!(used_pages(&standby), 0);
        (0..100).for_each(|slot| keep(&standby, slot, 1, 1, true));
        assert_eq!(used_pages(&standby), 50);
        // A page that finds a place does not count towards more DRAM.
        for _ in 0..1000 {
            keep(&standby, 99, 1, 1, true);
            assert_eq!(take(&standby, 99, 1), Some(1));
        }
        (100..200).for_each(|slot| keep(&standby, slot, 1, 1, true));
        assert!((95..=101).contains(&used_pages(&standby)));
        (0..2000).for_each(|slot| keep(&standby, slot, 1, 1, true));
        assert_eq!(used_pages(&standby), 256);
    }

    #[test]
    fn dram_is_released_and_retaken() {
        let standby = standby();
        (0..2000).for_each(|slot| keep(&standby, slot, 1, 1, true));
        assert_eq!(standby.release(), 256);
        assert_eq!((used_pages(&standby), standby.release()), (0, 0));
        assert_eq!(take(&standby, 1999, 1), None);
        (0..2).for_each(|_| keep(&standby, 1999, 1, 5, true));
        assert_eq!(take(&standby, 1999, 1), Some(5));
    }

    #[test]
    fn dram_is_released_in_steps() {
        let standby = Standby::new(100 * WAYS * BUDGET_SHARE);
        standby.is_on.store(true, Relaxed);
        standby.maintain().unwrap();
        (0..8000).for_each(|slot| keep(&standby, slot, 1, 1, true));
        standby.is_on.store(false, Relaxed);
        assert!(standby.maintain().unwrap() && standby.maintain().unwrap());
        assert!(!standby.maintain().unwrap());
        assert_eq!(take(&standby, 7999, 1), None);
    }

    #[test]
    fn page_is_stored_once() {
        let standby = standby();
        (0..100).for_each(|fill| keep(&standby, 7, 1, fill, true));
        assert_eq!((take(&standby, 7, 1), take(&standby, 7, 1)), (Some(99), None));
    }

    #[test]
    fn newest_pages_are_kept() {
        let standby = standby();
        (0..2000).for_each(|slot| keep(&standby, slot, 1, slot as u8, true));
        for slot in 0..2000 {
            let expected = (slot >= 2000 - 256).then_some(slot as u8);
            assert_eq!(take(&standby, slot, 1), expected, "slot {slot}");
        }
    }

    /// Records refaults: one in `early_in` after 100 evictions, the others after `out`.
    fn is_on_after(standby: &Standby, early_in: u64, out: u64) -> bool {
        let left = |at: u64| if at.is_multiple_of(early_in) { 100 } else { out };
        (0..256).for_each(|at| standby.note_return(left(at), out));
        standby.is_on()
    }

    #[test]
    fn keeping_follows_share_of_early_refaults() {
        let standby = Standby::new(256 * BUDGET_SHARE);
        assert!(!is_on_after(&standby, 1 << 20, 5000) && !is_on_after(&standby, 10, 5000));
        assert!(is_on_after(&standby, 6, 5000));
        assert!(is_on_after(&standby, 10, 5000), "a lower share suffices to continue");
        assert!(!is_on_after(&standby, 20, 5000) && !is_on_after(&standby, 10, 5000));
    }

    #[test]
    fn early_refault_threshold_depends_on_evicted_pages() {
        let standby = Standby::new(256 * BUDGET_SHARE);
        assert!(!is_on_after(&standby, 2, 1000));
        // A loop over slightly more than fits: each page refaults after all others were evicted.
        (0..2000).for_each(|_| standby.note_return(100, 100));
        assert!(!standby.is_on());
    }

    #[test]
    fn uniformly_used_pages_are_not_kept() {
        let standby = Standby::new(256 * BUDGET_SHARE);
        let mut state = 1u64;
        for at in 0..100_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let share = ((state >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
            standby.note_return((-share.ln() * 500.0) as u64, 500);
            assert!(!standby.is_on(), "after {at}");
        }
    }

    proptest! {
        #[test]
        fn stale_entries_never_match(
            steps in prop::collection::vec((0..4u8, 0..600u64, 0..3u32, any::<u8>()), 0..500)
        ) {
            let standby = standby();
            let mut known = BTreeMap::new();
            for (step, slot, generation, fill) in steps {
                match step {
                    0 | 1 => {
                        let fill = *known.entry((slot, generation)).or_insert(fill);
                        keep(&standby, slot, generation, fill, true);
                    }
                    2 => if let Some(found) = take(&standby, slot, generation) {
                        prop_assert_eq!(Some(&found), known.get(&(slot, generation)));
                    },
                    _ => if fill < 16 { standby.release(); },
                }
                prop_assert!(used_pages(&standby) <= 256);
            }
        }
    }
}
