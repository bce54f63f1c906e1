use super::*;
use proptest::prelude::*;
use softswap_sys::PAGE_SIZE;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const SHAPE: Shape = Shape { areas: 4, slots_per_area: 96, reserve_slots: 3, extra_bytes: 0 };

fn pools(shape: Shape) -> BouncePools {
    BouncePools::new(shape).unwrap()
}

fn take_all(pools: &BouncePools, cpu: usize) -> Vec<Buffer<'_>> {
    std::iter::from_fn(|| pools.take(cpu, 1)).collect()
}

#[test]
fn buffers_are_sized_and_aligned_for_direct_io() {
    let pools = pools(SHAPE);
    for pages in [1, 2, 31, 32, 64] {
        let buffer = pools.take(0, pages).unwrap();
        assert_eq!(buffer.as_ptr().addr() % PAGE_SIZE, 0);
        assert_eq!(buffer.len(), pages * PAGE_SIZE);
        assert!(pools.fixed_range().contains(&buffer));
    }
    assert_eq!(pools.fixed_bytes(), (4 * 96 + 3) * PAGE_SIZE);
    assert_eq!(pools.usage().used, 0);
}

#[test]
fn buffers_do_not_overlap() {
    let pools = pools(SHAPE);
    let mut held: Vec<_> =
        [32, 1, 64, 7].iter().cycle().take(24).map(|n| pools.take(1, *n)).collect();
    for (mark, buffer) in (1..).zip(held.iter_mut().flatten()) {
        buffer.fill(mark);
    }
    let marks = (1..).zip(held.iter().flatten());
    assert!(marks.into_iter().all(|(mark, buffer)| buffer.iter().all(|byte| *byte == mark)));
}

#[test]
fn cpu_uses_own_area_first() {
    let pools = pools(Shape { slots_per_area: 2, ..SHAPE });
    let own: Vec<_> = (0..2).map(|_| pools.take(2, 1).unwrap()).collect();
    let usage = pools.usage();
    assert_eq!((usage.takes, usage.areas_visited), (2, 2));
    let next = pools.take(2, 1).unwrap();
    assert_eq!(pools.usage().areas_visited, 4);
    let address = next.as_ptr();
    drop((own, next));
    let from_next_area: Vec<_> = (0..2).map(|_| pools.take(3, 1).unwrap()).collect();
    assert!(from_next_area.iter().any(|buffer| buffer.as_ptr() == address));
}

#[test]
fn single_pages_do_not_fragment_batches() {
    let pools = pools(Shape { areas: 1, slots_per_area: 4 * 32 + 16, ..SHAPE });
    let pages: Vec<_> = (0..16).map(|_| pools.take(0, 1).unwrap()).collect();
    let batches: Vec<_> = (0..4).map(|_| pools.take(0, 32).unwrap()).collect();
    assert!(pools.take(0, 1).is_none());
    drop((pages, batches));
}

#[test]
fn swap_in_has_reserved_pages() {
    let pools = pools(SHAPE);
    let all = take_all(&pools, 0);
    assert_eq!(all.len(), 4 * 96);
    let reads: Vec<_> = (0..3).map(|cpu| pools.take_for_read(cpu).unwrap()).collect();
    assert!(pools.take_for_read(0).is_none());
    let apart: HashSet<_> = reads.iter().chain(&all).map(|buffer| buffer.as_ptr()).collect();
    assert_eq!(apart.len(), 4 * 96 + 3);
    drop(reads);
    assert!(pools.take(0, 1).is_none(), "only reads may use the reserve");
    assert!(pools.take_for_read(0).is_some());
    assert_eq!(pools.usage().misses, 7);
}

