//! Cumulative sums (CUSUM) of the net gain of each possible move of the pool's limit, and a record
//! of moves that had to be undone.

use super::ghost_hits::STEPS;

/// Largest binary exponent of the cost factor for moves to resident pages: a factor of 256.
const MAX_COST_EXPONENT: i32 = 8;
/// Smallest binary exponent of the cost factor: a factor of 1/4.
const MIN_COST_EXPONENT: i32 = -2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Towards {
    Pool,
    Resident,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// Net gain since the last sample.
    pub(super) gain_ns: f64,
    pub(super) cost_ns: f64,
    /// Cost of reading back the pages that the move writes, not scaled by past results.
    pub(super) reading_ns: f64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Gain {
    ns: f64,
    samples: u32,
}

impl Gain {
    fn add(&mut self, ns: f64) {
        self.ns += ns;
        self.samples += 1;
        if self.ns <= 0.0 {
            *self = Gain::default();
        }
    }
}

#[derive(Debug)]
pub(super) struct Cusum {
    to_pool: [Gain; STEPS + 1],
    to_resident: [Gain; STEPS + 1],
    /// Samples until a move to resident pages counts as right; it is wrong if undone earlier.
    on_trial: Option<u32>,
    /// Binary exponent of the factor on the cost of moves to resident pages.
    cost_exponent: i32,
}

impl Default for Cusum {
    /// Nothing supports the initial limit, so the first move needs a gain of a quarter of its cost.
    fn default() -> Cusum {
        Cusum::with_cost_exponent(MIN_COST_EXPONENT)
    }
}

impl Cusum {
    fn with_cost_exponent(cost_exponent: i32) -> Cusum {
        let none = [Gain::default(); STEPS + 1];
        Cusum { to_pool: none, to_resident: none, on_trial: None, cost_exponent }
    }

    /// Adds one sample; `plan` returns `None` for an impossible move. Returns the move with the
    /// largest gain beyond its cost, or `None` if no move has gained its cost.
    pub(super) fn follow(
        &mut self,
        plan: impl Fn(Towards, usize) -> Option<Plan>,
    ) -> Option<(Towards, usize)> {
        self.on_trial = match self.on_trial {
            Some(0) => {
                self.cost_exponent = (self.cost_exponent - 1).max(MIN_COST_EXPONENT);
                None
            }
            samples => samples.map(|samples| samples - 1),
        };
        let cost_factor = 2_f64.powi(self.cost_exponent);
        let mut best = None;
        let mut max_ns = 0.0;
        for (towards, gains, factor) in [
            (Towards::Pool, &mut self.to_pool, 1.0),
            (Towards::Resident, &mut self.to_resident, cost_factor),
        ] {
            for (steps, gain) in gains.iter_mut().enumerate().skip(1) {
                let Some(plan) = plan(towards, steps) else { break };
                gain.add(plan.gain_ns);
                let price_ns = plan.cost_ns * factor + plan.reading_ns;
                let beyond_ns = gain.ns - price_ns;
                if beyond_ns > max_ns {
                    max_ns = beyond_ns;
                    let whole_ns = plan.cost_ns + plan.reading_ns;
                    // At the present rate, the gain reaches the full cost after this many samples.
                    let samples = f64::from(gain.samples) * whole_ns / price_ns;
                    best = Some((towards, steps, samples.ceil() as u32));
                }
            }
        }
        let (towards, steps, samples) = best?;
        self.decide(towards, samples);
        Some((towards, steps))
    }

    /// `samples` is the number of samples in which the move should have gained its cost.
    fn decide(&mut self, towards: Towards, samples: u32) {
        let was_wrong = self.on_trial.is_some() && towards == Towards::Pool;
        let cost_exponent = (self.cost_exponent + i32::from(was_wrong)).min(MAX_COST_EXPONENT);
        let on_trial = (towards == Towards::Resident).then_some(samples);
        *self = Cusum { on_trial, ..Cusum::with_cost_exponent(cost_exponent) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(gain_ns: f64, cost_ns: f64) -> Option<Plan> {
        Some(Plan { gain_ns, cost_ns, reading_ns: 0.0 })
    }

    #[test]
    fn move_with_largest_net_gain_is_chosen() {
        let mut cusum = Cusum::default();
        let mut sample = || {
            cusum.follow(|towards, steps| match (towards, steps) {
                (Towards::Resident, 1) => plan(3.0, 40.0),
                (Towards::Resident, 2) => plan(6.0, 44.0),
                (Towards::Resident, 3) => plan(6.0, 60.0),
                (Towards::Pool, 1) => plan(-6.0, 1.0),
                _ => None,
            })
        };
        assert_eq!((sample(), sample()), (None, Some((Towards::Resident, 2))));
        assert_eq!(sample(), None);
    }

    #[test]
    fn move_beyond_bound_is_rejected() {
        let mut cusum = Cusum::default();
        let bounded = |_, steps| if steps < 3 { plan(-1.0, 1.0) } else { None };
        (0..100).for_each(|_| assert_eq!(cusum.follow(bounded), None));
    }

    #[test]
    fn move_is_on_trial_until_it_pays() {
        let only = |wanted: Towards, gain_ns: f64| {
            move |towards, steps| {
                (towards == wanted && steps == 1).then(|| plan(gain_ns, 10.0)).flatten()
            }
        };
        // Losses before the gains began do not count. One large gain suffices.
        for (gain_ns, trial) in [(1.0, 12), (2.0, 8), (100.0, 4)] {
            for (wait, cost_exponent) in
                [(trial - 1, MIN_COST_EXPONENT + 1), (trial, MIN_COST_EXPONENT)]
            {
                let mut cusum = Cusum::default();
                (0..50).for_each(|_| assert_eq!(cusum.follow(only(Towards::Resident, 0.0)), None));
                while cusum.follow(only(Towards::Resident, gain_ns)).is_none() {}
                (0..wait).for_each(|_| assert_eq!(cusum.follow(only(Towards::Pool, 0.0)), None));
                assert!(cusum.follow(only(Towards::Pool, 11.0)).is_some());
                assert_eq!(
                    cusum.cost_exponent, cost_exponent,
                    "{gain_ns} a sample, undone after {wait}"
                );
            }
        }
    }

    #[test]
    fn wrong_moves_raise_cost_factor() {
        let samples_to_resident = |cusum: &mut Cusum| {
            let samples_to_resident = |towards, steps| {
                (towards == Towards::Resident && steps == 1).then(|| plan(1.0, 9.5)).flatten()
            };
            (1..10_000).find(|_| cusum.follow(samples_to_resident).is_some()).unwrap()
        };
        let move_to_pool = |cusum: &mut Cusum| {
            let move_to_pool = |towards, steps| {
                (towards == Towards::Pool && steps == 1).then(|| plan(1.0, 0.5)).flatten()
            };
            assert!(cusum.follow(move_to_pool).is_some());
        };
        // The first move needs a quarter of its cost.
        let mut cusum = Cusum::default();
        for samples in [3, 5, 10, 20, 39] {
            assert_eq!(samples_to_resident(&mut cusum), samples);
            move_to_pool(&mut cusum);
        }
        // Moves that stay for long enough count as right.
        for samples in [77, 39, 20, 10, 5, 3, 3] {
            assert_eq!(samples_to_resident(&mut cusum), samples);
            let neither = |_, steps| if steps == 1 { plan(0.0, 1.0) } else { None };
            (0..100).for_each(|_| assert_eq!(cusum.follow(neither), None));
            move_to_pool(&mut cusum);
        }
    }

    #[test]
    fn write_back_reads_are_not_scaled() {
        let mut cusum = Cusum::default();
        let to_resident = |towards, steps| {
            let plan = Plan { gain_ns: 1.0, cost_ns: 10.0, reading_ns: 6.0 };
            (towards == Towards::Resident && steps == 1).then_some(plan)
        };
        // A quarter of 10, all of 6, and more.
        let samples = (1..100).find(|_| cusum.follow(to_resident).is_some());
        assert_eq!(samples, Some(9));
        // On trial until it has gained 16 at this rate.
        let neither = |_, steps| if steps == 1 { plan(0.0, 1.0) } else { None };
        let wait = 9.0 * 16.0 / 8.5;
        (0..wait as u32).for_each(|_| assert_eq!(cusum.follow(neither), None));
        assert!(cusum.on_trial.is_some());
        (0..2).for_each(|_| assert_eq!(cusum.follow(neither), None));
        assert!(cusum.on_trial.is_none());
    }
}
