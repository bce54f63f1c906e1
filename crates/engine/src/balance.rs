//! How much of the budget the pool gets, by what either side would gain.
//!
//! DRAM given to the pool holds more pages, but each touch of one costs a fault;
//! DRAM left to resident pages holds fewer, at no cost; and what neither holds
//! costs a read from the disk. How soon a page is back after it left tells what
//! more DRAM would have spared: a page found in the pool would have stayed
//! resident, had there been room for as many pages as left meanwhile; one found
//! on the disk would still have been in the pool, had that held so many.
//!
//! Both are counted for one step of the limit and for all the way to its bound,
//! each in faults spared per byte, times what such a fault costs here. The
//! steeper of the two counts: a loop gains nothing until all of it fits, a hot
//! set gains by the first byte. The limit moves towards the side that gains more,
//! to the pool at once; back only after some patience, which grows each time it
//! was wrong, since what is written to the disk meanwhile costs most.

use crate::stats::Tier;
use softswap_sys::PAGE_SIZE;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// A step is one in so many bytes of the budget.
const STEPS: usize = 16;
/// Faults that are looked at together.
const EVENTS: u32 = 128;
/// The resident side must gain so many times as much, to take DRAM back.
const RELUCTANCE: f64 = 4.0;
/// In so many looks in a row, at first and at most.
const LEAST_PATIENCE: u32 = 4;
const MOST_PATIENCE: u32 = 1024;
/// A share of 1.
const WHOLE: u32 = 1 << 20;
/// What faults are taken to cost until one has been seen.
const POOL_FAULT_NS: u64 = 5_000;
const DISK_FAULT_NS: u64 = 60_000;
/// What another page takes to leave until some have been seen.
const LEAVE_NS: u64 = 5_000;
/// What a page took counts for at most so many times what they took so far.
const MOST_TIMES: u64 = 4;
/// The way into the fault's handler and out of it, which nobody can measure there.
const SIGNAL_NS: u64 = 2_500;

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

/// Faults that more DRAM would have spared: a step more, and all there could be.
#[derive(Debug, Default)]
struct Spared {
    by_step: AtomicU32,
    by_all: AtomicU32,
}

impl Spared {
    fn note(&self, needed_bytes: usize, step_bytes: usize, all_bytes: usize) {
        if needed_bytes < all_bytes {
            self.by_all.fetch_add(1, Relaxed);
            self.by_step.fetch_add(u32::from(needed_bytes < step_bytes), Relaxed);
        }
    }

    /// Takes what was counted: faults spared per byte.
    fn take_slope(&self, step_bytes: usize, all_bytes: usize) -> f64 {
        let (by_step, by_all) = (self.by_step.swap(0, Relaxed), self.by_all.swap(0, Relaxed));
        // Noted before the limit reached its bound: nothing more can be had there.
        if all_bytes == 0 {
            return 0.0;
        }
        let slope = |count: u32, bytes: usize| f64::from(count) / bytes.max(1) as f64;
        slope(by_step, step_bytes.min(all_bytes)).max(slope(by_all, all_bytes))
    }
}

/// What was decided so far.
#[derive(Debug)]
struct Course {
    /// Looks in a row that spoke for resident pages.
    calm: u32,
    patience: u32,
    was_taken_back: bool,
}

/// The balance between the pool and resident pages.
#[derive(Debug)]
pub struct Balance {
    is_on: AtomicBool,
    least_bytes: usize,
    most_bytes: usize,
    step_bytes: usize,
    /// Of faults on pages in the pool, and of those on packed ones on the disk.
    resident: Spared,
    pool: Spared,
    pool_fault_ns: AtomicU64,
    disk_fault_ns: AtomicU64,
    /// Processor time for each page that leaves.
    leave_ns: AtomicU64,
    /// Of these faults, how many were from the disk, out of [`WHOLE`].
    disk_share: AtomicU32,
    course: Mutex<Course>,
}

impl Balance {
    /// Between a least and a most limit of the pool, in a budget of so many bytes.
    #[must_use]
    pub fn new(is_on: bool, least_bytes: usize, most_bytes: usize, budget_bytes: usize) -> Balance {
        Balance {
            is_on: AtomicBool::new(is_on),
            least_bytes,
            most_bytes,
            step_bytes: (budget_bytes / STEPS).max(1),
            resident: Spared::default(),
            pool: Spared::default(),
            pool_fault_ns: AtomicU64::new(POOL_FAULT_NS),
            disk_fault_ns: AtomicU64::new(DISK_FAULT_NS),
            leave_ns: AtomicU64::new(LEAVE_NS),
            disk_share: AtomicU32::new(0),
            course: Mutex::new(Course { calm: 0, patience: LEAST_PATIENCE, was_taken_back: false }),
        }
    }

    /// Whether the limit moves.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Lets the limit move, or stay, and sets it: not while it is being moved.
    pub fn set(&self, on: bool, set_limit: impl FnOnce()) {
        let _course = self.course.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_on.store(on, Relaxed);
        set_limit();
    }

