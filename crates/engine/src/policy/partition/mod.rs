//! How much of the budget the pool gets, by what either side would gain.
//!
//! DRAM given to the pool holds more pages, but each touch of one costs a fault;
//! DRAM left to resident pages holds fewer, at no cost; and what neither holds
//! costs a read from the disk. How soon a page is back after it left tells what
//! more DRAM would have spared, about: a page found in the pool would have stayed
//! resident, had there been room for as many pages as left meanwhile; one found
//! packed on the disk would still have been in the pool, had that held what was
//! written back since ([`WriteBackRate`]).
//!
//! Each is counted by how many steps of the limit would have spared it, times what such
//! a fault costs here ([`FaultCosts`]); and of the pages found in the pool, how many steps
//! less for it would have cost a read. So it is known of every move, by one step or by
//! many, what it would have gained, about: a loop gains nothing until all of it fits, a
//! hot set the more, the more of it does. For each move that adds up, and what it would
//! have lost takes off again (a cumulative sum, E. S. Page, 1954). Once it has come to
//! what the move costs, pages that have to be written and others that have to be packed,
//! the limit moves. A move back to resident pages that is undone before it can have gained
//! what it cost makes the next one wait for twice as much, one that is not for half.
//!
//! A pool that has room to spare holds all that packs, and nobody knows of a part of that
//! when it will be touched. Before such a pool becomes smaller, that must have gained what
//! it costs to read what is written back then, too: as one who rents skis buys them once the rent
//! has come to their price (ski rental; A. Karlin and others, 1988).

mod ghost_hits;
mod object_ages;
mod cusum;
mod fault_costs;

use crate::policy::pool_limit::PoolLimit;
use crate::policy::write_back_rate::WriteBackRate;
use cusum::{Cusum, Plan, Towards};
use fault_costs::WHOLE;
pub(crate) use fault_costs::{FaultCosts, Stopwatch};
use ghost_hits::{GhostHits, STEPS, Seen, steepest, within};
use object_ages::{ObjectAges, Samples};
use softswap_sys::PAGE_SIZE;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Faults that are looked at together.
const EVENTS: u32 = 128;
/// With fewer objects in the pool none are looked at.
const LEAST_OBJECTS: usize = 64;
/// At least so many of the pages that are written back are taken to come back.
const LEAST_BACK: f64 = 1.0 / 8.0;
/// A pool that is written back uses at least this much of its limit, in percent.
const FULL_PERCENT: usize = 70;
/// Share of its limit at which the pool is written back, in percent.
pub const WRITE_BACK_PERCENT: usize = 90;
/// Share of its limit from which on it has nothing to spare, in percent. Up to there it
/// keeps copies of resident pages.
pub const NEARLY_FULL_PERCENT: usize = 85;

/// Share of its limit from which on it may be full before long, in percent: what comes is to
/// be small. (From there on zstd makes room for a hash join that LZ4 does not.)
const FILLING_PERCENT: usize = 60;

/// The pool as it is.
#[derive(Debug, Clone, Copy)]
pub struct PoolView {
    /// What it may take.
    pub limit_bytes: usize,
    /// What it takes.
    pub used_bytes: usize,
    /// Pages in it.
    pub objects: usize,
}

/// A pool with that limit is written back when it takes more than this.
fn mark_bytes(limit_bytes: usize) -> usize {
    limit_bytes / 100 * WRITE_BACK_PERCENT
}

/// A step of the limit in a budget of so many bytes.
fn step_in(budget_bytes: usize) -> usize {
    (budget_bytes / STEPS).max(1)
}

