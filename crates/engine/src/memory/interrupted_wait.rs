//! Waits for free memory, interrupted by signals.

use std::sync::atomic::{AtomicU64, Ordering};

/// The state of a wait for free memory that a signal interrupted. The wait resumes when the
/// faulting instruction is repeated, so that its timeout also expires in a program with many
/// signals.
#[derive(Debug, Default)]
pub(crate) struct InterruptedWait {
    /// Time waited without success, and the time of the last interruption; 0 if there is none.
    waited_ns: AtomicU64,
    at_ns: AtomicU64,
}

impl InterruptedWait {
    pub(crate) fn note(&self, waited_ns: u64, now_ns: u64) {
        self.waited_ns.fetch_max(waited_ns, Ordering::Relaxed);
        self.at_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Returns and clears the recorded wait, for the next thread that has to wait.
    pub(crate) fn take_wait(&self, now_ns: u64) -> (u64, u64) {
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
