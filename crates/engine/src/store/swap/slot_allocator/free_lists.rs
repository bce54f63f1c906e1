//! A free-list set: the clusters of a processor that are on lists, and its current cluster.

use softswap_sys::primitive::Ordering::Relaxed;
use softswap_sys::primitive::{AtomicU32, Mutex, MutexGuard};
use std::sync::PoisonError;

/// States of a cluster, in the low bits of its position. A zeroed table has no cluster.
pub(super) const ABSENT: u32 = 0;
/// The lists, in the order of allocation.
pub(super) const FREE: u32 = 1;
pub(super) const MOSTLY_FREE: u32 = 2;
pub(super) const MOSTLY_USED: u32 = 3;
pub(super) const WAITING: u32 = 4;
/// On no list: the first freed slot puts it back on one.
pub(super) const FULL: u32 = 5;
/// In use by a processor, or being discarded.
pub(super) const CURRENT: u32 = 6;

pub(super) const NONE: u32 = u32::MAX;

const LISTS: usize = WAITING as usize + 1;

#[derive(Debug)]
pub(super) struct FreeListSet {
    lists: Mutex<Lists>,
    /// Lengths of the lists, readable without the lock; the first is unused.
    pub(super) counts: [AtomicU32; LISTS],
}

#[derive(Debug)]
pub(super) struct Lists {
    pub(super) current: Option<u32>,
    pub(super) head: [u32; LISTS],
    pub(super) tail: [u32; LISTS],
    /// Incremented when a cluster of this home moves, or the current one allocates a run.
    pub(super) changes: u64,
}

impl FreeListSet {
    pub(super) fn new() -> Self {
        let ends = [NONE; LISTS];
        let lists = Mutex::new(Lists { current: None, head: ends, tail: ends, changes: 0 });
        Self { lists, counts: std::array::from_fn(|_| AtomicU32::new(0)) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Lists> {
        lock(&self.lists)
    }

    pub(super) fn count(&self, list: u32) -> u32 {
        self.counts[list as usize].load(Relaxed)
    }
}

impl Lists {
    pub(super) fn first(&self, list: u32) -> Option<u32> {
        Some(self.head[list as usize]).filter(|cluster| *cluster != NONE)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