/// The balance between the pool and resident pages.
#[derive(Debug)]
pub struct Partition {
    is_on: AtomicBool,
    least_bytes: AtomicUsize,
    most_bytes: AtomicUsize,
    step_bytes: AtomicUsize,
    budget_bytes: AtomicUsize,
    /// What was asked for, whatever it comes to in the budget of now.
    asked: Mutex<PoolLimit>,
    ghost_hits: GhostHits,
    ages: ObjectAges,
    costs: FaultCosts,
    write_back_rate: WriteBackRate,
    /// What one MiB more of DRAM would have spared so far, in ns.
    spared_ns: AtomicU64,
    cusum: Mutex<(Cusum, Samples)>,
}

impl Partition {
    /// Between a least and a most limit of the pool, in a budget of so many bytes, on so
    /// many processors.
    #[must_use]
    pub fn new(
        is_on: bool,
        least_bytes: usize,
        most_bytes: usize,
        budget_bytes: usize,
        processors: usize,
    ) -> Partition {
        Partition {
            is_on: AtomicBool::new(is_on),
            least_bytes: AtomicUsize::new(least_bytes),
            most_bytes: AtomicUsize::new(most_bytes),
            step_bytes: AtomicUsize::new(step_in(budget_bytes)),
            budget_bytes: AtomicUsize::new(budget_bytes),
            asked: Mutex::new(PoolLimit::Auto),
            ghost_hits: GhostHits::default(),
            ages: ObjectAges::default(),
            costs: FaultCosts::new(processors),
            write_back_rate: WriteBackRate::default(),
            spared_ns: AtomicU64::new(0),
            cusum: Mutex::default(),
        }
    }

    /// What passes through the pool.
    #[must_use]
    pub fn write_back_rate(&self) -> &WriteBackRate {
        &self.write_back_rate
    }

    /// Whether the limit moves.
    #[must_use]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Lets the limit move, or stay, and sets it: not while it is being moved. What
    /// was seen under another limit is forgotten.
    pub(crate) fn set(&self, asked: PoolLimit, is_on: bool, set_limit: impl FnOnce(usize)) {
        self.anew(|| {
            self.write_back_rate.forget();
            self.is_on.store(is_on, Relaxed);
            *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = asked;
            set_limit(self.limit_of(asked));
        });
    }

    /// The budget has another size from now on: so has the pool's limit, which was
    /// `limit_bytes`. What was asked for still holds; where the limit moves, it keeps its share.
    pub(crate) fn resize(
        &self,
        least_bytes: usize,
        most_bytes: usize,
        budget_bytes: usize,
        limit_bytes: usize,
        set_limit: impl FnOnce(usize),
    ) {
        let before_bytes = self.budget_bytes.load(Relaxed);
        let change = || {
            self.least_bytes.store(least_bytes, Relaxed);
            self.most_bytes.store(most_bytes, Relaxed);
            self.step_bytes.store(step_in(budget_bytes), Relaxed);
            self.budget_bytes.store(budget_bytes, Relaxed);
            if self.is_on() {
                let share = limit_bytes as f64 / before_bytes.max(1) as f64;
                let bytes = (budget_bytes as f64 * share) as usize;
                return set_limit(bytes.clamp(least_bytes, most_bytes));
            }
            let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            set_limit(self.limit_of(asked));
        };
        // All was counted by shares of the budget. So for one of about that size it holds about:
        // a budget that moves often would else know nothing ever.
        if (before_bytes / 2..=before_bytes * 2).contains(&budget_bytes) {
            let _still = self.cusum.lock().unwrap_or_else(PoisonError::into_inner);
            change();
        } else {
            self.anew(change);
        }
    }

