//! What speaks for another limit, and what was decided so far.

use super::tally::STEPS;

/// How often what a move back costs may be doubled, and halved: a quarter to 256 times.
const MOST_DOUBT: i32 = 8;
const LEAST_DOUBT: i32 = -2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Towards {
    Pool,
    Resident,
}

/// One move that there could be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// What it would have gained since the last look, or lost.
    pub(super) gain_ns: f64,
    pub(super) cost_ns: f64,
    /// Nothing goes on to the disk for it: it takes what the pool does not use, so that
    /// it is neither right nor wrong.
    pub(super) is_free: bool,
}

/// What each move had gained by now, had it been made when that began to pay, by its
/// steps.
#[derive(Debug)]
pub(super) struct Course {
    to_pool_ns: [f64; STEPS + 1],
    to_resident_ns: [f64; STEPS + 1],
    /// The last move, if it was one that can be wrong.
    last: Option<Towards>,
    /// How often what a move back costs is doubled, or halved.
    doubt: i32,
}

impl Default for Course {
    /// Nothing speaks for the limit with which it begins: the first move back is one that
    /// is not doubted.
    fn default() -> Course {
        Course {
            to_pool_ns: [0.0; STEPS + 1],
            to_resident_ns: [0.0; STEPS + 1],
            last: None,
            doubt: LEAST_DOUBT,
        }
    }
}

impl Course {
    /// Adds what was seen since the last look, by a plan for each number of steps that
    /// there is one for. Returns the move that has earned the most beyond what it costs.
    pub(super) fn follow(
        &mut self,
        plan: impl Fn(Towards, usize) -> Option<Plan>,
    ) -> Option<(Towards, usize)> {
        let doubted = 2_f64.powi(self.doubt);
        let mut best = None;
        let mut most_ns = 0.0;
        for (towards, gained, factor) in [
            (Towards::Pool, &mut self.to_pool_ns, 1.0),
            (Towards::Resident, &mut self.to_resident_ns, doubted),
        ] {
            for (steps, gained_ns) in gained.iter_mut().enumerate().skip(1) {
                let Some(plan) = plan(towards, steps) else { break };
                *gained_ns = (*gained_ns + plan.gain_ns).max(0.0);
                let beyond_ns = *gained_ns - plan.cost_ns * factor;
                if beyond_ns > most_ns {
                    most_ns = beyond_ns;
                    best = Some((towards, steps, plan.is_free));
                }
            }
        }
        let (towards, steps, is_free) = best?;
        self.decide(towards, is_free);
        Some((towards, steps))
    }

    fn decide(&mut self, towards: Towards, is_free: bool) {
        let is_after_one = i32::from(self.last == Some(Towards::Resident));
        let doubt = match towards {
            // That one was wrong.
            Towards::Pool => self.doubt + is_after_one,
            // That one was right.
            Towards::Resident => self.doubt - is_after_one,
        };
        *self = Course {
            last: (!is_free).then_some(towards),
            doubt: doubt.clamp(LEAST_DOUBT, MOST_DOUBT),
            ..Course::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(gain_ns: f64, cost_ns: f64) -> Option<Plan> {
        Some(Plan { gain_ns, cost_ns, is_free: false })
    }

    #[test]
    fn the_move_that_earned_most_beyond_its_cost_is_made() {
        let mut course = Course::default();
        let mut look = || {
            course.follow(|towards, steps| match (towards, steps) {
                (Towards::Resident, 1) => plan(3.0, 10.0),
                (Towards::Resident, 2) => plan(6.0, 11.0),
                (Towards::Resident, 3) => plan(6.0, 15.0),
                (Towards::Pool, 1) => plan(-6.0, 1.0),
                _ => None,
            })
        };
        assert_eq!((look(), look()), (None, Some((Towards::Resident, 2))));
        // Begins anew.
        assert_eq!(look(), None);
    }

    #[test]
    fn a_move_beyond_the_bound_is_not_made() {
        let mut course = Course::default();
        let bounded = |_, steps| if steps < 3 { plan(-1.0, 1.0) } else { plan(9.0, 1.0) };
        assert_eq!(course.follow(bounded), Some((Towards::Pool, 3)));
        let mut course = Course::default();
        let bounded = |_, steps| if steps < 3 { plan(-1.0, 1.0) } else { None };
        (0..100).for_each(|_| assert_eq!(course.follow(bounded), None));
    }

    #[test]
    fn what_was_wrong_is_doubted_and_what_was_free_is_neither() {
        let looks_back = |course: &mut Course, is_free: bool| {
            let back = |towards, steps| {
                let plan = Plan { gain_ns: 1.0, cost_ns: 9.5, is_free };
                (towards == Towards::Resident && steps == 1).then_some(plan)
            };
            (1..10_000).find(|_| course.follow(back).is_some()).unwrap()
        };
        let forth = |course: &mut Course| {
            let forth = |towards, steps| {
                (towards == Towards::Pool && steps == 1).then(|| plan(1.0, 0.5)).flatten()
            };
            assert!(course.follow(forth).is_some());
        };
        let mut course = Course::default();
        for looks in [10, 20, 39, 77] {
            assert_eq!(looks_back(&mut course, false), looks);
            forth(&mut course);
        }
        let mut course = Course::default();
        for _ in 0..3 {
            assert_eq!(looks_back(&mut course, true), 10);
            forth(&mut course);
        }
        let mut course = Course::default();
        let right: Vec<_> = (0..4).map(|_| looks_back(&mut course, false)).collect();
        assert_eq!(right, [10, 10, 5, 3]);
    }
}
