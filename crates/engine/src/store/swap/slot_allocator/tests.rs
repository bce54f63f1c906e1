use super::*;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

pub(super) const CLUSTER: u64 = CLUSTER_SLOTS as u64;

fn allocator(clusters: u32, cpus: usize) -> SlotAllocator {
    let slots = SlotAllocator::new(clusters, cpus).unwrap();
    assert_eq!(slots.grow(clusters), clusters);
    slots
}

fn drain(slots: &SlotAllocator) -> u64 {
    std::iter::from_fn(|| slots.alloc_slots(0, 512)).map(|(_, len)| len as u64).sum()
}

#[test]
fn four_mib_batches_are_contiguous_on_fresh_area() {
    let slots = allocator(17, 2);
    for batch in 0..8 {
        let runs: Vec<_> = (0..32).map(|_| slots.alloc_slots(1, 32).unwrap()).collect();
        let (first, _) = runs[0];
        assert_eq!(first, CLUSTER + batch * 1024);
        assert!(runs.iter().zip(0..).all(|(run, at)| *run == (first + at * 32, 32)));
    }
}

#[test]
fn processors_take_cluster_groups_then_steal() {
    let slots = allocator(64, 2);
    let mut by_cpu = [BTreeSet::new(), BTreeSet::new()];
    for turn in 0..62 {
        let (first, len) = slots.alloc_slots(turn % 2, 512).unwrap();
        assert_eq!(len, 512);
        by_cpu[turn % 2].insert(first / CLUSTER / 16);
    }
    assert!(by_cpu[0].is_disjoint(&by_cpu[1]), "{by_cpu:?}");
    // The rest: one cluster at home, and cluster 0 except slot 0.
    let mut rest: Vec<_> = std::iter::from_fn(|| slots.alloc_slots(0, 512)).collect();
    rest.sort_unstable();
    assert_eq!(rest.iter().map(|run| run.1).sum::<usize>(), 2 * 512 - 1);
    assert_eq!(rest[0], (1, 511));
}

#[test]
fn removed_clusters_can_be_added_again() {
    let slots = allocator(65, 2);
    let held: Vec<_> = std::iter::from_fn(|| slots.alloc_slots(0, 512)).collect();
    held.iter().for_each(|&(first, len)| slots.free(first, len).unwrap());
    let gone = slots.shrink(0);
    assert!(gone >= 64, "{gone}");
    assert_eq!(slots.grow(64), gone.min(64));
    let mut by_cpu = [BTreeSet::new(), BTreeSet::new()];
    for turn in 0..62 {
        let (first, _) = slots.alloc_slots(turn % 2, 512).unwrap();
        by_cpu[turn % 2].insert(first / CLUSTER / 16);
    }
    assert!(by_cpu[0].is_disjoint(&by_cpu[1]), "{by_cpu:?}");
}

#[test]
fn clusters_set_aside_are_taken_last() {
    let slots = allocator(3, 2);
    slots.set_discards(true);
    let mine = slots.alloc_slots(0, 512).unwrap();
    assert_eq!(slots.alloc_slots(1, 512).unwrap().1, 512);
    assert_eq!(slots.alloc_slots(1, 512), Some((1, 511)));
    let other = 3 * CLUSTER - mine.0;
    slots.free(other, 512).unwrap();
    slots.set_aside(mine.0, 512);
    assert_eq!(slots.waiting_clusters(), 2);
    assert_eq!(slots.alloc_slots(0, 512), Some((other, 512)));
    slots.set_aside(other, 512);
    assert_eq!(
        slots.alloc_slots(1, 512),
        Some((mine.0, 512)),
        "the cluster set aside first comes first"
    );
}

#[test]
fn emptied_cluster_yields_full_runs() {
    let slots = allocator(3, 1);
    drain(&slots);
    for slot in CLUSTER..2 * CLUSTER {
        slots.free(slot, 1).unwrap();
    }
    assert_eq!(slots.alloc_slots(0, 512), Some((CLUSTER, 512)));
}

/// Each batch rewrites random pages, in an area with twice as many slots. Free slots are then
/// single ones everywhere, except in clusters that have waited.
#[test]
fn oldest_waiting_clusters_give_longest_runs() {
    const CLUSTERS: u32 = 64;
    const BATCH: usize = 32;
    let slots = allocator(CLUSTERS, 1);
    let mut pages = vec![None; CLUSTERS as usize * CLUSTER_SLOTS / 2];
    let mut chance = 1;
    let (mut taken, mut runs) = (0, 0);
    for step in 0..40 * pages.len() / BATCH {
        let mut moved: Vec<usize> = (0..BATCH)
            .map(|at| match step * BATCH + at {
                first if first < pages.len() => first,
                _ => next_chance(&mut chance) as usize % pages.len(),
            })
            .collect();
        moved.sort_unstable();
        moved.dedup();
        for page in &moved {
            pages[*page].take().into_iter().for_each(|slot| slots.free(slot, 1).unwrap());
        }
        while !moved.is_empty() {
            let (first, len) = slots.alloc_slots(0, moved.len()).unwrap();
            moved.drain(..len).zip(first..).for_each(|(page, slot)| pages[page] = Some(slot));
            (taken, runs) = (taken + len, runs + 1);
        }
    }
    // The ratio would be 3 if a cluster were reused as soon as half of it is free.
    assert!(taken >= 5 * runs, "{taken} slots in {runs} runs");
}

