//! The pool's share of the budget.
//!
//! DRAM in the pool holds more pages, but each touch of one costs a fault. The refault distance
//! shows roughly what more DRAM would have saved. A page found in the pool would have stayed
//! resident with space for the pages evicted in between. A page found compressed on the disk would
//! still be in the pool if the pool had held the pages written back since ([`WriteBackRate`]).
//!
//! Each fault is counted by the number of steps of the limit that would have saved it, or with a
//! smaller pool lost it, times its cost ([`FaultCosts`]). For each move the gains minus losses are
//! summed up (a cumulative sum, E. S. Page, 1954). When the sum reaches the cost of the move (pages
//! to write, and others to compress), the limit moves. If a move to resident pages is undone before
//! it can have gained its cost, the next one must gain twice as much, otherwise half as much.
//!
//! Part of a pool with spare space may not have been touched yet. Before such a pool shrinks, the
//! move must also have gained the cost of reading back what it writes (ski rental; A. Karlin and
//! others, 1988).

mod ghost_hits;
mod object_ages;
mod cusum;
mod fault_costs;

use crate::policy::pool_limit::PoolLimit;
use crate::policy::write_back_rate::WriteBackRate;
use cusum::{Cusum, Plan, Towards};
pub use fault_costs::FaultCosts;
pub(crate) use fault_costs::Stopwatch;
use fault_costs::WHOLE;
use ghost_hits::{GhostHits, STEPS, StepGains, steepest, within};
use object_ages::{ObjectAges, Samples};
use softswap_sys::PAGE_SIZE;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

const EVENTS: u32 = 128;
/// Use at which pages are written back from the pool, in percent of its limit.
pub const WRITE_BACK_PERCENT: usize = 90;
/// Use at which new pages may bypass the pool. Below it the pool keeps copies of resident pages.
pub const NEARLY_FULL_PERCENT: usize = 85;

#[derive(Debug, Clone, Copy)]
pub struct PoolView {
    pub limit_bytes: usize,
    pub used_bytes: usize,
    pub objects: usize,
}

/// Returns the use above which a pool with this limit writes pages back.
fn mark_bytes(limit_bytes: usize) -> usize {
    limit_bytes / 100 * WRITE_BACK_PERCENT
}

fn step_in(budget_bytes: usize) -> usize {
    (budget_bytes / STEPS).max(1)
}

#[derive(Debug)]
pub struct Partition {
    is_on: AtomicBool,
    min_bytes: AtomicUsize,
    most_bytes: AtomicUsize,
    step_bytes: AtomicUsize,
    budget_bytes: AtomicUsize,
    /// Independent of the current budget.
    configured: Mutex<PoolLimit>,
    ghost_hits: GhostHits,
    ages: ObjectAges,
    pub costs: FaultCosts,
    pub write_back_rate: WriteBackRate,
    /// Time that one MiB more of DRAM would have saved so far, in ns.
    saved_ns: AtomicU64,
    cusum: Mutex<(Cusum, Samples)>,
}

