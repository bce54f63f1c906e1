//! The DRAM budget: what counts against it and when reclaim must act.
//!
//! Everything the engine keeps in DRAM counts: resident and staged pages, the
//! compressed pool, buffers, tables. A fault may only take a page while more
//! than the reserve is free; the reserve is what reclaim itself needs to make
//! progress (a slab for the pool, a table page).
//!
//! The limit moves. Upwards it does at once. Downwards it follows what is in use: each batch
//! that leaves lowers it, so that nobody waits for more than that, and one that cannot be
//! reached is no worse than the one before.

use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Watermarks and the count of pages in DRAM.
#[derive(Debug)]
pub(crate) struct Budget {
    /// What holds now, and what is to hold once as much has left.
    limit_bytes: AtomicUsize,
    target_bytes: AtomicUsize,
    /// What held when it was last not on its way.
    before_bytes: AtomicUsize,
    fixed_bytes: AtomicUsize,
    pages: AtomicUsize,
    /// Of these, those that reclaim has taken out and is about to place.
    leaving: AtomicUsize,
    /// Pages that a forked child shares with its parent, who pays for them: as long as it does,
    /// and at first.
    inherited: AtomicUsize,
    inherited_at_fork: AtomicUsize,
    /// When it was forked, and how many pages it has added since.
    forked_at_ns: AtomicU64,
    added: AtomicUsize,
}

/// A child that adds more than so many pages, or any so long after the fork, is no longer about
/// to call exec.
const FEW_PAGES: usize = 64;
const SOON_NS: u64 = 10_000_000;

impl Budget {
    /// A budget of `limit_bytes`, of which `fixed_bytes` are spent on what
    /// the engine needs from the start.
    #[must_use]
    pub(crate) fn new(limit_bytes: usize, fixed_bytes: usize) -> Budget {
        Budget {
            limit_bytes: AtomicUsize::new(limit_bytes),
            target_bytes: AtomicUsize::new(limit_bytes),
            before_bytes: AtomicUsize::new(limit_bytes),
            fixed_bytes: AtomicUsize::new(fixed_bytes),
            pages: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            inherited: AtomicUsize::new(0),
            inherited_at_fork: AtomicUsize::new(0),
            forked_at_ns: AtomicU64::new(0),
            added: AtomicUsize::new(0),
        }
    }

    /// The limit in bytes.
    #[must_use]
    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes.load(Relaxed)
    }

    /// The limit that is to hold, in bytes: less than [`Budget::limit_bytes`] while pages
    /// leave for it.
    #[must_use]
    pub(crate) fn target_bytes(&self) -> usize {
        self.target_bytes.load(Relaxed)
    }

    /// Moves the limit: at once to a higher one, else as [`Budget::follow`] does.
    pub(crate) fn move_to(&self, target_bytes: usize) {
        // One that is lowered again on its way has not held.
        if !self.is_moving() {
            self.before_bytes.store(self.limit_bytes(), Relaxed);
        }
        self.target_bytes.store(target_bytes, Relaxed);
        self.limit_bytes.fetch_max(target_bytes, Relaxed);
    }

    /// Raises the limit at once, unless it is on its way down; for whoever needs room.
    pub(crate) fn raise_to(&self, bytes: usize) {
        if !self.is_moving() {
            self.limit_bytes.fetch_max(bytes, Relaxed);
            self.target_bytes.fetch_max(bytes, Relaxed);
        }
    }

    /// Another limit, whatever is in use: a forked child's own.
    pub(crate) fn begin_anew(&self, bytes: usize) {
        self.target_bytes.store(bytes, Relaxed);
        self.limit_bytes.store(bytes, Relaxed);
    }

    /// Whether the limit is on its way.
    #[must_use]
    pub(crate) fn is_moving(&self) -> bool {
        self.limit_bytes() != self.target_bytes()
    }

    /// Lowers the limit to what is in use and the reserve, as far as it is to go.
    pub(crate) fn follow(&self, other_bytes: usize) {
        let next = |limit: usize| {
            let target = self.target_bytes();
            let needed = self.used_bytes(other_bytes) + reserve_of(limit);
            // One that was raised meanwhile may be found below.
            (limit != target).then(|| needed.min(limit).max(target))
        };
        // Refused where there is nothing to do.
        let _ = self.limit_bytes.fetch_update(Relaxed, Relaxed, next);
    }

    /// Gives up lowering the limit: what held before holds again. False where it is not on
    /// its way. Who gives way at the same moment, or moves the limit, is not undone.
    #[must_use]
    pub(crate) fn give_way(&self) -> bool {
        let (target, before) = (self.target_bytes(), self.before_bytes.load(Relaxed));
        let gives_way = self.limit_bytes() > target
            && self.target_bytes.compare_exchange(target, before, Relaxed, Relaxed).is_ok();
        if gives_way {
            self.limit_bytes.fetch_max(before, Relaxed);
        }
        gives_way
    }

    /// The fixed part in bytes.
    #[must_use]
    pub(crate) fn fixed_bytes(&self) -> usize {
        self.fixed_bytes.load(Relaxed)
    }

    /// Tables have grown by so many bytes, and stay.
    pub(crate) fn add_fixed(&self, bytes: usize) {
        self.fixed_bytes.fetch_add(bytes, Relaxed);
    }

    /// What only reclaim may take, in bytes.
    #[must_use]
    pub(crate) fn reserve_bytes(&self) -> usize {
        reserve_of(self.limit_bytes())
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
        self.fixed_bytes() + own * PAGE_SIZE + other_bytes
    }

    /// In a forked child: what is in DRAM now is shared with the parent and
    /// counts there. The child has its budget for what it adds, so that it can
    /// always get as far as exec.
    pub(crate) fn inherit(&self) {
        self.inherited.store(self.pages(), Relaxed);
        self.inherited_at_fork.store(self.pages(), Relaxed);
        self.added.store(0, Relaxed);
        self.forked_at_ns.store(now_ns(), Relaxed);
    }

    /// A forked child is to add `count` pages. Where it lives on, what it has inherited counts
    /// here, too, from now on: it has a copy of its own of whatever it or its parent changes.
    pub(crate) fn count_inherited(&self, count: usize) {
        if self.inherited.load(Relaxed) == 0 {
            return;
        }
        let added = self.added.fetch_add(count, Relaxed) + count;
        if added > FEW_PAGES || now_ns() - self.forked_at_ns.load(Relaxed) > SOON_NS {
            self.inherited.store(0, Relaxed);
        }
    }

    /// What a forked child has inherited does not count here, after all: it could not leave.
    pub(crate) fn count_inherited_no_more(&self) {
        self.inherited.store(self.inherited_at_fork.load(Relaxed), Relaxed);
    }

    /// Takes `count` pages if that leaves the reserve free.
    pub(crate) fn try_charge(&self, count: usize, other_bytes: usize) -> bool {
        // Not added and taken back: others would take that for used meanwhile.
        let fits = |pages: usize| {
            let used_bytes = self.used_with(pages + count, other_bytes);
            (used_bytes + self.reserve_bytes() <= self.limit_bytes()).then_some(pages + count)
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
        let limit = self.limit_bytes();
        self.used_bytes(other_bytes) + reserve_of(limit) + step_of(limit) > limit
    }

    /// Whether background reclaim may stop.
    #[must_use]
    pub(crate) fn is_comfortable(&self, other_bytes: usize) -> bool {
        let limit = self.limit_bytes();
        self.used_bytes(other_bytes) + reserve_of(limit) + 2 * step_of(limit) <= limit
    }
}

