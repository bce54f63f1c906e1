//! Random operations on the pool, checked against a map.

use super::tests::{Random, assert_holds, candidates, content, fill_up, pool_of};
use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

pub(super) struct Model {
    pub(super) pool: CompressedPool,
    stored: HashMap<u64, Handle>,
    owners: Vec<u64>,
    next_owner: u64,
}

impl Model {
    pub(super) fn new(slabs: usize) -> Model {
        Model::of(pool_of(slabs, 1))
    }

    pub(super) fn of(pool: CompressedPool) -> Model {
        Model { pool, stored: HashMap::new(), owners: Vec::new(), next_owner: 0 }
    }

    pub(super) fn store(&mut self, len: usize) {
        let owner = self.next_owner;
        let tag = (owner % u64::from(TAGS)) as u8;
        let Ok(handle) = self.pool.store_from(owner as usize, &content(owner, len), owner, tag)
        else {
            assert!(self.pool.used_bytes() >= self.pool.limit_bytes(), "refused with slabs free");
            return self.write_back(1024);
        };
        assert_eq!((handle.compressed_bytes(), handle.tag()), (len, tag));
        assert!(self.stored.insert(owner, handle).is_none());
        self.owners.push(owner);
        self.next_owner += 1;
    }

    pub(super) fn load(&self, pick: usize) {
        if !self.owners.is_empty() {
            let owner = self.owners[pick % self.owners.len()];
            assert_holds(&self.pool, self.stored[&owner], owner);
        }
    }

    pub(super) fn free(&mut self, pick: usize) {
        if !self.owners.is_empty() {
            let owner = self.owners.swap_remove(pick % self.owners.len());
            self.pool.free(self.stored.remove(&owner).unwrap());
        }
    }

    /// Compacts, except every `busy_every`-th object, as if its page were claimed.
    pub(super) fn compact(&mut self, batch: usize, busy_every: usize) {
        let Some(slab) = self.pool.sparsest() else { return };
        let used_before = self.pool.used_bytes();
        let mut listed = vec![(0, Handle::default()); batch];
        let mut skipped = 0;
        loop {
            let (count, more) = self.pool.list(slab, &mut listed);
            for (index, &(owner, handle)) in listed[..count].iter().enumerate() {
                assert_eq!(self.stored.get(&owner), Some(&handle), "not a live object of {owner}");
                let compressed = self.pool.load(handle, <[u8]>::to_vec).unwrap();
                let gap = ((index + 1) % busy_every != 0)
                    .then(|| self.pool.store_in_gap(&compressed, owner, handle.tag()).ok());
                match gap.flatten() {
                    Some(new) => {
                        assert_eq!(new.tag(), handle.tag());
                        self.stored.insert(owner, new);
                        self.pool.free(handle);
                    }
                    None => skipped += 1,
                }
            }
            if !more {
                break;
            }
        }
        self.pool.reopen(slab);
        let freed = usize::from(skipped == 0) * SLAB_BYTES;
        assert_eq!(self.pool.used_bytes(), used_before - freed, "{skipped} stayed");
    }

    /// Frees three of four candidates, as if the fourth were claimed.
    pub(super) fn write_back(&mut self, batch: usize) {
        let found = candidates(&self.pool, batch);
        assert_eq!(found.is_empty(), self.stored.is_empty());
        for (index, (owner, handle)) in found.into_iter().enumerate() {
            assert_eq!(self.stored.get(&owner), Some(&handle), "not a live object of {owner}");
            if index % 4 != 3 {
                assert_holds(&self.pool, handle, owner);
                self.stored.remove(&owner);
                self.owners.retain(|&other| other != owner);
                self.pool.free(handle);
            }
        }
    }

    pub(super) fn check_counts(&self) {
        let bytes: usize = self.stored.values().map(|handle| handle.compressed_bytes()).sum();
        assert_eq!(self.pool.objects(), self.stored.len());
        assert_eq!(self.pool.stored_bytes(), bytes);
        assert!(bytes <= self.pool.used_bytes());
        assert!(self.pool.used_bytes() <= self.pool.slabs.len() * SLAB_BYTES);
    }

    pub(super) fn set_limit(&mut self, slabs: usize) {
        self.pool.set_limit_bytes(slabs * SLAB_BYTES);
        let most = self.pool.limit_bytes().max(self.pool.used_bytes());
        self.store(700);
        assert!(self.pool.used_bytes() <= most);
    }

    pub(super) fn finish(mut self) {
        self.pool.set_limit_bytes(usize::MAX);
        while !self.owners.is_empty() {
            self.load(0);
            self.free(0);
        }
        assert_eq!((self.pool.used_bytes(), self.pool.objects()), (0, 0));
        let stored = fill_up(&self.pool, MAX_OBJECT_BYTES);
        assert_eq!(self.pool.used_bytes(), self.pool.limit_bytes(), "a slab was lost");
        assert_eq!(stored.len(), self.pool.slabs.len() * CLASS[CLASSES - 1].slots);
        stored.iter().for_each(|(owner, handle)| assert_holds(&self.pool, *handle, *owner));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn pool_matches_map(
        slabs in 1..12usize,
        steps in prop::collection::vec((0..10u8, any::<u16>()), 0..600),
    ) {
        let mut model = Model::new(slabs);
        for (step, value) in steps {
            let value = usize::from(value);
            match step {
                0..4 => model.store(1 + value % MAX_OBJECT_BYTES),
                4 => model.load(value),
                5..7 => model.free(value),
                7 => model.compact(1 + value % 100, 5),
                8 => model.set_limit(value % 14),
                _ => model.write_back(1 + value % 100),
            }
            model.check_counts();
        }
        model.finish();
    }
}

#[test]
fn pool_matches_map_at_its_limit() {
    let mut random = Random(42);
    let mut model = Model::new(32);
    for step in 0..200_000 {
        // Phases of growth and of shrinking, and drifting sizes.
        let growing = step / 20_000 % 2 == 0;
        match random.below(8) {
            0..4 if growing => model.store(1 + random.below(1 + step % MAX_OBJECT_BYTES)),
            0..2 => model.store(1 + random.below(MAX_OBJECT_BYTES)),
            2..5 => model.free(random.below(usize::MAX)),
            5..7 => model.load(random.below(usize::MAX)),
            _ if step % 64 == 0 => model.write_back(1 + random.below(64)),
            _ if step % 16 == 0 => model.compact(1 + random.below(64), 5),
            _ if step % 2000 == 1 => model.set_limit(16 + random.below(24)),
            _ => {}
        }
        if step % 1000 == 0 {
            model.check_counts();
        }
    }
    model.finish();
}
