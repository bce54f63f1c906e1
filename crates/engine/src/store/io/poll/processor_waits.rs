//! On which processor a thread had best wait for its pages.
//!
//! A device with one queue interrupts one processor. A thread that waits there has
//! its page when the interrupt has been served. Elsewhere one processor must wake,
//! serve it, and tell the other: half as long again, and on a virtual machine up to
//! several times as long. A thread that sleeps is now and then woken on the processor
//! that was interrupted, and stays; one that looks never sleeps, and so never gets
//! there by itself. Hence it is moved.
//!
//! Which processor that is, if it is any, only times tell: a mean for each, of what
//! single-page reads took that began and ended there. Where nothing is known, or
//! nothing new, a thread tries, for [`RUN`] waits; what was not worth it is tried
//! again after twice the time.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Waits between two decisions. So many tell what a processor is worth.
pub(crate) const RUN: u32 = 32;
/// So many tell whether a thread has been taken to where it is known to wait longer.
const SOON: u32 = 8;
const _: () = assert!(RUN.is_multiple_of(SOON));
/// A run comes within so long, or pages are not what the program waits for.
const RUN_NS: u64 = 20_000_000;
/// A wait moves its processor's mean by one in so many, and counts as so many
/// times the mean at most.
const MEAN_OF: u64 = 16;
const MOST_MEANS: u64 = 4;
/// Who has settled moves for what takes at most so many in so many of its time.
const WORTH: (u64, u64) = (4, 5);
/// Moves are so far apart, which keeps what they cost below one in a hundred.
const REST_NS: u64 = 5_000_000;
/// How long until a processor is tried again: at first, and at most, for each that
/// is to be tried.
const FIRST_TRIAL_NS: u64 = 10_000_000;
const LAST_TRIAL_NS: u64 = 5_120_000_000;
/// Who leaves a place after so many decisions in a row tries it again soon: perhaps
/// its waits were long for another reason.
const SETTLED: u32 = 8;
/// How long nobody is moved after somebody could not be.
const REFUSED_NS: u64 = 1_000_000_000;

/// What is known of a processor. Those who wait there write it.
#[derive(Debug)]
#[repr(align(64))]
struct ProcessorWait {
    /// Mean of its waits, in ns; 0: none yet.
    mean_ns: AtomicU64,
    /// When to try it, and how long after that again.
    due_ns: AtomicU64,
    gap_ns: AtomicU64,
}

/// What is known of all processors, whatever area pages come from.
#[derive(Debug)]
pub(crate) struct ProcessorWaits {
    is_on: AtomicBool,
    places: Box<[ProcessorWait]>,
    /// Waits since the last decision, and when that was.
    waits: AtomicU32,
    /// Whether there were as many since somebody asked for advice as make it worth
    /// while.
    is_due: AtomicBool,
    since_ns: AtomicU64,
    /// Nobody moves before.
    rest_until_ns: AtomicU64,
    /// Whether the last move was to try.
    is_trial: AtomicBool,
    /// Where the last decision was made, and how many in a row.
    last: AtomicUsize,
    stayed: AtomicU32,
}

impl ProcessorWaits {
    /// Nothing known yet of processors with numbers below `most`.
    #[must_use]
    pub(crate) fn new(is_on: bool, most: usize) -> ProcessorWaits {
        let others = most.saturating_sub(1) as u64;
        let place = |_| ProcessorWait {
            mean_ns: AtomicU64::new(0),
            due_ns: AtomicU64::new(0),
            gap_ns: AtomicU64::new(others * FIRST_TRIAL_NS),
        };
        ProcessorWaits {
            is_on: AtomicBool::new(is_on),
            places: (0..most).map(place).collect(),
            waits: AtomicU32::new(0),
            is_due: AtomicBool::new(false),
            since_ns: AtomicU64::new(0),
            rest_until_ns: AtomicU64::new(0),
            is_trial: AtomicBool::new(false),
            last: AtomicUsize::new(0),
            stayed: AtomicU32::new(0),
        }
    }

