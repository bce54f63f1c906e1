//! Whether others want the processors: then looking for a completion takes
//! from them what sleeping would have given.
//!
//! Two signs count. Several threads waiting for pages at once keep the
//! processors busy between them. And a look that comes long after the one
//! before it means that the thread was taken off its processor in between.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// How long one sign of several waiting threads counts.
const CROWD_NS: u64 = 10_000_000;
/// How long an interruption counts: at first, and at most.
const FIRST_BACKOFF_NS: u64 = 20_000_000;
const MAX_BACKOFF_NS: u64 = 640_000_000;
/// Undisturbed successes after which an interruption counts as the first again.
const FORGIVEN_AFTER: u32 = 256;

/// Signs that the processors are wanted.
#[derive(Debug)]
pub struct Pressure {
    /// Threads that may look at the same time without being in each other's way.
    room: u32,
    waiting: AtomicU32,
    contended_until_ns: AtomicU64,
    backoff_ns: AtomicU64,
    undisturbed: AtomicU32,
}

/// One thread's wait for a page; ends when dropped.
#[derive(Debug)]
pub struct Waiting<'p> {
    pressure: &'p Pressure,
}

impl Pressure {
    /// No signs yet, on `cpus` processors.
    #[must_use]
    pub fn new(cpus: usize) -> Pressure {
        Pressure {
            // Half of them: the other half has the work that goes with faults,
            // reclaim's and the kernel's.
            room: (cpus as u32 / 2).max(1),
            waiting: AtomicU32::new(0),
            contended_until_ns: AtomicU64::new(0),
            backoff_ns: AtomicU64::new(FIRST_BACKOFF_NS),
            undisturbed: AtomicU32::new(0),
        }
    }

    /// The calling thread begins to wait for a page.
    pub fn enter(&self, now_ns: u64) -> Waiting<'_> {
        if self.waiting.fetch_add(1, Relaxed) >= self.room {
            self.contended_until_ns.fetch_max(now_ns + CROWD_NS, Relaxed);
        }
        Waiting { pressure: self }
    }

    /// Whether the processors were wanted a moment ago.
    #[must_use]
    pub fn is_contended(&self, now_ns: u64) -> bool {
        now_ns < self.contended_until_ns.load(Relaxed)
    }

    /// A thread that was looking was taken off its processor.
    pub fn interrupted(&self, now_ns: u64) {
        let backoff = self.backoff_ns.load(Relaxed);
        self.contended_until_ns.fetch_max(now_ns + backoff, Relaxed);
        self.backoff_ns.store((2 * backoff).min(MAX_BACKOFF_NS), Relaxed);
        self.undisturbed.store(0, Relaxed);
    }

    /// A thread looked and found what it wanted.
    pub fn succeeded(&self) {
        if self.undisturbed.fetch_add(1, Relaxed) >= FORGIVEN_AFTER {
            self.undisturbed.store(0, Relaxed);
            self.backoff_ns.store(FIRST_BACKOFF_NS, Relaxed);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.pressure.waiting.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_counts_for_a_moment() {
        let pressure = Pressure::new(2);
        let first = pressure.enter(0);
        assert!(!pressure.is_contended(0));
        drop(pressure.enter(100));
        assert!(pressure.is_contended(100 + CROWD_NS - 1));
        assert!(!pressure.is_contended(100 + CROWD_NS));
        drop(first);
        drop(pressure.enter(2 * CROWD_NS));
        assert!(!pressure.is_contended(2 * CROWD_NS), "one after the other is no crowd");
    }

    #[test]
    fn interruptions_count_longer_each_time_until_forgiven() {
        let pressure = Pressure::new(8);
        let lasts = |now: u64| {
            pressure.interrupted(now);
            (1..).map(|n| n * FIRST_BACKOFF_NS).find(|ns| !pressure.is_contended(now + ns)).unwrap()
        };
        assert_eq!(lasts(0), FIRST_BACKOFF_NS);
        assert_eq!(lasts(1 << 40), 2 * FIRST_BACKOFF_NS);
        (0..10).for_each(|_| pressure.interrupted(0));
        assert_eq!(lasts(2 << 40), MAX_BACKOFF_NS);
        (0..=FORGIVEN_AFTER).for_each(|_| pressure.succeeded());
        assert_eq!(lasts(3 << 40), FIRST_BACKOFF_NS);
    }
}
