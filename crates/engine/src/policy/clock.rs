//! Selection of cold pages: a clock over the window.
//!
//! There are no accessed bits, so a page's *age*, the number of passes of the hand that it
//! survives, comes from its history: mainly its refault distance
//! ([`refault`](crate::policy::refault)). Victims are found in address order, so neighbours are
//! evicted and written together.
//!
//! The algorithm is CLOCK of F. J. Corbató (1968) with a small counter instead of one bit. A page
//! with a higher age than a new one is *active*. Other pages share the memory that active pages do
//! not use, as in the small queue of 2Q and S3-FIFO. The more pages are active, the sooner a round
//! ends, so active pages that are no longer used lose their age faster.

use crate::base::page::{Claim, PageNo, PageTable, Place};
use crate::memory::address_space::{AddressSpace, CHUNK_PAGES};
use crate::policy::refault::{FRESH, Refaults};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Age of a page that was read ahead.
pub const PREFETCHED: u8 = 0;
/// Age of a page that was touched during eviction, or could not be evicted.
pub(crate) const HOT: u8 = 3;

/// A claimed page to evict; `None` after the claim was moved out.
pub(crate) type Victim<'t> = Option<(PageNo, Claim<'t>)>;

#[derive(Debug, Default)]
pub struct Clock {
    hand: Mutex<Hand>,
    pub refaults: Refaults,
    /// Approximate number of active resident pages.
    active: AtomicUsize,
    activated: AtomicUsize,
}

#[derive(Debug, Default)]
struct Hand {
    at: PageNo,
    /// Active pages that stay active in this round.
    active: usize,
}

impl Clock {
    /// Fails if no address space is left for the tables.
    pub fn new(pages: usize, max_resident: usize) -> io::Result<Clock> {
        Ok(Clock {
            hand: Mutex::default(),
            refaults: Refaults::new(pages, max_resident)?,
            ..Clock::default()
        })
    }

    pub fn age_of_new(&self, page: PageNo) -> u8 {
        self.refaults.forget(page);
        FRESH
    }

    /// Returns the age of a refaulting page, which the caller has claimed.
    pub fn age_of_refault(&self, page: PageNo, resident: usize) -> u8 {
        let age = self.refaults.grant(page, resident, self.active());
        if age > FRESH {
            self.active.fetch_add(1, Relaxed);
            self.activated.fetch_add(1, Relaxed);
        }
        age
    }

    pub(crate) fn active(&self) -> usize {
        self.active.load(Relaxed)
    }

    /// Claims up to `victims.len()` cold resident pages, in ascending order except where the hand
    /// wraps. With `only_clean` pages that may have changed are skipped.
    pub fn claim_victims<'t>(
        &self,
        pages: &PageTable<'t>,
        space: &AddressSpace,
        only_clean: bool,
        victims: &mut [Victim<'t>],
    ) -> usize {
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        let high = space.high();
        let mut found = 0;
        // After a round without an aged or claimed page there is no victim. A round may begin
        // within a chunk, so it is one chunk longer.
        let round = high + CHUNK_PAGES;
        let mut idle = 0;
        while found < victims.len() && idle < round {
            let (steps, page) = self.advance(&mut hand, space, high);
            idle += steps;
            let Some(page) = page else { continue };
            let seen = pages.load(page);
            let Place::Resident { age, .. } = seen.place() else { continue };
            if seen.is_busy() || seen.pins() > 0 || only_clean && !seen.is_protected() {
                continue;
            }
            if !pages.age_down(page, seen) {
                self.note_aged(&mut hand, age);
                idle = 0;
            } else if let Some(claim) = pages.try_claim(page, seen) {
                victims[found] = Some((page, claim));
                found += 1;
                idle = 0;
            }
        }
        found
    }

    /// Advances the hand by one page, or to the next chunk with any. Returns the distance.
    fn advance(
        &self,
        hand: &mut Hand,
        space: &AddressSpace,
        high: PageNo,
    ) -> (u64, Option<PageNo>) {
        if hand.at >= high {
            self.begin_round(hand);
        }
        let page = hand.at;
        let next = space.next_resident(page..high);
        if next != page {
            hand.at = next;
            return (next - page, None);
        }
        hand.at = page + 1;
        (1, Some(page))
    }

    fn note_aged(&self, hand: &mut Hand, age: u8) {
        if age > FRESH + 1 {
            hand.active += 1;
        } else if age == FRESH + 1 {
            let _ = self.active.fetch_update(Relaxed, Relaxed, |active| active.checked_sub(1));
        }
    }

