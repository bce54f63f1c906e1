//! More buffers when there were too few, and fewer when they are idle.
//!
//! A search that found nothing asks for a pool; background reclaim adds one
//! when the budget has room for it, and takes away what nobody has used for a
//! while. Until then a buffer can be lent from address space kept for that: it
//! gets its memory when it is first written to and loses it on return.

use super::Pools;
use softswap_sys::primitive::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::PoisonError;

/// How long a pool that was added must be idle before it goes.
const IDLE_NS: u64 = 10_000_000_000;

impl Pools {
    /// What there is beside the fixed part, in bytes.
    #[must_use]
    pub fn extra_bytes(&self) -> usize {
        self.growth.bytes()
    }

    /// What there is beside the fixed part may come to so many bytes from now on.
    pub(crate) fn resize(&self, extra_bytes: usize) {
        self.growth.resize(extra_bytes);
    }

    /// Whether a search found nothing since a pool was last added. Asking
    /// again is left to the next search that finds nothing.
    #[must_use]
    pub fn wants_pool(&self) -> bool {
        self.growth.is_asked_for.load(Relaxed) && self.growth.is_asked_for.swap(false, Acquire)
    }

    /// Adds a pool of up to `room_bytes`, if there is one to add within the
    /// bound; whether it did. Not in a fault: it waits for other growing, and
    /// for the kernel's pages.
    pub fn grow(&self, room_bytes: usize, now_ns: u64) -> bool {
        let mut seen = self.growth.seen.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Takes away pools that were added and have been idle for a while.
    pub fn release_idle(&self, now_ns: u64) {
        let open = self.open.load(Relaxed);
        if open == 1 {
            return;
        }
        let mut seen = self.growth.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, pool) in self.pools.iter().enumerate().skip(1) {
            let (takes, since_ns) = seen[index];
            if open >> index & 1 == 0 {
                continue;
            }
            if pool.takes() != takes || pool.used() > 0 {
                seen[index] = (pool.takes(), now_ns);
            } else if now_ns.saturating_sub(since_ns) >= IDLE_NS {
                self.release(index);
            }
        }
    }

    /// Takes a pool out of use. One of which something has been taken meanwhile
    /// stays.
    pub(super) fn release(&self, index: usize) -> bool {
        let pool = &self.pools[index];
        // First, so that searches pass it by.
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
