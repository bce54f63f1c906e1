//! Tests of the pool against a map, with threads, and of its memory overhead.

use super::class::class_for;
use super::handle::{HEADER_BYTES, Object};
use super::map_tests::Model;
use super::*;
use softswap_sys::memory::reserve_bytes;
use std::sync::atomic::AtomicBool;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

pub(super) fn content(owner: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (owner.wrapping_mul(0x9E37_79B9) >> (i % 24)) as u8 ^ i as u8 ^ len as u8)
        .collect()
}

pub(super) fn assert_holds(pool: &CompressedPool, handle: Handle, owner: u64) {
    let expected = content(owner, handle.compressed_bytes());
    assert_eq!(
        pool.load(handle, |compressed| compressed == expected),
        Ok(true),
        "{handle:?} of {owner} is not as stored"
    );
}

pub(super) fn candidates(pool: &CompressedPool, len: usize) -> Vec<(u64, Handle)> {
    let mut out = vec![(0, Handle::default()); len];
    let count = pool.oldest(&mut out);
    out.truncate(count);
    out
}

pub(super) fn pool_of(slabs: usize, slabs_per_lane: usize) -> CompressedPool {
    CompressedPool::with_current(slabs * SLAB_BYTES, Current::new(3, slabs_per_lane)).unwrap()
}

pub(super) fn fill_up(pool: &CompressedPool, len: usize) -> Vec<(u64, Handle)> {
    (0..)
        .map_while(|owner| Some((owner, pool.store(&content(owner, len), owner, 0).ok()?)))
        .collect()
}

#[test]
fn handle_round_trips_through_entry_bits() {
    let object = Object { slot: 1023, stamp: 1023, len: MAX_OBJECT_BYTES, tag: 3 };
    let handle = Handle::new((1 << 24) - 1, object);
    assert!(handle.to_bits() < 1 << 58);
    assert_eq!(Handle::from_bits(handle.to_bits()), handle);
    assert_eq!((handle.slab(), handle.object()), ((1 << 24) - 1, object));
    assert_eq!((handle.tag(), handle.compressed_bytes()), (3, MAX_OBJECT_BYTES));
}

#[test]
fn full_pool_accepts_after_free() {
    let pool = CompressedPool::new(2 * SLAB_BYTES + 1000).unwrap();
    assert_eq!(pool.limit_bytes(), 2 * SLAB_BYTES);
    let stored = fill_up(&pool, 2000);
    assert_eq!(pool.used_bytes(), pool.limit_bytes());
    assert_eq!(pool.store(&[1; 2000], 0, 0), Err(PoolFull));
    pool.free(stored[3].1);
    assert!(pool.store(&[1; 2000], 0, 0).is_ok());
    assert_eq!(pool.store(&[1; 2000], 0, 0), Err(PoolFull));
}

#[test]
fn pool_without_slabs_is_full() {
    let pool = CompressedPool::new(SLAB_BYTES - 1).unwrap();
    assert_eq!(pool.store(&[1], 0, 0), Err(PoolFull));
    assert_eq!(candidates(&pool, 4), []);
}

#[test]
fn object_uses_larger_class_without_free_slab() {
    let pool = CompressedPool::new(SLAB_BYTES).unwrap();
    let large = pool.store(&content(1, 2000), 1, 0).unwrap();
    let small = pool.store(&content(2, 1500), 2, 0).unwrap();
    assert_eq!(pool.store(&content(3, 500), 3, 0), Err(PoolFull));
    assert_holds(&pool, large, 1);
    assert_holds(&pool, small, 2);
}

#[test]
fn freed_pool_uses_no_memory() {
    let pool = CompressedPool::new(16 * SLAB_BYTES).unwrap();
    for len in [40, 700, 3000] {
        let mut stored = fill_up(&pool, len);
        assert_eq!(pool.objects(), stored.len());
        assert_eq!(pool.stored_bytes(), stored.len() * len);
        while let Some((_, handle)) = stored.pop() {
            pool.free(handle);
        }
        assert_eq!((pool.used_bytes(), pool.stored_bytes(), pool.objects()), (0, 0, 0));
    }
}

