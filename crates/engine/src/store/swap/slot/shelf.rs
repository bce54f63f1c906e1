//! One shelf: the clusters of a processor that nobody allocates from, and its current one.

use softswap_sys::primitive::Ordering::Relaxed;
use softswap_sys::primitive::{AtomicU32, Mutex, MutexGuard};
use std::sync::PoisonError;

/// Where a cluster is: the low bits of its place, its home above them. A table
/// of zeroes is a table of clusters that have not been added yet.
pub(super) const GONE: u32 = 0;
/// The lists, the best to take from first.
pub(super) const FREE: u32 = 1;
pub(super) const ROOMY: u32 = 2;
pub(super) const TIGHT: u32 = 3;
pub(super) const WAITING: u32 = 4;
/// On no list: the first slot freed in it brings it back.
pub(super) const FULL: u32 = 5;
/// A processor's, or being discarded.
pub(super) const CURRENT: u32 = 6;

/// Ends a list.
pub(super) const NONE: u32 = u32::MAX;

const LISTS: usize = WAITING as usize + 1;

/// One shelf.
#[derive(Debug)]
pub(super) struct Shelf {
    holds: Mutex<Holds>,
    /// How long its lists are, to be read without the lock; the first is none.
    pub(super) counts: [AtomicU32; LISTS],
}

/// What a shelf holds; the lists' links are in the tables.
#[derive(Debug)]
pub(super) struct Holds {
    pub(super) current: Option<u32>,
    /// By list; the first is none.
    pub(super) head: [u32; LISTS],
    pub(super) tail: [u32; LISTS],
    /// Goes up whenever a cluster of this home changes its place, and whenever
    /// a run is taken out of the current one.
    pub(super) changes: u64,
}

impl Shelf {
    pub(super) fn new() -> Self {
        let ends = [NONE; LISTS];
        let holds = Mutex::new(Holds { current: None, head: ends, tail: ends, changes: 0 });
        Self { holds, counts: std::array::from_fn(|_| AtomicU32::new(0)) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Holds> {
        lock(&self.holds)
    }

    pub(super) fn count(&self, list: u32) -> u32 {
        self.counts[list as usize].load(Relaxed)
    }
}

impl Holds {
    /// The first of a list.
    pub(super) fn first(&self, list: u32) -> Option<u32> {
        Some(self.head[list as usize]).filter(|cluster| *cluster != NONE)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
