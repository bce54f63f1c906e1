//! How much longer pages stay that do not pack.
//!
//! A page that packs leaves for the pool, and costs little when it is touched again; one
//! that does not is read from the disk. Where both kinds are touched alike, each that does
//! not pack is worth more than the memory that it takes, and all that pack had better
//! leave first. How often pages are passed over is found by trying: what has been paid for
//! each page of either kind that left, by faults on those that came back. While that is
//! more for those that do not pack, they are passed over more often, and less often while
//! it is not: pages that nobody touches again are worth nothing, whatever they are.
//!
//! (The same as in GreedyDual, N. E. Young, 1994, by what came of it instead of by price
//! alone.)

use crate::page::Place;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pages that left after which it is judged, and what was counted counts half.
const HALF_LIFE_PAGES: u64 = 2048;
/// A page is passed over so many times of so many and one, at most.
const MOST_TIMES: u64 = 16;
/// Where fewer of all that leave are others than one in so many, passing over pages finds
/// none.
const LEAST_OTHERS: u64 = 4;
/// What is paid for either must differ by more than this part.
const MARGIN: f64 = 0.25;

/// What left and came back, by kind. Threads may overwrite each other's halving: all of it
/// is an estimate.
#[derive(Debug)]
pub struct Patience {
    /// Pages that left, and of these those that do not pack.
    left: AtomicU64,
    unpacked_left: AtomicU64,
    /// Touched pages that came back from the pool, from a slot that they shared, and from
    /// one of their own.
    from_pool: AtomicU64,
    from_shared: AtomicU64,
    unpacked_back: AtomicU64,
    times: AtomicU64,
}

impl Default for Patience {
    fn default() -> Patience {
        let [left, unpacked_left, from_pool, from_shared, unpacked_back] = Default::default();
        let times = AtomicU64::new(1);
        Patience { left, unpacked_left, from_pool, from_shared, unpacked_back, times }
    }
}

impl Patience {
    /// Whether a page is known not to pack: it has a slot of its own.
    #[must_use]
    pub fn is_unpacked(place: Place) -> bool {
        let slot = match place {
            Place::Resident { copy, .. } => copy.and_then(|copy| copy.in_slot()),
            _ => place.in_slot(),
        };
        slot.is_some_and(|slot| slot.part().is_none())
    }

    /// A page that does not pack is to leave once in so many times that it is met.
    #[must_use]
    pub fn times(&self) -> u64 {
        self.times.load(Relaxed)
    }

    /// A touched page comes back.
    pub fn note_back(&self, place: Place) {
        let count = match place {
            Place::Pool { .. } => &self.from_pool,
            Place::Packed { .. } => &self.from_shared,
            Place::Slot { .. } => &self.unpacked_back,
            _ => return,
        };
        count.fetch_add(1, Relaxed);
    }

    /// So many pages left, and so many of them do not pack. A fault from the pool costs so
    /// much, and one from the disk.
    pub fn note_left(&self, pages: u64, unpacked: u64, prices_ns: impl FnOnce() -> (u64, u64)) {
        self.unpacked_left.fetch_add(unpacked, Relaxed);
        if self.left.fetch_add(pages, Relaxed) + pages >= 2 * HALF_LIFE_PAGES {
            self.judge(prices_ns());
            let counts = [&self.left, &self.unpacked_left, &self.from_pool];
            let counts = counts.into_iter().chain([&self.from_shared, &self.unpacked_back]);
            counts.for_each(|count| count.store(count.load(Relaxed) / 2, Relaxed));
        }
    }

