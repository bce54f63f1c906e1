use super::*;
use crate::base::stats::Tier;
use proptest::prelude::*;

const BUDGET: usize = 64 << 20;
const MIN: usize = BUDGET / 5 * 2;
const MAX: usize = BUDGET / 5 * 4;
const STEP: usize = BUDGET / STEPS;

/// Age at which the pool writes pages back, in evictions.
const AGE: u64 = 10_000;

fn balance() -> Partition {
    let balance = Partition::new(true, MIN, MAX, BUDGET, 2);
    balance.write_back_rate.note_age(AGE);
    pass_on(&balance, 4000);
    balance
}

fn pass_on(balance: &Partition, pages: u64) {
    balance.write_back_rate.note_evictions(pages);
    balance.write_back_rate.note_write_backs(pages);
}

/// Records a fault that used `ns` of CPU time and did not wait.
fn took(balance: &Partition, tier: Tier, ns: u64) {
    balance.costs.note(tier, ns, Some(ns));
}

fn full(limit_bytes: usize) -> PoolView {
    PoolView { limit_bytes, used_bytes: limit_bytes, objects: limit_bytes / 1024 }
}

fn sample(balance: &Partition, pool: PoolView, pooled: &[u64], on_disk: &[u64]) -> usize {
    for at in 0..EVENTS as usize {
        if let Some(distance) = pooled.get(at % pooled.len().max(1)) {
            balance.note_pool_fault(*distance, pool.limit_bytes, pool.used_bytes);
        }
        if let Some(distance) = on_disk.get(at % on_disk.len().max(1)) {
            balance
                .note_disk_fault(balance.write_back_rate.note_write_back_refault(*distance), pool);
        }
    }
    let mut next = pool.limit_bytes;
    balance.step(|| pool, |random| Some(random % AGE), |moved| next = moved);
    next
}

fn until_moved(
    balance: &Partition,
    pool: PoolView,
    pooled: &[u64],
    on_disk: &[u64],
) -> Option<(usize, usize)> {
    let mut samples = (1..1000).map(|count| (count, sample(balance, pool, pooled, on_disk)));
    samples.find(|(_, next)| *next != pool.limit_bytes)
}

#[test]
fn ghost_hits_grow_pool_to_maximum() {
    let balance = balance();
    let mut limit = MIN;
    while limit < MAX {
        let (samples, next) = until_moved(&balance, full(limit), &[], &[AGE + 1000]).unwrap();
        assert!(samples <= 4 && next == (limit + STEP).min(MAX), "{samples} samples");
        limit = next;
    }
}

#[test]
fn benefit_of_a_mib_is_the_saved_time() {
    let balance = balance();
    let near = STEP as u64 / PAGE_SIZE as u64 / 2;
    sample(&balance, full(MAX), &[16 * near], &[]);
    assert_eq!(balance.saved_by_mib_ns(), 0);
    until_moved(&balance, full(MAX), &[near], &[]);
    let saved_ns = balance.saved_by_mib_ns();
    let (pool_ns, _) = balance.costs.faults_ns();
    // Each sample has the same number of faults, and a step is four MiB.
    let sample_ns = u64::from(EVENTS) * pool_ns / 4;
    assert!(saved_ns >= sample_ns && saved_ns.is_multiple_of(sample_ns), "{saved_ns}");
}

#[test]
fn benefit_is_known_for_frequently_changed_budget() {
    let balance = balance();
    let near = STEP as u64 / PAGE_SIZE as u64 / 2;
    let mut bytes = BUDGET;
    for round in 0..100 {
        // Too few events for a sample.
        for _ in 0..EVENTS / 4 {
            balance.note_pool_fault(near, MAX, MAX);
        }
        balance.step(|| full(MAX), |random| Some(random % AGE), |_| {});
        bytes = if round % 2 == 0 { bytes + (4 << 20) } else { bytes - (4 << 20) };
        balance.resize(MIN, MAX, bytes, MAX, |_| {});
    }
    assert!(balance.saved_by_mib_ns() > 0);
    (0..EVENTS / 2).for_each(|_| balance.note_pool_fault(near, MAX, MAX));
    balance.resize(MIN, MAX, 4 * bytes, MAX, |_| {});
    assert_eq!(balance.ghost_hits.events(), 0);
}

#[test]
fn smaller_pool_keeps_pages_whose_younger_ones_become_resident() {
    // Pages compress to 2560 bytes, and ages are uniformly distributed.
    let used_bytes = mark_bytes(MAX);
    let pages = (used_bytes / 2560) as u64;
    let lost_after = |at_depth: u64| {
        let balance = balance();
        let pool = PoolView { limit_bytes: MAX, used_bytes, objects: pages as usize };
        balance.note_pool_fault(1, MAX, used_bytes);
        balance.step(|| pool, |random| Some((random >> 33) % pages), |_| {});
        balance.note_pool_fault(pages * at_depth / 4, MAX, used_bytes);
        let lost = balance.ghost_hits.take().lost;
        lost.iter().position(|count| *count > 0)
    };
    // A step takes 3.6 MiB from the pool; 2.5 MiB of that are pages that stay resident.
    assert!((9..=12).contains(&lost_after(3).unwrap()), "{:?}", lost_after(3));
    assert!(lost_after(4).unwrap() <= 3, "{:?}", lost_after(4));
}