    /// Corrects the number of active pages, which drifts because active pages are unmapped, rescued
    /// pages are not counted, and updates race.
    fn begin_round(&self, hand: &mut Hand) {
        let most = hand.active + self.activated.swap(0, Relaxed);
        self.active.store(self.active().clamp(hand.active, most), Relaxed);
        *hand = Hand::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::page::MAX_AGE;
    use softswap_sys::memory::reserve_u64;

    fn setup(resident: &[(PageNo, u8)]) -> (PageTable<'static>, AddressSpace) {
        let pages = PageTable::new(reserve_u64(4096).unwrap());
        let space = AddressSpace::new(4096).unwrap();
        space.add(&mut space.lock(), 0..2048);
        for (page, age) in resident {
            space.touch(*page);
            space.add_resident(*page, 1);
            pages.claim(*page).publish(Place::resident(*age));
        }
        (pages, space)
    }

    fn clock() -> Clock {
        Clock::new(4096, 2048).unwrap()
    }

    #[test]
    fn victims_are_found_for_any_hand_position() {
        for page in [0, 100, 511, 512, 600, 1500] {
            for at in [0, 1, 300, 511, 512, 599, 600, 601, 1023, 1024, 2047] {
                let (pages, space) = setup(&[(page, 0)]);
                let clock = clock();
                clock.hand.lock().unwrap().at = at;
                assert_eq!(victims(&clock, &pages, &space, 1), [page], "the hand at {at}");
            }
        }
    }

    fn victims(
        clock: &Clock,
        pages: &PageTable<'static>,
        space: &AddressSpace,
        want: usize,
    ) -> Vec<PageNo> {
        let mut out = [const { None }; 8];
        let found = clock.claim_victims(pages, space, false, &mut out[..want]);
        out.into_iter().take(found).flatten().map(|(page, _)| page).collect()
    }

    #[test]
    fn cold_pages_are_evicted_in_address_order() {
        let (pages, space) = setup(&[(3, 1), (5, 0), (6, 0), (700, 0), (900, 3)]);
        let clock = clock();
        assert_eq!(victims(&clock, &pages, &space, 3), [5, 6, 700]);
    }

    #[test]
    fn single_unpinned_page_is_skipped_for_one_round_at_most() {
        let own_slot = Place::Slot { slot: 7, is_incompressible: true }.to_copy();
        let (pages, space) = setup(&[(1, 0), (2, 0), (3, 0)]);
        pages.claim(2).publish(Place::Resident { age: 0, copy: own_slot });
        assert!(pages.try_pin(1) && pages.try_pin(3));
        let mut out = [const { None }; 3];
        assert_eq!(clock().claim_victims(&pages, &space, false, &mut out), 1);
        assert_eq!(out[0].as_ref().map(|(page, _)| *page), Some(2));
    }

    #[test]
    fn clean_pages_are_found_behind_others() {
        let slot = Place::Slot { slot: 7, is_incompressible: false }.to_copy();
        let (pages, space) = setup(&[(1, 0), (2, 0), (3, 0), (700, 0)]);
        pages.claim(700).publish(Place::Resident { age: 2, copy: slot });
        let mut out = [const { None }; 3];
        assert_eq!(clock().claim_victims(&pages, &space, true, &mut out), 1);
        assert_eq!(out[0].as_ref().map(|(page, _)| *page), Some(700));
    }

    #[test]
    fn pinned_and_busy_pages_are_skipped() {
        let (pages, space) = setup(&[(1, 0), (2, 0), (3, 0)]);
        assert!(pages.try_pin(1));
        let busy = pages.claim(2);
        assert_eq!(victims(&clock(), &pages, &space, 3), [3]);
        drop(busy);
    }

    #[test]
    fn hot_page_is_eventually_evicted() {
        let (pages, space) = setup(&[(1000, MAX_AGE)]);
        assert_eq!(victims(&clock(), &pages, &space, 1), [1000]);
        let (pages, space) = setup(&[]);
        assert!(victims(&clock(), &pages, &space, 1).is_empty());
    }

    fn evict_and_refault(
        clock: &Clock,
        pages: &PageTable<'static>,
        space: &AddressSpace,
        page: PageNo,
    ) -> u8 {
        clock.refaults.note_eviction(page);
        let age = clock.age_of_refault(page, 100);
        space.touch(page);
        space.add_resident(page, 1);
        pages.claim(page).publish(Place::resident(age));
        age
    }

    #[test]
    fn early_refaults_outlive_fresh_pages_and_age_out() {
        let (pages, space) = setup(&[(3, 1), (5, 1), (6, 1)]);
        let clock = clock();
        assert_eq!(clock.age_of_new(4), 1);
        assert_eq!(evict_and_refault(&clock, &pages, &space, 4), 3);
        assert_eq!(clock.active(), 1);
        assert_eq!(victims(&clock, &pages, &space, 3), [3, 5, 6]);
        for page in [3, 5, 6] {
            pages.claim(page).publish(Place::Vacant);
        }
        assert_eq!(victims(&clock, &pages, &space, 3), [4]);
        assert_eq!(clock.active(), 0);
    }

    #[test]
    fn rounds_correct_count_of_active_pages() {
        let (pages, space) = setup(&[]);
        let clock = clock();
        for at in 0..100 {
            evict_and_refault(&clock, &pages, &space, 10 + at % 50);
        }
        assert_eq!(clock.active(), 100, "each page was counted twice");
        for page in 10..40 {
            pages.claim(page).publish(Place::Vacant);
            space.sub_resident(page);
        }
        for _ in 0..3 {
            // The only victim is behind all others, so the hand completes one round.
            space.touch(2000);
            space.add_resident(2000, 1);
            pages.claim(2000).publish(Place::resident(PREFETCHED));
            assert_eq!(victims(&clock, &pages, &space, 1), [2000]);
            space.sub_resident(2000);
        }
        assert_eq!(clock.active(), 20);
    }
}
