//! The DRAM budget: charged memory, and the watermarks of reclaim.
//!
//! A fault may charge a page only while more than the reserve is free. Reclaim itself uses the
//! reserve (a slab for the pool, a page of tables).
//!
//! The limit rises immediately. It falls as memory is reclaimed: each batch lowers it. So no thread
//! waits for more than one batch, and a target that cannot be reached does no harm.

use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

#[derive(Debug, Default)]
pub(crate) struct Budget {
    limit_bytes: AtomicUsize,
    /// The limit to reach by reclaim: below `limit_bytes` while the limit is being lowered.
    target_bytes: AtomicUsize,
    /// The limit before the current change.
    before_bytes: AtomicUsize,
    fixed_bytes: AtomicUsize,
    pages: AtomicUsize,
    /// The part of `pages` that reclaim has unmapped and not yet stored.
    unstored: AtomicUsize,
    /// Pages that a forked child shares with its parent, and that are charged to the parent.
    inherited: AtomicUsize,
    inherited_at_fork: AtomicUsize,
    forked_at_ns: AtomicU64,
    added: AtomicUsize,
}

/// A forked child that adds more pages than this is not about to call exec.
const EXEC_PAGES: usize = 64;
/// Neither is a forked child that adds a page later than this after the fork.
const EXEC_DELAY_NS: u64 = 10_000_000;

