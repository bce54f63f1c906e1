use super::*;
use crate::base::stats::Tier;
use proptest::prelude::*;

const BUDGET: usize = 64 << 20;
const LEAST: usize = BUDGET / 5 * 2;
const MOST: usize = BUDGET / 5 * 4;
const STEP: usize = BUDGET / STEPS;

/// Age at which pages of the pool are written back.
const AGE: u64 = 10_000;

fn balance() -> Partition {
    let balance = Partition::new(true, LEAST, MOST, BUDGET, 2);
    balance.write_back_rate.note_age(AGE);
    pass_on(&balance, 4000);
    balance
}

/// Records `pages` evictions and as many write-backs.
fn pass_on(balance: &Partition, pages: u64) {
    balance.write_back_rate.note_left(pages);
    balance.write_back_rate.note_gone(pages);
}

/// Records a fault that used `ns` of CPU time and did not wait.
fn took(balance: &Partition, tier: Tier, ns: u64) {
    balance.costs.note(tier, ns, Some(ns));
}

/// A full pool of pages that compress to a quarter.
fn full(limit_bytes: usize) -> PoolView {
    PoolView { limit_bytes, used_bytes: limit_bytes, objects: limit_bytes / 1024 }
}

/// Records faults from the pool and the disk at these distances, then takes a sample.
fn look(balance: &Partition, pool: PoolView, pooled: &[u64], on_disk: &[u64]) -> usize {
    for at in 0..EVENTS as usize {
        if let Some(distance) = pooled.get(at % pooled.len().max(1)) {
            balance.found_in_pool(*distance, pool.limit_bytes, pool.used_bytes);
        }
        if let Some(distance) = on_disk.get(at % on_disk.len().max(1)) {
            balance.found_on_disk(balance.write_back_rate.note_found(*distance), pool);
        }
    }
    let mut next = pool.limit_bytes;
    balance.step(|| pool, |random| Some(random % AGE), |moved| next = moved);
    next
}

