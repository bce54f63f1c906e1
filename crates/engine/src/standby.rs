//! Pages that have just left for the swap area and are kept in DRAM for a while
//! longer.
//!
//! Nobody tells which resident pages are used, so the clock takes out pages that are:
//! soon they are wanted again. Here such a page is had for a copy instead of a
//! read, and it is known then that it is used. This is the second list of
//! *segmented FIFO* (R. Turner and H. Levy, 1981), by which systems without accessed
//! bits come near to LRU; others call it a standby list or victim cache. It
//! takes a share of the budget from the resident pages, and only while that pays:
//! while a good part of the pages that are read were away for no longer than
//! pages stay here.
//!
//! What is kept is what a slot holds since it was last handed out, named by its
//! generation. That never changes, so nothing here can be out of date: a slot
//! that holds something else has another generation.

use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::{Page, give_back, reserve_pages};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Of a budget of so many pages, one may be kept.
const BUDGET_SHARE: usize = 8;
/// Pages of a set: a slot's page is kept in the set that its number says. In a
/// set the oldest page makes room for the next.
const WAYS: usize = 8;
/// Of the pages that are read, one in so many has to be back soon for keeping
/// pages to begin, and to go on.
const BEGIN_SHARE: u32 = 16;
const END_SHARE: u32 = 32;
/// They are counted over so many.
const LOOK_EVERY: u32 = 256;
/// Pages that were to be kept for each that takes DRAM: else a batch that leaves
/// would free nothing.
const GROWTH: usize = 2;

/// Of a slot's many tenants, one: the slot's number and its generation.
pub type Tenant = (u64, u32);

/// What is known of a kept page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It was only read while it was resident.
    Unchanged,
    /// It was written.
    Changed,
}

/// What a place in a set holds.
#[derive(Debug, Clone, Copy)]
struct Way {
    tenant: Option<Tenant>,
    kept: Kept,
    /// The larger, the later it was kept.
    age: u32,
    has_dram: bool,
}

const EMPTY: Way = Way { tenant: None, kept: Kept::Unchanged, age: 0, has_dram: false };

struct Set {
    ways: [Way; WAYS],
    next_age: u32,
    pages: &'static mut [Page],
}

/// Pages that were dropped lately.
pub struct Standby {
    sets: Box<[Mutex<Set>]>,
    used_bytes: AtomicUsize,
    /// Pages that were to be kept since DRAM was given back last.
    offered: AtomicUsize,
    is_on: AtomicBool,
    /// Pages that came back, and those of them that came soon.
    seen: AtomicU32,
    soon: AtomicU32,
}

impl Standby {
    /// For a budget of so many pages.
    ///
    /// # Errors
    /// When there is no address space.
    pub fn new(budget_pages: usize) -> io::Result<Standby> {
        let sets = (budget_pages / BUDGET_SHARE / WAYS).max(1);
        let pages = reserve_pages(sets * WAYS)?.chunks_exact_mut(WAYS);
        let set = |pages| Mutex::new(Set { ways: [EMPTY; WAYS], next_age: 0, pages });
        Ok(Standby {
            sets: pages.map(set).collect(),
            used_bytes: AtomicUsize::new(0),
            offered: AtomicUsize::new(0),
            is_on: AtomicBool::new(false),
            seen: AtomicU32::new(0),
            soon: AtomicU32::new(0),
        })
    }

    /// How many pages it keeps at most.
    fn most_pages(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// DRAM of its tables, in bytes.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        self.sets.len() * size_of::<Mutex<Set>>()
    }