impl Budget {
    pub(crate) fn new(limit_bytes: usize, fixed_bytes: usize) -> Budget {
        Budget {
            limit_bytes: AtomicUsize::new(limit_bytes),
            target_bytes: AtomicUsize::new(limit_bytes),
            before_bytes: AtomicUsize::new(limit_bytes),
            fixed_bytes: AtomicUsize::new(fixed_bytes),
            ..Budget::default()
        }
    }

    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes.load(Relaxed)
    }

    pub(crate) fn target_bytes(&self) -> usize {
        self.target_bytes.load(Relaxed)
    }

    pub(crate) fn move_to(&self, target_bytes: usize) {
        // During a lowering, keep the limit before it: only a limit that was reached can be
        // restored.
        if !self.is_moving() {
            self.before_bytes.store(self.limit_bytes(), Relaxed);
        }
        self.target_bytes.store(target_bytes, Relaxed);
        self.limit_bytes.fetch_max(target_bytes, Relaxed);
    }

    /// Raises the limit immediately, unless it is being lowered.
    pub(crate) fn raise_to(&self, bytes: usize) {
        if !self.is_moving() {
            self.limit_bytes.fetch_max(bytes, Relaxed);
            self.target_bytes.fetch_max(bytes, Relaxed);
        }
    }

    /// Sets the limit regardless of the memory in use, for a forked child.
    pub(crate) fn reset(&self, bytes: usize) {
        self.target_bytes.store(bytes, Relaxed);
        self.limit_bytes.store(bytes, Relaxed);
    }

    pub(crate) fn is_moving(&self) -> bool {
        self.limit_bytes() != self.target_bytes()
    }

    /// Lowers the limit towards the target, but not below the memory in use plus the reserve.
    pub(crate) fn follow(&self, other_bytes: usize) {
        let next = |limit: usize| {
            let target = self.target_bytes();
            let needed = self.used_bytes(other_bytes) + reserve_of(limit);
            // A concurrent raise may have made the limit lower than needed.
            (limit != target).then(|| needed.min(limit).max(target))
        };
        // `Err` means that the limit equals the target.
        let _ = self.limit_bytes.fetch_update(Relaxed, Relaxed, next);
    }

    /// Cancels a lowering and restores the previous limit. Returns false if the limit is not being
    /// lowered. A concurrent change of the target wins.
    #[must_use]
    pub(crate) fn cancel_lowering(&self) -> bool {
        let (target, before) = (self.target_bytes(), self.before_bytes.load(Relaxed));
        let is_cancelled = self.limit_bytes() > target
            && self.target_bytes.compare_exchange(target, before, Relaxed, Relaxed).is_ok();
        if is_cancelled {
            self.limit_bytes.fetch_max(before, Relaxed);
        }
        is_cancelled
    }

    pub(crate) fn fixed_bytes(&self) -> usize {
        self.fixed_bytes.load(Relaxed)
    }

    pub(crate) fn add_fixed(&self, bytes: usize) {
        self.fixed_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn reserve_bytes(&self) -> usize {
        reserve_of(self.limit_bytes())
    }

    /// Returns the number of pages in DRAM, resident or staged.
    pub(crate) fn pages(&self) -> usize {
        self.pages.load(Relaxed)
    }

    /// `other_bytes` is the use outside pages and the fixed part.
    pub(crate) fn used_bytes(&self, other_bytes: usize) -> usize {
        self.used_with(self.pages(), other_bytes)
    }

    pub(crate) fn used_with(&self, pages: usize, other_bytes: usize) -> usize {
        let own = pages.saturating_sub(self.inherited.load(Relaxed));
        self.fixed_bytes() + own * PAGE_SIZE + other_bytes
    }

    /// Called in a forked child. Stops charging the inherited pages: they are shared with the
    /// parent and charged there. So the child has the whole budget until exec.
    pub(crate) fn inherit(&self) {
        self.inherited.store(self.pages(), Relaxed);
        self.inherited_at_fork.store(self.pages(), Relaxed);
        self.added.store(0, Relaxed);
        self.forked_at_ns.store(now_ns(), Relaxed);
    }

    /// Records that a forked child adds `count` pages. If the child does not call exec soon, its
    /// inherited pages are charged, too: a page that it or its parent changes is copied.
    pub(crate) fn count_inherited(&self, count: usize) {
        if self.inherited.load(Relaxed) == 0 {
            return;
        }
        let added = self.added.fetch_add(count, Relaxed) + count;
        if added > EXEC_PAGES || now_ns() - self.forked_at_ns.load(Relaxed) > EXEC_DELAY_NS {
            self.inherited.store(0, Relaxed);
        }
    }

    /// Excludes the inherited pages again, because they could not be reclaimed.
    pub(crate) fn count_inherited_no_more(&self) {
        self.inherited.store(self.inherited_at_fork.load(Relaxed), Relaxed);
    }

    /// Charges `count` pages if the reserve stays free.
    pub(crate) fn try_charge(&self, count: usize, other_bytes: usize) -> bool {
        // Not an add and undo: other threads would see the pages as used.
        let fits = |pages: usize| {
            let used_bytes = self.used_with(pages + count, other_bytes);
            (used_bytes + self.reserve_bytes() <= self.limit_bytes()).then_some(pages + count)
        };
        self.pages.fetch_update(Relaxed, Relaxed, fits).is_ok()
    }

    /// Charges `count` pages, from the reserve if necessary. Used where reclaim must not run.
    pub(crate) fn charge(&self, count: usize) {
        self.pages.fetch_add(count, Relaxed);
    }

    pub(crate) fn release(&self, count: usize) {
        let before = self.pages.fetch_sub(count, Relaxed);
        debug_assert!(before >= count, "more pages released than were charged");
    }

    /// Records that `count` pages were unmapped. They stay charged until they are stored.
    pub(crate) fn begin_eviction(&self, count: usize) {
        self.unstored.fetch_add(count, Relaxed);
    }

    /// For pages stored or kept in memory. The evicted ones must be released separately.
    pub(crate) fn end_eviction(&self, count: usize) {
        let before = self.unstored.fetch_sub(count, Relaxed);
        debug_assert!(before >= count, "more evictions ended than begun");
    }

    pub(crate) fn unstored_pages(&self) -> usize {
        self.unstored.load(Relaxed)
    }

    /// Returns true if background reclaim should start.
    pub(crate) fn is_low(&self, other_bytes: usize) -> bool {
        let limit = self.limit_bytes();
        self.used_bytes(other_bytes) + reserve_of(limit) + step_of(limit) > limit
    }

    /// Returns true if background reclaim may stop.
    pub(crate) fn is_above_high(&self, other_bytes: usize) -> bool {
        let limit = self.limit_bytes();
        self.used_bytes(other_bytes) + reserve_of(limit) + 2 * step_of(limit) <= limit
    }
}