    /// Whether threads are moved; may be changed at any time.
    #[must_use]
    pub(crate) fn switch(&self) -> &AtomicBool {
        &self.is_on
    }

    /// Counts a wait for a single page that began on one processor and ended on
    /// another, or the same: only then it is told what it took.
    pub(crate) fn record(&self, (began, ended): (usize, usize), ns: u64) {
        self.count();
        let Some(place) = self.places.get(ended).filter(|_| began == ended) else { return };
        let mean = place.mean_ns.load(Relaxed);
        let next = match mean {
            0 => ns,
            _ => mean - mean / MEAN_OF + ns.min(MOST_MEANS * mean) / MEAN_OF,
        };
        place.mean_ns.store(next.max(1), Relaxed);
    }

    /// Counts a wait, for whatever that was.
    pub(crate) fn count(&self) {
        if (self.waits.fetch_add(1, Relaxed) + 1).is_multiple_of(SOON) {
            self.is_due.store(true, Relaxed);
        }
    }

    /// Whether it may be time to ask for advice.
    #[must_use]
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.load(Relaxed) && self.is_on.load(Relaxed) && self.places.len() > 1
    }

    /// When that is due: where a thread that runs on processor `here`, and has just
    /// waited, should go, if anywhere. `is_quiet` says whether it would be in nobody's
    /// way there; it is asked seldom.
    pub(crate) fn advise(
        &self,
        here: usize,
        now_ns: u64,
        is_quiet: impl FnOnce() -> bool,
    ) -> Option<usize> {
        self.is_due.store(false, Relaxed);
        let is_run = self.waits.load(Relaxed) >= RUN;
        let was_trial = self.is_trial.load(Relaxed);
        let began_ns = self.since_ns.load(Relaxed);
        if is_run {
            self.waits.store(0, Relaxed);
            self.since_ns.store(now_ns, Relaxed);
            self.is_trial.store(false, Relaxed);
        }
        let is_steady = now_ns.saturating_sub(began_ns) < RUN_NS;
        // Who only tries goes back as soon as that has told what it may, and no sooner.
        let rests = if was_trial { !is_run } else { now_ns < self.rest_until_ns.load(Relaxed) };
        if !is_steady || rests {
            return None;
        }
        let has_settled = is_run && self.has_settled(here);
        let better = self.better(here, was_trial);
        let due = || is_run.then(|| self.due(here, now_ns)).flatten();
        let to = better.or_else(due).filter(|_| is_quiet())?;
        self.rest_until_ns.store(now_ns + REST_NS, Relaxed);
        if better.is_none() {
            self.begin_trial(here, to, now_ns);
        } else if has_settled {
            let place = &self.places[here];
            place.due_ns.store(now_ns + FIRST_TRIAL_NS, Relaxed);
            place.gap_ns.store(self.others() * FIRST_TRIAL_NS, Relaxed);
        }
        Some(to)
    }

    /// There is no such processor, or none that runs: it is not tried again.
    pub(crate) fn nowhere(&self, to: usize) {
        self.is_trial.store(false, Relaxed);
        self.places[to].due_ns.store(u64::MAX, Relaxed);
        self.places[to].mean_ns.store(0, Relaxed);
    }

    /// Nobody could be moved: others would not be either.
    pub(crate) fn refused(&self, now_ns: u64) {
        self.is_trial.store(false, Relaxed);
        self.rest_until_ns.store(now_ns + REFUSED_NS, Relaxed);
    }

    /// How many places there are to try.
    fn others(&self) -> u64 {
        self.places.len() as u64 - 1
    }

    /// Notes that a decision is made here, and whether it is one of many.
    fn has_settled(&self, here: usize) -> bool {
        if self.last.swap(here, Relaxed) != here {
            self.stayed.store(0, Relaxed);
        }
        self.stayed.fetch_add(1, Relaxed) >= SETTLED
    }

    /// What waits at a place take, where that is known.
    fn known_ns(&self, at: usize) -> Option<u64> {
        Some(self.places.get(at)?.mean_ns.load(Relaxed)).filter(|ns| *ns > 0)
    }

    /// The best place, if it is worth going there.
    fn better(&self, here: usize, was_trial: bool) -> Option<usize> {
        let here_ns = self.known_ns(here)?;
        let known = (0..self.places.len()).filter_map(|at| Some((self.known_ns(at)?, at)));
        let (ns, best) = known.min()?;
        // Who only tried has nothing to lose by going back.
        let (most, of) = if was_trial { (1, 1) } else { WORTH };
        (ns * of < here_ns * most).then_some(best)
    }

    /// A place to be tried, for nothing new has been heard of it for some time.
    fn due(&self, here: usize, now_ns: u64) -> Option<usize> {
        self.known_ns(here)?;
        let count = self.places.len();
        let mut others = (1..count).map(|step| (here + step) % count);
        others.find(|at| self.places[*at].due_ns.load(Relaxed) <= now_ns)
    }

    fn begin_trial(&self, here: usize, to: usize, now_ns: u64) {
        let place = &self.places[to];
        let gap_ns = place.gap_ns.load(Relaxed);
        place.due_ns.store(now_ns + gap_ns, Relaxed);
        place.gap_ns.store((2 * gap_ns).min(self.others() * LAST_TRIAL_NS), Relaxed);
        // What it was worth before is forgotten: it is to be told anew, and no
        // single wait is to decide.
        place.mean_ns.store(self.known_ns(here).unwrap_or(0), Relaxed);
        // It is to be told by a whole run.
        self.waits.store(0, Relaxed);
        self.is_trial.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A thread that waits for page after page, and goes where it is told.
    struct World {
        places: ProcessorWaits,
        now: u64,
        at: usize,
        moves: usize,
        is_quiet: bool,
        /// Processors that there are no others after.
        online: usize,
        /// Waits by processor.
        waits: Vec<usize>,
    }

    impl World {
        fn new(most: usize) -> World {
            let places = ProcessorWaits::new(true, most);
            World {
                places,
                now: 1,
                at: 0,
                moves: 0,
                is_quiet: true,
                online: most,
                waits: vec![0; most],
            }
        }

        /// Waits for so many pages, each for as long as `times` says of the
        /// processor, then `busy_ns` of something else.
        fn wait(&mut self, count: usize, busy_ns: u64, times: impl Fn(usize, usize) -> u64) {
            for number in 0..count {
                let ns = times(self.at, number);
                self.now += ns + busy_ns;
                self.waits[self.at] += 1;
                self.places.record((self.at, self.at), ns);
                if !self.places.is_due() {
                    continue;
                }
                if let Some(to) = self.places.advise(self.at, self.now, || self.is_quiet) {
                    assert!(to != self.at && to < self.waits.len());
                    if to >= self.online {
                        self.places.nowhere(to);
                        continue;
                    }
                    (self.at, self.moves) = (to, self.moves + 1);
                }
            }
        }
    }

    const SLOW_NS: u64 = 100_000;
    const QUICK_NS: u64 = 45_000;

    #[test]
    fn a_thread_ends_where_pages_come_soonest_and_is_hardly_elsewhere() {
        for (most, quick) in [(2, 1), (2, 0), (4, 2), (16, 9)] {
            let mut world = World::new(most);
            world.wait(100_000, 5_000, |at, _| if at == quick { QUICK_NS } else { SLOW_NS });
            assert!(world.waits[quick] > 98_000 - 400 * most, "{most}: {:?}", world.waits);
        }
    }

    #[test]
    fn where_all_are_alike_a_thread_is_hardly_moved() {
        let mut world = World::new(2);
        // 10 s of them, with some noise.
        world.wait(200_000, 5_000, |_, number| QUICK_NS + (number as u64 * 7919) % 20_000);
        assert!(world.moves <= 60, "{}", world.moves);
    }

    #[test]
    fn another_processor_that_is_interrupted_from_now_on_is_found() {
        let mut world = World::new(2);
        world.wait(50_000, 0, |at, _| if at == 1 { QUICK_NS } else { SLOW_NS });
        assert_eq!(world.at, 1);
        let before = world.waits[0];
        world.wait(150_000, 0, |at, _| if at == 0 { QUICK_NS } else { SLOW_NS });
        assert_eq!(world.at, 0);
        assert!(world.waits[0] - before > 80_000, "{:?}", world.waits);
    }

    #[test]
    fn a_thread_that_was_taken_elsewhere_is_brought_back_soon() {
        let mut world = World::new(2);
        world.wait(20_000, 0, |at, _| if at == 1 { QUICK_NS } else { SLOW_NS });
        let before = world.waits[0];
        world.at = 0;
        world.wait(200, 0, |at, _| if at == 1 { QUICK_NS } else { SLOW_NS });
        assert_eq!(world.at, 1);
        assert!(world.waits[0] - before <= 2 * RUN as usize, "{:?}", world.waits);
    }

    #[test]
    fn who_seldom_waits_is_left_alone() {
        let mut world = World::new(2);
        world.wait(10_000, 1_000_000, |at, _| if at == 1 { QUICK_NS } else { SLOW_NS });
        assert_eq!(world.moves, 0);
    }

    #[test]
    fn processors_that_are_not_there_are_in_nobodys_way() {
        let mut world = World::new(64);
        world.online = 2;
        world.wait(20_000, 5_000, |at, _| if at == 1 { QUICK_NS } else { SLOW_NS });
        assert!(world.waits[1] > 19_000, "{:?}", world.waits);
    }

    #[test]
    fn nobody_is_moved_while_others_want_to_run() {
        let mut world = World::new(2);
        world.is_quiet = false;
        world.wait(10_000, 0, |_, _| SLOW_NS);
        assert_eq!(world.moves, 0);
        world.is_quiet = true;
        world.wait(1_000, 0, |_, _| SLOW_NS);
        assert!(world.moves > 0);
    }

    #[test]
    fn nobody_is_moved_where_that_is_off_or_could_not_be_done_or_there_is_one() {
        let mut world = World::new(2);
        world.places.switch().store(false, Relaxed);
        world.wait(10_000, 0, |_, _| SLOW_NS);
        assert_eq!(world.moves, 0);
        world.places.switch().store(true, Relaxed);
        world.places.refused(world.now);
        world.wait((REFUSED_NS / SLOW_NS) as usize - 1, 0, |_, _| SLOW_NS);
        assert_eq!(world.moves, 0);
        world.wait(1_000, 0, |_, _| SLOW_NS);
        assert!(world.moves > 0);
        let mut alone = World::new(1);
        alone.wait(10_000, 0, |_, _| SLOW_NS);
        assert_eq!(alone.moves, 0);
    }

    #[test]
    fn a_wait_on_two_processors_tells_nothing_of_either_and_one_beyond_them_neither() {
        let places = ProcessorWaits::new(true, 2);
        places.record((0, 1), QUICK_NS);
        places.record((7, 7), QUICK_NS);
        assert!(places.places.iter().all(|place| place.mean_ns.load(Relaxed) == 0));
    }

    proptest! {
        #[test]
        fn a_mean_lies_between_what_was_recorded(times in prop::collection::vec(1..u64::MAX / 8, 1..200)) {
            let places = ProcessorWaits::new(true, 2);
            times.iter().for_each(|ns| places.record((1, 1), *ns));
            let mean = places.places[1].mean_ns.load(Relaxed);
            let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
            // Each step rounds down twice.
            prop_assert!(mean <= *most && mean + 2 * MEAN_OF + 2 >= *least, "{least} {mean} {most}");
        }
    }
}
