//! Preference of the clock for compressible pages.
//!
//! A compressible page is evicted to the pool and costs little when it refaults. An incompressible
//! one is read from the disk. If both kinds are touched alike, compressible pages should be evicted
//! first. How often the clock skips incompressible pages is found by feedback: the cost of refaults
//! per evicted page, for either kind. While incompressible pages cost more, they are skipped more
//! often; while they cost less, less often. Incompressible pages that are never touched again cost
//! nothing.
//!
//! This resembles GreedyDual (N. E. Young, 1994), with measured results instead of prices.

use crate::base::page::{Place, SlotCopy, StoredCopy};
use crate::base::stats::Tier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Evictions after which the counts are evaluated and halved.
const HALF_LIFE_PAGES: u64 = 2048;
/// Maximum of [`PassingOver::times`].
const MOST_TIMES: u64 = 16;
/// If less than 1/LEAST_OTHERS of the evicted pages are compressible, skipping pages finds none.
const LEAST_OTHERS: u64 = 4;
/// Relative difference in cost below which nothing changes.
const MARGIN: f64 = 0.25;

/// Evictions and refaults by kind. Concurrent updates may be lost. It has its own cache line,
/// because every fault writes to it.
#[derive(Debug)]
#[repr(align(64))]
pub struct PassingOver {
    /// Evicted pages, and the incompressible ones of them.
    left: AtomicU64,
    incompressible_left: AtomicU64,
    /// Cost of refaults, and of those on incompressible pages.
    paid_ns: AtomicU64,
    paid_for_incompressible_ns: AtomicU64,
    times: AtomicU64,
}

impl Default for PassingOver {
    fn default() -> PassingOver {
        let [left, incompressible_left, paid_ns, paid_for_incompressible_ns] = Default::default();
        let times = AtomicU64::new(1);
        PassingOver { left, incompressible_left, paid_ns, paid_for_incompressible_ns, times }
    }
}

impl PassingOver {
    /// Returns true if the page is known to be incompressible and has a slot of its own.
    #[must_use]
    pub fn is_incompressible(place: Place) -> bool {
        let copy = place.copy().and_then(StoredCopy::in_slot).map(SlotCopy::place);
        copy.unwrap_or(place).is_incompressible()
    }

    /// Returns the number of visits in which an incompressible page is considered for eviction
    /// once.
    #[must_use]
    pub(crate) fn times(&self) -> u64 {
        self.times.load(Relaxed)
    }

    /// Records a refault of a page at `place` and its cost, given the cost of a fault from the pool
    /// and of one from the disk.
    pub fn note_back(&self, place: Place, tier: Tier, pool_ns: u64, disk_ns: u64) {
        let ns = match tier {
            // Pages on standby are in DRAM.
            Tier::Pool | Tier::Standby => pool_ns,
            Tier::Disk => disk_ns,
            _ => return,
        };
        self.paid_ns.fetch_add(ns, Relaxed);
        if PassingOver::is_incompressible(place) {
            self.paid_for_incompressible_ns.fetch_add(ns, Relaxed);
        }
    }

    /// Records evictions, `incompressible` of them to slots of their own.
    pub(crate) fn note_left(&self, pages: u64, incompressible: u64) {
        self.incompressible_left.fetch_add(incompressible, Relaxed);
        if self.left.fetch_add(pages, Relaxed) + pages >= 2 * HALF_LIFE_PAGES {
            self.judge();
            let counts = [
                &self.left,
                &self.incompressible_left,
                &self.paid_ns,
                &self.paid_for_incompressible_ns,
            ];
            counts.into_iter().for_each(|count| count.store(count.load(Relaxed) / 2, Relaxed));
        }
    }

