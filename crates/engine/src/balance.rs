//! How much of the budget the pool gets, by what either side would gain.
//!
//! DRAM given to the pool holds more pages, but each touch of one costs a fault;
//! DRAM left to resident pages holds fewer, at no cost; and what neither holds
//! costs a read from the disk. How soon a page is back after it left tells what
//! more DRAM would have spared: a page found in the pool would have stayed
//! resident, had there been room for as many pages as left meanwhile; one found
//! on the disk would still have been in the pool, had that held what went on from
//! there meanwhile ([`Turnover`]).
//!
//! Both are counted for one step of the limit and for all the way to its bound,
//! each in faults spared per byte, times what such a fault costs here. The
//! steeper of the two counts: a loop gains nothing until all of it fits, a hot
//! set gains by the first byte. What a step would have gained adds up, and what it
//! would have lost takes off again (a cumulative sum, E. S. Page, 1954). Once it has
//! come to what the step costs, the limit moves: what has to go on to the disk for it
//! must be written, and some of it read again. So what is lost by waiting for a step
//! is about what is lost by one that was wrong, whatever the program and the disk are like. A step
//! back to resident pages that had to be undone makes the next one wait for twice
//! as much, one that was followed by another for half.

use crate::average::follow;
use crate::page::Place;
use crate::refault::Weight;
use crate::stats::Tier;
use crate::turnover::Turnover;
use softswap_sys::PAGE_SIZE;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// A step is one in so many bytes of the budget.
const STEPS: usize = 16;
/// Faults that are looked at together.
const EVENTS: u32 = 128;
/// How often what a step back costs may be doubled, and halved: a quarter to 256 times.
const MOST_DOUBT: i32 = 8;
const LEAST_DOUBT: i32 = -2;
/// At least so many of the pages that go on are taken to come back.
const LEAST_BACK: f64 = 1.0 / 8.0;
/// A share of 1.
const WHOLE: u32 = 1 << 20;
/// A page weighs at most so many times what all do on average: what is soon must not be
/// ever after.
const MOST_WEIGHT: u64 = 4;
/// What faults are taken to cost until one has been seen.
const POOL_FAULT_NS: u64 = 5_000;
const DISK_FAULT_NS: u64 = 60_000;
/// What another page takes to leave until some have been seen.
const LEAVE_NS: u64 = 5_000;
/// What a page took counts for at most so many times what they took so far.
const MOST_TIMES: u64 = 4;
/// The way into the fault's handler and out of it, which nobody can measure there.
const SIGNAL_NS: u64 = 2_500;

