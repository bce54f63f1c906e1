//! Memory held by system calls.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

#[derive(Debug, Default)]
pub(super) struct Held {
    /// Pinned pages; a page pinned twice counts twice.
    pub(super) pages: AtomicUsize,
    /// Threads waiting for held pages.
    pub(super) waiting: AtomicU32,
    /// Incremented when pages are released while threads wait.
    pub(super) rings: AtomicU32,
}

impl Held {
    pub(super) fn pages(&self) -> usize {
        self.pages.load(Relaxed)
    }
}
