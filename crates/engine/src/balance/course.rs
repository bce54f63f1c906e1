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
}

/// What each move had gained by now, had it been made when that began to pay, by its
/// steps.
#[derive(Debug)]
pub(super) struct Course {
    to_pool_ns: [f64; STEPS + 1],
    to_resident_ns: [f64; STEPS + 1],
    /// Looks since the last move.
    looks: u32,
    /// The last move was one to resident pages, and has paid if it is not undone in so many
    /// looks.
    pays_after: Option<u32>,
    /// How often what a move back costs is doubled, or halved.
    doubt: i32,
}

impl Default for Course {
    /// Nothing speaks for the limit with which it begins: the first move back is made for a
    /// quarter of what it costs.
    fn default() -> Course {
        Course::with_doubt(LEAST_DOUBT)
    }
}

impl Course {
    fn with_doubt(doubt: i32) -> Course {
        let none = [0.0; STEPS + 1];
        Course { to_pool_ns: none, to_resident_ns: none, looks: 0, pays_after: None, doubt }
    }

    /// Adds what was seen since the last look, by a plan for each number of steps that
    /// there is one for. Returns the move that has earned the most beyond what it costs.
    pub(super) fn follow(
        &mut self,
        plan: impl Fn(Towards, usize) -> Option<Plan>,
    ) -> Option<(Towards, usize)> {
        self.looks += 1;
        if self.pays_after.is_some_and(|looks| self.looks > looks) {
            self.pays_after = None;
            self.doubt = (self.doubt - 1).max(LEAST_DOUBT);
        }
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
                    best = Some((towards, steps));
                }
            }
        }
        let (towards, _) = best?;
        self.decide(towards);
        best
    }

    fn decide(&mut self, towards: Towards) {
        // One that is undone before it has paid was wrong.
        let was_wrong = self.pays_after.is_some() && towards == Towards::Pool;
        let doubt = (self.doubt + i32::from(was_wrong)).min(MOST_DOUBT);
        // In so many looks it had gained what it costs: as often as that was taken for this.
        let looks = f64::from(self.looks) / 2_f64.powi(self.doubt);
        let pays_after = (towards == Towards::Resident).then_some(looks as u32);
        *self = Course { pays_after, ..Course::with_doubt(doubt) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(gain_ns: f64, cost_ns: f64) -> Option<Plan> {
        Some(Plan { gain_ns, cost_ns })
    }

    #[test]
    fn the_move_that_earned_most_beyond_its_cost_is_made() {
        let mut course = Course::default();
        let mut look = || {
            course.follow(|towards, steps| match (towards, steps) {
                (Towards::Resident, 1) => plan(3.0, 40.0),
                (Towards::Resident, 2) => plan(6.0, 44.0),
                (Towards::Resident, 3) => plan(6.0, 60.0),
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
        let bounded = |_, steps| if steps < 3 { plan(-1.0, 1.0) } else { None };
        (0..100).for_each(|_| assert_eq!(course.follow(bounded), None));
    }

    #[test]
    fn what_was_wrong_is_doubted_and_what_was_right_is_not() {
        let back = |course: &mut Course| {
            let back = |towards, steps| {
                (towards == Towards::Resident && steps == 1).then(|| plan(1.0, 9.5)).flatten()
            };
            (1..10_000).find(|_| course.follow(back).is_some()).unwrap()
        };
        let forth = |course: &mut Course| {
            let forth = |towards, steps| {
                (towards == Towards::Pool && steps == 1).then(|| plan(1.0, 0.5)).flatten()
            };
            assert!(course.follow(forth).is_some());
        };
        // The first is made for a quarter of its cost.
        let mut course = Course::default();
        for looks in [3, 5, 10, 20, 39] {
            assert_eq!(back(&mut course), looks);
            forth(&mut course);
        }
        // Those that are not undone for long enough were right.
        for looks in [77, 39, 20, 10, 5, 3, 3] {
            assert_eq!(back(&mut course), looks);
            let neither = |_, steps| if steps == 1 { plan(0.0, 1.0) } else { None };
            (0..100).for_each(|_| assert_eq!(course.follow(neither), None));
            forth(&mut course);
        }
    }
}
