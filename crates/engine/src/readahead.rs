//! Which pages come next: neighbours of a page that is read from the swap area.
//!
//! Pages leave in address order, so neighbours in memory are mostly neighbours
//! in the swap area too, and one larger read brings them all for little more
//! than the price of one. How far to look is told by what lies behind: a
//! stream leaves resident pages behind it, so its window doubles with each
//! read, up to [`MAX_PAGES`]; a random touch reads its page alone.

use crate::page::{Claim, PageNo, PageTable, Place};

/// Largest window in pages, the touched one included.
pub const MAX_PAGES: usize = 32;

/// Windows from this on are a stream's.
const STREAM_PAGES: usize = 8;

/// Whether touches go on so long that those to come can be relied on.
#[must_use]
pub fn is_stream(window: usize) -> bool {
    window >= STREAM_PAGES
}

/// How many pages to read at once when `page` is touched.
#[must_use]
pub fn window(pages: &PageTable<'_>, page: PageNo) -> usize {
    let behind = (1..MAX_PAGES as u64)
        .take_while(|back| page >= *back && pages.load(page - back).is_resident())
        .count();
    behind + 1
}

/// Claims up to `claims.len()` pages after `page` that lie in the slots after
/// `slot`. Returns how many.
pub fn claim_following<'t>(
    pages: &PageTable<'t>,
    page: PageNo,
    slot: u64,
    last: PageNo,
    claims: &mut [Option<Claim<'t>>],
) -> usize {
    for (index, claim) in claims.iter_mut().enumerate() {
        let ahead = index as u64 + 1;
        if page + ahead > last {
            return index;
        }
        let seen = pages.load(page + ahead);
        if seen.place() != (Place::Slot { slot: slot + ahead }) {
            return index;
        }
        // Never waits: the toucher of this page has work to do.
        *claim = pages.try_claim(page + ahead, seen);
        if claim.is_none() {
            return index;
        }
    }
    claims.len()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use softswap_sys::memory::reserve_u64;

    fn table(places: &[Place]) -> PageTable<'static> {
        let pages = PageTable::new(reserve_u64(places.len() + 64).unwrap());
        for (page, place) in (0..).zip(places) {
            pages.claim(page).publish(*place);
        }
        pages
    }

    #[test]
    fn the_window_grows_with_the_stream_and_is_one_for_a_random_touch() {
        let resident = Place::Resident { heat: 1 };
        let pages = table(&[resident, Place::Vacant, resident, resident, resident]);
        assert_eq!(window(&pages, 0), 1);
        assert_eq!(window(&pages, 2), 1);
        assert_eq!(window(&pages, 5), 4);
        let pages = table(&[resident; 100]);
        assert_eq!(window(&pages, 100), MAX_PAGES);
    }

    #[test]
    fn only_pages_whose_slots_follow_are_claimed() {
        let pages = table(&[
            Place::Slot { slot: 10 },
            Place::Slot { slot: 11 },
            Place::Slot { slot: 12 },
            Place::Slot { slot: 40 },
        ]);
        let mut claims = [const { None }; 8];
        assert_eq!(claim_following(&pages, 0, 10, 100, &mut claims), 2);
        assert!(pages.load(1).is_busy() && pages.load(2).is_busy() && !pages.load(3).is_busy());
        claims.fill_with(|| None);
        assert!(!pages.load(1).is_busy(), "a dropped claim leaves the page where it was");
        let held = pages.claim(1);
        assert_eq!(claim_following(&pages, 0, 10, 100, &mut claims), 0);
        drop(held);
        assert_eq!(claim_following(&pages, 0, 10, 1, &mut claims), 1);
    }
}
