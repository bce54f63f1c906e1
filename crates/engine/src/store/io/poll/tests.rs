//! Tests of all modes with a simulated request and clock, independent of the machine.

use super::mode::Sleep;
use super::*;
use proptest::prelude::*;
use softswap_sys::PAGE_SIZE;
use std::cell::Cell;

const POLL_NS: u64 = 100;

/// One processor and one request at a time. The clock advances only by polls, sleeps and waits.
struct World {
    polling: Polling,
    now: Cell<u64>,
    overshoot_ns: u64,
}

/// A request that completes at a given time; `None` if only an ordinary wait sees the completion.
struct Request<'w> {
    world: &'w World,
    done_at: Option<u64>,
    preempted: Option<(u64, u64)>,
    polls: u64,
}

impl Pending for Request<'_> {
    fn is_done(&mut self) -> bool {
        self.polls += 1;
        let mut now = self.world.now.get() + POLL_NS;
        if let Some((at, _)) = self.preempted
            && now >= at
        {
            now += self.preempted.take().map_or(0, |(_, ns)| ns);
        }
        self.world.now.set(now);
        self.done_at.is_some_and(|at| now >= at)
    }

    fn sleep(&mut self, ns: u64) -> bool {
        let end = self.world.now.get() + ns + self.world.overshoot_ns;
        self.world.now.set(end);
        false
    }

    fn now_ns(&self) -> u64 {
        self.world.now.get()
    }
}

impl World {
    fn new(mode: Mode, overshoot_ns: u64) -> World {
        let pressure = Pressure::new(1, None).into();
        let polling = Polling::new(mode, 1, pressure, overshoot_ns, Stats::for_tests());
        World { polling, now: Cell::new(1), overshoot_ns }
    }

    fn count(&self, counter: Counter) -> u64 {
        self.polling.stats.get(counter)
    }

    /// Runs one read that takes `ns`. Returns the time until completion, and the number of polls.
    fn read(&self, ns: Option<u64>, preempted: Option<(u64, u64)>) -> (u64, u64) {
        let start = self.now.get();
        let _waiting = self.polling.pressure.enter(start);
        let mut request = Request {
            world: self,
            done_at: ns.map(|ns| start + ns),
            preempted: preempted.map(|(after, ns)| (start + after, ns)),
            polls: 0,
        };
        self.polling.waits.fetch_add(1, Relaxed);
        let plan = self.polling.decide(PAGE_SIZE, start);
        self.polling.wait(plan, &mut request);
        let polls = request.polls;
        // The ordinary wait ends at the completion, or long after a lost one.
        let done = start + ns.unwrap_or(10_000_000);
        self.now.set(self.now.get().max(done));
        let took = self.now.get() - start;
        self.polling.record(0, false, PAGE_SIZE, took, self.now.get());
        (took, polls)
    }

    fn reads(&self, count: usize, ns: u64) {
        for _ in 0..count {
            self.read(Some(ns), None);
        }
    }

    fn learn(&self, ns: u64) {
        let end = self.now.get() + 2 * samples::INTERVAL_NS + 1;
        while self.now.get() < end {
            self.read(Some(ns), None);
        }
    }
}

#[test]
fn interrupt_never_polls() {
    let world = World::new(Mode::Interrupt, 0);
    for ns in [5_000, 10_000, 20_000, 80_000] {
        assert_eq!(world.read(Some(ns), None), (ns, 0));
    }
    assert_eq!((world.count(Counter::IoConsidered), world.count(Counter::IoPolled)), (4, 0));
}

#[test]
fn poll_detects_completion_within_one_poll() {
    for ns in [5_000, 10_000, 20_000, 80_000] {
        let world = World::new(Mode::Poll, 0);
        let (took, polls) = world.read(Some(ns), None);
        assert!(took <= ns + POLL_NS && polls >= ns / POLL_NS, "{took} after {polls} polls");
        assert_eq!((world.count(Counter::IoPolled), world.count(Counter::IoPollHit)), (1, 1));
    }
}

#[test]
fn hybrid_polls_half_as_often_as_poll() {
    for ns in [5_000, 10_000, 20_000, 80_000] {
        let world = World::new(Mode::Hybrid, 0);
        world.learn(ns);
        let before = world.count(Counter::IoSlept);
        let (took, polls) = world.read(Some(ns), None);
        assert!(took <= ns + POLL_NS, "{took} of {ns}");
        assert!(polls <= ns / POLL_NS * 6 / 10 + 2, "{polls} polls for {ns} ns");
        assert_eq!(world.count(Counter::IoSlept), before + 1);
        assert_eq!(world.count(Counter::IoOverslept), 0);
    }
}

#[test]
fn hybrid_does_not_sleep_with_coarse_timers() {
    let world = World::new(Mode::Hybrid, 60_000);
    world.learn(80_000);
    let slept = world.count(Counter::IoSlept);
    assert_eq!(world.read(Some(80_000), None).0 / 1000, 80);
    assert!(slept * 50 < world.count(Counter::IoConsidered), "{slept} sleeps");
}