#[test]
fn write_back_empties_oldest_slab_first() {
    let pool = CompressedPool::new(8 * SLAB_BYTES).unwrap();
    let stored = fill_up(&pool, 1000);
    let per_slab = CLASS[class_for(1000)].slots;
    for slab in stored.chunks(per_slab) {
        let used_before = pool.used_bytes();
        assert_eq!(candidates(&pool, 1024), slab);
        for &(_, handle) in slab {
            pool.free(handle);
        }
        assert_eq!(pool.used_bytes(), used_before - SLAB_BYTES);
    }
    assert_eq!(candidates(&pool, 1024), []);
}

#[test]
fn write_back_finishes_slab_before_next() {
    let pool = CompressedPool::new(2 * SLAB_BYTES).unwrap();
    let stored = fill_up(&pool, 1000);
    let batches: Vec<_> =
        std::iter::repeat_with(|| candidates(&pool, 10)).take(14).flatten().collect();
    assert_eq!(batches, stored);
}

#[test]
fn skipped_candidates_do_not_block_others() {
    let pool = CompressedPool::new(4 * SLAB_BYTES).unwrap();
    let stored = fill_up(&pool, 3000);
    let per_slab = CLASS[class_for(3000)].slots;
    let round: Vec<_> = (0..4).flat_map(|_| candidates(&pool, per_slab)).collect();
    assert_eq!(round, stored);
    assert_eq!(candidates(&pool, per_slab), stored[..per_slab], "the second round starts over");
}

#[test]
fn skipped_objects_are_found_later() {
    let pool = CompressedPool::new(SLAB_BYTES).unwrap();
    let stored = fill_up(&pool, 3000);
    assert_eq!(candidates(&pool, 5), stored[..5]);
    for &(_, handle) in &stored[5..] {
        pool.free(handle);
    }
    assert_eq!(candidates(&pool, 5), stored[..5]);
}

#[test]
fn slab_in_write_back_is_not_refilled() {
    let pool = CompressedPool::new(2 * SLAB_BYTES).unwrap();
    let stored = pool.store(&content(1, 1000), 1, 0).unwrap();
    assert_eq!(candidates(&pool, 8), [(1, stored)]);
    let later = pool.store(&content(2, 1000), 2, 0).unwrap();
    assert_ne!(stored.slab(), later.slab());
    pool.free(stored);
    assert_eq!(pool.used_bytes(), SLAB_BYTES);
    assert_holds(&pool, later, 2);
}

#[test]
fn used_slab_gets_second_chance() {
    let pool = CompressedPool::new(4 * SLAB_BYTES).unwrap();
    let stored = fill_up(&pool, 3000);
    let per_slab = CLASS[class_for(3000)].slots;
    let slab = |at: usize| &stored[at * per_slab..][..per_slab];
    // All slabs are recently used and get a second chance, so the first one comes first again.
    assert_eq!(candidates(&pool, per_slab), slab(0));
    assert_holds(&pool, slab(1)[3].1, slab(1)[3].0);
    assert_eq!(candidates(&pool, per_slab), slab(2));
}

#[test]
fn full_pool_accepts_after_tenth_is_free() {
    let pool = CompressedPool::new(20 * SLAB_BYTES).unwrap();
    let stored = fill_up(&pool, 3000);
    assert!(!pool.accepts());
    let per_slab = CLASS[class_for(3000)].slots;
    let mut freed = 0;
    for &(_, handle) in &stored {
        assert!(!pool.accepts(), "after {freed}");
        pool.free(handle);
        freed += 1;
        if freed == 3 * per_slab {
            break;
        }
    }
    assert_eq!(pool.used_bytes(), 17 * SLAB_BYTES);
    assert!(pool.accepts());
}

#[test]
fn flipped_bit_is_detected_and_affects_one_object() {
    let memory = reserve_bytes(SLAB_BYTES).unwrap();
    let mut slab = Slab::new(memory.first_chunk_mut().unwrap());
    slab.open(class_for(1000));
    let handles: Vec<_> =
        (0..3).map(|owner| slab.put(0, &content(owner, 1000), owner, 1)).collect();
    let slot_bytes = CLASS[class_for(1000)].slot_bytes;
    for bit in (0..(HEADER_BYTES + 1000) * 8).step_by(7) {
        slab.flip(slot_bytes * 8 + bit);
        assert_eq!(slab.get(handles[1]), None, "bit {bit}");
        assert!(slab.get(handles[0]).is_some() && slab.get(handles[2]).is_some());
        slab.flip(slot_bytes * 8 + bit);
        assert!(slab.get(handles[1]).is_some());
    }
}