    /// What the pool may take at first where so much was asked for: as it is, or
    /// the most if the limit moves. Too much costs unpacking and is soon seen, too
    /// little costs writing to the disk and reading back.
    #[must_use]
    pub fn limit_of(&self, asked_bytes: usize) -> usize {
        if self.is_on() { asked_bytes.min(self.most_bytes) } else { asked_bytes }
    }

    /// A fault took so long.
    pub fn took(&self, tier: Tier, ns: u64) {
        let (average, is_disk) = match tier {
            Tier::Pool => (&self.pool_fault_ns, 0),
            Tier::Disk => (&self.disk_fault_ns, WHOLE),
            _ => return,
        };
        follow(average, ns, 64);
        let share = self.disk_share.load(Relaxed);
        self.disk_share.store(share - share / 256 + is_disk / 256, Relaxed);
    }

    /// So many pages left, for so much processor time.
    pub fn left(&self, pages: u64, cpu_ns: u64) {
        let Some(each_ns) = cpu_ns.checked_div(pages) else { return };
        let seen = self.leave_ns.load(Relaxed);
        // Rounds in which hardly anything could leave say little of those to come.
        follow(&self.leave_ns, each_ns.min(MOST_TIMES * seen.max(LEAVE_NS)), 16);
    }

    /// Whether more time goes by for reads from the disk than for unpacking: then a
    /// page that need not come from there is to make room for one that must.
    #[must_use]
    pub fn disk_dominates(&self) -> bool {
        let share = u64::from(self.disk_share.load(Relaxed));
        let (pool_ns, disk_ns) = self.prices_ns();
        share * disk_ns > (u64::from(WHOLE) - share) * pool_ns
    }

    /// What a page costs that is to come from the pool, and from the disk. Each makes
    /// another one leave.
    fn prices_ns(&self) -> (u64, u64) {
        let beside_ns = SIGNAL_NS + self.leave_ns.load(Relaxed);
        let price = |fault_ns: &AtomicU64| fault_ns.load(Relaxed) + beside_ns;
        (price(&self.pool_fault_ns), price(&self.disk_fault_ns))
    }

    /// A touched page was in the pool, and so many had left since it did.
    pub fn found_in_pool(&self, distance: u64, limit_bytes: usize) {
        let regained = limit_bytes.saturating_sub(self.least_bytes);
        self.resident.note(distance as usize * PAGE_SIZE, self.step_bytes, regained);
    }

    /// A touched page was on the disk, packed, and so many had left since it did.
    pub fn found_on_disk(&self, distance: u64, pool: PoolView) {
        let average_bytes = pool.used_bytes / pool.objects.max(1);
        let needed = (distance as usize).saturating_sub(pool.objects) * average_bytes;
        let room = self.most_bytes.saturating_sub(pool.limit_bytes);
        self.pool.note(needed, self.step_bytes, room);
    }

    /// Moves the pool's limit, once enough has been seen to change it.
    pub fn step(&self, limit_bytes: impl FnOnce() -> usize, set_limit: impl FnOnce(usize)) {
        let events = self.resident.by_all.load(Relaxed) + self.pool.by_all.load(Relaxed);
        if events < EVENTS {
            return;
        }
        // Not waited for: a forked child may find it taken for good.
        let Ok(mut course) = self.course.try_lock() else { return };
        if self.is_on()
            && let Some(limit_bytes) = self.next(&mut course, limit_bytes())
        {
            set_limit(limit_bytes);
        }
    }

    fn next(&self, course: &mut Course, limit_bytes: usize) -> Option<usize> {
        let (pool_ns, disk_ns) = self.prices_ns();
        let saved_ns = disk_ns.saturating_sub(pool_ns);
        let (regained, room) = (
            limit_bytes.saturating_sub(self.least_bytes),
            self.most_bytes.saturating_sub(limit_bytes),
        );
        let resident = self.resident.take_slope(self.step_bytes, regained) * pool_ns as f64;
        let pool = self.pool.take_slope(self.step_bytes, room) * saved_ns as f64;
        let moved = course.decide(resident, pool)?;
        let next = match moved {
            Towards::Pool => (limit_bytes + self.step_bytes).min(self.most_bytes),
            Towards::Resident => {
                limit_bytes.saturating_sub(self.step_bytes).max(self.least_bytes.min(limit_bytes))
            }
        };
        (next != limit_bytes).then_some(next)
    }
}

enum Towards {
    Pool,
    Resident,
}

impl Course {
    fn decide(&mut self, resident: f64, pool: f64) -> Option<Towards> {
        if pool > resident {
            self.calm = 0;
            if std::mem::take(&mut self.was_taken_back) {
                self.patience = (2 * self.patience).min(MOST_PATIENCE);
            }
            return Some(Towards::Pool);
        }
        if resident <= RELUCTANCE * pool {
            self.calm = 0;
            return None;
        }
        self.calm += 1;
        if self.calm < self.patience {
            return None;
        }
        self.calm = 0;
        self.was_taken_back = true;
        Some(Towards::Resident)
    }
}

