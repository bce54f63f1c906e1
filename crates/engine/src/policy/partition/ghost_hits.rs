//! Faults that another limit of the pool would have spared, or made dearer, by how many
//! steps away that limit is.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Steps that are told apart. One is a share of the budget, so that no limit is further
/// from another.
pub(super) const STEPS: usize = 16;

type Counts = [AtomicU32; STEPS];

/// What has been seen since the last look. Threads may note while it is looked at: parts of
/// what they say then count the next time.
#[derive(Debug, Default)]
pub(super) struct GhostHits {
    events: AtomicU32,
    /// Faults to come that are not counted.
    unsettled: AtomicU32,
    /// Faults from the pool on pages that had been resident with so many steps more for
    /// resident pages, and one.
    resident: Counts,
    /// The same of faults from the disk on pages that do not pack: no pool had held them.
    incompressible: Counts,
    /// Of all others, those on pages that had been on the disk by then: from so many
    /// steps on, and until so many, when they would be resident.
    lost_from: Counts,
    lost_until: Counts,
    /// Faults from the disk on pages that had been in the pool with so many steps more
    /// for it, and one.
    pooled: Counts,
}

/// What would have been otherwise by 0, 1, 2 ... steps.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Seen {
    /// With so many more for resident pages, faults from the pool that had been none.
    pub(super) resident: [u32; STEPS + 1],
    /// Faults from the disk, on pages that do not pack, that had been none.
    pub(super) incompressible: [u32; STEPS + 1],
    /// And those that had been from the disk.
    pub(super) lost: [u32; STEPS + 1],
    /// With so many more for the pool, faults from the disk that had been from there.
    pub(super) pooled: [u32; STEPS + 1],
}

impl GhostHits {
    /// A touched page was in the pool. It had been resident with more than
    /// `until_resident` steps more for resident pages; with more than `until_lost` less for
    /// the pool, it had been on the disk.
    pub(super) fn note_pooled(&self, until_resident: usize, until_lost: usize) {
        if self.settles() || until_resident >= STEPS && until_lost >= STEPS {
            return;
        }
        self.events.fetch_add(1, Relaxed);
        add(&self.resident, until_resident);
        if until_lost < until_resident {
            add(&self.lost_from, until_lost);
            add(&self.lost_until, until_resident);
        }
    }

    /// A touched page was in the pool, and of that nothing is known.
    pub(super) fn note_unknown(&self) {
        self.settles();
    }

    /// A touched page was on the disk, and does not pack. It had been resident with more than
    /// `until_resident` steps more for resident pages.
    pub(super) fn note_incompressible(&self, until_resident: usize) {
        if !self.settles() && until_resident < STEPS {
            self.events.fetch_add(1, Relaxed);
            add(&self.incompressible, until_resident);
        }
    }

    /// A touched page was on the disk. It had been in the pool with more than
    /// `until_pooled` steps more for that.
    pub(super) fn note_on_disk(&self, until_pooled: usize) {
        if !self.settles() && until_pooled < STEPS {
            self.events.fetch_add(1, Relaxed);
            add(&self.pooled, until_pooled);
        }
    }

    /// Resident pages have got room for so many more. Those that are to be there come back
    /// once, and say what they did before. So that many faults are not counted: neither of
    /// those from the pool nor of those from the disk, which would speak alone.
    pub(super) fn settle(&self, pages: usize) {
        self.unsettled.store(u32::try_from(pages).unwrap_or(u32::MAX), Relaxed);
    }

    /// Whether this fault is one of those that do not count.
    fn settles(&self) -> bool {
        self.unsettled.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Whether faults count again.
    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.load(Relaxed) == 0
    }

    /// How many faults it knows of for which another limit had made a difference.
    pub(super) fn events(&self) -> u32 {
        self.events.load(Relaxed)
    }

    /// Forgets all of it.
    pub(super) fn forget(&self) {
        let _ = self.take();
        self.settle(0);
    }

    /// Takes what was seen.
    pub(super) fn take(&self) -> Seen {
        self.events.store(0, Relaxed);
        let (from, until) = (sums(&self.lost_from), sums(&self.lost_until));
        // Noted one after the other: the second of two may be missing yet.
        let lost = std::array::from_fn(|steps| from[steps].saturating_sub(until[steps]));
        Seen {
            resident: sums(&self.resident),
            incompressible: sums(&self.incompressible),
            lost,
            pooled: sums(&self.pooled),
        }
    }
}

