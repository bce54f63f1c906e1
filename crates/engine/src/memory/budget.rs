//! The DRAM budget: what counts against it and when reclaim must act.
//!
//! Everything the engine keeps in DRAM counts: resident and staged pages, the
//! compressed pool, buffers, tables. A fault may only take a page while more
//! than the reserve is free; the reserve is what reclaim itself needs to make
//! progress (a slab for the pool, a table page).

use softswap_sys::PAGE_SIZE;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Watermarks and the count of pages in DRAM.
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: usize,
    fixed_bytes: usize,
    reserve_bytes: usize,
    low_bytes: usize,
    high_bytes: usize,
    pages: AtomicUsize,
    /// Of these, those that reclaim has taken out and is about to place.
    leaving: AtomicUsize,
    /// Pages that a forked child shares with its parent, who pays for them.
    inherited: AtomicUsize,
}

impl Budget {
    /// A budget of `limit_bytes`, of which `fixed_bytes` are spent on what
    /// the engine needs from the start.
    #[must_use]
    pub(crate) fn new(limit_bytes: usize, fixed_bytes: usize) -> Budget {
        let reserve = (limit_bytes / 128).clamp(512 << 10, 4 << 20);
        let step = (limit_bytes / 64).clamp(256 << 10, 32 << 20);
        Budget {
            limit_bytes,
            fixed_bytes,
            reserve_bytes: reserve,
            low_bytes: reserve + step,
            high_bytes: reserve + 2 * step,
            pages: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            inherited: AtomicUsize::new(0),
        }
    }

    /// The limit in bytes.
    #[must_use]
    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// The fixed part in bytes.
    #[must_use]
    pub(crate) fn fixed_bytes(&self) -> usize {
        self.fixed_bytes
    }

    /// What only reclaim may take, in bytes.
    #[must_use]
    pub(crate) fn reserve_bytes(&self) -> usize {
        self.reserve_bytes
    }

    /// Pages in DRAM: resident and staged.
    #[must_use]
    pub(crate) fn pages(&self) -> usize {
        self.pages.load(Relaxed)
    }

    /// Bytes in use when `other_bytes` are used beside pages and fixed parts.
    #[must_use]
    pub(crate) fn used_bytes(&self, other_bytes: usize) -> usize {
        self.used_with(self.pages(), other_bytes)
    }

    fn used_with(&self, pages: usize, other_bytes: usize) -> usize {
        let own = pages.saturating_sub(self.inherited.load(Relaxed));
        self.fixed_bytes + own * PAGE_SIZE + other_bytes
    }

    /// In a forked child: what is in DRAM now is shared with the parent and
    /// counts there. The child has its budget for what it adds, so that it can
    /// always get as far as exec.
    pub(crate) fn inherit(&self) {
        self.inherited.store(self.pages(), Relaxed);
    }

    /// Takes `count` pages if that leaves the reserve free.
    pub(crate) fn try_charge(&self, count: usize, other_bytes: usize) -> bool {
        // Not added and taken back: others would take that for used meanwhile.
        let fits = |pages: usize| {
            let used_bytes = self.used_with(pages + count, other_bytes);
            (used_bytes + self.reserve_bytes <= self.limit_bytes).then_some(pages + count)
        };
        self.pages.fetch_update(Relaxed, Relaxed, fits).is_ok()
    }

    /// Takes `count` pages out of the reserve, for when reclaim must not run.
    pub(crate) fn charge(&self, count: usize) {
        self.pages.fetch_add(count, Relaxed);
    }

    /// Gives `count` pages back.
    pub(crate) fn release(&self, count: usize) {
        let before = self.pages.fetch_sub(count, Relaxed);
        debug_assert!(before >= count, "more pages released than were charged");
    }

    /// `count` pages have been taken out: they are charged until they have a place.
    pub(crate) fn begin_to_leave(&self, count: usize) {
        self.leaving.fetch_add(count, Relaxed);
    }

    /// So many of these have a place, or stay for longer. What has left for good is to be
    /// released.
    pub(crate) fn end_to_leave(&self, count: usize) {
        let before = self.leaving.fetch_sub(count, Relaxed);
        debug_assert!(before >= count, "more pages placed than were taken out");
    }

    /// Pages that have been taken out and are about to be placed.
    #[must_use]
    pub(crate) fn leaving_pages(&self) -> usize {
        self.leaving.load(Relaxed)
    }

    /// Whether background reclaim should start.
    #[must_use]
    pub(crate) fn is_low(&self, other_bytes: usize) -> bool {
        self.used_bytes(other_bytes) + self.low_bytes > self.limit_bytes
    }

    /// Whether background reclaim may stop.
    #[must_use]
    pub(crate) fn is_comfortable(&self, other_bytes: usize) -> bool {
        self.used_bytes(other_bytes) + self.high_bytes <= self.limit_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_stop_at_the_reserve_and_other_uses_count() {
        let budget = Budget::new(16 << 20, 1 << 20);
        let mut taken = 0;
        while budget.try_charge(1, 2 << 20) {
            taken += 1;
        }
        let used = (3 << 20) + taken * PAGE_SIZE;
        assert!(used <= (16 << 20) - (512 << 10));
        assert!(used + PAGE_SIZE > (16 << 20) - (512 << 10));
        assert!(budget.is_low(2 << 20) && !budget.is_comfortable(2 << 20));
        budget.inherit();
        assert!(!budget.is_low(2 << 20), "what a child inherits is its parent's");
        budget.release(taken);
        assert!(!budget.is_low(2 << 20) && budget.is_comfortable(2 << 20));
    }

    #[test]
    fn pages_that_leave_are_charged_until_they_are_released() {
        let budget = Budget::new(16 << 20, 1 << 20);
        assert!(budget.try_charge(3, 0));
        budget.begin_to_leave(2);
        assert_eq!((budget.pages(), budget.leaving_pages()), (3, 2));
        budget.end_to_leave(1);
        assert_eq!((budget.pages(), budget.leaving_pages()), (3, 1));
        budget.end_to_leave(1);
        budget.release(1);
        assert_eq!((budget.pages(), budget.leaving_pages()), (2, 0));
    }
}
