//! Which pages are cold: a clock over the window.
//!
//! No accessed bits are available, so a page's heat comes from its history: a
//! page starts with one round of grace, one that was rescued from staging or
//! could not leave gets more. Each pass of the hand takes one round away; a
//! page without any is a victim. Victims come in address order, so that runs
//! of neighbours leave, and are written, together.
//!
//! The scheme is the CLOCK of F. J. Corbató (1968) with a small counter
//! instead of one bit.

use crate::page::{Claim, PageNo, PageTable};
use crate::space::{CHUNK_PAGES, Space};
use std::sync::{Mutex, PoisonError};

/// Heat of a page that came in without being touched.
pub const PREFETCHED: u8 = 0;
/// Heat of a page that has just come in.
pub const FRESH: u8 = 1;
/// Heat of a page that was touched while it was leaving, or refused to leave.
pub const HOT: u8 = 3;

/// The hand.
#[derive(Debug, Default)]
pub struct Clock {
    hand: Mutex<PageNo>,
}

impl Clock {
    /// Claims up to `victims.len()` cold resident pages, in ascending order
    /// except where the hand wraps. Returns how many.
    pub fn claim_victims<'t>(
        &self,
        pages: &PageTable<'t>,
        space: &Space,
        victims: &mut [Option<(PageNo, Claim<'t>)>],
    ) -> usize {
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        let high = space.high();
        let mut found = 0;
        // Enough passes to use up all the grace there can be.
        let mut left = high * (u64::from(HOT) + 1);
        while found < victims.len() && left > 0 {
            if *hand >= high {
                *hand = 0;
            }
            let page = *hand;
            if !space.has_resident(page) {
                let skip = CHUNK_PAGES - page % CHUNK_PAGES;
                *hand = page + skip;
                left = left.saturating_sub(skip);
                continue;
            }
            *hand = page + 1;
            left -= 1;
            let seen = pages.load(page);
            if seen.is_resident()
                && !seen.is_busy()
                && seen.pins() == 0
                && pages.cool(page, seen)
                && let Some(claim) = pages.try_claim(page, seen)
            {
                victims[found] = Some((page, claim));
                found += 1;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Place;
    use softswap_sys::memory::reserve_u64;

    fn setup(resident: &[(PageNo, u8)]) -> (PageTable<'static>, Space) {
        let pages = PageTable::new(reserve_u64(4096).unwrap());
        let space = Space::new(4096).unwrap();
        space.add(&mut space.lock(), 0..2048);
        for (page, heat) in resident {
            space.touch(*page);
            space.add_resident(*page, 1);
            pages.claim(*page).publish(Place::resident(*heat));
        }
        (pages, space)
    }

    fn victims(
        clock: &Clock,
        pages: &PageTable<'static>,
        space: &Space,
        want: usize,
    ) -> Vec<PageNo> {
        let mut out = [const { None }; 8];
        let found = clock.claim_victims(pages, space, &mut out[..want]);
        out.into_iter().take(found).flatten().map(|(page, _)| page).collect()
    }

    #[test]
    fn cold_pages_go_first_in_address_order() {
        let (pages, space) = setup(&[(3, 1), (5, 0), (6, 0), (700, 0), (900, 3)]);
        let clock = Clock::default();
        assert_eq!(victims(&clock, &pages, &space, 3), [5, 6, 700]);
    }

    #[test]
    fn pinned_and_busy_pages_are_left_alone() {
        let (pages, space) = setup(&[(1, 0), (2, 0), (3, 0)]);
        assert!(pages.try_pin(1));
        let busy = pages.claim(2);
        assert_eq!(victims(&Clock::default(), &pages, &space, 3), [3]);
        drop(busy);
    }

    #[test]
    fn a_hot_page_is_found_in_the_end_and_nothing_is_found_in_an_empty_space() {
        let (pages, space) = setup(&[(1000, 3)]);
        assert_eq!(victims(&Clock::default(), &pages, &space, 1), [1000]);
        let (pages, space) = setup(&[]);
        assert!(victims(&Clock::default(), &pages, &space, 1).is_empty());
    }
}