#[test]
fn faults_beyond_any_pool_do_not_grow_it() {
    let balance = balance();
    let far = AGE + MAX as u64 / 512;
    assert_eq!(until_moved(&balance, full(MIN), &[], &[far]), None);
    assert_eq!(until_moved(&balance, full(MAX), &[], &[AGE]), None);
}

#[test]
fn loop_that_would_fit_grows_pool() {
    let balance = balance();
    let whole = AGE + ((MAX - MIN) / 1024) as u64 - 100;
    let (samples, next) = until_moved(&balance, full(MIN), &[], &[whole]).unwrap();
    assert!(samples > 4 && next == MAX, "{samples} samples");
}

#[test]
fn resident_ghost_hits_shrink_pool_at_cost() {
    let samples = |write_back_ns: u64| {
        let balance = balance();
        (0..200).for_each(|_| balance.costs.note_write_backs(1, write_back_ns));
        let (samples, next) = until_moved(&balance, full(MAX), &[100], &[]).unwrap();
        assert_eq!(next, MAX - STEP);
        samples
    };
    let (cheap, dear) = (samples(1_000), samples(8_000));
    assert!(dear > cheap, "{dear} and {cheap} samples");
}

#[test]
fn write_backs_of_partly_free_pool_count_as_reads() {
    let used = |percent| PoolView { used_bytes: MAX / 100 * percent, ..full(MAX) };
    let (growable, nearly_full) = (used(NEARLY_FULL_PERCENT - 1), used(NEARLY_FULL_PERCENT));
    let samples = |pool: PoolView, gone: u64, found: u64| {
        let balance = Partition::new(true, MIN, MAX, BUDGET, 2);
        balance.write_back_rate.note_age(AGE);
        balance.write_back_rate.note_evictions(1);
        balance.write_back_rate.note_write_backs(gone);
        (0..found).for_each(|_| _ = balance.write_back_rate.note_write_back_refault(0));
        until_moved(&balance, pool, &[100], &[]).expect("the limit moves").0
    };
    // A pool that uses at least 85 % of its limit would write the pages back anyway.
    let (quickly, not_known) = (samples(nearly_full, 0, 0), samples(growable, 0, 0));
    assert!(not_known > 10 * quickly, "{not_known} and {quickly} samples");
    // The fewer pages refault, the less has to be read.
    let (few, all) = (samples(growable, 10_000, 0), samples(growable, 10_000, 10_000));
    assert!(2 * quickly < few && 4 * few < all, "{quickly}, {few} and {all} samples");
    assert_eq!(all, not_known);
}

#[test]
fn faults_after_growth_are_ignored() {
    let half = PoolView { used_bytes: mark_bytes(MAX) - STEP, ..full(MAX) };
    for pool in [full(MAX), half] {
        let balance = balance();
        let (_, next) = until_moved(&balance, pool, &[100], &[]).unwrap();
        let freed_bytes = (pool.used_bytes - mark_bytes(next)).min(MAX - next);
        assert!((1..=STEP).contains(&freed_bytes), "{freed_bytes}");
        let found = || balance.note_pool_fault(100, next, pool.used_bytes);
        (0..freed_bytes / PAGE_SIZE).for_each(|_| found());
        assert_eq!(balance.ghost_hits.events(), 0);
        balance.step(|| full(next), |random| Some(random % AGE), |_| unreachable!("no fault"));
        found();
        assert_eq!(balance.ghost_hits.events(), 1);
    }
}

#[test]
fn unused_pool_memory_is_no_gain() {
    let balance = balance();
    let half = PoolView { used_bytes: MAX / 2, ..full(MAX) };
    // Five steps are needed to free the memory of one.
    let (_, next) = until_moved(&balance, half, &[100], &[]).unwrap();
    let kept = MAX / 2 - STEP..=MAX / 2;
    assert!(kept.contains(&mark_bytes(next)), "{next}");
    let empty = PoolView { used_bytes: 0, objects: 0, ..full(MAX) };
    assert_eq!(until_moved(&balance, empty, &[100], &[]), None);
}

#[test]
fn large_hot_set_gets_memory_in_one_move() {
    let pages = |steps: usize| (steps * STEP / PAGE_SIZE) as u64;
    let hot: Vec<u64> = (1..=64).map(|at| pages(4) * at / 64 + 10).collect();
    let old = 10 * pages(16);
    let balance = Partition::new(true, MIN, MAX, BUDGET, 2);
    balance.write_back_rate.note_age(old);
    let (_, next) = until_moved(&balance, full(MAX), &hot, &[]).unwrap();
    assert!((MAX - 5 * STEP..=MAX - 4 * STEP).contains(&next), "{next}");
}

