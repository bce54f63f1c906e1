//! Loom models of concurrent allocation, freeing, shrinking and freezing. Clusters have 64 slots
//! here.

use super::*;
use loom::sync::Arc;
use loom::thread;

const CLUSTER: u64 = CLUSTER_SLOTS as u64;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Two clusters, two processors. Cluster 1 is full, and processor 0 still holds it.
fn with_a_full_cluster() -> Arc<SlotAllocator> {
    let slots = SlotAllocator::new(2, 2).unwrap();
    assert_eq!(slots.grow(2), 2);
    assert_eq!(slots.alloc_slots(0, 64), Some((CLUSTER, 64)));
    Arc::new(slots)
}

fn spawn<R: 'static>(
    slots: &Arc<SlotAllocator>,
    work: impl FnOnce(&SlotAllocator) -> R + 'static,
) -> thread::JoinHandle<R> {
    let slots = Arc::clone(slots);
    thread::spawn(move || work(&slots))
}

fn drain(slots: &SlotAllocator) -> u64 {
    let mut taken = std::collections::BTreeSet::new();
    while let Some((first, len)) = slots.alloc_slots(0, 64) {
        for slot in first..first + len as u64 {
            assert!(taken.insert(slot), "slot {slot} twice");
        }
    }
    taken.len() as u64
}

#[test]
fn slot_freed_during_cluster_transfer_is_found() {
    check(|| {
        let slots = with_a_full_cluster();
        let freeing = spawn(&slots, |slots| {
            slots.free(CLUSTER + 3, 1).unwrap();
            slots.free(CLUSTER + 9, 1).unwrap();
        });
        let (_, len) = slots.alloc_slots(0, 4).unwrap();
        freeing.join().unwrap();
        // All of cluster 0 except slot 0, and two of cluster 1.
        assert_eq!(len as u64 + drain(&slots), CLUSTER - 1 + 2);
    });
}

#[test]
fn slot_freed_during_cluster_steal_is_found() {
    check(|| {
        let slots = with_a_full_cluster();
        while slots.alloc_slots(0, 64).is_some() {}
        slots.free(CLUSTER, 1).unwrap();
        let freeing = spawn(&slots, |slots| {
            slots.free(CLUSTER + 3, 1).unwrap();
            slots.free(CLUSTER + 9, 55).unwrap();
        });
        let (first, len) = slots.alloc_slots(1, 1).unwrap();
        assert_eq!((first / CLUSTER, len), (1, 1));
        freeing.join().unwrap();
        assert_eq!(len as u64 + drain(&slots), 57);
    });
}

#[test]
fn allocation_succeeds_during_cluster_transfer() {
    check(|| {
        let slots = SlotAllocator::new(1, 2).unwrap();
        assert_eq!(slots.grow(1), 1);
        let slots = Arc::new(slots);
        let other = spawn(&slots, |slots| slots.alloc_slots(1, 4).unwrap());
        let run = slots.alloc_slots(0, 4).unwrap();
        assert_ne!(run.0, other.join().unwrap().0);
        assert_eq!(drain(&slots), CLUSTER - 1 - 8);
    });
}

#[test]
fn allocation_succeeds_during_concurrent_frees() {
    check(|| {
        let slots = with_a_full_cluster();
        assert_eq!(slots.alloc_slots(1, 64), Some((1, 63)));
        slots.free(5, 1).unwrap();
        let other = spawn(&slots, |slots| {
            slots.free(CLUSTER + 3, 1).unwrap();
            slots.alloc_slots(1, 1).unwrap()
        });
        // One slot is free at any time, in one of the two current clusters.
        let run = slots.alloc_slots(0, 1).unwrap();
        assert_ne!(run, other.join().unwrap());
        assert_eq!(drain(&slots), 0);
    });
}

#[test]
fn mutual_steals_neither_deadlock_nor_share() {
    check(|| {
        let slots = with_a_full_cluster();
        assert_eq!(slots.alloc_slots(1, 64), Some((1, 63)));
        let other = spawn(&slots, |slots| {
            slots.free(1, 40).unwrap();
            slots.alloc_slots(0, 30).unwrap()
        });
        slots.free(CLUSTER, 40).unwrap();
        let (first, len) = slots.alloc_slots(1, 30).unwrap();
        let (other, more) = other.join().unwrap();
        assert!(first + len as u64 <= other || other + more as u64 <= first);
        assert_eq!(drain(&slots), 80 - (len + more) as u64);
    });
}

#[test]
fn cluster_in_discard_is_not_allocated() {
    check(|| {
        let slots = with_a_full_cluster();
        slots.set_discards(true);
        assert_eq!(slots.alloc_slots(0, 64), Some((1, 63)));
        slots.free(CLUSTER, 63).unwrap();
        let discarding = spawn(&slots, |slots| {
            let cluster = slots.take_waiting();
            if let Some(cluster) = cluster {
                assert_eq!(cluster, 1);
                assert!(slots.is_empty(cluster));
                slots.set_discards(false);
                assert!(slots.is_empty(cluster));
                slots.discarded(cluster);
            }
        });
        slots.free(2 * CLUSTER - 1, 1).unwrap();
        let taken = slots.alloc_slots(1, 2).map_or(0, |run| run.1 as u64);
        discarding.join().unwrap();
        assert_eq!(taken + drain(&slots), CLUSTER);
        assert_eq!((slots.free_clusters(), slots.waiting_clusters()), (0, 0));
    });
}