/// What only reclaim may take of so large a budget, in bytes.
fn reserve_of(limit_bytes: usize) -> usize {
    (limit_bytes / 128).clamp(512 << 10, 4 << 20)
}

/// How far the watermarks lie apart, in bytes.
fn step_of(limit_bytes: usize) -> usize {
    (limit_bytes / 64).clamp(256 << 10, 32 << 20)
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
        budget.count_inherited(FEW_PAGES + 1);
        assert!(budget.is_low(2 << 20), "until it is its own");
        budget.count_inherited_no_more();
        assert!(!budget.is_low(2 << 20), "unless that can be nowhere");
        budget.inherit();
        budget.release(taken);
        assert!(!budget.is_low(2 << 20) && budget.is_comfortable(2 << 20));
    }

    #[test]
    fn a_lower_limit_follows_what_leaves_and_a_higher_one_holds_at_once() {
        let budget = Budget::new(64 << 20, 1 << 20);
        let pages = (40 << 20) / PAGE_SIZE;
        assert!(budget.try_charge(pages, 0));
        budget.move_to(16 << 20);
        assert!(budget.is_moving() && budget.limit_bytes() == 64 << 20);
        budget.follow(0);
        assert_eq!(budget.limit_bytes(), (41 << 20) + (512 << 10));
        assert!(!budget.try_charge(1, 0) && budget.is_low(0));
        budget.release(32);
        assert!(budget.try_charge(1, 0), "a batch that leaves is room for a page");
        budget.follow(0);
        assert_eq!(budget.limit_bytes(), (41 << 20) + (512 << 10) - 31 * PAGE_SIZE);
        budget.release(pages - 31);
        budget.follow(0);
        assert_eq!((budget.limit_bytes(), budget.is_moving()), (16 << 20, false));
        budget.move_to(128 << 20);
        assert_eq!((budget.limit_bytes(), budget.is_moving()), (128 << 20, false));
    }

    #[test]
    fn a_limit_that_cannot_be_reached_is_given_up() {
        let budget = Budget::new(64 << 20, 1 << 20);
        assert!(!budget.give_way() && budget.try_charge((40 << 20) / PAGE_SIZE, 0));
        budget.move_to(16 << 20);
        budget.follow(0);
        // One that is lowered again on its way has not held.
        budget.move_to(20 << 20);
        assert!(budget.give_way());
        assert_eq!((budget.limit_bytes(), budget.target_bytes()), (64 << 20, 64 << 20));
        assert!(!budget.give_way(), "not a second time");
        budget.move_to(16 << 20);
        budget.follow(0);
        budget.move_to(48 << 20);
        assert_eq!((budget.limit_bytes(), budget.is_moving()), (48 << 20, false));
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