    /// DRAM of what is kept, in bytes.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Relaxed)
    }

    /// Whether pages that leave are to be kept.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Notes that a page is touched again that so many others have left after,
    /// and decides from time to time whether keeping pages pays.
    pub fn note_return(&self, distance: u64) {
        if distance < self.most_pages() as u64 {
            self.soon.fetch_add(1, Relaxed);
        }
        let seen = self.seen.fetch_add(1, Relaxed) + 1;
        if seen < LOOK_EVERY {
            return;
        }
        // Who notes at the same moment may be counted twice or not at all.
        self.seen.store(0, Relaxed);
        let soon = self.soon.swap(0, Relaxed);
        let share = if self.is_on() { END_SHARE } else { BEGIN_SHARE };
        self.is_on.store(soon >= seen / share, Relaxed);
    }

    /// Neighbouring slots have sets of their own. Locks are only tried: what is not
    /// kept is read.
    fn set(&self, slot: u64) -> Option<MutexGuard<'_, Set>> {
        self.sets[slot as usize % self.sets.len()].try_lock().ok()
    }

    /// Keeps what a slot's tenant leaves there: `fill` writes it, and says whether it could.
    /// `has_room` says whether there is a page more in the budget.
    pub fn keep(
        &self,
        tenant: Tenant,
        kept: Kept,
        has_room: impl FnOnce() -> bool,
        fill: impl FnOnce(&mut [u8; PAGE_SIZE]) -> bool,
    ) {
        let offered = self.offered.fetch_add(1, Relaxed);
        let may_grow = self.used_bytes() / PAGE_SIZE * GROWTH <= offered;
        let Some(mut set) = self.set(tenant.0) else { return };
        let Some(at) = set.place(|| may_grow && has_room()) else { return };
        if !set.ways[at].has_dram {
            self.used_bytes.fetch_add(PAGE_SIZE, Relaxed);
        }
        let age = set.next_age;
        set.next_age = age.wrapping_add(1);
        set.ways[at] = Way { tenant: None, kept, age, has_dram: true };
        if fill(&mut set.pages[at].0) {
            set.ways[at].tenant = Some(tenant);
        }
    }

    /// Takes what a slot's tenant left there, if it is kept.
    #[must_use]
    pub fn take(&self, tenant: Tenant, bytes: &mut [u8; PAGE_SIZE]) -> Option<Kept> {
        if self.used_bytes() == 0 {
            return None;
        }
        let mut set = self.set(tenant.0)?;
        let at = set.ways.iter().position(|way| way.tenant == Some(tenant))?;
        bytes.copy_from_slice(&set.pages[at].0);
        set.ways[at].tenant = None;
        Some(set.ways[at].kept)
    }

    /// Gives all DRAM back. Returns how many bytes that were.
    pub fn release(&self) -> usize {
        let mut released = 0;
        for set in &self.sets {
            let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
            let pages = set.ways.iter().filter(|way| way.has_dram).count();
            if pages == 0 {
                continue;
            }
            set.ways = [EMPTY; WAYS];
            set.pages.iter_mut().for_each(|page| give_back(&mut page.0));
            released += pages * PAGE_SIZE;
        }
        self.used_bytes.fetch_sub(released, Relaxed);
        self.offered.store(0, Relaxed);
        released
    }
}

