//! Detects that other threads want the processors. Polling then takes time from them.
//!
//! There are three signs:
//!
//! 1. Several threads wait for pages at the same time.
//! 2. More threads of all programs are runnable than there are processors.
//! 3. Preemptions during polls lose more time than polling gains over sleeping.

use softswap_sys::load::Load;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Time for which polling is off after too many threads waited at the same time, in ns.
const FIRST_PRESSURE_NS: u64 = 10_000_000;
/// Polling time over which the loss is judged, in ns; it averages other threads' time slices.
const INTERVAL_NS: u64 = 50_000_000;
/// Divisor: a loss of more than 1/8 is too much, because polling gains about 1/4 over sleeping.
const TOLERATED_LOSS: u64 = 8;
/// Time for which polling is off after the first interval with too much loss, in ns.
const FIRST_BACKOFF_NS: u64 = 50_000_000;
const MAX_BACKOFF_NS: u64 = 1_600_000_000;

/// Time for which polling is off after a survey found too many runnable threads, in ns.
const DEMAND_NS: u64 = 10_000_000;
/// One thread, in units of the mean number of runnable threads.
const ONE: u32 = 256;
const MEAN_OF: u32 = 16;

#[derive(Debug, Default)]
pub struct Pressure {
    max_pollers: u32,
    waiting: AtomicU32,
    contended_until_ns: AtomicU64,
    backoff_ns: AtomicU64,
    polled_time_ns: AtomicU64,
    lost_ns: AtomicU64,
    load: Option<Load>,
    next_survey_ns: AtomicU64,
    /// Mean of runnable threads beyond the processors.
    demand: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct Waiting<'p> {
    pressure: &'p Pressure,
}

impl Pressure {
    /// `load` counts runnable threads of all programs.
    pub fn new(cpus: usize, load: Option<Load>) -> Pressure {
        Pressure {
            // Half of the CPUs: the others run reclaim and the kernel's part of the faults.
            max_pollers: (cpus as u32 / 2).max(1),
            backoff_ns: AtomicU64::new(FIRST_BACKOFF_NS),
            load,
            ..Pressure::default()
        }
    }

