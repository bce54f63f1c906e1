//! How much calls to the kernel hold in DRAM.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// What is held now.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// In pages; a page held twice counts twice.
    pub(super) pages: AtomicUsize,
    /// Threads that wait for others to let go.
    pub(super) waiting: AtomicU32,
    /// Rises when some is let go while others wait.
    pub(super) rings: AtomicU32,
}

impl Held {
    pub(super) fn pages(&self) -> usize {
        self.pages.load(Relaxed)
    }
}
