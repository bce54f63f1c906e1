//! A mutex that works across fork.

use softswap_sys::futex;
use softswap_sys::signals::{self, never_blocked};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Longest wait before another attempt to lock, in nanoseconds.
const WAIT_NS: u64 = 50_000;

/// Contains its holder's PID: a forked child must not wait for a thread of its parent.
pub(super) struct ForkSafeMutex<T> {
    owner: AtomicI32,
    /// Futex of the waiting threads; always 0.
    waiters: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock accesses the value.
unsafe impl<T: Send> Sync for ForkSafeMutex<T> {}

impl<T> ForkSafeMutex<T> {
    pub(super) const fn new(value: T) -> ForkSafeMutex<T> {
        ForkSafeMutex {
            owner: AtomicI32::new(0),
            waiters: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Blocks the program's signals: a handler may start programs, too.
    pub(super) fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let mask = signals::block_all();
        // `body` may touch absent pages.
        signals::set_mask(!never_blocked());
        let result = self.with_mask_as_is(body);
        signals::set_mask(mask);
        result
    }

    /// Does not change the signal mask. Signal handlers must not use this lock.
    pub(super) fn with_mask_as_is<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let me = std::process::id() as i32;
        let mut seen = 0;
        while let Err(owner) =
            self.owner.compare_exchange_weak(seen, me, Ordering::Acquire, Ordering::Relaxed)
        {
            // Another PID: a thread of the parent held the lock during the fork. Take it over.
            seen = if owner == me { 0 } else { owner };
            if owner == me {
                // Sleep instead of yielding: yielding does not let a holder of lower priority run.
                futex::wait(&self.waiters, 0, Some(WAIT_NS));
            }
        }
        // SAFETY: the lock is held.
        let result = body(unsafe { &mut *self.value.get() });
        self.owner.store(0, Ordering::Release);
        result
    }
}