impl Partition {
    pub fn new(
        is_on: bool,
        min_bytes: usize,
        most_bytes: usize,
        budget_bytes: usize,
        processors: usize,
    ) -> Partition {
        Partition {
            is_on: AtomicBool::new(is_on),
            min_bytes: AtomicUsize::new(min_bytes),
            most_bytes: AtomicUsize::new(most_bytes),
            step_bytes: AtomicUsize::new(step_in(budget_bytes)),
            budget_bytes: AtomicUsize::new(budget_bytes),
            configured: Mutex::new(PoolLimit::Auto),
            ghost_hits: GhostHits::default(),
            ages: ObjectAges::default(),
            costs: FaultCosts::new(processors),
            write_back_rate: WriteBackRate::default(),
            saved_ns: AtomicU64::new(0),
            cusum: Mutex::default(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Sets the limit and its adaptation. Clears events recorded under another limit.
    pub(crate) fn set(&self, configured: PoolLimit, is_on: bool, set_limit: impl FnOnce(usize)) {
        self.with_reset(|| {
            self.write_back_rate.forget();
            self.is_on.store(is_on, Relaxed);
            *self.configured.lock().unwrap_or_else(PoisonError::into_inner) = configured;
            set_limit(self.limit_of(configured));
        });
    }

    /// Adapts to a changed budget. An adaptive limit keeps its share of the budget.
    pub(crate) fn resize(
        &self,
        min_bytes: usize,
        most_bytes: usize,
        budget_bytes: usize,
        limit_bytes: usize,
        set_limit: impl FnOnce(usize),
    ) {
        let before_bytes = self.budget_bytes.load(Relaxed);
        let change = || {
            self.min_bytes.store(min_bytes, Relaxed);
            self.most_bytes.store(most_bytes, Relaxed);
            self.step_bytes.store(step_in(budget_bytes), Relaxed);
            self.budget_bytes.store(budget_bytes, Relaxed);
            if self.is_on() {
                let share = limit_bytes as f64 / before_bytes.max(1) as f64;
                let bytes = (budget_bytes as f64 * share) as usize;
                return set_limit(bytes.clamp(min_bytes, most_bytes));
            }
            let configured = *self.configured.lock().unwrap_or_else(PoisonError::into_inner);
            set_limit(self.limit_of(configured));
        };
        // Events are in shares of the budget, so they stay roughly valid for a similar budget.
        // Otherwise nothing would be learnt under a budget that changes often.
        if (before_bytes / 2..=before_bytes * 2).contains(&budget_bytes) {
            let _still = self.cusum.lock().unwrap_or_else(PoisonError::into_inner);
            change();
        } else {
            self.with_reset(change);
        }
    }

    /// Runs `change` while the limit cannot move, and clears the events. Keeps the write-back rate.
    fn with_reset(&self, change: impl FnOnce()) {
        let mut cusum = self.cusum.lock().unwrap_or_else(PoisonError::into_inner);
        *cusum = Default::default();
        self.ghost_hits.forget();
        self.ages.forget();
        change();
    }

    fn step_bytes(&self) -> usize {
        self.step_bytes.load(Relaxed)
    }

    fn most_bytes(&self) -> usize {
        self.most_bytes.load(Relaxed)
    }

    /// Returns the initial limit. A limit that is too large costs decompression and is corrected
    /// soon; one that is too small costs disk I/O.
    fn limit_of(&self, configured: PoolLimit) -> usize {
        let asked_bytes = configured.bytes_of(self.budget_bytes.load(Relaxed));
        if self.is_on() { asked_bytes.min(self.most_bytes()) } else { asked_bytes }
    }

    /// Returns the upper bound of the limit, at least `beyond_bytes`, for pages that cannot be
    /// written. `None` if the limit does not adapt, or is not below the bound.
    #[must_use]
    pub(crate) fn widest(&self, limit_bytes: usize, beyond_bytes: usize) -> Option<usize> {
        let most_bytes = self.most_bytes().max(beyond_bytes);
        (self.is_on() && limit_bytes < most_bytes).then_some(most_bytes)
    }

    /// Returns ghost hits times cost, for the side with the larger gain.
    pub(crate) fn saved_by_mib_ns(&self) -> u64 {
        self.saved_ns.load(Relaxed)
    }

    /// Returns true if reads from the disk cost more time in total than decompression.
    pub(crate) fn disk_dominates(&self) -> bool {
        let (pool_ns, disk_ns) = self.costs.faults_ns();
        let share = u64::from(self.costs.disk_share());
        share * disk_ns > (u64::from(WHOLE) - share) * pool_ns
    }

    fn refault_share(&self) -> f64 {
        self.write_back_rate.refault_share().max(1.0 / 8.0)
    }

    pub(crate) fn note_pool_fault(&self, distance: u64, limit_bytes: usize, used_bytes: usize) {
        if !self.is_on() {
            return;
        }
        if !self.ages.are_known() {
            self.ghost_hits.takes_ignored();
            return;
        }
        let step_bytes = self.step_bytes();
        let distance_bytes = (distance as usize).saturating_mul(PAGE_SIZE);
        // The pool writes back its oldest objects first.
        let younger_bytes = self.ages.younger(distance, used_bytes);
        let room_bytes = mark_bytes(limit_bytes).saturating_sub(younger_bytes);
        // A smaller pool loses its oldest objects, but pages that stay resident need no object.
        let resident_share = younger_bytes as f64 / distance_bytes.max(1) as f64;
        let lost_bytes = mark_bytes(step_bytes) as f64 - resident_share * step_bytes as f64;
        let until_lost =
            if lost_bytes < 1.0 { STEPS } else { (room_bytes as f64 / lost_bytes) as usize };
        self.ghost_hits.note_pooled(distance_bytes / step_bytes, until_lost);
    }

    pub(crate) fn note_incompressible_fault(&self, distance: u64) {
        if self.is_on() {
            let bytes = (distance as usize).saturating_mul(PAGE_SIZE);
            self.ghost_hits.note_incompressible(bytes / self.step_bytes());
        }
    }

    /// Records a fault on a page that a pool with `more` more pages would still hold.
    pub(crate) fn note_disk_fault(&self, more: u64, pool: PoolView) {
        if self.is_on() && pool.is_full() {
            let more_bytes = (more as usize).saturating_mul(pool.average_bytes());
            self.ghost_hits.note_on_disk(more_bytes / self.step_bytes());
        }
    }

    /// Moves the pool's limit if enough events justify it. `at_random` selects an object by a
    /// random number. It returns how many pages were evicted after that object's page, or `None` if
    /// there is no object.
    pub fn step(
        &self,
        view: impl FnOnce() -> PoolView,
        at_random: impl Fn(u64) -> Option<u64>,
        set_limit: impl FnOnce(usize),
    ) {
        let is_due = self.ghost_hits.events() >= EVENTS;
        let is_lost = || !self.ages.are_known() && self.ghost_hits.ignores_none();
        if !self.is_on() || !is_due && !is_lost() {
            return;
        }
        let view = view();
        // A sample would find no objects if there are only a few.
        if !is_due && view.objects < 64 {
            return;
        }
        // Do not wait: in a forked child the lock's owner may not exist.
        let Ok(mut cusum) = self.cusum.try_lock() else { return };
        if !self.is_on() {
            return;
        }
        let (cusum, samples) = &mut *cusum;
        samples.sample(at_random);
        self.ages.learn(samples);
        if !is_due {
            return;
        }
        if let Some(limit_bytes) = self.next(cusum, view) {
            // The next faults are ignored (`ignore_next`), and ages change meanwhile.
            samples.forget();
            self.ages.forget();
            set_limit(limit_bytes);
        }
    }

    fn next(&self, cusum: &mut Cusum, view: PoolView) -> Option<usize> {
        let sample = Interval {
            partition: self,
            view,
            seen: self.ghost_hits.take(),
            fault_costs_ns: self.costs.faults_ns(),
        };
        self.saved_ns.fetch_add(sample.saved_by_step_ns(), Relaxed);
        let (towards, steps) = cusum.follow(|towards, steps| sample.plan(towards, steps))?;
        let bytes = sample.bytes(towards, steps)?;
        Some(match towards {
            Towards::Pool => {
                self.ghost_hits.ignore_next(0);
                view.limit_bytes + bytes
            }
            Towards::Resident => {
                self.ghost_hits.ignore_next(sample.freed_bytes(bytes) / PAGE_SIZE);
                view.limit_bytes - bytes
            }
        })
    }

    fn max_move(&self, view: PoolView, towards: Towards) -> usize {
        match towards {
            Towards::Pool => self.most_bytes().saturating_sub(view.limit_bytes),
            Towards::Resident => view.limit_bytes.saturating_sub(self.min_bytes.load(Relaxed)),
        }
    }
}

/// Faults since the last sample, from which gain and cost of each move are estimated.
struct Interval<'b> {
    partition: &'b Partition,
    view: PoolView,
    seen: StepGains,
    /// Costs of a fault from the pool, and from the disk.
    fault_costs_ns: (u64, u64),
}

impl Interval<'_> {
    /// Returns the size of a move; `None` if a smaller one already reaches the bound.
    fn bytes(&self, towards: Towards, steps: usize) -> Option<usize> {
        let max = self.partition.max_move(self.view, towards);
        let step_bytes = self.partition.step_bytes();
        ((steps - 1) * step_bytes < max).then(|| max.min(steps * step_bytes))
    }

    fn plan(&self, towards: Towards, steps: usize) -> Option<Plan> {
        let bytes = self.bytes(towards, steps)?;
        let (pool_ns, disk_ns) = self.fault_costs_ns;
        let saved_ns = disk_ns.saturating_sub(pool_ns) as f64;
        let (pool_ns, disk_ns) = (pool_ns as f64, disk_ns as f64);
        let compressing_ns = (bytes / PAGE_SIZE) as f64 * pool_ns;
        Some(match towards {
            Towards::Pool => {
                let gained_ns = within(&self.seen.pooled, self.steps(bytes)) * saved_ns;
                // The gain from more resident pages approximates the loss from fewer.
                let slope_ns = steepest(&self.seen.resident) * pool_ns
                    + steepest(&self.seen.incompressible) * disk_ns;
                let lost_ns = slope_ns * self.steps(bytes);
                Plan { gain_ns: gained_ns - lost_ns, cost_ns: compressing_ns, reading_ns: 0.0 }
            }
            Towards::Resident => {
                let freed_bytes = self.freed_bytes(bytes);
                let freed = self.steps(freed_bytes);
                let gained_ns = within(&self.seen.resident, freed) * pool_ns
                    + within(&self.seen.incompressible, freed) * disk_ns;
                let passed_on = (freed_bytes / self.view.average_bytes()) as u64;
                let writing_ns = (passed_on * self.partition.costs.write_back_ns()) as f64;
                let gain_ns = gained_ns - self.lost_by_pool(bytes) * saved_ns;
                let reading_ns = passed_on as f64 * self.unseen_refault_share() * saved_ns;
                // `compressing_ns` is the cost of undoing the move.
                Plan { gain_ns, cost_ns: writing_ns + compressing_ns, reading_ns }
            }
        })
    }

    /// Returns the time that one MiB more would have saved since the last sample.
    fn saved_by_step_ns(&self) -> u64 {
        const MIB: f64 = (1 << 20) as f64;
        let (pool_ns, disk_ns) = self.fault_costs_ns;
        let resident_ns = within(&self.seen.resident, 1.0) * pool_ns as f64
            + within(&self.seen.incompressible, 1.0) * disk_ns as f64;
        let pool_ns = within(&self.seen.pooled, 1.0) * disk_ns.saturating_sub(pool_ns) as f64;
        let a_step_ns = resident_ns.max(pool_ns);
        (a_step_ns * MIB / self.partition.step_bytes() as f64) as u64
    }

    /// Returns the likelihood that a page written back by a move refaults, beyond the recorded
    /// events. A nearly full pool would write the page back soon anyway. In another pool the page
    /// may be touched later: a sort that works on one half of its data will touch the other half.
    fn unseen_refault_share(&self) -> f64 {
        if self.view.is_nearly_full() { 0.0 } else { self.partition.refault_share() }
    }

    fn steps(&self, bytes: usize) -> f64 {
        bytes as f64 / self.partition.step_bytes() as f64
    }

    /// Returns the number of faults from the disk that a smaller pool would have had: the recorded
    /// ones, or, if more, those that a pool larger by as much would have saved.
    fn lost_by_pool(&self, bytes: usize) -> f64 {
        let most = self.partition.max_move(self.view, Towards::Pool);
        let more = most.min(bytes);
        let spared = within(&self.seen.pooled, self.steps(more)) * bytes as f64;
        let lost = within(&self.seen.lost, self.steps(bytes));
        lost.max(spared / more.max(1) as f64)
    }

    /// Returns the memory that resident pages gain. Unused space of the pool does not count.
    fn freed_bytes(&self, bytes: usize) -> usize {
        let mark_bytes = mark_bytes(self.view.limit_bytes - bytes);
        self.view.used_bytes.saturating_sub(mark_bytes).min(bytes)
    }
}

impl PoolView {
    /// Returns true if pages on the disk were probably written back under the present limit.
    pub(crate) fn is_full(self) -> bool {
        self.used_bytes >= self.limit_bytes / 100 * 70
    }

    /// Returns true if `auto` should use zstd. (A hash join fits at this use with zstd only.)
    pub(crate) fn is_filling(self) -> bool {
        self.used_bytes >= self.limit_bytes / 100 * 60
    }

    pub fn is_nearly_full(self) -> bool {
        self.used_bytes >= self.limit_bytes / 100 * NEARLY_FULL_PERCENT
    }

    fn average_bytes(self) -> usize {
        (self.used_bytes / self.objects.max(1)).clamp(1, PAGE_SIZE)
    }
}

#[cfg(test)]
mod tests;
