//! How an area's storage is doing: failed writes, and what discarding came to.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};

/// Writes that fail one after the other before the area is given up: one bad
/// place fails twice, with its neighbours and alone.
const FAILED_AFTER: u32 = 8;

/// How the storage is doing.
#[derive(Debug, Default)]
pub(super) struct Health {
    pub(super) failed_in_row: AtomicU32,
    pub(super) has_failed: AtomicBool,
    /// What is left in it cannot be read either.
    pub(super) is_given_up: AtomicBool,
}

impl Health {
    pub(super) fn note_write(&self, went_well: bool) {
        if !went_well {
            if self.failed_in_row.fetch_add(1, Relaxed) + 1 >= FAILED_AFTER {
                self.has_failed.store(true, Release);
            }
        } else if self.failed_in_row.load(Relaxed) > 0 || self.has_failed.load(Acquire) {
            self.failed_in_row.store(0, Relaxed);
            self.is_given_up.store(false, Relaxed);
            self.has_failed.store(false, Release);
        }
    }
}

/// What discarding a cluster came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discarded {
    /// None waited.
    Nothing,
    /// So many bytes were discarded.
    Bytes(u64),
    /// The storage cannot; it is not asked again.
    Unsupported,
    /// It failed, and is not asked again.
    Failed,
}
