//! Values that threads take turns at, also across fork.

use softswap_sys::futex;
use softswap_sys::signals::{self, never_blocked};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// How long whoever finds the lock taken waits before looking again.
const WAIT_NS: u64 = 50_000;

/// A value that threads take turns at, with the program's signals blocked: a
/// handler may start programs too. The lock names the process that has it, so
/// that a forked child does not wait for a thread it does not have.
pub(super) struct ForkSafeMutex<T> {
    owner: AtomicI32,
    /// Always 0: what those wait at who find it taken.
    waiters: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only whoever has the lock refers to the value.
unsafe impl<T: Send> Sync for ForkSafeMutex<T> {}

impl<T> ForkSafeMutex<T> {
    pub(super) const fn new(value: T) -> ForkSafeMutex<T> {
        ForkSafeMutex {
            owner: AtomicI32::new(0),
            waiters: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    pub(super) fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let mask = signals::block_all();
        // What `body` reads may be out.
        signals::set_mask(!never_blocked());
        let result = self.with_mask_as_is(body);
        signals::set_mask(mask);
        result
    }

    /// As [`ForkSafeMutex::with`], with the mask as it is: a handler must not come here.
    pub(super) fn with_mask_as_is<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let me = std::process::id() as i32;
        let mut seen = 0;
        while let Err(owner) =
            self.owner.compare_exchange_weak(seen, me, Ordering::Acquire, Ordering::Relaxed)
        {
            // Held in the parent when this process was forked off: take it.
            seen = if owner == me { 0 } else { owner };
            if owner == me {
                // Not by giving the processor away, which a thread of higher priority does
                // not do for the owner.
                futex::wait(&self.waiters, 0, Some(WAIT_NS));
            }
        }
        // SAFETY: the lock is ours.
        let result = body(unsafe { &mut *self.value.get() });
        self.owner.store(0, Ordering::Release);
        result
    }
}