    fn judge(&self) {
        let of = |count: &AtomicU64| count.load(Relaxed) as f64;
        let (left, incompressible) = (of(&self.left), of(&self.incompressible_left));
        let (paid_ns, paid_for_incompressible_ns) =
            (of(&self.paid_ns), of(&self.paid_for_incompressible_ns));
        // The counters are updated one after the other.
        let others = (left - incompressible).max(0.0);
        let for_others = (paid_ns - paid_for_incompressible_ns).max(0.0) / others.max(1.0);
        let for_incompressible = paid_for_incompressible_ns / incompressible.max(1.0);
        let times = self.times();
        let next = if others * LEAST_OTHERS as f64 <= left {
            1
        } else if for_incompressible > for_others * (1.0 + MARGIN) {
            (2 * times).min(MOST_TIMES)
        } else if for_incompressible * (1.0 + MARGIN) < for_others {
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

    const POOL_NS: u64 = 20_000;
    const DISK_NS: u64 = 80_000;

    /// Evicts pages, half of them incompressible, and refaults the given percentage of either kind.
    fn pass(passing_over: &PassingOver, incompressible: u64, others: u64, pages: u64) {
        for at in 0..pages {
            let place = Place::Slot { slot: 1, is_incompressible: true };
            let back =
                |place: Place, tier: Tier| passing_over.note_back(place, tier, POOL_NS, DISK_NS);
            (0..u64::from(at % 100 < incompressible)).for_each(|_| back(place, Tier::Disk));
            let place = Place::Pool { handle: 0 };
            (0..u64::from(at % 100 < others)).for_each(|_| back(place, Tier::Pool));
            passing_over.note_left(2, 1);
        }
    }

    #[test]
    fn pages_that_do_not_pack_stay_longer_where_all_are_touched_alike() {
        let passing_over = PassingOver::default();
        assert_eq!(passing_over.times(), 1);
        pass(&passing_over, 50, 50, 20_000);
        assert_eq!(passing_over.times(), MOST_TIMES);
    }

    #[test]
    fn pages_that_nobody_touches_again_do_not() {
        let passing_over = PassingOver::default();
        pass(&passing_over, 50, 50, 20_000);
        pass(&passing_over, 5, 50, 20_000);
        assert_eq!(passing_over.times(), 1);
        pass(&passing_over, 10, 40, 20_000);
        assert_eq!(passing_over.times(), 1);
    }

    #[test]
    fn what_shares_a_slot_costs_a_read_too() {
        let passing_over = PassingOver::default();
        let back = |place, tier| passing_over.note_back(place, tier, POOL_NS, DISK_NS);
        let shared = Place::Packed { slot: 2, part: 1 };
        for at in 0..20_000 {
            back(Place::Slot { slot: 1, is_incompressible: true }, Tier::Disk);
            (0..at % 2).for_each(|_| back(shared, Tier::Disk));
            passing_over.note_left(2, 1);
        }
        assert_eq!(passing_over.times(), MOST_TIMES, "half as often");
        for _ in 0..20_000 {
            back(Place::Slot { slot: 1, is_incompressible: true }, Tier::Disk);
            back(shared, Tier::Disk);
            back(Place::Pool { handle: 0 }, Tier::Pool);
            back(Place::Foreign, Tier::Zero);
            passing_over.note_left(2, 1);
        }
        assert_eq!(passing_over.times(), MOST_TIMES, "dearer by a quarter is within the margin");
        for _ in 0..20_000 {
            (0..2).for_each(|_| back(shared, Tier::Disk));
            back(Place::Slot { slot: 1, is_incompressible: true }, Tier::Disk);
            passing_over.note_left(2, 1);
        }
        assert_eq!(passing_over.times(), 1, "twice as often");
    }

    #[test]
    fn what_was_kept_on_standby_costs_no_read() {
        let passing_over = PassingOver::default();
        for _ in 0..20_000 {
            passing_over.note_back(
                Place::Slot { slot: 1, is_incompressible: true },
                Tier::Standby,
                POOL_NS,
                DISK_NS,
            );
            passing_over.note_back(Place::Pool { handle: 0 }, Tier::Pool, POOL_NS, DISK_NS);
            passing_over.note_left(2, 1);
        }
        assert_eq!(passing_over.times(), 1);
    }

    #[test]
    fn where_nearly_all_do_not_pack_none_is_passed_over() {
        let passing_over = PassingOver::default();
        pass(&passing_over, 50, 50, 20_000);
        for _ in 0..20_000 {
            passing_over.note_back(
                Place::Slot { slot: 1, is_incompressible: true },
                Tier::Disk,
                POOL_NS,
                DISK_NS,
            );
            passing_over.note_left(5, 4);
        }
        assert_eq!(passing_over.times(), 1);
    }

    #[test]
    fn a_page_is_known_not_to_pack_by_its_slot() {
        let copy = |place: Place| Place::Resident { heat: 1, copy: place.to_copy() };
        let (own, shared) =
            (Place::Slot { slot: 7, is_incompressible: true }, Place::Packed { slot: 7, part: 3 });
        assert!(PassingOver::is_incompressible(own) && PassingOver::is_incompressible(copy(own)));
        let passed = Place::Slot { slot: 7, is_incompressible: false };
        assert!(
            !PassingOver::is_incompressible(passed)
                && !PassingOver::is_incompressible(copy(passed))
        );
        assert!(
            !PassingOver::is_incompressible(shared)
                && !PassingOver::is_incompressible(copy(shared))
        );
        let pooled = Place::Pool { handle: 0 };
        assert!(
            !PassingOver::is_incompressible(pooled)
                && !PassingOver::is_incompressible(copy(pooled))
        );
        assert!(!PassingOver::is_incompressible(Place::resident(1)));
    }
}