/// A pool that is written back uses at least this much of its limit, in percent.
const FULL_PERCENT: usize = 70;
/// Share of its limit at which the pool is written back, in percent.
pub const WRITE_BACK_PERCENT: usize = 90;

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

    fn forget(&self) {
        self.by_step.store(0, Relaxed);
        self.by_all.store(0, Relaxed);
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
    turnover: Turnover,
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
            turnover: Turnover::default(),
            course: Mutex::new(Course::default()),
        }
    }

    /// What passes through the pool.
    #[must_use]
    pub fn turnover(&self) -> &Turnover {
        &self.turnover
    }

    /// Whether the limit moves.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Lets the limit move, or stay, and sets it: not while it is being moved. What
    /// was seen under another limit is forgotten.
    pub fn set(&self, on: bool, set_limit: impl FnOnce()) {
        let mut course = self.course.lock().unwrap_or_else(PoisonError::into_inner);
        *course = Course::default();
        [&self.resident, &self.pool].into_iter().for_each(Spared::forget);
        self.turnover.forget();
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

    /// The most that the pool may take, if it moves and is below: where nothing can be
    /// written, what does not fit there has no other place.
    #[must_use]
    pub fn widest(&self, limit_bytes: usize) -> Option<usize> {
        (self.is_on() && limit_bytes < self.most_bytes).then_some(self.most_bytes)
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

    /// What it costs to bring a page back from `place`, beside the average of faults from
    /// the pool and from the disk. What went on from the pool is as the average: the next
    /// time it costs what the pool does, or what the disk does. While more time goes by
    /// for reads than for unpacking, what is unpacked makes room for what must be read.
    #[must_use]
    pub fn weight(&self, place: Place) -> Weight {
        let (pool_ns, disk_ns) = self.prices_ns();
        let (unpacking_ns, reading_ns) = self.shares_ns((pool_ns, disk_ns));
        let average_ns = (unpacking_ns + reading_ns) / u64::from(WHOLE);
        let even = |price_ns: u64| Weight { price_ns, average_ns, rival_ns: price_ns };
        match place {
            // One word is no dearer than that.
            Place::Pool { .. } | Place::Filled { .. } if reading_ns > unpacking_ns => {
                Weight { rival_ns: disk_ns, ..even(pool_ns) }
            }
            Place::Pool { .. } | Place::Filled { .. } => even(pool_ns),
            Place::Slot { .. } => even(disk_ns.min(MOST_WEIGHT * average_ns)),
            _ => even(average_ns),
        }
    }

    /// Whether more time goes by for reads from the disk than for unpacking.
    #[must_use]
    pub fn disk_dominates(&self) -> bool {
        let (unpacking_ns, reading_ns) = self.shares_ns(self.prices_ns());
        reading_ns > unpacking_ns
    }

    /// What goes by for unpacking, and for reads, in [`WHOLE`] faults at these prices.
    fn shares_ns(&self, (pool_ns, disk_ns): (u64, u64)) -> (u64, u64) {
        let share = u64::from(self.disk_share.load(Relaxed));
        ((u64::from(WHOLE) - share) * pool_ns, share * disk_ns)
    }

    /// What a page costs that is to come from the pool, and from the disk. Each makes
    /// another one leave.
    fn prices_ns(&self) -> (u64, u64) {
        let beside_ns = SIGNAL_NS + self.leave_ns.load(Relaxed);
        let price = |fault_ns: &AtomicU64| fault_ns.load(Relaxed) + beside_ns;
        (price(&self.pool_fault_ns), price(&self.disk_fault_ns))
    }

    /// What is spared with a page that stays in the pool and is touched there: reading
    /// it, and that it goes on to the disk, with those beside it that are not touched.
    #[must_use]
    pub fn spared_ns(&self) -> f64 {
        let (pool_ns, disk_ns) = self.prices_ns();
        let gone_ns =
            self.leave_ns.load(Relaxed) as f64 / self.turnover.share_back().max(LEAST_BACK);
        disk_ns.saturating_sub(pool_ns) as f64 + gone_ns
    }

    /// A touched page was in the pool, and so many had left since it did.
    pub fn found_in_pool(&self, distance: u64, limit_bytes: usize) {
        if !self.is_on() {
            return;
        }
        let regained = limit_bytes.saturating_sub(self.least_bytes);
        self.resident.note(distance as usize * PAGE_SIZE, self.step_bytes, regained);
    }

    /// A touched page was on the disk, packed, and the pool would have had to hold so
    /// many more for it.
    pub fn found_on_disk(&self, more: u64, pool: PoolView) {
        if !self.is_on() || !pool.is_full() {
            return;
        }
        let room = self.most_bytes.saturating_sub(pool.limit_bytes);
        self.pool.note((more as usize).saturating_mul(pool.average_bytes()), self.step_bytes, room);
    }

    /// Moves the pool's limit, once enough has been seen to change it.
    pub fn step(&self, view: impl FnOnce() -> PoolView, set_limit: impl FnOnce(usize)) {
        let events = self.resident.by_all.load(Relaxed) + self.pool.by_all.load(Relaxed);
        if events < EVENTS {
            return;
        }
        // Not waited for: a forked child may find it taken for good.
        let Ok(mut course) = self.course.try_lock() else { return };
        if self.is_on()
            && let Some(limit_bytes) = self.next(&mut course, view())
        {
            set_limit(limit_bytes);
        }
    }

    fn next(&self, course: &mut Course, view: PoolView) -> Option<usize> {
        let limit_bytes = view.limit_bytes;
        let (regained, room) = (
            limit_bytes.saturating_sub(self.least_bytes),
            self.most_bytes.saturating_sub(limit_bytes),
        );
        let (down, up) = (self.step_bytes.min(regained), self.step_bytes.min(room));
        let (pool_ns, disk_ns) = self.prices_ns();
        let saved_ns = disk_ns.saturating_sub(pool_ns);
        let resident = self.resident.take_slope(self.step_bytes, regained) * pool_ns as f64;
        let pool = self.pool.take_slope(self.step_bytes, room) * saved_ns as f64;
        let gain_ns = resident * down as f64 - pool * up as f64;
        let next = match course.follow(gain_ns, &self.costs(view, down, (pool_ns, disk_ns)))? {
            Towards::Pool => limit_bytes + up,
            Towards::Resident => limit_bytes - down,
        };
        (next != limit_bytes).then_some(next)
    }

    /// What a step costs, or one of `down` bytes to resident pages, by what a page from
    /// the pool does and one from the disk.
    fn costs(&self, view: PoolView, down: usize, (pool_ns, disk_ns): (u64, u64)) -> Costs {
        // Pages that have to be packed, and touched ones that are unpacked again.
        let to_pool_ns = (self.step_bytes / PAGE_SIZE) as f64 * pool_ns as f64;
        // What is above the mark of the lower limit goes on; some will be wanted back.
        let kept = (view.limit_bytes - down) / 100 * WRITE_BACK_PERCENT;
        let shed = view.used_bytes.saturating_sub(kept).min(down);
        let each_ns =
            self.leave_ns.load(Relaxed) as f64 + self.turnover.share_back() * disk_ns as f64;
        let shed_ns = (shed / view.average_bytes()) as f64 * each_ns;
        // Should it be wrong, it is undone.
        Costs { to_pool_ns, to_resident_ns: shed_ns + to_pool_ns, is_free: shed == 0 }
    }
}

impl PoolView {
    /// Whether there is no room in it: what is on the disk went on from it as it is now,
    /// and not when it was smaller.
    pub(crate) fn is_full(self) -> bool {
        self.used_bytes >= self.limit_bytes / 100 * FULL_PERCENT
    }

    /// Of a page in it.
    pub(crate) fn average_bytes(self) -> usize {
        (self.used_bytes / self.objects.max(1)).clamp(1, PAGE_SIZE)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Towards {
    Pool,
    Resident,
}

/// What a step costs.
struct Costs {
    to_pool_ns: f64,
    to_resident_ns: f64,
    /// Nothing goes on to the disk for one to resident pages: it takes what the pool
    /// does not use, so that it is neither right nor wrong.
    is_free: bool,
}

/// What speaks for a step, and what was decided so far.
#[derive(Debug, Default)]
struct Course {
    /// What a step had gained by now, had it been made when that began to pay.
    to_pool_ns: f64,
    to_resident_ns: f64,
    /// The last step, if it was one that can be wrong.
    last: Option<Towards>,
    /// How often what a step back costs is doubled, or halved.
    doubt: i32,
}

impl Course {
    /// Resident pages would have gained so much by a step since the last look, or lost.
    fn follow(&mut self, gain_ns: f64, costs: &Costs) -> Option<Towards> {
        self.to_resident_ns = (self.to_resident_ns + gain_ns).max(0.0);
        self.to_pool_ns = (self.to_pool_ns - gain_ns).max(0.0);
        let is_after_one = self.last == Some(Towards::Resident);
        let towards = if self.to_pool_ns > costs.to_pool_ns {
            // That one was wrong.
            self.doubt = (self.doubt + i32::from(is_after_one)).min(MOST_DOUBT);
            Towards::Pool
        } else if self.to_resident_ns > costs.to_resident_ns * 2_f64.powi(self.doubt) {
            // That one was right.
            self.doubt = (self.doubt - i32::from(is_after_one)).max(LEAST_DOUBT);
            Towards::Resident
        } else {
            return None;
        };
        let is_free = towards == Towards::Resident && costs.is_free;
        let last = (!is_free).then_some(towards);
        *self = Course { last, doubt: self.doubt, ..Course::default() };
        Some(towards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUDGET: usize = 64 << 20;
    const LEAST: usize = BUDGET / 5 * 2;
    const MOST: usize = BUDGET / 5 * 4;
    const STEP: usize = BUDGET / STEPS;

    /// Pages of the pool go on when they are this old, all of them.
    const AGE: u64 = 10_000;

    fn balance() -> Balance {
        let balance = Balance::new(true, LEAST, MOST, BUDGET);
        balance.turnover.note_age(AGE);
        pass_on(&balance, 4000);
        balance
    }

    /// So many pages left, and as many went on.
    fn pass_on(balance: &Balance, pages: u64) {
        balance.turnover.note_left(pages);
        balance.turnover.note_gone(pages);
    }

    /// A full pool of pages that pack to a quarter.
    fn full(limit_bytes: usize) -> PoolView {
        PoolView { limit_bytes, used_bytes: limit_bytes, objects: limit_bytes / 1024 }
    }

    /// Found in the pool, and on the disk, at these distances.
    fn look(balance: &Balance, pool: PoolView, pooled: &[u64], on_disk: &[u64]) -> usize {
        for at in 0..EVENTS as usize {
            if let Some(distance) = pooled.get(at % pooled.len().max(1)) {
                balance.found_in_pool(*distance, pool.limit_bytes);
            }
            if let Some(distance) = on_disk.get(at % on_disk.len().max(1)) {
                balance.found_on_disk(balance.turnover.note_found(*distance), pool);
            }
        }
        let mut next = pool.limit_bytes;
        balance.step(|| pool, |moved| next = moved);
        next
    }

    /// How many looks alike it takes until the limit moves, and to where.
    fn until_moved(
        balance: &Balance,
        pool: PoolView,
        pooled: &[u64],
        on_disk: &[u64],
    ) -> Option<(usize, usize)> {
        let mut looks = (1..1000).map(|count| (count, look(balance, pool, pooled, on_disk)));
        looks.find(|(_, next)| *next != pool.limit_bytes)
    }

    #[test]
    fn pages_that_a_larger_pool_had_held_let_it_grow_up_to_its_most() {
        let balance = balance();
        let mut limit = LEAST;
        while limit < MOST {
            let (looks, next) = until_moved(&balance, full(limit), &[], &[AGE + 1000]).unwrap();
            assert!(looks <= 4 && next == (limit + STEP).min(MOST), "{looks} looks");
            limit = next;
        }
    }

    #[test]
    fn pages_that_no_pool_had_held_do_not() {
        let balance = balance();
        let far = AGE + MOST as u64 / 512;
        assert_eq!(until_moved(&balance, full(LEAST), &[], &[far]), None);
        assert_eq!(until_moved(&balance, full(MOST), &[], &[AGE]), None);
    }

    #[test]
    fn a_loop_that_would_just_fit_is_reason_enough() {
        let balance = balance();
        let whole = AGE + ((MOST - LEAST) / 1024) as u64 - 100;
        let (looks, next) = until_moved(&balance, full(LEAST), &[], &[whole]).unwrap();
        assert!(looks > 4 && next == LEAST + STEP, "{looks} looks");
    }

    #[test]
    fn pages_that_had_stayed_resident_take_it_back_for_what_that_costs() {
        let balance = balance();
        let (first, next) = until_moved(&balance, full(MOST), &[100], &[]).unwrap();
        assert_eq!(next, MOST - STEP);
        let empty = PoolView { used_bytes: 0, objects: 0, ..full(next) };
        let (free, next) = until_moved(&balance, empty, &[100], &[]).unwrap();
        assert!(free < first && next == MOST - 2 * STEP, "{free} and {first} looks");
        // What goes on will be wanted back.
        (0..8000).for_each(|_| assert_eq!(balance.turnover.note_found(AGE), 0));
        let (dear, _) = until_moved(&balance, full(next), &[100], &[]).unwrap();
        assert!(dear > 2 * first, "{dear} and {first} looks");
    }

    #[test]
    fn a_step_back_that_was_wrong_makes_the_next_one_wait_longer() {
        let balance = balance();
        let back = || until_moved(&balance, full(MOST), &[100], &[]).unwrap().0;
        let forth = || {
            pass_on(&balance, 8000);
            let undone = until_moved(&balance, full(MOST - STEP), &[], &[AGE + 10]);
            assert_eq!(undone.unwrap().1, MOST);
        };
        let first = back();
        forth();
        let second = back();
        forth();
        let third = back();
        assert!(second * 2 >= first * 3 && third * 2 >= second * 3, "{first}, {second}, {third}");
        // One that is followed by another was right.
        until_moved(&balance, full(MOST - STEP), &[100], &[]).unwrap();
        forth();
        assert!(back() < 2 * third);
    }

    #[test]
    fn what_speaks_for_one_side_mostly_adds_up() {
        let balance = balance();
        let mut looks = 0..500;
        let moved = looks.find(|at| {
            let pool = full(MOST - STEP);
            let next = match at % 4 {
                // A few pages from the disk cost as much as many from the pool.
                0 => look(&balance, pool, &[100], &[AGE + 10, AGE * 100, AGE * 100, AGE * 100]),
                _ => look(&balance, pool, &[100], &[]),
            };
            next < pool.limit_bytes
        });
        assert!(moved.is_some());
    }

    #[test]
    fn a_page_weighs_what_it_costs_beside_the_average() {
        let balance = balance();
        let weight = |place: Place| {
            let Weight { price_ns, average_ns, .. } = balance.weight(place);
            price_ns as f64 / average_ns as f64
        };
        let (pooled, own, packed) = (
            Place::Pool { handle: 0 },
            Place::Slot { slot: 1 },
            Place::Packed { slot: 1, part: 0 },
        );
        // Where all come from one place, none is worth more than the others.
        for (tier, ns, all) in [(Tier::Pool, 5_000, pooled), (Tier::Disk, 50_000, own)] {
            (0..5000).for_each(|_| balance.took(tier, ns));
            assert!((0.9..1.1).contains(&weight(all)), "{all:?} {}", weight(all));
        }
        // 12.5 us each for nine from the pool, 57.5 for one from the disk.
        for _ in 0..500 {
            (0..9).for_each(|_| balance.took(Tier::Pool, 5_000));
            balance.took(Tier::Disk, 50_000);
        }
        assert!((0.6..0.9).contains(&weight(pooled)), "{}", weight(pooled));
        assert!((3.0..3.9).contains(&weight(own)), "{}", weight(own));
        assert!((weight(packed) - 1.0).abs() < f64::EPSILON);
        // That is less time than the pool's nine take.
        let rival_ns = |place: Place| balance.weight(place).rival_ns;
        assert_eq!(rival_ns(pooled), balance.weight(pooled).price_ns);
        (0..5000).for_each(|_| balance.took(Tier::Disk, 50_000));
        assert_eq!(rival_ns(pooled), balance.weight(own).price_ns);
        assert_eq!(rival_ns(own), balance.weight(own).price_ns);
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
        let moved = |limit| until_moved(&balance, full(limit), &[], &[10]).map(|(_, next)| next);
        assert_eq!(moved(LEAST), None);
        balance.set(true, || {});
        assert_eq!(moved(LEAST), Some(LEAST + STEP));
        // Set by hand, below the least.
        assert_eq!(moved(STEP), Some(2 * STEP));
        assert_eq!(until_moved(&balance, full(STEP), &[100], &[]), None);
    }

    #[test]
    fn what_is_set_forgets_what_was_seen() {
        let balance = balance();
        let (looks, _) = until_moved(&balance, full(MOST), &[100], &[]).unwrap();
        (1..looks).for_each(|_| assert_eq!(look(&balance, full(MOST), &[100], &[]), MOST));
        balance.set(true, || {});
        assert_eq!(look(&balance, full(MOST), &[100], &[]), MOST);
    }

    #[test]
    fn the_widest_limit_is_the_most_where_it_moves() {
        let balance = balance();
        assert_eq!(balance.widest(LEAST), Some(MOST));
        assert_eq!(balance.widest(MOST), None);
        balance.set(false, || {});
        assert_eq!(balance.widest(LEAST), None, "the user's own");
    }

    proptest! {
        #[test]
        fn the_limit_keeps_to_its_bounds(
            looks in prop::collection::vec((0..40_000u64, 0..200_000u64), 1..60),
            times in prop::collection::vec((0..100_000u64, 0..1_000_000u64), 1..60),
            filled in 0..=100_usize,
        ) {
            let balance = balance();
            let mut limit = LEAST;
            for ((pooled, on_disk), (pool_ns, disk_ns)) in looks.into_iter().zip(times) {
                balance.took(Tier::Pool, pool_ns);
                balance.took(Tier::Disk, disk_ns);
                let used_bytes = limit / 100 * filled;
                let pool = PoolView { used_bytes, ..full(limit) };
                limit = look(&balance, pool, &[pooled], &[on_disk]);
                prop_assert!((LEAST..=MOST).contains(&limit));
            }
        }
    }
}