/// Returns the number of identical samples until the limit moves, and the new limit.
fn until_moved(
    balance: &Partition,
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
fn a_mib_more_is_worth_what_it_would_have_spared() {
    let balance = balance();
    let near = STEP as u64 / PAGE_SIZE as u64 / 2;
    // A loop longer than all memory gains nothing from a little more.
    look(&balance, full(MOST), &[16 * near], &[]);
    assert_eq!(balance.spared_by_a_mib_ns(), 0);
    until_moved(&balance, full(MOST), &[near], &[]);
    let spared_ns = balance.spared_by_a_mib_ns();
    let (pool_ns, _) = balance.costs().faults_ns();
    // Each sample has the same number of faults, and a step is four MiB.
    let a_look_ns = u64::from(EVENTS) * pool_ns / 4;
    assert!(spared_ns >= a_look_ns && spared_ns.is_multiple_of(a_look_ns), "{spared_ns}");
}

#[test]
fn a_budget_that_moves_often_is_worth_something_all_the_same() {
    let balance = balance();
    let near = STEP as u64 / PAGE_SIZE as u64 / 2;
    let mut bytes = BUDGET;
    for round in 0..100 {
        // Too few events for a sample.
        for _ in 0..EVENTS / 4 {
            balance.found_in_pool(near, MOST, MOST);
        }
        balance.step(|| full(MOST), |random| Some(random % AGE), |_| {});
        bytes = if round % 2 == 0 { bytes + (4 << 20) } else { bytes - (4 << 20) };
        balance.resize(LEAST, MOST, bytes, MOST, |_| {});
    }
    assert!(balance.spared_by_a_mib_ns() > 0);
    // A budget of a very different size clears the events.
    (0..EVENTS / 2).for_each(|_| balance.found_in_pool(near, MOST, MOST));
    balance.resize(LEAST, MOST, 4 * bytes, MOST, |_| {});
    assert_eq!(balance.ghost_hits.events(), 0);
}

#[test]
fn a_smaller_pool_keeps_pages_longer_whose_younger_ones_stay_resident() {
    // Pages compress to 2560 bytes, and ages are uniformly distributed.
    let used_bytes = mark_bytes(MOST);
    let pages = (used_bytes / 2560) as u64;
    let lost_after = |at_depth: u64| {
        let balance = balance();
        let pool = PoolView { limit_bytes: MOST, used_bytes, objects: pages as usize };
        balance.found_in_pool(1, MOST, used_bytes);
        balance.step(|| pool, |random| Some((random >> 33) % pages), |_| {});
        balance.found_in_pool(pages * at_depth / 4, MOST, used_bytes);
        let lost = balance.ghost_hits.take().lost;
        lost.iter().position(|count| *count > 0)
    };
    // A step takes 3.6 MiB from the pool; 2.5 MiB of that are pages that stay resident.
    assert!((9..=12).contains(&lost_after(3).unwrap()), "{:?}", lost_after(3));
    assert!(lost_after(4).unwrap() <= 3, "{:?}", lost_after(4));
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
    assert!(looks > 4 && next == MOST, "{looks} looks");
}

#[test]
fn pages_that_had_stayed_resident_take_it_back_for_what_that_costs() {
    let looks = |pass_on_ns: u64| {
        let balance = balance();
        (0..200).for_each(|_| balance.costs.passed_on(1, pass_on_ns));
        let (looks, next) = until_moved(&balance, full(MOST), &[100], &[]).unwrap();
        assert_eq!(next, MOST - STEP);
        looks
    };
    let (cheap, dear) = (looks(1_000), looks(8_000));
    assert!(dear > cheap, "{dear} and {cheap} looks");
}

#[test]
fn what_a_pool_with_room_to_spare_would_send_on_counts_as_read() {
    let used = |percent| PoolView { used_bytes: MOST / 100 * percent, ..full(MOST) };
    let (roomy, nearly_full) = (used(NEARLY_FULL_PERCENT - 1), used(NEARLY_FULL_PERCENT));
    let looks = |pool: PoolView, gone: u64, found: u64| {
        let balance = Partition::new(true, LEAST, MOST, BUDGET, 2);
        balance.write_back_rate.note_age(AGE);
        balance.write_back_rate.note_left(1);
        balance.write_back_rate.note_gone(gone);
        (0..found).for_each(|_| _ = balance.write_back_rate.note_found(0));
        until_moved(&balance, pool, &[100], &[]).expect("it moves in the end").0
    };
    // A nearly full pool would write the pages back anyway.
    let (quickly, not_known) = (looks(nearly_full, 0, 0), looks(roomy, 0, 0));
    assert!(not_known > 10 * quickly, "{not_known} and {quickly} looks");
    // The fewer pages refault, the less has to be read.
    let (few, all) = (looks(roomy, 10_000, 0), looks(roomy, 10_000, 10_000));
    assert!(2 * quickly < few && 4 * few < all, "{quickly}, {few} and {all} looks");
    assert_eq!(all, not_known);
}

#[test]
fn as_many_faults_as_pages_got_room_do_not_count() {
    let half = PoolView { used_bytes: mark_bytes(MOST) - STEP, ..full(MOST) };
    for pool in [full(MOST), half] {
        let balance = balance();
        let (_, next) = until_moved(&balance, pool, &[100], &[]).unwrap();
        // Unused space of the pool is not gained.
        let freed_bytes = (pool.used_bytes - mark_bytes(next)).min(MOST - next);
        assert!((1..=STEP).contains(&freed_bytes), "{freed_bytes}");
        let found = || balance.found_in_pool(100, next, pool.used_bytes);
        (0..freed_bytes / PAGE_SIZE).for_each(|_| found());
        assert_eq!(balance.ghost_hits.events(), 0);
        balance.step(|| full(next), |random| Some(random % AGE), |_| unreachable!("no fault"));
        found();
        assert_eq!(balance.ghost_hits.events(), 1);
    }
}

#[test]
fn what_the_pool_does_not_use_is_no_gain() {
    let balance = balance();
    let half = PoolView { used_bytes: MOST / 2, ..full(MOST) };
    // Five steps are needed to free the memory of one.
    let (_, next) = until_moved(&balance, half, &[100], &[]).unwrap();
    let kept = MOST / 2 - STEP..=MOST / 2;
    assert!(kept.contains(&mark_bytes(next)), "{next}");
    let empty = PoolView { used_bytes: 0, objects: 0, ..full(MOST) };
    assert_eq!(until_moved(&balance, empty, &[100], &[]), None);
}

#[test]
fn a_hot_set_that_is_far_from_fitting_gets_all_it_needs_at_once() {
    let pages = |steps: usize| (steps * STEP / PAGE_SIZE) as u64;
    let hot: Vec<u64> = (1..=64).map(|at| pages(4) * at / 64 + 10).collect();
    let old = 10 * pages(16);
    let balance = Partition::new(true, LEAST, MOST, BUDGET, 2);
    balance.write_back_rate.note_age(old);
    let (_, next) = until_moved(&balance, full(MOST), &hot, &[]).unwrap();
    assert!((MOST - 5 * STEP..=MOST - 4 * STEP).contains(&next), "{next}");
}

#[test]
fn pages_that_a_smaller_pool_had_passed_on_speak_against_it() {
    // Fewer of them suffice if reads are more expensive.
    for (each, moves) in [(1, false), (100, true)] {
        let balance = balance();
        let pooled: Vec<u64> = (0..128).map(|at| if at % each == 0 { AGE } else { 100 }).collect();
        let moved = until_moved(&balance, full(MOST), &pooled, &[]);
        assert_eq!(moved.is_some(), moves, "one in {each}: {moved:?}");
    }
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
    // The first sample only learns the ages of objects.
    assert_eq!(look(&balance, full(MOST), &[100], &[]), MOST);
    let first = back();
    forth();
    let second = back();
    forth();
    let third = back();
    assert!(second * 2 >= first * 3 && third * 2 >= second * 3, "{first}, {second}, {third}");
    // A move that is followed by another in the same direction was right.
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
fn the_disk_dominates_by_time_not_by_number() {
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
    (0..200).for_each(|_| balance.costs.left(32, 32 * 40_000));
    assert!(!faults(3, 1));
    balance.costs.left(0, 1_000);
}

#[test]
fn what_is_set_stays() {
    let balance = Partition::new(false, LEAST, MOST, BUDGET, 2);
    let moved = |limit| until_moved(&balance, full(limit), &[], &[10]).map(|(_, next)| next);
    assert_eq!(moved(LEAST), None);
    balance.set(PoolLimit::Auto, true, |_| {});
    assert_eq!(moved(LEAST), Some(LEAST + STEP));
    // Set by the user, below the lower bound.
    assert_eq!(moved(STEP), Some(2 * STEP));
    assert_eq!(until_moved(&balance, full(STEP), &[100], &[]), None);
}

#[test]
fn what_is_set_forgets_what_was_seen() {
    let balance = balance();
    let (looks, _) = until_moved(&balance, full(MOST), &[100], &[]).unwrap();
    (1..looks).for_each(|_| assert_eq!(look(&balance, full(MOST), &[100], &[]), MOST));
    balance.set(PoolLimit::Auto, true, |_| {});
    assert_eq!(look(&balance, full(MOST), &[100], &[]), MOST);
}

#[test]
fn the_widest_limit_is_the_most_where_it_moves() {
    let balance = balance();
    assert_eq!(balance.widest(LEAST, 0), Some(MOST));
    assert_eq!(balance.widest(MOST, 0), None);
    assert_eq!(balance.widest(MOST, MOST + 1), Some(MOST + 1));
    balance.set(PoolLimit::Auto, false, |_| {});
    assert_eq!(balance.widest(LEAST, MOST + 1), None, "the user's own");
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
            took(&balance, Tier::Pool, pool_ns);
            took(&balance, Tier::Disk, disk_ns);
            let used_bytes = limit / 100 * filled;
            let pool = PoolView { used_bytes, ..full(limit) };
            limit = look(&balance, pool, &[pooled], &[on_disk]);
            prop_assert!((LEAST..=MOST).contains(&limit));
        }
    }
}
