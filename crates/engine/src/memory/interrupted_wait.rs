//! Waits for room in DRAM that signals interrupt.

use std::sync::atomic::{AtomicU64, Ordering};

/// A wait for room that a signal has ended: it goes on when the touch is repeated, so that
/// a program with many signals is not kept waiting for ever.
#[derive(Debug, Default)]
pub(crate) struct InterruptedWait {
    /// For how long was tried in vain, and when last; 0: nobody is away.
    waited_ns: AtomicU64,
    at_ns: AtomicU64,
}

impl InterruptedWait {
    pub(crate) fn note(&self, waited_ns: u64, now_ns: u64) {
        self.waited_ns.fetch_max(waited_ns, Ordering::Relaxed);
        self.at_ns.store(now_ns, Ordering::Relaxed);
    }

    /// What was noted, for whoever is stuck next.
    pub(crate) fn go_on(&self, now_ns: u64) -> (u64, u64) {
        match self.at_ns.swap(0, Ordering::Relaxed) {
            0 => (0, now_ns),
            at_ns => (self.waited_ns.swap(0, Ordering::Relaxed), at_ns.min(now_ns)),
        }
    }

    pub(crate) fn forget(&self) {
        if self.at_ns.load(Ordering::Relaxed) > 0 {
            self.at_ns.store(0, Ordering::Relaxed);
            self.waited_ns.store(0, Ordering::Relaxed);
        }
    }
}