#[test]
fn double_free_is_rejected() {
    let slots = allocator(2, 1);
    let (first, len) = slots.alloc_slots(0, 4).unwrap();
    slots.free(first, len).unwrap();
    assert_eq!(slots.free(first, len), Err(NotInUse { first, len }));
    assert!(slots.free(0, 1).is_err(), "slot 0 is never allocated");
    assert!(slots.free(2 * CLUSTER, 1).is_err(), "outside the area");
    assert!(slots.free(u64::MAX, 9).is_err());
    assert_eq!(slots.used_slots(), 0);
    assert_eq!(drain(&slots), 2 * CLUSTER - 1);
}

#[test]
fn growth_stops_at_table_end() {
    let slots = SlotAllocator::new(3, 1).unwrap();
    assert_eq!(slots.alloc_slots(0, 1), None);
    assert_eq!((slots.grow(2), slots.grow(2), slots.grow(2)), (2, 1, 0));
    assert_eq!((slots.total_slots(), slots.capacity_clusters()), (3 * CLUSTER, 0));
}

#[test]
fn slots_freed_in_freeze_return_at_last_thaw() {
    let slots = allocator(1, 1);
    drain(&slots);
    slots.freeze();
    slots.freeze();
    slots.free(10, 5).unwrap();
    assert_eq!(slots.free(12, 1), Err(NotInUse { first: 12, len: 1 }), "freed already");
    assert_eq!(slots.alloc_slots(0, 1), None);
    slots.thaw();
    assert_eq!(slots.alloc_slots(0, 1), None);
    slots.thaw();
    assert_eq!(slots.alloc_slots(0, 9), Some((10, 5)));
}

#[test]
fn slots_allocated_after_freeze_are_freed_immediately() {
    let slots = allocator(2, 1);
    let kept = slots.alloc_slots(0, 512).unwrap();
    slots.freeze();
    slots.free(kept.0, kept.1).unwrap();
    for _ in 0..100 {
        let (first, len) = slots.alloc_slots(0, 300).unwrap();
        assert_eq!(first / CLUSTER, 1 - kept.0 / CLUSTER);
        slots.free(first, len).unwrap();
    }
    let (first, _) = slots.alloc_slots(0, 1).unwrap();
    slots.freeze();
    slots.free(first, 1).unwrap();
    slots.thaw();
    assert_eq!(slots.used_slots(), kept.1 as u64 + 1, "kept until the last thaw");
    slots.thaw();
    assert_eq!(slots.used_slots(), 0);
}

#[test]
fn retired_slots_are_never_reused() {
    let slots = allocator(1, 1);
    let (first, len) = slots.alloc_slots(0, 100).unwrap();
    slots.retire(first, len).unwrap();
    assert!(slots.retire(first, 1).is_err() && slots.free(first, len).is_err());
    assert_eq!((slots.used_slots(), slots.retired_slots()), (0, 100));
    assert_eq!(drain(&slots), 512 - 1 - 100);
}

#[test]
fn emptied_cluster_waits_for_discard() {
    let slots = allocator(3, 1);
    slots.set_discards(true);
    assert_eq!(slots.take_waiting(), None, "unused clusters need no discard");
    drain(&slots);
    slots.free(2 * CLUSTER, 512).unwrap();
    slots.free(CLUSTER, 512).unwrap();
    assert_eq!((slots.free_clusters(), slots.waiting_clusters()), (0, 2));
    assert_eq!(slots.take_waiting(), Some(1));
    assert_eq!(slots.alloc_slots(0, 512), Some((2 * CLUSTER, 512)));
    assert_eq!(slots.alloc_slots(0, 1), None);
    slots.discarded(1);
    assert_eq!(slots.free_clusters(), 1);
    assert_eq!(slots.alloc_slots(0, 512), Some((CLUSTER, 512)));
}