#[test]
fn added_cluster_is_taken_once() {
    check(|| {
        let slots = SlotAllocator::new(3, 2).unwrap();
        assert_eq!(slots.grow(1), 1);
        let slots = Arc::new(slots);
        let other = spawn(&slots, |slots| slots.alloc_slots(1, 64).map_or(0, |run| run.1 as u64));
        assert_eq!(slots.grow(2), 2);
        let run = slots.alloc_slots(0, 64).unwrap();
        let taken = other.join().unwrap();
        assert_eq!(taken + run.1 as u64 + drain(&slots), 3 * CLUSTER - 1);
    });
}

#[test]
fn removed_and_readded_cluster_is_complete() {
    check(|| {
        let slots = with_a_full_cluster();
        slots.alloc_slots(0, 1).unwrap();
        slots.free(CLUSTER + 1, 62).unwrap();
        let freeing = spawn(&slots, |slots| slots.free(CLUSTER, 1).unwrap());
        slots.free(2 * CLUSTER - 1, 1).unwrap();
        let gone = slots.shrink(1);
        assert_eq!(slots.grow(1), gone);
        let taken = slots.alloc_slots(1, 2).unwrap().1;
        freeing.join().unwrap();
        assert_eq!(taken as u64 + drain(&slots), 2 * CLUSTER - 2);
    });
}

#[test]
fn cluster_set_aside_is_not_lost() {
    check(|| {
        let slots = with_a_full_cluster();
        slots.set_discards(true);
        assert_eq!(slots.alloc_slots(0, 64), Some((1, 63)));
        slots.free(CLUSTER, 64).unwrap();
        let other = spawn(&slots, |slots| slots.alloc_slots(1, 2).unwrap());
        let (first, len) = slots.alloc_slots(1, 2).unwrap();
        slots.set_aside(first, len);
        let (_, kept) = other.join().unwrap();
        assert_eq!(kept as u64 + drain(&slots), CLUSTER);
    });
}

#[test]
fn concurrently_emptied_cluster_is_free() {
    check(|| {
        let slots = with_a_full_cluster();
        slots.alloc_slots(0, 1).unwrap();
        slots.free(CLUSTER + 1, 62).unwrap();
        let freeing = spawn(&slots, |slots| slots.free(CLUSTER, 1).unwrap());
        slots.free(2 * CLUSTER - 1, 1).unwrap();
        freeing.join().unwrap();
        assert_eq!(slots.free_clusters(), 1);
        assert_eq!(drain(&slots), 2 * CLUSTER - 2);
    });
}

#[test]
fn removed_cluster_is_not_allocated() {
    check(|| {
        let slots = with_a_full_cluster();
        slots.free(CLUSTER, 63).unwrap();
        let shrinking = spawn(&slots, |slots| slots.shrink(1));
        slots.free(2 * CLUSTER - 1, 1).unwrap();
        let taken = slots.alloc_slots(1, 1).map_or(0, |(first, len)| {
            assert!(first < slots.total_slots());
            len as u64
        });
        let gone = u64::from(shrinking.join().unwrap());
        assert_eq!(slots.total_slots(), (2 - gone) * CLUSTER);
        assert_eq!(taken + drain(&slots), (2 - gone) * CLUSTER - 1);
    });
}

#[test]
fn slot_freed_around_thaw_is_neither_lost_nor_early() {
    check(|| {
        let slots = with_a_full_cluster();
        slots.freeze();
        let freeing = spawn(&slots, |slots| slots.free(CLUSTER, 2).unwrap());
        slots.thaw();
        freeing.join().unwrap();
        assert_eq!(drain(&slots), CLUSTER - 1 + 2);
    });
}

#[test]
fn slots_allocated_in_freeze_are_freed_immediately() {
    check(|| {
        let slots = with_a_full_cluster();
        slots.freeze();
        assert_eq!(slots.alloc_slots(1, 2), Some((1, 2)));
        let freeing = spawn(&slots, |slots| {
            slots.free(CLUSTER + 1, 2).unwrap();
            slots.free(1, 2).unwrap();
        });
        let taken = slots.alloc_slots(0, 1).map_or(0, |(first, len)| {
            assert!(first < CLUSTER, "a child may read slot {first}");
            len as u64
        });
        freeing.join().unwrap();
        assert_eq!(taken + drain(&slots), CLUSTER - 1);
        slots.thaw();
        assert_eq!(drain(&slots), 2);
    });
}

#[test]
fn concurrent_thaws_free_slot_once() {
    check(|| {
        let slots = with_a_full_cluster();
        slots.freeze();
        slots.freeze();
        let other = spawn(&slots, |slots| slots.thaw());
        slots.free(CLUSTER, 2).unwrap();
        slots.thaw();
        other.join().unwrap();
        assert_eq!(drain(&slots), CLUSTER - 1 + 2);
        slots.free(CLUSTER, 2).unwrap();
        assert_eq!(drain(&slots), 2);
    });
}
