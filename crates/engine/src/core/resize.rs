//! Adapts sizes to a changed budget. Tables only grow.

use crate::core::state::Core;
use crate::policy::pool_limit::PoolLimit;
use crate::store::bounce::MAX_EXTRA_BYTES;
use crate::store::pool::SLAB_BYTES;
use softswap_sys::PAGE_SIZE;
use softswap_sys::alloc::HEAP;
use std::io;
use std::sync::PoisonError;

const MIN_PAGES_BYTES: usize = 2 << 20;
/// Minimum that an adaptive pool leaves for pages and tables, in bytes.
const MIN_OUTSIDE_POOL_BYTES: usize = 4 << 20;

/// Returns the smallest and the largest limit of an adaptive pool.
pub(crate) fn pool_bounds(budget_bytes: usize, fixed_bytes: usize) -> (usize, usize) {
    let least = PoolLimit::MIN.bytes_of(budget_bytes);
    // Eight slabs, unless that exceeds a tenth of the budget.
    let least = least.max((8 * SLAB_BYTES).min(budget_bytes / 10));
    let most = PoolLimit::LARGEST.bytes_of(budget_bytes);
    // The pages in use must fit, however much a larger pool would gain.
    let most = most.min(budget_bytes.saturating_sub(fixed_bytes + MIN_OUTSIDE_POOL_BYTES));
    // A limit is a multiple of the slab size.
    let whole = |bytes: usize| bytes / SLAB_BYTES * SLAB_BYTES;
    (whole(least), whole(most.max(least)))
}

pub(crate) fn extra_buffers_bytes(budget_bytes: usize) -> usize {
    (budget_bytes / 32).min(MAX_EXTRA_BYTES)
}

impl Core {
    /// Memory that cannot be freed, and the minimum for pages.
    pub(crate) fn min_bytes(&self) -> usize {
        let stores = &self.stores;
        self.memory.budget.fixed_bytes()
            + stores.areas.metadata_bytes() as usize
            + stores.workspaces.touched_bytes()
            + self.metadata_bytes()
            + HEAP.taken_bytes()
            + MIN_PAGES_BYTES
    }

    /// Enlarges tables for a budget. Fails if no address space is left for them.
    pub(crate) fn grow_tables(&self, budget_bytes: usize) -> io::Result<()> {
        let pool_bytes = self.stores.pool.grow(PoolLimit::LARGEST.bytes_of(budget_bytes))?;
        let cached_bytes = self.stores.read_ahead_pages.grow(budget_bytes / PAGE_SIZE);
        self.memory.budget.add_fixed(pool_bytes + cached_bytes);
        Ok(())
    }

    /// Raises the limit of an adaptive pool to its maximum, because no area can be written. In a
    /// forked child that can never write, the maximum is the budget without pages and tables.
    /// Returns false if the limit does not rise.
    pub(crate) fn widen_pool(&self) -> bool {
        let (budget, pool) = (&self.memory.budget, &self.stores.pool);
        let left = || {
            let limit_bytes = budget.limit_bytes().min(budget.target_bytes());
            limit_bytes.saturating_sub(self.min_bytes() + budget.reserve_bytes())
        };
        let beyond_bytes = if self.stores.may_write() { 0 } else { left() };
        let before_bytes = pool.limit_bytes();
        let widest = self.policies.partition.widest(before_bytes, beyond_bytes);
        widest.into_iter().for_each(|limit_bytes| pool.set_limit_bytes(limit_bytes));
        // The limit is rounded to whole slabs and bounded by the reservation.
        pool.limit_bytes() > before_bytes
    }

    /// Must not be called in a fault: it waits for changes of the pool's limit.
    pub(crate) fn follow_budget(&self) {
        let (budget, stores, policies) = (&self.memory.budget, &self.stores, &self.policies);
        // The later of two concurrent changes wins. The caller holds a context or locks moves of
        // the limit, so a fork waits for it.
        let mut sized_for = self.memory.sized_for.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = budget.target_bytes();
        // A limit raised in a fault has no tables yet. Without address space for them, all sizes
        // stay as they are.
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
    fn pool_limit_excludes_memory_in_use() {
        assert_eq!(pool_bounds(100 << 20, 1 << 20), (2 << 20, 80 << 20));
        assert_eq!(pool_bounds(16 << 20, 1 << 20).0, 8 * SLAB_BYTES);
        let (least, most) = pool_bounds(8 << 20, 3 << 20);
        assert!(least < most && most <= 1 << 20, "{least} {most}");
        let (least, most) = pool_bounds(8 << 20, 6 << 20);
        assert_eq!(least, most, "the minimum wins if it exceeds the maximum");
    }
}