#[test]
fn compaction_frees_sparse_slabs() {
    let mut model = Model::of(pool_of(64, SLABS_PER_LANE));
    let mut random = Random(3);
    for _ in 0..2_000 {
        model.store(1_000 + random.below(1_000));
    }
    for _ in 0..1_400 {
        model.free(random.below(usize::MAX));
    }
    let used_before = model.pool.used_bytes();
    while model.pool.sparsest().inspect(|&slab| model.pool.reopen(slab)).is_some() {
        let used = model.pool.used_bytes();
        model.compact(16, 5);
        if model.pool.used_bytes() == used {
            model.compact(1024, usize::MAX);
        }
    }
    model.check_counts();
    assert!(model.pool.used_bytes() < used_before / 2, "{}", model.pool.used_bytes());
    model.finish();
}

#[test]
fn stale_handle_is_rejected() {
    let memory = reserve_bytes(SLAB_BYTES).unwrap();
    let mut slab = Slab::new(memory.first_chunk_mut().unwrap());
    slab.open(class_for(100));
    let first = slab.put(0, &[1; 100], 7, 0);
    assert!(slab.remove(first) && !slab.remove(first), "only one free counts");
    let second = slab.put(0, &[2; 100], 8, 0);
    assert_eq!(first.object().slot, second.object().slot);
    assert!(slab.get(first).is_none() && !slab.remove(first));
    assert_eq!(slab.get(second), Some(&[2; 100][..]));
    assert!(slab.remove(second));
    slab.release();
    slab.open(class_for(100));
    let third = slab.put(0, &[3; 100], 9, 0);
    assert!(slab.get(first).is_none() && slab.get(second).is_none());
    assert_eq!(slab.get(third), Some(&[3; 100][..]));
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "stale")]
fn a_double_free_is_caught() {
    let pool = CompressedPool::new(SLAB_BYTES).unwrap();
    let handle = pool.store(&[1; 100], 1, 0).unwrap();
    pool.free(handle);
    pool.free(handle);
}

#[cfg(not(debug_assertions))]
#[test]
fn a_double_free_is_harmless() {
    let pool = CompressedPool::new(SLAB_BYTES).unwrap();
    let handle = pool.store(&[1; 100], 1, 0).unwrap();
    let kept = pool.store(&content(2, 100), 2, 0).unwrap();
    pool.free(handle);
    pool.free(handle);
    pool.free(Handle::from_bits((1 << 58) - 1));
    assert_eq!(pool.objects(), 1);
    assert_holds(&pool, kept, 2);
}

#[test]
fn objects_are_intact_during_write_back() {
    let pool = pool_of(24, 1);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn({
                    let pool = &pool;
                    move || work_on(pool, thread)
                })
            })
            .collect();
        scope.spawn(|| {
            let mut out = [(0, Handle::default()); 64];
            while !done.load(Relaxed) {
                let count = pool.oldest(&mut out);
                for (owner, _) in &out[..count] {
                    assert!(owner >> 32 < 4, "owner {owner:#x} belongs to no thread");
                }
                std::thread::yield_now();
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        done.store(true, Relaxed);
    });
    assert_eq!((pool.used_bytes(), pool.stored_bytes(), pool.objects()), (0, 0, 0));
    assert_eq!(fill_up(&pool, MAX_OBJECT_BYTES).len(), 24 * CLASS[CLASSES - 1].slots);
}

fn work_on(pool: &CompressedPool, thread: u64) {
    let mut random = Random(thread + 1);
    let mut mine: Vec<(u64, Handle)> = Vec::new();
    for round in 0..30_000 {
        let owner = thread << 32 | round;
        // Few sizes, so that threads meet in the same slabs.
        let len = 400 + 300 * random.below(9);
        match pool.store_from(thread as usize, &content(owner, len), owner, 0) {
            Ok(handle) => mine.push((owner, handle)),
            Err(PoolFull) => assert!(pool.used_bytes() <= pool.limit_bytes()),
        }
        if mine.len() > 100 || random.below(3) == 0 && !mine.is_empty() {
            let (owner, handle) = mine.swap_remove(random.below(mine.len()));
            assert_holds(pool, handle, owner);
            pool.free(handle);
        }
    }
    for (owner, handle) in mine {
        assert_holds(pool, handle, owner);
        pool.free(handle);
    }
}