#[test]
fn write_backs_of_smaller_pool_oppose_shrinking() {
    for (each, moves) in [(1, false), (100, true)] {
        let balance = balance();
        let pooled: Vec<u64> = (0..128).map(|at| if at % each == 0 { AGE } else { 100 }).collect();
        let moved = until_moved(&balance, full(MAX), &pooled, &[]);
        assert_eq!(moved.is_some(), moves, "one in {each}: {moved:?}");
    }
}

#[test]
fn wrong_shrink_delays_next() {
    let balance = balance();
    let samples_until_shrunk = || until_moved(&balance, full(MAX), &[100], &[]).unwrap().0;
    let grow_again = || {
        pass_on(&balance, 8000);
        let undone = until_moved(&balance, full(MAX - STEP), &[], &[AGE + 10]);
        assert_eq!(undone.unwrap().1, MAX);
    };
    // The first sample only learns the ages of objects.
    assert_eq!(sample(&balance, full(MAX), &[100], &[]), MAX);
    let first = samples_until_shrunk();
    grow_again();
    let second = samples_until_shrunk();
    grow_again();
    let third = samples_until_shrunk();
    assert!(second * 2 >= first * 3 && third * 2 >= second * 3, "{first}, {second}, {third}");
    // A move that is followed by another in the same direction was right.
    until_moved(&balance, full(MAX - STEP), &[100], &[]).unwrap();
    grow_again();
    assert!(samples_until_shrunk() < 2 * third);
}

#[test]
fn gains_accumulate() {
    let balance = balance();
    let mut samples = 0..500;
    let moved = samples.find(|at| {
        let pool = full(MAX - STEP);
        let next = match at % 4 {
            // A few pages from the disk cost as much as many from the pool.
            0 => sample(&balance, pool, &[100], &[AGE + 10, AGE * 100, AGE * 100, AGE * 100]),
            _ => sample(&balance, pool, &[100], &[]),
        };
        next < pool.limit_bytes
    });
    assert!(moved.is_some());
}

#[test]
fn disk_dominance_is_by_time() {
    let balance = balance();
    assert!(!balance.disk_dominates());
    let faults = |pooled: u32, on_disk: u32| {
        for _ in 0..200 {
            (0..pooled).for_each(|_| took(&balance, Tier::Pool, 5_000));
            (0..on_disk).for_each(|_| took(&balance, Tier::Disk, 50_000));
        }
        balance.disk_dominates()
    };
    assert!(faults(3, 1));
    assert!(!faults(10, 1));
    assert!(faults(0, 5));
    assert!(faults(3, 1));
    // The more expensive evictions are, the less their destination matters.
    (0..200).for_each(|_| balance.costs.note_evictions(32, 32 * 40_000));
    assert!(!faults(3, 1));
    balance.costs.note_evictions(0, 1_000);
}

#[test]
fn fixed_limit_never_moves() {
    let balance = Partition::new(false, MIN, MAX, BUDGET, 2);
    let moved = |limit| until_moved(&balance, full(limit), &[], &[10]).map(|(_, next)| next);
    assert_eq!(moved(MIN), None);
    balance.set(PoolLimit::Auto, true, |_| {});
    assert_eq!(moved(MIN), Some(MIN + STEP));
    // A limit that the user sets may be below the lower bound.
    assert_eq!(moved(STEP), Some(2 * STEP));
    assert_eq!(until_moved(&balance, full(STEP), &[100], &[]), None);
}

#[test]
fn setting_limit_clears_events() {
    let balance = balance();
    let (samples, _) = until_moved(&balance, full(MAX), &[100], &[]).unwrap();
    (1..samples).for_each(|_| assert_eq!(sample(&balance, full(MAX), &[100], &[]), MAX));
    balance.set(PoolLimit::Auto, true, |_| {});
    assert_eq!(sample(&balance, full(MAX), &[100], &[]), MAX);
}

#[test]
fn auto_limit_reports_maximum() {
    let balance = balance();
    assert_eq!(balance.widest(MIN, 0), Some(MAX));
    assert_eq!(balance.widest(MAX, 0), None);
    assert_eq!(balance.widest(MAX, MAX + 1), Some(MAX + 1));
    balance.set(PoolLimit::Auto, false, |_| {});
    assert_eq!(balance.widest(MIN, MAX + 1), None, "a configured limit does not adapt");
}

proptest! {
    #[test]
    fn limit_stays_within_bounds(
        samples in prop::collection::vec((0..40_000u64, 0..200_000u64), 1..60),
        times in prop::collection::vec((0..100_000u64, 0..1_000_000u64), 1..60),
        filled in 0..=100_usize,
    ) {
        let balance = balance();
        let mut limit = MIN;
        for ((pooled, on_disk), (pool_ns, disk_ns)) in samples.into_iter().zip(times) {
            took(&balance, Tier::Pool, pool_ns);
            took(&balance, Tier::Disk, disk_ns);
            let used_bytes = limit / 100 * filled;
            let pool = PoolView { used_bytes, ..full(limit) };
            limit = sample(&balance, pool, &[pooled], &[on_disk]);
            prop_assert!((MIN..=MAX).contains(&limit));
        }
    }
}