#[test]
fn partial_request_gets_longest_run() {
    let pools = pools(Shape { areas: 2, slots_per_area: 48, extra_bytes: 1 << 20, ..SHAPE });
    let lengths = |pages: usize| {
        let runs = std::iter::from_fn(|| pools.take_up_to(0, pages)).collect::<Vec<_>>();
        runs.iter().map(|buffer| buffer.len() / PAGE_SIZE).collect::<Vec<_>>()
    };
    let held = [pools.take_up_to(0, 64).unwrap(), pools.take_up_to(0, 24).unwrap()];
    assert_eq!(held.each_ref().map(|buffer| buffer.len() / PAGE_SIZE), [48, 24]);
    assert_eq!(pools.take_up_to(0, 32).unwrap().len(), 16 * PAGE_SIZE);
    assert!(!pools.wants_pool() && pools.usage().misses == 0);
    assert_eq!(lengths(20), [20, 2, 2]);
    assert!(pools.wants_pool() && pools.usage().misses == 1, "no buffer was left");
}

#[test]
fn pool_is_added_on_request_and_released_when_idle() {
    let extra_bytes = 3 * 8 * PAGE_SIZE;
    let shape = Shape { areas: 2, slots_per_area: 8, reserve_slots: 1, extra_bytes };
    let pools = pools(shape);
    assert!(!pools.wants_pool());
    let first = take_all(&pools, 0);
    assert_eq!(first.len(), 16);
    assert!(pools.wants_pool() && !pools.wants_pool());
    assert!(!pools.grow(8 * PAGE_SIZE - 1, 0), "the pool is larger than the free memory");
    assert!(pools.grow(usize::MAX, 0));
    let second = take_all(&pools, 0);
    // The limit leaves only one area, so the next pool has fewer areas.
    assert_eq!((second.len(), pools.extra_bytes()), (16, 16 * PAGE_SIZE));
    assert!(pools.grow(usize::MAX, 0));
    let third = take_all(&pools, 1);
    assert_eq!((third.len(), pools.extra_bytes()), (8, extra_bytes));
    assert!(!pools.grow(usize::MAX, 0), "the limit is reached");

    pools.release_idle(60_000_000_000);
    assert_eq!(pools.usage().released, 0, "the pools are in use");
    drop((second, third));
    pools.release_idle(61_000_000_000);
    assert_eq!(pools.usage().released, 0, "the pools were in use recently");
    pools.release_idle(200_000_000_000);
    let usage = pools.usage();
    assert_eq!((usage.grown, usage.released, usage.pages), (2, 2, 16));
    assert_eq!(pools.extra_bytes(), 0);
    assert!(pools.take(0, 1).is_none());
    drop(first);
    assert!(pools.grow(usize::MAX, 0) && pools.take(0, 8).is_some());
}

#[test]
fn transient_buffers_are_charged_and_bounded() {
    let extra_bytes = 40 * PAGE_SIZE;
    let pools = pools(Shape { slots_per_area: 0, extra_bytes, ..SHAPE });
    assert!(pools.take(0, 1).is_none());
    let mut transient_total = pools.take_transient(32).unwrap();
    transient_total.fill(3);
    assert_eq!((pools.extra_bytes(), pools.usage().transient), (32 * PAGE_SIZE, 32));
    assert!(pools.take_transient(9).is_none());
    let more = pools.take_transient(8).unwrap();
    drop(transient_total);
    assert_eq!(pools.extra_bytes(), 8 * PAGE_SIZE);
    drop(more);
    assert_eq!(
        (pools.extra_bytes(), pools.usage().transient, pools.usage().transient_total),
        (0, 0, 2)
    );
    assert!(pools.take_transient(32).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn peak_can_be_reset() {
    let pools = pools(SHAPE);
    drop((pools.take(0, 40), pools.take(0, 20)));
    assert_eq!(pools.usage().high_water, 60);
    let _held = pools.take(0, 5);
    pools.reset_high_water();
    assert_eq!(pools.usage().high_water, 5);
}

#[test]
fn long_waits_are_reported_periodically() {
    let pools = pools(SHAPE);
    let _held = pools.take(0, 5);
    assert_eq!(pools.full_message(1), None);
    pools.note_long_wait(32);
    let message = pools.full_message(2).unwrap();
    for part in ["128.0 KiB are needed", "of 1.5 MiB in total", "20.0 KiB are used", "--memory"] {
        assert!(message.contains(part), "{message}");
    }
    pools.note_long_wait(32);
    assert_eq!(pools.full_message(1_000_000_000), None);
    assert!(pools.full_message(20_000_000_000).is_some());
    assert_eq!(pools.full_message(40_000_000_000), None);
}

#[test]
fn freed_buffer_wakes_waiter() {
    let pools = pools(Shape { areas: 1, slots_per_area: 1, reserve_slots: 0, extra_bytes: 0 });
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let mut buffer = loop {
                        match pools.take(0, 1) {
                            Some(buffer) => break buffer,
                            None => pools.wait(),
                        }
                    };
                    buffer[0] = buffer[0].wrapping_add(1);
                }
            });
        }
    });
    assert_eq!(pools.take(0, 1).unwrap()[0], (600 % 256) as u8);
}