/// Moves an average by one in so many towards what was seen. Threads may overwrite each
/// other's note: it is an average.
fn follow(average: &AtomicU64, ns: u64, of: u64) {
    let seen = average.load(Relaxed);
    average.store(seen - seen / of + ns / of, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUDGET: usize = 64 << 20;
    const LEAST: usize = BUDGET / 5 * 2;
    const MOST: usize = BUDGET / 5 * 4;
    const STEP: usize = BUDGET / STEPS;

    fn balance() -> Balance {
        Balance::new(true, LEAST, MOST, BUDGET)
    }

    /// A full pool of pages that pack to a quarter.
    fn view(limit_bytes: usize) -> PoolView {
        PoolView { limit_bytes, used_bytes: limit_bytes, objects: limit_bytes / 1024 }
    }

    fn look(balance: &Balance, limit: usize, pooled: &[u64], on_disk: &[u64]) -> usize {
        for at in 0..EVENTS as usize {
            if let Some(distance) = pooled.get(at % pooled.len().max(1)) {
                balance.found_in_pool(*distance, limit);
            }
            if let Some(distance) = on_disk.get(at % on_disk.len().max(1)) {
                balance.found_on_disk(*distance, view(limit));
            }
        }
        let mut next = limit;
        balance.step(|| limit, |moved| next = moved);
        next
    }

    #[test]
    fn pages_that_a_larger_pool_had_held_let_it_grow_up_to_its_most() {
        let balance = balance();
        let mut limit = LEAST;
        for _ in 0..7 {
            let behind = view(limit).objects as u64 + 1000;
            let next = look(&balance, limit, &[], &[behind]);
            assert!(next == (limit + STEP).min(MOST));
            limit = next;
        }
        assert_eq!(limit, MOST);
    }

    #[test]
    fn pages_that_no_pool_had_held_do_not() {
        let balance = balance();
        assert_eq!(look(&balance, LEAST, &[], &[MOST as u64 / 512]), LEAST);
        assert_eq!(look(&balance, MOST, &[], &[10]), MOST);
    }

    #[test]
    fn a_loop_that_would_just_fit_is_reason_enough() {
        let balance = balance();
        let whole = (MOST / 1024) as u64 - 100;
        assert_eq!(look(&balance, LEAST, &[], &[whole]), LEAST + STEP);
    }

    #[test]
    fn pages_that_had_stayed_resident_take_it_back_with_patience() {
        let balance = balance();
        let mut looks = 0;
        let mut limit = MOST;
        while limit > LEAST {
            limit = look(&balance, limit, &[100], &[]);
            looks += 1;
        }
        assert_eq!(looks, LEAST_PATIENCE * ((MOST - LEAST).div_ceil(STEP)) as u32);
        // That was wrong: next time it takes twice as long.
        assert_eq!(look(&balance, limit, &[], &[10]), LEAST + STEP);
        let again = (1..).find(|_| look(&balance, LEAST + STEP, &[100], &[]) == LEAST).unwrap();
        assert_eq!(again, 2 * LEAST_PATIENCE);
    }

    #[test]
    fn the_disk_dominates_by_time_not_by_number() {
        let balance = balance();
        assert!(!balance.disk_dominates());
        let faults = |pooled: u32, on_disk: u32| {
            for _ in 0..200 {
                (0..pooled).for_each(|_| balance.took(Tier::Pool, 5_000));
                (0..on_disk).for_each(|_| balance.took(Tier::Disk, 50_000));
            }
            balance.disk_dominates()
        };
        assert!(faults(3, 1));
        assert!(!faults(10, 1));
        assert!(faults(0, 5));
        assert!(faults(3, 1));
        // The dearer it is to make others leave, the less it matters where they go.
        (0..200).for_each(|_| balance.left(32, 32 * 40_000));
        assert!(!faults(3, 1));
        balance.left(0, 1_000);
    }

    #[test]
    fn what_is_set_stays() {
        let balance = Balance::new(false, LEAST, MOST, BUDGET);
        assert_eq!(look(&balance, LEAST, &[], &[10]), LEAST);
        balance.set(true, || {});
        assert_eq!(look(&balance, LEAST, &[], &[10]), LEAST + STEP);
        // Set by hand, below the least.
        assert_eq!(look(&balance, STEP, &[], &[10]), 2 * STEP);
    }

    proptest! {
        #[test]
        fn the_limit_keeps_to_its_bounds(
            looks in prop::collection::vec((0..40_000u64, 0..200_000u64), 1..60),
            times in prop::collection::vec((0..100_000u64, 0..1_000_000u64), 1..60),
        ) {
            let balance = balance();
            let mut limit = LEAST;
            for ((pooled, on_disk), (pool_ns, disk_ns)) in looks.into_iter().zip(times) {
                balance.took(Tier::Pool, pool_ns);
                balance.took(Tier::Disk, disk_ns);
                limit = look(&balance, limit, &[pooled], &[on_disk]);
                prop_assert!((LEAST..=MOST).contains(&limit));
            }
        }
    }
}