    pub(crate) fn enter(&self, now_ns: u64) -> Waiting<'_> {
        let others = self.waiting.fetch_add(1, Relaxed);
        if others >= self.max_pollers {
            self.contended_until_ns.fetch_max(now_ns + FIRST_PRESSURE_NS, Relaxed);
        }
        Waiting { pressure: self }
    }

    pub(crate) fn is_contended(&self, now_ns: u64) -> bool {
        now_ns < self.contended_until_ns.load(Relaxed)
    }

    /// Reads /proc/loadavg at most once per millisecond: concurrent reads contend in the kernel.
    pub(crate) fn survey(&self, now_ns: u64) {
        let (due, next) = (self.next_survey_ns.load(Relaxed), now_ns + 1_000_000);
        if let Some(load) = &self.load
            && now_ns >= due
            && self.next_survey_ns.compare_exchange(due, next, Relaxed, Relaxed).is_ok()
            && let Some(runnable) = load.runnable()
        {
            self.note_excess(runnable.saturating_sub(load.processors()), now_ns);
        }
    }

    /// Records runnable threads beyond the processors. Tolerates a mean of half a thread.
    fn note_excess(&self, excess: u32, now_ns: u64) {
        let before = self.demand.load(Relaxed);
        let demand = before - before / MEAN_OF + excess.min(MEAN_OF) * ONE / MEAN_OF;
        self.demand.store(demand, Relaxed);
        if demand > ONE / 2 {
            self.contended_until_ns.fetch_max(now_ns + DEMAND_NS, Relaxed);
        }
    }

    /// Records a poll of `ns` until `now_ns`, of which the thread was preempted for `lost_ns`.
    pub(crate) fn note_poll(&self, ns: u64, lost_ns: u64, now_ns: u64) {
        let lost = self.lost_ns.fetch_add(lost_ns, Relaxed) + lost_ns;
        if self.polled_time_ns.fetch_add(ns, Relaxed) + ns < INTERVAL_NS {
            return;
        }
        // Threads that end an interval at the same time share its result.
        let polled_ns = self.polled_time_ns.swap(0, Relaxed);
        self.lost_ns.store(0, Relaxed);
        if lost * TOLERATED_LOSS > polled_ns.max(INTERVAL_NS) {
            let backoff = self.backoff_ns.load(Relaxed);
            self.contended_until_ns.fetch_max(now_ns + backoff, Relaxed);
            self.backoff_ns.store((2 * backoff).min(MAX_BACKOFF_NS), Relaxed);
        } else {
            self.backoff_ns.store(FIRST_BACKOFF_NS, Relaxed);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.pressure.waiting.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_threads_count_briefly() {
        let pressure = Pressure::new(2, None);
        let first = pressure.enter(0);
        assert!(!pressure.is_contended(0));
        drop(pressure.enter(100));
        assert!(pressure.is_contended(100 + FIRST_PRESSURE_NS - 1));
        assert!(!pressure.is_contended(100 + FIRST_PRESSURE_NS));
        drop(first);
        drop(pressure.enter(2 * FIRST_PRESSURE_NS));
        assert!(
            !pressure.is_contended(2 * FIRST_PRESSURE_NS),
            "successive waits are no contention"
        );
    }

    #[test]
    fn permanent_run_queue_is_pressure() {
        let pressure = Pressure::new(8, None);
        (0..1000).for_each(|n| pressure.note_excess(u32::from(n % 4 == 0), 0));
        assert!(!pressure.is_contended(0), "short runs of reclaim are tolerated");
        (0..100).for_each(|_| pressure.note_excess(1, 0));
        assert!(pressure.is_contended(DEMAND_NS - 1));
        (0..100).for_each(|_| pressure.note_excess(0, 0));
        assert!(!pressure.is_contended(DEMAND_NS), "the demand has ended");
        (0..100).for_each(|_| pressure.note_excess(u32::MAX, 0));
        (0..100).for_each(|_| pressure.note_excess(0, 0));
        pressure.note_excess(0, DEMAND_NS);
        assert!(!pressure.is_contended(DEMAND_NS), "a single count is capped");
    }

    /// Returns the backoff after another interval that lost 1/`loss` of its time.
    fn backoff(pressure: &Pressure, loss: u64, now: u64) -> u64 {
        const POLL_NS: u64 = INTERVAL_NS / 100;
        for _ in 0..100 {
            pressure.note_poll(POLL_NS, POLL_NS / loss, now);
        }
        (0..).map(|n| n * FIRST_BACKOFF_NS).find(|ns| !pressure.is_contended(now + ns)).unwrap()
    }

    #[test]
    fn preemption_backs_off_until_a_good_interval() {
        let pressure = Pressure::new(8, None);
        let mut now = 0;
        let mut next = || {
            now += 10 * MAX_BACKOFF_NS;
            now
        };
        assert_eq!(backoff(&pressure, 4, next()), FIRST_BACKOFF_NS);
        assert_eq!(backoff(&pressure, 2, next()), 2 * FIRST_BACKOFF_NS);
        (0..10).for_each(|_| assert!(backoff(&pressure, 7, next()) > 0));
        assert_eq!(backoff(&pressure, 4, next()), MAX_BACKOFF_NS);
        assert_eq!(backoff(&pressure, TOLERATED_LOSS, next()), 0, "tolerated");
        assert_eq!(backoff(&pressure, 4, next()), FIRST_BACKOFF_NS);
    }

    #[test]
    fn one_long_preemption_is_not_pressure() {
        let pressure = Pressure::new(8, None);
        pressure.note_poll(4_000_000, 3_900_000, 0);
        (0..1000).for_each(|_| pressure.note_poll(60_000, 0, 0));
        assert!(!pressure.is_contended(0));
    }
}