impl Set {
    /// Where the next page is to lie: where nothing is and DRAM is taken, else where
    /// DRAM may be taken, else where the oldest page is.
    fn place(&self, may_grow: impl FnOnce() -> bool) -> Option<usize> {
        let taken = || self.ways.iter().enumerate().filter(|(_, way)| way.has_dram);
        if let Some((at, _)) = taken().find(|(_, way)| way.tenant.is_none()) {
            return Some(at);
        }
        if let Some(at) = self.ways.iter().position(|way| !way.has_dram)
            && may_grow()
        {
            return Some(at);
        }
        let oldest = |way: &Way| self.next_age.wrapping_sub(way.age);
        taken().max_by_key(|(_, way)| oldest(way)).map(|(at, _)| at)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// 256 pages in 32 sets.
    fn standby() -> Standby {
        let standby = Standby::new(256 * BUDGET_SHARE).unwrap();
        assert_eq!(standby.most_pages(), 256);
        standby
    }

    fn keep(standby: &Standby, slot: u64, generation: u32, fill: u8, has_room: bool) {
        let put = |page: &mut [u8; PAGE_SIZE]| {
            page.fill(fill);
            true
        };
        standby.keep((slot, generation), Kept::Unchanged, || has_room, put);
    }

    fn take(standby: &Standby, slot: u64, generation: u32) -> Option<u8> {
        let mut page = [0; PAGE_SIZE];
        standby.take((slot, generation), &mut page).map(|_| {
            assert!(page.iter().all(|byte| *byte == page[0]));
            page[0]
        })
    }

    #[test]
    fn what_is_kept_is_had_once_and_only_for_its_slot_and_generation() {
        let standby = standby();
        keep(&standby, 7, 1, 3, true);
        assert_eq!(take(&standby, 7, 2), None);
        assert_eq!(take(&standby, 39, 1), None, "in the same set");
        assert_eq!(take(&standby, 7, 1), Some(3));
        assert_eq!(take(&standby, 7, 1), None);
    }

    #[test]
    fn what_could_not_be_filled_is_not_kept() {
        let standby = standby();
        keep(&standby, 7, 1, 3, true);
        assert_eq!(take(&standby, 7, 1), Some(3));
        standby.keep((7, 1), Kept::Unchanged, || true, |_| false);
        assert_eq!(take(&standby, 7, 1), None);
    }

    #[test]
    fn it_says_whether_the_page_was_changed() {
        let standby = standby();
        for kept in [Kept::Changed, Kept::Unchanged] {
            standby.keep((7, 1), kept, || true, |_| true);
            assert_eq!(standby.take((7, 1), &mut [0; PAGE_SIZE]), Some(kept));
        }
    }

    #[test]
    fn dram_is_taken_slowly_and_only_where_there_is_room_and_all_given_back() {
        let standby = standby();
        (0..100).for_each(|slot| keep(&standby, slot, 1, 1, false));
        assert_eq!(standby.used_bytes(), 0);
        (0..100).for_each(|slot| keep(&standby, slot, 1, 1, true));
        assert!((49..=100).contains(&(standby.used_bytes() / PAGE_SIZE)));
        (0..2000).for_each(|slot| keep(&standby, slot, 1, 1, true));
        assert_eq!(standby.used_bytes(), 256 * PAGE_SIZE);
        assert_eq!(standby.release(), 256 * PAGE_SIZE);
        assert_eq!((standby.used_bytes(), standby.release()), (0, 0));
        assert_eq!(take(&standby, 1999, 1), None);
        keep(&standby, 1999, 1, 5, true);
        assert_eq!(take(&standby, 1999, 1), Some(5));
    }

    #[test]
    fn the_last_pages_are_kept() {
        let standby = standby();
        (0..2000).for_each(|slot| keep(&standby, slot, 1, slot as u8, true));
        for slot in 0..2000 {
            let expected = (slot >= 2000 - 256).then_some(slot as u8);
            assert_eq!(take(&standby, slot, 1), expected, "slot {slot}");
        }
    }

    #[test]
    fn keeping_begins_when_many_pages_are_back_soon_and_ends_when_few_are() {
        let standby = standby();
        let back = |soon_in: u64| {
            (0..256).for_each(|at| standby.note_return(if at % soon_in == 0 { 100 } else { 5000 }));
            standby.is_on()
        };
        assert!(!back(1 << 20) && !back(20));
        assert!(back(10));
        assert!(back(20), "fewer will do to go on");
        assert!(!back(50) && !back(20));
    }

    proptest! {
        /// Whatever comes in whatever order, what is had is what was kept last.
        #[test]
        fn nothing_is_taken_for_what_it_is_not(
            steps in prop::collection::vec((0..4u8, 0..600u64, 0..3u32, any::<u8>()), 0..500)
        ) {
            let standby = standby();
            let mut known = BTreeMap::new();
            for (step, slot, generation, fill) in steps {
                match step {
                    0 | 1 => {
                        // What a generation of a slot holds never changes.
                        let fill = *known.entry((slot, generation)).or_insert(fill);
                        keep(&standby, slot, generation, fill, true);
                    }
                    2 => if let Some(found) = take(&standby, slot, generation) {
                        prop_assert_eq!(Some(&found), known.get(&(slot, generation)));
                    },
                    _ => if fill == 0 { standby.release(); },
                }
                prop_assert!(standby.used_bytes() <= 256 * PAGE_SIZE);
            }
        }
    }
}