    /// Changes something, not while the limit is being moved, and forgets what was seen
    /// before of moves. (What passes through the pool is an average that follows.)
    fn anew(&self, change: impl FnOnce()) {
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

    /// What the pool may take at first where so much was asked for: as it is, or
    /// the most if the limit moves. Too much costs unpacking and is soon seen, too
    /// little costs writing to the disk and reading back.
    #[must_use]
    fn limit_of(&self, asked: PoolLimit) -> usize {
        let asked_bytes = asked.bytes_of(self.budget_bytes.load(Relaxed));
        if self.is_on() { asked_bytes.min(self.most_bytes()) } else { asked_bytes }
    }

    /// The most that the pool may take, or `beyond_bytes` where that is more, if it moves and is
    /// below: where nothing can be written, what does not fit there has no other place.
    #[must_use]
    pub(crate) fn widest(&self, limit_bytes: usize, beyond_bytes: usize) -> Option<usize> {
        let most_bytes = self.most_bytes().max(beyond_bytes);
        (self.is_on() && limit_bytes < most_bytes).then_some(most_bytes)
    }

    /// What one MiB more of DRAM would have spared so far, in ns, about, by the faults that
    /// have been looked at: ghost hits times cost, for whichever side had gained more. Nothing
    /// is known of that while the limit does not move.
    #[must_use]
    pub(crate) fn spared_by_a_mib_ns(&self) -> u64 {
        self.spared_ns.load(Relaxed)
    }

    /// What faults cost.
    #[must_use]
    pub fn costs(&self) -> &FaultCosts {
        &self.costs
    }

    /// Whether more time goes by for reads from the disk than for unpacking.
    #[must_use]
    pub(crate) fn disk_dominates(&self) -> bool {
        let (pool_ns, disk_ns) = self.costs.faults_ns();
        let (unpacking_ns, reading_ns) = self.shares_ns(pool_ns, disk_ns);
        reading_ns > unpacking_ns
    }

    /// What goes by for unpacking, and for reads, in [`WHOLE`] faults at these costs.
    fn shares_ns(&self, pool_ns: u64, disk_ns: u64) -> (u64, u64) {
        let share = u64::from(self.costs.disk_share());
        ((u64::from(WHOLE) - share) * pool_ns, share * disk_ns)
    }

    /// How likely a page that is written back is taken to come back.
    fn share_back(&self) -> f64 {
        self.write_back_rate.share_back().max(LEAST_BACK)
    }

    /// A touched page was in the pool, and so many had left since it did.
    pub(crate) fn found_in_pool(&self, distance: u64, limit_bytes: usize, used_bytes: usize) {
        if !self.is_on() {
            return;
        }
        if !self.ages.are_known() {
            return self.ghost_hits.note_unknown();
        }
        let step_bytes = self.step_bytes();
        let distance_bytes = (distance as usize).saturating_mul(PAGE_SIZE);
        // The pool writes its oldest objects back first.
        let younger_bytes = self.ages.younger(distance, used_bytes);
        let room_bytes = mark_bytes(limit_bytes).saturating_sub(younger_bytes);
        // A smaller pool loses its end, and gains the memory of objects whose pages then stay
        // resident.
        let resident_share = younger_bytes as f64 / distance_bytes.max(1) as f64;
        let lost_bytes = mark_bytes(step_bytes) as f64 - resident_share * step_bytes as f64;
        let until_lost =
            if lost_bytes < 1.0 { STEPS } else { (room_bytes as f64 / lost_bytes) as usize };
        self.ghost_hits.note_pooled(distance_bytes / step_bytes, until_lost);
    }

    /// A touched page was on the disk because it does not pack, and so many had left since it
    /// did.
    pub(crate) fn found_incompressible(&self, distance: u64) {
        if self.is_on() {
            let bytes = (distance as usize).saturating_mul(PAGE_SIZE);
            self.ghost_hits.note_incompressible(bytes / self.step_bytes());
        }
    }

    /// A touched page was on the disk, packed, and the pool would have had to hold so
    /// many more for it.
    pub(crate) fn found_on_disk(&self, more: u64, pool: PoolView) {
        if self.is_on() && pool.is_full() {
            let more_bytes = (more as usize).saturating_mul(pool.average_bytes());
            self.ghost_hits.note_on_disk(more_bytes / self.step_bytes());
        }
    }

    /// Moves the pool's limit, once enough has been seen to change it. `at_random` says how
    /// many pages left since the one in the pool did that a random number stands for, if
    /// there is one.
    pub fn step(
        &self,
        view: impl FnOnce() -> PoolView,
        at_random: impl Fn(u64) -> Option<u64>,
        set_limit: impl FnOnce(usize),
    ) {
        let is_due = self.ghost_hits.events() >= EVENTS;
        let is_lost = || !self.ages.are_known() && self.ghost_hits.is_settled();
        if !self.is_on() || !is_due && !is_lost() {
            return;
        }
        let view = view();
        // Of a handful it would not find any.
        if !is_due && view.objects < LEAST_OBJECTS {
            return;
        }
        // Not waited for: a forked child may find it taken for good.
        let Ok(mut cusum) = self.cusum.try_lock() else { return };
        if !self.is_on() {
            return;
        }
        let (cusum, samples) = &mut *cusum;
        samples.look(at_random);
        self.ages.learn(samples);
        if !is_due {
            return;
        }
        if let Some(limit_bytes) = self.next(cusum, view) {
            // By when faults count again, the pool is another.
            samples.forget();
            self.ages.forget();
            set_limit(limit_bytes);
        }
    }

    fn next(&self, cusum: &mut Cusum, view: PoolView) -> Option<usize> {
        let look = Look {
            partition: self,
            view,
            seen: self.ghost_hits.take(),
            prices_ns: self.costs.faults_ns(),
        };
        self.spared_ns.fetch_add(look.spared_by_more_ns(), Relaxed);
        let (towards, steps) = cusum.follow(|towards, steps| look.plan(towards, steps))?;
        let bytes = look.bytes(towards, steps)?;
        Some(match towards {
            Towards::Pool => {
                self.ghost_hits.settle(0);
                view.limit_bytes + bytes
            }
            Towards::Resident => {
                self.ghost_hits.settle(look.freed_bytes(bytes) / PAGE_SIZE);
                view.limit_bytes - bytes
            }
        })
    }

    /// How far the limit may move.
    fn room(&self, view: PoolView, towards: Towards) -> usize {
        match towards {
            Towards::Pool => self.most_bytes().saturating_sub(view.limit_bytes),
            Towards::Resident => view.limit_bytes.saturating_sub(self.least_bytes.load(Relaxed)),
        }
    }
}

/// What was seen since the last look, and what it says of each move.
struct Look<'b> {
    partition: &'b Partition,
    view: PoolView,
    seen: Seen,
    /// What a page from the pool costs, and one from the disk.
    prices_ns: (u64, u64),
}

