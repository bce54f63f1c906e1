//! Preference of the clock for compressible pages.
//!
//! A compressible page is evicted to the pool and costs little when it refaults. An incompressible
//! one is read from the disk. If both kinds are touched alike, compressible pages should be evicted
//! first. How often the clock skips incompressible pages is found by feedback: the cost of refaults
//! per evicted page, for either kind. While incompressible pages cost more, they are skipped more
//! often; while they cost less, less often. Incompressible pages that are never touched again cost
//! nothing.
//!
//! This resembles GreedyDual (N. E. Young, 1994), with measured costs instead of assumed ones.

use crate::base::page::{Place, SlotCopy, StoredCopy};
use crate::base::stats::Tier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Evictions after which the counts are evaluated and halved.
const HALF_LIFE_PAGES: u64 = 2048;
const MAX_TIMES: u64 = 16;
/// Relative difference in cost below which nothing changes.
const MARGIN: f64 = 0.25;

/// Evictions and refaults by kind. Concurrent updates may be lost. Aligned to a cache line, because
/// every fault writes to it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct IncompressibleBias {
    evicted: AtomicU64,
    evicted_incompressible: AtomicU64,
    refault_cost_ns: AtomicU64,
    incompressible_cost_ns: AtomicU64,
    /// See [`IncompressibleBias::times`]; 0 counts as 1.
    times: AtomicU64,
}

impl IncompressibleBias {
    /// Returns true if the page is known to be incompressible and is stored in a slot without other
    /// pages.
    pub fn is_incompressible(place: Place) -> bool {
        let copy = place.copy().and_then(StoredCopy::in_slot).map(SlotCopy::place);
        copy.unwrap_or(place).is_incompressible()
    }

    /// Returns N: an incompressible page is considered for eviction in one of N visits.
    pub(crate) fn times(&self) -> u64 {
        self.times.load(Relaxed).max(1)
    }

    /// Records a refault of a page at `place` and its cost, given the cost of a fault from the pool
    /// and of one from the disk.
    pub fn note_refault_cost(&self, place: Place, tier: Tier, pool_ns: u64, disk_ns: u64) {
        let ns = match tier {
            // Pages on standby are in DRAM.
            Tier::Pool | Tier::Standby => pool_ns,
            Tier::Disk => disk_ns,
            _ => return,
        };
        self.refault_cost_ns.fetch_add(ns, Relaxed);
        if IncompressibleBias::is_incompressible(place) {
            self.incompressible_cost_ns.fetch_add(ns, Relaxed);
        }
    }

    /// Records evictions, `incompressible` of them to slots of their own.
    pub(crate) fn note_evictions(&self, pages: u64, incompressible: u64) {
        self.evicted_incompressible.fetch_add(incompressible, Relaxed);
        if self.evicted.fetch_add(pages, Relaxed) + pages >= 2 * HALF_LIFE_PAGES {
            self.evaluate();
            let counts = [
                &self.evicted,
                &self.evicted_incompressible,
                &self.refault_cost_ns,
                &self.incompressible_cost_ns,
            ];
            counts.into_iter().for_each(|count| count.store(count.load(Relaxed) / 2, Relaxed));
        }
    }