#[test]
fn threads_never_share_buffers_while_pools_change() {
    const THREADS: usize = 4;
    let shape =
        Shape { areas: 2, slots_per_area: 20, reserve_slots: THREADS, extra_bytes: 1 << 20 };
    let pools = pools(shape);
    let (is_finished, has_changed) = (AtomicBool::new(false), AtomicBool::new(false));
    let work = |thread: usize| {
        // On a busy machine the resizing thread may start late.
        let has_rounds_left = |round: &usize| *round < 10_000 || !has_changed.load(Relaxed);
        for round in (0..10_000_000_usize).take_while(has_rounds_left) {
            let pages = [1, 3, 17, 8][round % 4];
            let taken = match pages {
                1 => Some(pools.take_for_read(thread).unwrap()),
                _ => pools.take(thread, pages).or_else(|| pools.take_transient(pages)),
            };
            let Some(mut buffer) = taken else { continue };
            let mark = (round << 4 | thread) as u64;
            let last = buffer.len() - 8;
            buffer[..8].copy_from_slice(&mark.to_le_bytes());
            buffer[last..].copy_from_slice(&(!mark).to_le_bytes());
            if round.is_multiple_of(16) {
                std::thread::yield_now();
            }
            assert_eq!(buffer[..8], mark.to_le_bytes());
            assert_eq!(buffer[last..], (!mark).to_le_bytes());
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        let resizing = scope.spawn(|| {
            let mut now = 0;
            while !is_finished.load(Relaxed) {
                pools.grow(usize::MAX, now);
                now += 20_000_000_000;
                pools.release_idle(now);
                let usage = pools.usage();
                has_changed.store(usage.grown > 0 && usage.released > 0, Relaxed);
                std::thread::yield_now();
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        is_finished.store(true, Relaxed);
        resizing.join().unwrap();
    });
    let usage = pools.usage();
    assert_eq!((usage.used, usage.transient), (0, 0));
    assert!(usage.grown > 0 && usage.released > 0);
    assert_eq!(take_all(&pools, 0).len(), usage.pages);
}

proptest! {
    #[test]
    fn any_cpu_can_use_all_pools(
        cpu: usize,
        areas in 1..9_usize,
        each in 1..130_usize,
        extra_areas in 0..12_usize,
    ) {
        let extra_bytes = extra_areas * each * PAGE_SIZE;
        let shape = Shape { areas, slots_per_area: each, reserve_slots: 0, extra_bytes };
        let pools = BouncePools::new(shape).unwrap();
        while pools.grow(usize::MAX, 0) {}
        prop_assert!(pools.extra_bytes() <= extra_bytes);
        let held = take_all(&pools, cpu);
        prop_assert_eq!(held.len(), areas.next_power_of_two() * each + pools.extra_bytes() / PAGE_SIZE);
    }
}