#[test]
fn waiting_cluster_is_taken_before_allocation_fails() {
    let slots = allocator(3, 1);
    slots.set_discards(true);
    drain(&slots);
    slots.free(CLUSTER, 512).unwrap();
    assert_eq!(slots.waiting_clusters(), 1);
    assert_eq!(slots.alloc_slots(0, 512), Some((CLUSTER, 512)));
    slots.free(CLUSTER + 1, 1).unwrap();
    slots.set_discards(false);
    assert_eq!((slots.take_waiting(), slots.waiting_clusters()), (None, 0));
}

#[test]
fn area_shrinks_to_last_used_cluster() {
    let slots = allocator(6, 1);
    let (first, _) = slots.alloc_slots(0, 1).unwrap();
    assert_eq!(first / CLUSTER, 1, "an empty cluster first");
    assert_eq!(slots.shrink(4), 2, "the minimum is kept");
    assert_eq!(slots.shrink(0), 2, "used clusters stay");
    assert_eq!((slots.total_slots(), slots.free_clusters()), (2 * CLUSTER, 0));
    assert!(slots.free(2 * CLUSTER, 1).is_err(), "outside the area now");
    assert_eq!(slots.grow(3), 3);
    assert_eq!(drain(&slots), 5 * CLUSTER - 2);
}

#[test]
fn withheld_slots_are_never_allocated() {
    let slots = SlotAllocator::new(2, 1).unwrap();
    slots.withhold(5, 1);
    slots.withhold(CLUSTER + 500, 12);
    slots.grow(2);
    let mut seen = BTreeSet::new();
    while let Some((first, len)) = slots.alloc_slots(0, 512) {
        seen.extend(first..first + len as u64);
    }
    assert!(seen.iter().copied().eq((1..5).chain(6..CLUSTER + 500)));
    assert_eq!(slots.retired_slots(), 13);
}

fn next_chance(chance: &mut u64) -> u64 {
    *chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *chance >> 33
}

#[test]
fn random_concurrent_operations_keep_slots_consistent() {
    const THREADS: usize = 6;
    const CLUSTERS: u32 = 40;
    let slots = SlotAllocator::new(CLUSTERS, 3).unwrap();
    slots.set_discards(true);
    slots.grow(24);
    let count = CLUSTERS as usize * CLUSTER_SLOTS;
    let owned: Vec<AtomicBool> = (0..count).map(|_| AtomicBool::new(false)).collect();
    let has_ended = AtomicBool::new(false);
    let take = |cpu: usize, want: usize, mine: &mut Vec<(u64, usize)>| {
        let Some((first, len)) = slots.alloc_slots(cpu, want) else { return };
        assert!(first + len as u64 <= slots.total_slots());
        for slot in first..first + len as u64 {
            assert!(!owned[slot as usize].swap(true, SeqCst), "slot {slot} twice");
        }
        mine.push((first, len));
    };
    let give = |(first, len): (u64, usize)| {
        for slot in first..first + len as u64 {
            assert!(owned[slot as usize].swap(false, SeqCst));
        }
    };
    std::thread::scope(|scope| {
        let (slots, has_ended) = (&slots, &has_ended);
        let working: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let mut chance = thread as u64 + 1;
                    let mut mine = Vec::new();
                    for round in 0..60_000 {
                        let number = next_chance(&mut chance) as usize;
                        let most = if number.is_multiple_of(3) { 512 } else { 33 };
                        if (round / 300 + thread) % 3 != 0 {
                            take(number / 64 % 3, 1 + number / 3 % most, &mut mine);
                        } else if !mine.is_empty() {
                            let run = mine.swap_remove(number % mine.len());
                            give(run);
                            match number % 16 {
                                0 => slots.set_aside(run.0, run.1),
                                1 => slots.free_unused(run.0, run.1).unwrap(),
                                2 | 3 => (run.0..run.0 + run.1 as u64)
                                    .for_each(|slot| slots.free(slot, 1).unwrap()),
                                _ => slots.free(run.0, run.1).unwrap(),
                            }
                        }
                    }
                    for run in mine {
                        give(run);
                        slots.free(run.0, run.1).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            while !has_ended.load(SeqCst) {
                if let Some(cluster) = slots.take_waiting() {
                    assert!(slots.is_empty(cluster));
                    std::thread::yield_now();
                    assert!(slots.is_empty(cluster));
                    slots.discarded(cluster);
                }
                slots.freeze();
                std::thread::yield_now();
                slots.thaw();
            }
        });
        scope.spawn(move || {
            while !has_ended.load(SeqCst) {
                slots.shrink(4);
                std::thread::yield_now();
                slots.grow(3);
            }
        });
        for thread in working {
            thread.join().unwrap();
        }
        has_ended.store(true, SeqCst);
    });
    assert_eq!(slots.used_slots(), 0);
    let total = slots.total_slots();
    assert_eq!(drain(&slots), total - 1, "slots were lost");
    assert_eq!((slots.free_clusters(), slots.waiting_clusters()), (0, 0));
}