    fn judge(&self, (pool_ns, disk_ns): (u64, u64)) {
        let of = |count: &AtomicU64| count.load(Relaxed) as f64;
        let unpacked = of(&self.unpacked_left);
        let others = of(&self.left) - unpacked;
        let paid = |ns: f64, pages: f64| ns / pages.max(1.0);
        let for_others =
            of(&self.from_pool) * pool_ns as f64 + of(&self.from_shared) * disk_ns as f64;
        let for_others = paid(for_others, others);
        let for_unpacked = paid(of(&self.unpacked_back) * disk_ns as f64, unpacked);
        let times = self.times();
        let next = if others * LEAST_OTHERS as f64 <= unpacked + others {
            1
        } else if for_unpacked > for_others * (1.0 + MARGIN) {
            (2 * times).min(MOST_TIMES)
        } else if for_unpacked * (1.0 + MARGIN) < for_others {
            (times / 2).max(1)
        } else {
            times
        };
        self.times.store(next, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::StoredCopy;

    const PRICES_NS: (u64, u64) = (20_000, 80_000);

    /// Pages leave, half of them such that do not pack, and of either so many in a hundred
    /// come back.
    fn pass(patience: &Patience, unpacked: u64, others: u64, pages: u64) {
        for at in 0..pages {
            let place = Place::Slot { slot: 1 };
            (0..u64::from(at % 100 < unpacked)).for_each(|_| patience.note_back(place));
            let place = Place::Pool { handle: 0 };
            (0..u64::from(at % 100 < others)).for_each(|_| patience.note_back(place));
            patience.note_left(2, 1, || PRICES_NS);
        }
    }

    #[test]
    fn pages_that_do_not_pack_stay_longer_where_all_are_touched_alike() {
        let patience = Patience::default();
        assert_eq!(patience.times(), 1);
        pass(&patience, 50, 50, 20_000);
        assert_eq!(patience.times(), MOST_TIMES);
    }

    #[test]
    fn pages_that_nobody_touches_again_do_not() {
        let patience = Patience::default();
        pass(&patience, 50, 50, 20_000);
        pass(&patience, 5, 50, 20_000);
        assert_eq!(patience.times(), 1);
        // What costs as much either way is left as it is.
        pass(&patience, 10, 40, 20_000);
        assert_eq!(patience.times(), 1);
    }

    #[test]
    fn what_shares_a_slot_costs_a_read_too() {
        let patience = Patience::default();
        for at in 0..20_000 {
            patience.note_back(Place::Slot { slot: 1 });
            (0..at % 2).for_each(|_| patience.note_back(Place::Packed { slot: 2, part: 1 }));
            (1..at % 2).for_each(|_| patience.note_back(Place::Pool { handle: 0 }));
            patience.note_left(2, 1, || PRICES_NS);
        }
        assert_eq!(patience.times(), MOST_TIMES, "half as often");
        for _ in 0..20_000 {
            patience.note_back(Place::Slot { slot: 1 });
            patience.note_back(Place::Packed { slot: 2, part: 1 });
            patience.note_back(Place::Pool { handle: 0 });
            patience.note_back(Place::Foreign);
            patience.note_left(2, 1, || PRICES_NS);
        }
        assert_eq!(patience.times(), MOST_TIMES, "dearer by a quarter is within the margin");
    }

    #[test]
    fn where_nearly_all_do_not_pack_none_is_passed_over() {
        let patience = Patience::default();
        pass(&patience, 50, 50, 20_000);
        for _ in 0..20_000 {
            patience.note_back(Place::Slot { slot: 1 });
            patience.note_left(5, 4, || PRICES_NS);
        }
        assert_eq!(patience.times(), 1);
    }

    #[test]
    fn a_page_is_known_not_to_pack_by_its_slot() {
        let copy = |place: Place| Place::Resident { heat: 1, copy: place.to_copy() };
        let (own, shared) = (Place::Slot { slot: 7 }, Place::Packed { slot: 7, part: 3 });
        assert!(Patience::is_unpacked(own) && Patience::is_unpacked(copy(own)));
        assert!(!Patience::is_unpacked(shared) && !Patience::is_unpacked(copy(shared)));
        let pooled = Place::Pool { handle: 0 };
        assert!(!Patience::is_unpacked(pooled) && !Patience::is_unpacked(copy(pooled)));
        let nowhere = Place::Resident { heat: 1, copy: Some(StoredCopy::Nowhere) };
        assert!(!Patience::is_unpacked(nowhere) && !Patience::is_unpacked(Place::resident(1)));
    }
}
