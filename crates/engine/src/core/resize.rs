//! A budget of another size: what was sized by it follows.
//!
//! Tables only grow. What is fixed for good is little in any budget (fault contexts, the
//! primary bounce buffers), and a limit that leaves too little beside it is refused.

use crate::core::state::Core;
use crate::policy::pool_limit::PoolLimit;
use crate::store::bounce::MOST_EXTRA_BYTES;
use crate::store::pool::SLAB_BYTES;
use softswap_sys::PAGE_SIZE;
use softswap_sys::alloc::HEAP;
use std::io;
use std::sync::PoisonError;

/// What must be left of the budget for pages.
const LEAST_PAGES_BYTES: usize = 2 << 20;
/// What a pool that grows by itself leaves for pages and tables.
const LEAST_BESIDE_POOL_BYTES: usize = 4 << 20;

/// The smallest pool of a small budget, up to a tenth of that.
const LEAST_POOL_BYTES: usize = 8 * SLAB_BYTES;

/// The least and the most that a pool's limit moves between in so large a budget, of which
/// `fixed_bytes` are spent from the start.
pub(crate) fn pool_bounds(budget_bytes: usize, fixed_bytes: usize) -> (usize, usize) {
    let least = PoolLimit::LEAST.bytes_of(budget_bytes);
    let least = least.max(LEAST_POOL_BYTES.min(budget_bytes / 10));
    let most = PoolLimit::LARGEST.bytes_of(budget_bytes);
    // However much would be gained: what is in use must fit as well.
    let most = most.min(budget_bytes.saturating_sub(fixed_bytes + LEAST_BESIDE_POOL_BYTES));
    // A limit is of whole slabs: it would never get to anything else.
    let whole = |bytes: usize| bytes / SLAB_BYTES * SLAB_BYTES;
    (whole(least), whole(most.max(least)))
}

/// What bounce buffers may take beside the primary ones.
pub(crate) fn extra_buffers_bytes(budget_bytes: usize) -> usize {
    (budget_bytes / 32).min(MOST_EXTRA_BYTES)
}

impl Core {
    /// What cannot leave, and the least that pages need beside it, in bytes.
    #[must_use]
    pub(crate) fn least_bytes(&self) -> usize {
        let stores = &self.stores;
        self.memory.budget.fixed_bytes()
            + stores.areas.metadata_bytes() as usize
            + stores.workspaces.touched_bytes()
            + self.metadata_bytes()
            + HEAP.taken_bytes()
            + LEAST_PAGES_BYTES
    }

    /// Makes tables for a budget of so many bytes.
    ///
    /// # Errors
    /// When there is no address space for them.
    pub(crate) fn grow_tables(&self, budget_bytes: usize) -> io::Result<()> {
        let pool_bytes = self.stores.pool.grow(PoolLimit::LARGEST.bytes_of(budget_bytes))?;
        let cached_bytes = self.stores.read_ahead_pages.grow(budget_bytes / PAGE_SIZE);
        self.memory.budget.add_fixed(pool_bytes + cached_bytes);
        Ok(())
    }

    /// Gives the pool all that it may take, where nothing can be written: what does not fit there
    /// has no other place. In a forked child that never can, all that pages and tables leave.
    /// False where it has that, or its limit does not move.
    pub(crate) fn widen_pool(&self) -> bool {
        let (budget, pool) = (&self.memory.budget, &self.stores.pool);
        let left = || {
            let limit_bytes = budget.limit_bytes().min(budget.target_bytes());
            limit_bytes.saturating_sub(self.least_bytes() + budget.reserve_bytes())
        };
        let beyond_bytes = if self.stores.may_write() { 0 } else { left() };
        let before_bytes = pool.limit_bytes();
        let widest = self.policies.partition.widest(before_bytes, beyond_bytes);
        widest.into_iter().for_each(|limit_bytes| pool.set_limit_bytes(limit_bytes));
        // It is of whole slabs, and at most what was reserved.
        pool.limit_bytes() > before_bytes
    }

    /// Has all that goes by the budget's size go by the one that is to hold, where it does not
    /// yet. Not in a fault: it waits for who moves the pool's limit.
    pub(crate) fn follow_budget(&self) {
        let (budget, stores, policies) = (&self.memory.budget, &self.stores, &self.policies);
        // Of two at once the later one has the last word. In a context, or with moves of the limit
        // locked: so a fork waits for it.
        let mut sized_for = self.memory.sized_for.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = budget.target_bytes();
        // A limit that was raised where it was needed has no tables yet. Without address space
        // for them all goes on by the size that it has.
        if *sized_for == bytes || self.grow_tables(bytes).is_err() {
            return;
        }
        *sized_for = bytes;
        policies.resize(bytes);
        stores.standby.resize(bytes / PAGE_SIZE);
        stores.bounce.resize(extra_buffers_bytes(bytes));
        let pool = &stores.pool;
        let (least, most) = pool_bounds(bytes, budget.fixed_bytes());
        let set_limit = |limit_bytes| pool.set_limit_bytes(limit_bytes);
        policies.partition.resize(least, most, bytes, pool.limit_bytes(), set_limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_leaves_room_for_what_is_in_use() {
        assert_eq!(pool_bounds(100 << 20, 1 << 20), (2 << 20, 80 << 20));
        assert_eq!(pool_bounds(16 << 20, 1 << 20).0, 8 * SLAB_BYTES);
        let (least, most) = pool_bounds(8 << 20, 3 << 20);
        assert!(least < most && most <= 1 << 20, "{least} {most}");
        let (least, most) = pool_bounds(8 << 20, 6 << 20);
        assert_eq!(least, most, "what is asked for at least is had");
    }
}