/// Returns a length as LZ4 produces for pages of programs.
fn realistic_length(random: &mut Random) -> usize {
    let spread = |random: &mut Random, from: usize, to: usize| {
        from + (random.below(to - from) + random.below(to - from)) / 2
    };
    match random.below(10) {
        0 => spread(random, 30, 300),
        1..4 => spread(random, 300, 1500),
        4..8 => spread(random, 1200, 2700),
        _ => spread(random, 2400, MAX_OBJECT_BYTES),
    }
}

/// Returns the share of the slabs that is not content. Three processors take turns.
fn waste(pages: usize, churned: usize) -> f64 {
    let mut model = Model::of(pool_of(4096, SLABS_PER_LANE));
    let mut random = Random(7);
    for _ in 0..pages {
        model.store(realistic_length(&mut random));
    }
    for step in 0..churned {
        model.free(random.below(usize::MAX));
        model.store(realistic_length(&mut random));
        if step % 32 == 0 {
            model.compact(64, usize::MAX);
        }
    }
    1.0 - model.pool.stored_bytes() as f64 / model.pool.used_bytes() as f64
}

#[test]
fn slab_waste_is_low_for_realistic_sizes() {
    let (tiny, small, large) = (waste(1_500, 0), waste(20_000, 0), waste(60_000, 0));
    let churned = waste(60_000, 120_000);
    println!("waste: {tiny:.3}, {small:.3}, {large:.3} when filled, {churned:.3} after churn");
    assert!(tiny < 0.3, "{tiny}");
    assert!(small < 0.08, "{small}");
    assert!(large < 0.06, "{large}");
    assert!(churned < 0.08, "{churned}");
}

#[test]
fn pool_tables_are_small() {
    let pool = CompressedPool::new(64 << 20).unwrap();
    assert!(pool.metadata_bytes() < pool.limit_bytes() / 500, "{}", pool.metadata_bytes());
}

#[test]
fn deferred_write_backs_come_first() {
    let pool = CompressedPool::new(4 * SLAB_BYTES).unwrap();
    let stored = fill_up(&pool, 3000);
    for expected in [stored[0], stored[1]] {
        let mut out = [(0, Handle::default())];
        for _ in 0..2 {
            assert_eq!(pool.oldest(&mut out), 1);
            assert_eq!(out[0], expected);
            pool.return_oldest(expected.1);
        }
        assert_eq!(pool.oldest(&mut out), 1);
        pool.free(expected.1);
        pool.return_oldest(expected.1);
    }
}

#[test]
fn last_object_of_slab_is_found() {
    let pool = CompressedPool::new(4 * SLAB_BYTES).unwrap();
    let first = pool.store(&content(1, 3000), 1, 0).unwrap();
    let second = pool.store(&content(2, 200), 2, 0).unwrap();
    candidates(&pool, 1);
    candidates(&pool, 1);
    pool.return_oldest(first);
    assert_eq!(candidates(&pool, 1), [(1, first)]);
    pool.return_oldest(second);
    assert_eq!(candidates(&pool, 1), [(2, second)]);
}

#[test]
fn random_lookup_returns_only_objects() {
    let pool = CompressedPool::new(4 * SLAB_BYTES).unwrap();
    let every = |pool: &CompressedPool| -> std::collections::BTreeSet<u64> {
        let mut random = 1_u64;
        (0..20_000)
            .filter_map(|_| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                pool.owner_at_random(random)
            })
            .collect()
    };
    assert!(every(&pool).is_empty());
    let handles: Vec<_> = (0..40).map(|owner| pool.store(&[7; 1500], owner, 1).unwrap()).collect();
    assert_eq!(every(&pool), (0..40).collect());
    handles.iter().step_by(2).for_each(|handle| pool.free(*handle));
    assert_eq!(every(&pool), (0..40).filter(|owner| owner % 2 == 1).collect());
    handles.iter().skip(1).step_by(2).for_each(|handle| pool.free(*handle));
    assert!(every(&pool).is_empty());
}
