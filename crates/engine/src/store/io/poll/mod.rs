//! Waiting for a page that is being read: by interrupt, by polling, or by sleeping and then
//! polling.
//!
//! A sleep costs two context switches and the wake-up of an idle processor. Polling gets the page
//! sooner but occupies the processor. Only reads of a few pages that a fault needs are polled:
//! clusters and readahead windows are larger.
//!
//! [`mode`] is the user's choice, [`samples`] the measured I/O times, [`pressure`] the demand for
//! processors, [`plan`] the decision. [`Polling::wait`] carries it out.

pub mod mode;
pub(crate) mod samples;
pub(crate) mod plan;
pub mod pressure;

use crate::base::stats::{Counter, Stats};
use crate::base::transfer_size;
use mode::{Knobs, Mode, Sleep};
use plan::{HALF, Plan, View};
use pressure::Pressure;
use samples::Samples;
use softswap_sys::raw::{current_cpu, now_ns, thread_cpu_ns};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// One of 16 waits is measured for its CPU time and surveys the runnable threads.
const SAMPLED: u32 = 16;

pub(crate) trait Pending {
    fn is_done(&mut self) -> bool;
    /// Sleeps for `ns`, or until the completion if possible. Returns true if it has completed.
    fn sleep(&mut self, ns: u64) -> bool;
    fn now_ns(&self) -> u64;
}

#[derive(Debug)]
pub struct Polling {
    knobs: Knobs,
    samples: Samples,
    pressure: Arc<Pressure>,
    overshoot_ns: AtomicU64,
    sleep_share: AtomicU32,
    waits: AtomicU32,
    stats: Stats,
}

impl Polling {
    /// Areas share `pressure`, because processors are contended for all of them.
    pub fn new(
        mode: Mode,
        cpus: usize,
        pressure: Arc<Pressure>,
        overshoot_ns: u64,
        stats: Stats,
    ) -> Polling {
        Polling {
            knobs: Knobs::new(mode),
            samples: Samples::new(cpus),
            pressure,
            overshoot_ns: AtomicU64::new(overshoot_ns),
            sleep_share: AtomicU32::new(HALF),
            waits: AtomicU32::new(0),
            stats,
        }
    }

    #[cfg(test)]
    pub(crate) fn for_tests(mode: Mode) -> Polling {
        Polling::new(mode, 2, Pressure::new(2, None).into(), 0, Stats::for_tests())
    }

    pub(crate) fn knobs(&self) -> &Knobs {
        &self.knobs
    }

    pub fn overshoot_ns(&self) -> u64 {
        self.overshoot_ns.load(Relaxed)
    }

    /// Runs a read that a thread waits for, and records its duration unless it fails.
    pub fn waited<E>(&self, bytes: usize, read: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let start = now_ns();
        let _waiting = self.pressure.enter(start);
        let is_sampled = self.waits.fetch_add(1, Relaxed).is_multiple_of(SAMPLED);
        if is_sampled && self.knobs.mode() == Mode::Auto {
            self.pressure.survey(start);
        }
        let cpu_before_ns = is_sampled.then(thread_cpu_ns);
        read()?;
        if let Some(before_ns) = cpu_before_ns {
            let used_ns = thread_cpu_ns() - before_ns;
            self.stats.add(Counter::IoWaitCpuNs, used_ns * u64::from(SAMPLED));
        }
        self.note(false, bytes, start);
        Ok(())
    }

    pub(crate) fn note(&self, is_write: bool, bytes: usize, start_ns: u64) {
        let now = now_ns();
        self.record(current_cpu(), is_write, bytes, now - start_ns, now);
    }

    fn record(&self, cpu: usize, is_write: bool, bytes: usize, ns: u64, now_ns: u64) {
        let bucket = transfer_size::bucket_of(is_write, bytes);
        self.samples.record(cpu, bucket, ns, now_ns);
        self.stats.record_io(bucket, ns);
    }

    /// Decides how to wait for a read. A plan of zeroes is an ordinary wait.
    pub(crate) fn decide(&self, bytes: usize, now_ns: u64) -> Plan {
        self.stats.add(Counter::IoConsidered, 1);
        let mode = self.knobs.mode();
        if mode == Mode::Interrupt {
            return Plan::default();
        }
        let plan = plan::plan(mode, self.knobs.sleep(), &self.view(bytes, now_ns));
        if mode == Mode::Hybrid && plan.sleep_ns == 0 {
            self.decay_evidence();
        }
        plan
    }

    /// Returns true if the kernel may sleep and poll itself. It may not if the sleep is fixed.
    pub(crate) fn allows_kernel_polling(&self) -> bool {
        self.knobs.mode() == Mode::Hybrid && self.knobs.sleep() == Sleep::Adaptive
    }

    pub(crate) fn kernel_polled(&self) {
        for counter in [Counter::IoSlept, Counter::IoPolled, Counter::IoPollHit] {
            self.stats.add(counter, 1);
        }
    }

    /// Carries out a plan. If the read is still in flight on return, the caller waits for it.
    pub(crate) fn wait(&self, plan: Plan, pending: &mut impl Pending) {
        if plan.sleep_ns > 0 && self.sleep(pending, plan.sleep_ns) {
            return;
        }
        if plan.spin_ns > 0 {
            self.poll_once(pending, plan);
        }
    }

    fn view(&self, bytes: usize, now_ns: u64) -> View {
        View {
            times: self.samples.times(transfer_size::bucket_of(false, bytes)),
            overshoot_ns: self.overshoot_ns(),
            sleep_share: self.sleep_share.load(Relaxed),
            is_contended: self.pressure.is_contended(now_ns),
        }
    }

    /// Returns true if the request has completed: then the next sleep must be shorter.
    fn sleep(&self, pending: &mut impl Pending, ns: u64) -> bool {
        self.stats.add(Counter::IoSlept, 1);
        let start = pending.now_ns();
        let woken = pending.sleep(ns);
        if !woken {
            let over = (pending.now_ns() - start).saturating_sub(ns);
            let before = self.overshoot_ns.load(Relaxed);
            self.overshoot_ns.store((3 * before + over) / 4, Relaxed);
        }
        let overslept = woken || pending.is_done();
        let share = self.sleep_share.load(Relaxed);
        self.sleep_share.store(plan::next_share(share, overslept), Relaxed);
        if overslept {
            self.stats.add(Counter::IoOverslept, 1);
        }
        overslept
    }

    /// Reduces the evidence against sleeping, so that sleeping is tried again after a while.
    fn decay_evidence(&self) {
        if self.waits.load(Relaxed).is_multiple_of(64) {
            let before = self.overshoot_ns.load(Relaxed);
            self.overshoot_ns.store(before - before / 256, Relaxed);
            let share = self.sleep_share.load(Relaxed);
            self.sleep_share.store(plan::next_share(share, false), Relaxed);
        }
    }

    fn poll_once(&self, pending: &mut impl Pending, plan: Plan) {
        self.stats.add(Counter::IoPolled, 1);
        let start = pending.now_ns();
        let mut last = start;
        let (now, lost_ns) = loop {
            // Read the clock after the poll: a thread preempted in between finds the request
            // completed.
            let is_done = pending.is_done();
            let now = pending.now_ns();
            let gap_ns = now - last;
            if is_done {
                self.stats.add(Counter::IoPollHit, 1);
            }
            // The thread was preempted.
            if gap_ns > 100_000 {
                break (now, gap_ns);
            }
            if is_done || now - start >= plan.spin_ns {
                break (now, 0);
            }
            last = now;
            std::hint::spin_loop();
        };
        self.pressure.note_poll(now - start, lost_ns, now);
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