impl Look<'_> {
    /// How far a move of so many steps goes; `None` where one less comes to the bound.
    fn bytes(&self, towards: Towards, steps: usize) -> Option<usize> {
        let room = self.partition.room(self.view, towards);
        let step_bytes = self.partition.step_bytes();
        ((steps - 1) * step_bytes < room).then(|| room.min(steps * step_bytes))
    }

    /// What a move of so many steps had gained, and what it costs, if there is room for it.
    fn plan(&self, towards: Towards, steps: usize) -> Option<Plan> {
        let bytes = self.bytes(towards, steps)?;
        let (pool_ns, disk_ns) = self.prices_ns;
        let saved_ns = disk_ns.saturating_sub(pool_ns) as f64;
        let (pool_ns, disk_ns) = (pool_ns as f64, disk_ns as f64);
        // Pages that have to be packed, and touched ones that are unpacked again.
        let packing_ns = (bytes / PAGE_SIZE) as f64 * pool_ns;
        Some(match towards {
            Towards::Pool => {
                let gained_ns = within(&self.seen.pooled, self.steps(bytes)) * saved_ns;
                // What resident pages lose is not seen, but how much they would gain.
                let slope_ns = steepest(&self.seen.resident) * pool_ns
                    + steepest(&self.seen.incompressible) * disk_ns;
                let lost_ns = slope_ns * self.steps(bytes);
                Plan { gain_ns: gained_ns - lost_ns, cost_ns: packing_ns, reading_ns: 0.0 }
            }
            Towards::Resident => {
                let freed_bytes = self.freed_bytes(bytes);
                let freed = self.steps(freed_bytes);
                let gained_ns = within(&self.seen.resident, freed) * pool_ns
                    + within(&self.seen.incompressible, freed) * disk_ns;
                let passed_on = (freed_bytes / self.view.average_bytes()) as u64;
                let writing_ns = (passed_on * self.partition.costs.pass_on_ns()) as f64;
                let gain_ns = gained_ns - self.lost_by_pool(bytes) * saved_ns;
                let reading_ns = passed_on as f64 * self.unseen_share_back() * saved_ns;
                // Should it be wrong, it is undone.
                Plan { gain_ns, cost_ns: writing_ns + packing_ns, reading_ns }
            }
        })
    }

    /// What one MiB more, for resident pages or the pool, had spared since the last look.
    fn spared_by_more_ns(&self) -> u64 {
        const MIB: f64 = (1 << 20) as f64;
        let (pool_ns, disk_ns) = self.prices_ns;
        let resident_ns = within(&self.seen.resident, 1.0) * pool_ns as f64
            + within(&self.seen.incompressible, 1.0) * disk_ns as f64;
        let pool_ns = within(&self.seen.pooled, 1.0) * disk_ns.saturating_sub(pool_ns) as f64;
        let a_step_ns = resident_ns.max(pool_ns);
        (a_step_ns * MIB / self.partition.step_bytes() as f64) as u64
    }

    /// How likely a page that a move writes back is touched again, beyond what was seen of
    /// it; certain, where none has been lately. From a pool that is nearly full it is
    /// written back before long as it is. From another it would stay: a sort that is at work on half of
    /// what it sorts is going to touch the other half, too.
    fn unseen_share_back(&self) -> f64 {
        if self.view.is_nearly_full() { 0.0 } else { self.partition.share_back() }
    }

    fn steps(&self, bytes: usize) -> f64 {
        bytes as f64 / self.partition.step_bytes() as f64
    }

    /// Faults from the disk that there had been with so many bytes less for the pool: what
    /// was seen, or what as many more had spared; beyond its bound as up to there.
    fn lost_by_pool(&self, bytes: usize) -> f64 {
        let most = self.partition.room(self.view, Towards::Pool);
        let more = most.min(bytes);
        let spared = within(&self.seen.pooled, self.steps(more)) * bytes as f64;
        let lost = within(&self.seen.lost, self.steps(bytes));
        lost.max(spared / more.max(1) as f64)
    }

    /// What resident pages get of a limit lower by so many bytes: not what the pool does not
    /// use.
    fn freed_bytes(&self, bytes: usize) -> usize {
        let mark_bytes = mark_bytes(self.view.limit_bytes - bytes);
        self.view.used_bytes.saturating_sub(mark_bytes).min(bytes)
    }
}

impl PoolView {
    /// Whether there is no room in it: what is on the disk was written back from it as it is now,
    /// and not when it was smaller.
    pub(crate) fn is_full(self) -> bool {
        self.used_bytes >= self.limit_bytes / 100 * FULL_PERCENT
    }

    /// Whether it may have nothing to spare before long.
    pub(crate) fn is_filling(self) -> bool {
        self.used_bytes >= self.limit_bytes / 100 * FILLING_PERCENT
    }

    /// Whether it has nothing to spare: each page that comes makes another one go on.
    pub fn is_nearly_full(self) -> bool {
        self.used_bytes >= self.limit_bytes / 100 * NEARLY_FULL_PERCENT
    }

    /// Of a page in it.
    fn average_bytes(self) -> usize {
        (self.used_bytes / self.objects.max(1)).clamp(1, PAGE_SIZE)
    }
}

#[cfg(test)]
mod tests;