#[test]
fn hybrid_sleeps_again_with_better_timers() {
    let mut world = World::new(Mode::Hybrid, 60_000);
    world.learn(80_000);
    world.overshoot_ns = 1_000;
    world.reads(40_000, 80_000);
    let before = world.count(Counter::IoSlept);
    world.reads(100, 80_000);
    assert!(world.count(Counter::IoSlept) > before + 90);
}

/// With Linux's scheme sleeps grow without bound here: a request that slept too long raises the
/// mean, which makes the next sleep longer.
#[test]
fn oversleeping_is_corrected() {
    let world = World::new(Mode::Hybrid, 0);
    world.learn(80_000);
    world.reads(200, 10_000);
    let overslept = world.count(Counter::IoOverslept);
    assert!(overslept > 0);
    world.learn(10_000);
    let (took, _) = world.read(Some(10_000), None);
    assert!(took <= 10_000 + POLL_NS, "{took}");
}

#[test]
fn fixed_sleep_is_respected() {
    let world = World::new(Mode::Hybrid, 0);
    world.polling.knobs().set_sleep(Sleep::Fixed(15_000));
    let (took, polls) = world.read(Some(20_000), None);
    assert!(took <= 20_000 + POLL_NS && polls <= 5_000 / POLL_NS + 2, "{took}, {polls} polls");
    let (took, polls) = world.read(Some(5_000), None);
    assert_eq!((took, polls), (15_000 + POLL_NS, 1), "overslept");
    assert_eq!(world.count(Counter::IoOverslept), 1);
}

#[test]
fn polling_for_lost_completion_is_bounded() {
    for mode in Mode::ALL {
        let world = World::new(mode, 0);
        world.learn(20_000);
        let start = world.now.get();
        let (_, polls) = world.read(None, None);
        assert!(polls * POLL_NS <= 3_000_000, "{mode}: {polls} polls");
        assert!(
            world.now.get() >= start + 10_000_000,
            "{mode}: the read did not wait for the completion"
        );
    }
}

#[test]
fn preempted_thread_stops_polling() {
    for mode in [Mode::Poll, Mode::Auto] {
        let world = World::new(mode, 0);
        let (_, polls) = world.read(Some(5_000_000), Some((10_000, 3_000_000)));
        assert!(polls <= 10_000 / POLL_NS + 1, "{mode}: {polls} polls");
    }
}

#[test]
fn auto_stops_polling_after_preemptions() {
    for mode in [Mode::Poll, Mode::Auto] {
        let world = World::new(mode, 0);
        // Preempt one read in 51 in its middle, for the time slice of another program.
        for _ in 0..40 {
            world.reads(50, 60_000);
            world.read(Some(60_000), Some((10_000, 3_000_000)));
        }
        let (_, polls) = world.read(Some(60_000), None);
        assert_eq!(polls > 0, mode == Mode::Poll, "{mode}");
        world.now.set(world.now.get() + 2_000_000_000);
        assert!(world.read(Some(60_000), None).1 > 0, "{mode}: polling is tried again");
    }
}

#[test]
fn auto_does_not_poll_under_cpu_pressure() {
    let world = World::new(Mode::Auto, 0);
    let other = world.polling.pressure.enter(world.now.get());
    assert_eq!(world.read(Some(20_000), None).1, 0);
    drop(other);
}

#[test]
fn mode_can_change_between_reads() {
    let world = World::new(Mode::Interrupt, 0);
    assert_eq!(world.read(Some(20_000), None).1, 0);
    world.polling.knobs().set_mode(Mode::Poll);
    assert!(world.read(Some(20_000), None).1 > 0);
    world.polling.knobs().set_mode(Mode::Interrupt);
    assert_eq!(world.read(Some(20_000), None).1, 0);
}

proptest! {
    #[test]
    fn all_modes_handle_all_latencies(
        number in 0..4usize,
        overshoot in prop_oneof![Just(0u64), 0..100_000u64],
        reads in prop::collection::vec(
            (prop_oneof![Just(5_000u64), Just(10_000), Just(20_000), Just(80_000), 1..3_000_000u64],
             0..5_000u64, any::<bool>()),
            1..100),
    ) {
        let mode = Mode::ALL[number];
        let world = World::new(mode, overshoot);
        for (latency, jitter, lost) in &reads {
            let ns = latency + jitter;
            let (took, polls) = world.read((!lost).then_some(ns), None);
            prop_assert!(polls * POLL_NS <= 2_000_000 + 2 * POLL_NS);
            if mode == Mode::Interrupt {
                prop_assert_eq!(polls, 0);
            }
            if mode == Mode::Poll && !lost && ns < 50_000 {
                prop_assert!(took <= ns + POLL_NS);
            }
        }
        let count = |counter| world.count(counter);
        prop_assert_eq!(count(Counter::IoConsidered), reads.len() as u64);
        prop_assert!(count(Counter::IoPollHit) <= count(Counter::IoPolled));
        prop_assert!(count(Counter::IoOverslept) <= count(Counter::IoSlept));
        prop_assert!(count(Counter::IoPolled) + count(Counter::IoOverslept)
            <= count(Counter::IoConsidered));
    }
}