fn add(counts: &Counts, at: usize) {
    if let Some(count) = counts.get(at) {
        count.fetch_add(1, Relaxed);
    }
}

/// Takes counts and returns how many are below 0, 1, 2 ... steps.
fn sums(counts: &Counts) -> [u32; STEPS + 1] {
    let mut all = [0; STEPS + 1];
    for (at, count) in counts.iter().enumerate() {
        all[at + 1] = all[at] + count.swap(0, Relaxed);
    }
    all
}

/// How many of `counts` so many steps come to, or parts of one.
pub(super) fn within(counts: &[u32; STEPS + 1], steps: f64) -> f64 {
    let whole = (steps as usize).min(STEPS);
    let (from, to) = (f64::from(counts[whole]), f64::from(counts[(whole + 1).min(STEPS)]));
    from + (to - from) * (steps - whole as f64).clamp(0.0, 1.0)
}

/// The steepest way from here: faults a step.
pub(super) fn steepest(counts: &[u32; STEPS + 1]) -> f64 {
    let slopes = (1..=STEPS).map(|steps| f64::from(counts[steps]) / steps as f64);
    slopes.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_steepest_way_is_the_one_that_gains_most_a_step() {
        let mut counts = [0; STEPS + 1];
        assert!(steepest(&counts).abs() < f64::EPSILON);
        counts[2..].fill(10);
        assert_eq!(steepest(&counts), 5.0);
        counts[6..].fill(60);
        assert_eq!(steepest(&counts), 10.0);
    }

    #[test]
    fn a_part_of_a_step_counts_for_a_part() {
        let counts = std::array::from_fn(|steps| 10 * steps as u32);
        for (steps, wanted) in [(0.0, 0.0), (0.5, 5.0), (1.0, 10.0), (7.25, 72.5)] {
            assert_eq!(within(&counts, steps), wanted, "{steps}");
        }
        assert_eq!(within(&counts, 100.0), 10.0 * STEPS as f64);
    }

    #[test]
    fn after_a_move_as_many_faults_as_pages_are_not_counted() {
        let ghost_hits = GhostHits::default();
        ghost_hits.settle(3);
        (0..3).for_each(|_| ghost_hits.note_pooled(1, STEPS));
        assert_eq!(ghost_hits.events(), 0);
        ghost_hits.note_pooled(1, STEPS);
        assert_eq!(ghost_hits.events(), 1);
        // Wherever they come from, and whether or not they make a difference.
        ghost_hits.settle(3);
        ghost_hits.note_on_disk(0);
        ghost_hits.note_pooled(STEPS, STEPS);
        assert!(!ghost_hits.is_settled());
        ghost_hits.note_pooled(0, STEPS);
        assert!(ghost_hits.is_settled());
        ghost_hits.note_on_disk(0);
        assert_eq!(ghost_hits.events(), 2);
        ghost_hits.settle(1);
        ghost_hits.forget();
        ghost_hits.note_pooled(0, 0);
        assert_eq!(ghost_hits.events(), 1);
    }

    proptest! {
        #[test]
        fn each_fault_counts_where_it_had_been_another(
            pooled in prop::collection::vec((0..2 * STEPS, 0..2 * STEPS), 0..100),
            on_disk in prop::collection::vec(0..2 * STEPS, 0..100),
        ) {
            let ghost_hits = GhostHits::default();
            pooled.iter().for_each(|(resident, lost)| ghost_hits.note_pooled(*resident, *lost));
            on_disk.iter().for_each(|until| ghost_hits.note_on_disk(*until));
            let makes_a_difference = pooled.iter().filter(|(a, b)| *a.min(b) < STEPS).count()
                + on_disk.iter().filter(|until| **until < STEPS).count();
            prop_assert_eq!(ghost_hits.events() as usize, makes_a_difference);
            let seen = ghost_hits.take();
            for steps in 0..=STEPS {
                let resident = pooled.iter().filter(|(resident, _)| *resident < steps).count();
                let lost = |(resident, lost): &&(usize, usize)| *lost < steps && *resident >= steps;
                let lost = pooled.iter().filter(lost).count();
                let pooled = on_disk.iter().filter(|until| **until < steps).count();
                prop_assert_eq!(seen.resident[steps] as usize, resident);
                prop_assert_eq!(seen.lost[steps] as usize, lost);
                prop_assert_eq!(seen.pooled[steps] as usize, pooled);
            }
            prop_assert_eq!(ghost_hits.events(), 0);
            prop_assert!(ghost_hits.take().resident.iter().all(|count| *count == 0));
        }
    }
}
