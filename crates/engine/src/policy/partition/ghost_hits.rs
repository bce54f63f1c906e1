//! Faults that another limit of the pool would have saved, or made more expensive, counted by the
//! distance of that limit in steps.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Each step is 1/16 of the budget, so no limit is further away.
pub(super) const STEPS: usize = 16;

type Counts = [AtomicU32; STEPS];

/// Events since the last sample. Parts of concurrent events count in the next sample.
#[derive(Debug, Default)]
pub(super) struct GhostHits {
    events: AtomicU32,
    ignored: AtomicU32,
    /// Faults from the pool that index + 1 steps more for resident pages would have saved.
    resident: Counts,
    /// Faults from the disk on incompressible pages, by the same steps.
    incompressible: Counts,
    /// Faults from the pool, by the lowest number of steps that moves the page to the disk.
    lost_from: Counts,
    /// The same faults, by the number of steps with which the page would be resident instead.
    lost_until: Counts,
    /// Faults from the disk on pages that index + 1 steps more would have kept in the pool.
    pooled: Counts,
}

/// Numbers of faults that limits at distances of 0, 1, 2 ... steps would have saved or caused.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct StepGains {
    pub(super) resident: [u32; STEPS + 1],
    pub(super) incompressible: [u32; STEPS + 1],
    pub(super) lost: [u32; STEPS + 1],
    pub(super) pooled: [u32; STEPS + 1],
}

impl GhostHits {
    /// Records a fault from the pool. With more than `until_resident` steps more for resident pages
    /// it would have been resident, with more than `until_lost` steps less for the pool on the
    /// disk.
    pub(super) fn note_pooled(&self, until_resident: usize, until_lost: usize) {
        if self.takes_ignored() || until_resident >= STEPS && until_lost >= STEPS {
            return;
        }
        self.events.fetch_add(1, Relaxed);
        add(&self.resident, until_resident);
        if until_lost < until_resident {
            add(&self.lost_from, until_lost);
            add(&self.lost_until, until_resident);
        }
    }

    /// Records a fault on a page that `until_resident` + 1 steps would have kept resident.
    pub(super) fn note_incompressible(&self, until_resident: usize) {
        if !self.takes_ignored() && until_resident < STEPS {
            self.events.fetch_add(1, Relaxed);
            add(&self.incompressible, until_resident);
        }
    }

    /// Records a fault on a page that a pool larger by `until_pooled` + 1 steps would have stored.
    pub(super) fn note_on_disk(&self, until_pooled: usize) {
        if !self.takes_ignored() && until_pooled < STEPS {
            self.events.fetch_add(1, Relaxed);
            add(&self.pooled, until_pooled);
        }
    }

    /// Ignores the next faults, after resident pages gained space: the pages that fill it fault
    /// once more, with distances from before the move. No kind of fault is overrepresented then.
    pub(super) fn ignore_next(&self, pages: usize) {
        self.ignored.store(u32::try_from(pages).unwrap_or(u32::MAX), Relaxed);
    }

    pub(super) fn takes_ignored(&self) -> bool {
        self.ignored.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    pub(super) fn ignores_none(&self) -> bool {
        self.ignored.load(Relaxed) == 0
    }

    pub(super) fn events(&self) -> u32 {
        self.events.load(Relaxed)
    }

    pub(super) fn forget(&self) {
        let _ = self.take();
        self.ignore_next(0);
    }

    pub(super) fn take(&self) -> StepGains {
        self.events.store(0, Relaxed);
        let (from, until) = (sums(&self.lost_from), sums(&self.lost_until));
        // The two are recorded one after the other, so the second may be missing.
        let lost = std::array::from_fn(|steps| from[steps].saturating_sub(until[steps]));
        StepGains {
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

/// Takes counts and returns their cumulative sums.
fn sums(counts: &Counts) -> [u32; STEPS + 1] {
    let mut all = [0; STEPS + 1];
    for (at, count) in counts.iter().enumerate() {
        all[at + 1] = all[at] + count.swap(0, Relaxed);
    }
    all
}

pub(super) fn within(counts: &[u32; STEPS + 1], steps: f64) -> f64 {
    let whole = (steps as usize).min(STEPS);
    let (from, to) = (f64::from(counts[whole]), f64::from(counts[(whole + 1).min(STEPS)]));
    from + (to - from) * (steps - whole as f64).clamp(0.0, 1.0)
}

pub(super) fn steepest(counts: &[u32; STEPS + 1]) -> f64 {
    let slopes = (1..=STEPS).map(|steps| f64::from(counts[steps]) / steps as f64);
    slopes.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn steepest_move_has_largest_gain_per_step() {
        let mut counts = [0; STEPS + 1];
        assert!(steepest(&counts).abs() < f64::EPSILON);
        counts[2..].fill(10);
        assert_eq!(steepest(&counts), 5.0);
        counts[6..].fill(60);
        assert_eq!(steepest(&counts), 10.0);
    }

    #[test]
    fn partial_step_counts_partially() {
        let counts = std::array::from_fn(|steps| 10 * steps as u32);
        for (steps, wanted) in [(0.0, 0.0), (0.5, 5.0), (1.0, 10.0), (7.25, 72.5)] {
            assert_eq!(within(&counts, steps), wanted, "{steps}");
        }
        assert_eq!(within(&counts, 100.0), 10.0 * STEPS as f64);
    }

    #[test]
    fn faults_after_move_are_ignored() {
        let ghost_hits = GhostHits::default();
        ghost_hits.ignore_next(3);
        (0..3).for_each(|_| ghost_hits.note_pooled(1, STEPS));
        assert_eq!(ghost_hits.events(), 0);
        ghost_hits.note_pooled(1, STEPS);
        assert_eq!(ghost_hits.events(), 1);
        ghost_hits.ignore_next(3);
        ghost_hits.note_on_disk(0);
        ghost_hits.note_pooled(STEPS, STEPS);
        assert!(!ghost_hits.ignores_none());
        ghost_hits.note_pooled(0, STEPS);
        assert!(ghost_hits.ignores_none());
        ghost_hits.note_on_disk(0);
        assert_eq!(ghost_hits.events(), 2);
        ghost_hits.ignore_next(1);
        ghost_hits.forget();
        ghost_hits.note_pooled(0, 0);
        assert_eq!(ghost_hits.events(), 1);
    }

    proptest! {
        #[test]
        fn fault_counts_for_steps_that_change_it(
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
