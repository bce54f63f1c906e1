//! Pages that streams reach next, read already but not there yet.
//!
//! The first page of a window stays where it is, so that touching it is a fault
//! and tells that the window has been reached. What is read of it, with those
//! after it, is cached here: the fault then need not read. As sealed as it came:
//! a slot that holds something else by now has another seal, so that cached
//! bytes can be out of date, but never taken for what they are not.

use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::{Page, reserve_pages};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Of a budget of so many pages, what is cached may take one.
const BUDGET_SHARE: usize = 256;
/// Most pages cached: two for each of many streams.
const MAX_PLACES: usize = 64;

/// Pages that may be cached in a budget of so many.
fn places_in(budget_pages: usize) -> usize {
    (budget_pages / BUDGET_SHARE).clamp(1, MAX_PLACES)
}

struct Place {
    /// `u64::MAX` when nothing is cached.
    slot: u64,
    page: &'static mut Page,
}

/// What is cached, by slot.
pub(crate) struct ReadAheadPages {
    places: Box<[Mutex<Place>]>,
    /// Of these, those in use.
    used: AtomicUsize,
}

impl ReadAheadPages {
    /// For a budget of so many pages.
    ///
    /// # Errors
    /// When there is no address space.
    pub(crate) fn new(budget_pages: usize) -> io::Result<ReadAheadPages> {
        ReadAheadPages::with_places(places_in(budget_pages), MAX_PLACES)
    }

    /// The budget has so many pages from now on; how many bytes more that takes. Places that
    /// are in use stay so: they are few.
    pub(crate) fn grow(&self, budget_pages: usize) -> usize {
        let places = places_in(budget_pages).min(self.places.len());
        places.saturating_sub(self.used.fetch_max(places, Relaxed)) * PAGE_SIZE
    }

    fn with_places(used: usize, most: usize) -> io::Result<ReadAheadPages> {
        let pages = reserve_pages(most)?.iter_mut();
        let place = |page| Mutex::new(Place { slot: u64::MAX, page });
        Ok(ReadAheadPages { places: pages.map(place).collect(), used: AtomicUsize::new(used) })
    }

    /// DRAM of all places in use, in bytes.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        self.used.load(Relaxed) * PAGE_SIZE
    }

    /// Neighbouring slots have places of their own. Locks are only tried: what is
    /// not cached is read again.
    fn place(&self, slot: u64) -> &Mutex<Place> {
        // Windows are powers of two long.
        let spread = slot ^ slot >> 4 ^ slot >> 8 ^ slot >> 12;
        &self.places[spread as usize % self.used.load(Relaxed)]
    }

    /// Parks what a slot holds, in place of what was there.
    pub(crate) fn cache(&self, slot: u64, bytes: &[u8]) {
        if let Ok(mut place) = self.place(slot).try_lock() {
            place.page.0.copy_from_slice(bytes);
            place.slot = slot;
        }
    }

    /// Takes what a slot held, perhaps some time ago. False when it is not cached.
    #[must_use]
    pub(crate) fn take(&self, slot: u64, bytes: &mut [u8]) -> bool {
        let Ok(mut place) = self.place(slot).try_lock() else { return false };
        if place.slot != slot {
            return false;
        }
        bytes.copy_from_slice(&place.page.0);
        place.slot = u64::MAX;
        true
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn what_is_parked_is_had_once_and_only_for_its_slot() {
        let cached = ReadAheadPages::with_places(4, 4).unwrap();
        let mut bytes = [0; PAGE_SIZE];
        assert!(!cached.take(7, &mut bytes));
        cached.cache(7, &[3; PAGE_SIZE]);
        assert!(!cached.take(8, &mut bytes));
        assert!(cached.take(7, &mut bytes) && bytes == [3; PAGE_SIZE]);
        assert!(!cached.take(7, &mut bytes));
    }

    #[test]
    fn what_comes_later_takes_the_place() {
        let cached = ReadAheadPages::with_places(1, 1).unwrap();
        let mut bytes = [0; PAGE_SIZE];
        cached.cache(1, &[1; PAGE_SIZE]);
        cached.cache(2, &[2; PAGE_SIZE]);
        assert!(!cached.take(1, &mut bytes));
        assert!(cached.take(2, &mut bytes) && bytes == [2; PAGE_SIZE]);
    }
}