    fn evaluate(&self) {
        let of = |count: &AtomicU64| count.load(Relaxed) as f64;
        let (evicted, incompressible) = (of(&self.evicted), of(&self.evicted_incompressible));
        let (refault_cost_ns, incompressible_cost_ns) =
            (of(&self.refault_cost_ns), of(&self.incompressible_cost_ns));
        // The counters are updated one after the other, so a difference may be negative.
        let compressible = (evicted - incompressible).max(0.0);
        let for_compressible =
            (refault_cost_ns - incompressible_cost_ns).max(0.0) / compressible.max(1.0);
        let for_incompressible = incompressible_cost_ns / incompressible.max(1.0);
        let times = self.times();
        // With few compressible pages, the clock would hardly find one.
        let next = if compressible * 4.0 <= evicted {
            1
        } else if for_incompressible > for_compressible * (1.0 + MARGIN) {
            (2 * times).min(MAX_TIMES)
        } else if for_incompressible * (1.0 + MARGIN) < for_compressible {
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

    const OWN_SLOT: Place = Place::Slot { slot: 1, is_incompressible: true };
    const POOLED: Place = Place::Pool { handle: 0 };

    fn refault(bias: &IncompressibleBias, place: Place, tier: Tier) {
        bias.note_refault_cost(place, tier, POOL_NS, DISK_NS);
    }

    /// Evicts pages, half of them incompressible, and refaults the given percentage of either kind.
    fn pass(bias: &IncompressibleBias, incompressible: u64, compressible: u64, pages: u64) {
        for at in 0..pages {
            if at % 100 < incompressible {
                refault(bias, OWN_SLOT, Tier::Disk);
            }
            if at % 100 < compressible {
                refault(bias, POOLED, Tier::Pool);
            }
            bias.note_evictions(2, 1);
        }
    }

    #[test]
    fn incompressible_pages_stay_longer_with_uniform_touches() {
        let bias = IncompressibleBias::default();
        assert_eq!(bias.times(), 1);
        pass(&bias, 50, 50, 20_000);
        assert_eq!(bias.times(), MAX_TIMES);
    }

    #[test]
    fn unused_incompressible_pages_do_not_stay() {
        let bias = IncompressibleBias::default();
        pass(&bias, 50, 50, 20_000);
        pass(&bias, 5, 50, 20_000);
        assert_eq!(bias.times(), 1);
        pass(&bias, 10, 40, 20_000);
        assert_eq!(bias.times(), 1);
    }

    #[test]
    fn shared_slots_cost_a_read() {
        let bias = IncompressibleBias::default();
        let refault = |place, tier| refault(&bias, place, tier);
        let shared = Place::CompressedSlot { slot: 2, part: 1 };
        for at in 0..20_000 {
            refault(OWN_SLOT, Tier::Disk);
            (0..at % 2).for_each(|_| refault(shared, Tier::Disk));
            bias.note_evictions(2, 1);
        }
        assert_eq!(bias.times(), MAX_TIMES, "shared slots refault half as often");
        for _ in 0..20_000 {
            refault(OWN_SLOT, Tier::Disk);
            refault(shared, Tier::Disk);
            refault(POOLED, Tier::Pool);
            refault(Place::Unmanaged, Tier::Zero);
            bias.note_evictions(2, 1);
        }
        assert_eq!(bias.times(), MAX_TIMES, "a difference of 25 % is within the margin");
        for _ in 0..20_000 {
            (0..2).for_each(|_| refault(shared, Tier::Disk));
            refault(OWN_SLOT, Tier::Disk);
            bias.note_evictions(2, 1);
        }
        assert_eq!(bias.times(), 1, "shared slots refault twice as often");
    }

    #[test]
    fn standby_pages_cost_no_read() {
        let bias = IncompressibleBias::default();
        for _ in 0..20_000 {
            refault(&bias, OWN_SLOT, Tier::Standby);
            refault(&bias, POOLED, Tier::Pool);
            bias.note_evictions(2, 1);
        }
        assert_eq!(bias.times(), 1);
    }

    #[test]
    fn nothing_is_skipped_if_most_pages_are_incompressible() {
        let bias = IncompressibleBias::default();
        pass(&bias, 50, 50, 20_000);
        for _ in 0..20_000 {
            refault(&bias, OWN_SLOT, Tier::Disk);
            bias.note_evictions(5, 4);
        }
        assert_eq!(bias.times(), 1);
    }

    #[test]
    fn slot_marks_incompressible_page() {
        let shared = Place::CompressedSlot { slot: 7, part: 3 };
        let passed = Place::Slot { slot: 7, is_incompressible: false };
        for (place, marks) in [(OWN_SLOT, true), (passed, false), (shared, false), (POOLED, false)]
        {
            let copy = Place::Resident { age: 1, copy: place.to_copy() };
            for place in [place, copy] {
                assert_eq!(IncompressibleBias::is_incompressible(place), marks, "{place:?}");
            }
        }
        assert!(!IncompressibleBias::is_incompressible(Place::resident(1)));
    }
}
