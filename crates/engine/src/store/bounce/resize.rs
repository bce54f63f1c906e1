//! Growth and shrinking of the bounce buffers.
//!
//! A search that finds nothing requests a pool. Background reclaim adds one if the budget has
//! memory, and releases idle ones. Until then transient buffers are available: they are populated
//! on the first write and released on return.

use super::BouncePools;
use softswap_sys::primitive::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::PoisonError;

impl BouncePools {
    pub fn extra_bytes(&self) -> usize {
        self.growth.bytes.load(Relaxed)
    }

    pub(crate) fn resize(&self, extra_bytes: usize) {
        self.growth.limit_bytes.store(extra_bytes, Relaxed);
    }

    /// Returns true if a search failed since the last call, and clears the request of that search.
    #[must_use]
    pub fn wants_pool(&self) -> bool {
        self.growth.is_requested.load(Relaxed) && self.growth.is_requested.swap(false, Acquire)
    }

    /// Adds a pool. Must not run in a fault, because it waits for other threads and for the kernel.
    pub fn grow(&self, room_bytes: usize, now_ns: u64) -> bool {
        let mut seen = self.growth.last_busy.lock().unwrap_or_else(PoisonError::into_inner);
        let open = self.open.load(Relaxed);
        let mut closed = self.pools.iter().enumerate().filter(|(index, _)| open >> index & 1 == 0);
        let Some((index, pool)) = closed.find(|(_, pool)| pool.bytes() <= room_bytes) else {
            return false;
        };
        if !self.growth.charge(pool.bytes()) {
            return false;
        }
        pool.areas.iter().for_each(|area| area.open());
        seen[index] = (pool.takes(), now_ns);
        self.open.fetch_or(1 << index, AcqRel);
        self.growth.grown.fetch_add(1, Relaxed);
        self.wake_waiters();
        true
    }

    /// Releases added pools that have been idle for 10 s.
    pub fn release_idle(&self, now_ns: u64) {
        let open = self.open.load(Relaxed);
        if open == 1 {
            return;
        }
        let mut seen = self.growth.last_busy.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, pool) in self.pools.iter().enumerate().skip(1) {
            let (takes, since_ns) = seen[index];
            if open >> index & 1 == 0 {
                continue;
            }
            if pool.takes() != takes || pool.used() > 0 {
                seen[index] = (pool.takes(), now_ns);
            } else if now_ns.saturating_sub(since_ns) >= 10_000_000_000 {
                self.release(index);
            }
        }
    }

    pub(super) fn release(&self, index: usize) -> bool {
        let pool = &self.pools[index];
        // Close the pool first, so that searches skip it.
        self.open.fetch_and(!(1 << index), AcqRel);
        let closed = pool.areas.iter().take_while(|area| area.close()).count();
        if closed < pool.areas.len() {
            pool.areas[..closed].iter().for_each(|area| area.open());
            self.open.fetch_or(1 << index, AcqRel);
            return false;
        }
        self.growth.bytes.fetch_sub(pool.bytes(), Relaxed);
        self.growth.released.fetch_add(1, Relaxed);
        true
    }
}