fn reserve_of(limit_bytes: usize) -> usize {
    (limit_bytes / 128).clamp(512 << 10, 4 << 20)
}

fn step_of(limit_bytes: usize) -> usize {
    (limit_bytes / 64).clamp(256 << 10, 32 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_respect_reserve_and_other_usage() {
        let budget = Budget::new(16 << 20, 1 << 20);
        let mut taken = 0;
        while budget.try_charge(1, 2 << 20) {
            taken += 1;
        }
        let used = (3 << 20) + taken * PAGE_SIZE;
        assert!(used <= (16 << 20) - (512 << 10));
        assert!(used + PAGE_SIZE > (16 << 20) - (512 << 10));
        assert!(budget.is_low(2 << 20) && !budget.is_above_high(2 << 20));
        budget.inherit();
        assert!(!budget.is_low(2 << 20), "inherited pages are charged to the parent");
        budget.count_inherited(EXEC_PAGES + 1);
        assert!(budget.is_low(2 << 20), "a child that does not call exec is charged");
        budget.count_inherited_no_more();
        assert!(!budget.is_low(2 << 20), "pages that cannot be reclaimed are not charged");
        budget.inherit();
        budget.release(taken);
        assert!(!budget.is_low(2 << 20) && budget.is_above_high(2 << 20));
    }

    #[test]
    fn limit_is_lowered_gradually_and_raised_immediately() {
        let budget = Budget::new(64 << 20, 1 << 20);
        let pages = (40 << 20) / PAGE_SIZE;
        assert!(budget.try_charge(pages, 0));
        budget.move_to(16 << 20);
        assert!(budget.is_moving() && budget.limit_bytes() == 64 << 20);
        budget.follow(0);
        assert_eq!(budget.limit_bytes(), (41 << 20) + (512 << 10));
        assert!(!budget.try_charge(1, 0) && budget.is_low(0));
        budget.release(32);
        assert!(budget.try_charge(1, 0), "an evicted batch frees space for a page");
        budget.follow(0);
        assert_eq!(budget.limit_bytes(), (41 << 20) + (512 << 10) - 31 * PAGE_SIZE);
        budget.release(pages - 31);
        budget.follow(0);
        assert_eq!((budget.limit_bytes(), budget.is_moving()), (16 << 20, false));
        budget.move_to(128 << 20);
        assert_eq!((budget.limit_bytes(), budget.is_moving()), (128 << 20, false));
    }

    #[test]
    fn unreachable_limit_is_cancelled() {
        let budget = Budget::new(64 << 20, 1 << 20);
        assert!(!budget.cancel_lowering() && budget.try_charge((40 << 20) / PAGE_SIZE, 0));
        budget.move_to(16 << 20);
        budget.follow(0);
        // The second lowering starts before the first is complete.
        budget.move_to(20 << 20);
        assert!(budget.cancel_lowering());
        assert_eq!((budget.limit_bytes(), budget.target_bytes()), (64 << 20, 64 << 20));
        assert!(!budget.cancel_lowering(), "nothing is left to cancel");
        budget.move_to(16 << 20);
        budget.follow(0);
        budget.move_to(48 << 20);
        assert_eq!((budget.limit_bytes(), budget.is_moving()), (48 << 20, false));
    }

    #[test]
    fn evicted_pages_are_charged_until_release() {
        let budget = Budget::new(16 << 20, 1 << 20);
        assert!(budget.try_charge(3, 0));
        budget.begin_eviction(2);
        assert_eq!((budget.pages(), budget.unstored_pages()), (3, 2));
        budget.end_eviction(1);
        assert_eq!((budget.pages(), budget.unstored_pages()), (3, 1));
        budget.end_eviction(1);
        budget.release(1);
        assert_eq!((budget.pages(), budget.unstored_pages()), (2, 0));
    }
}
