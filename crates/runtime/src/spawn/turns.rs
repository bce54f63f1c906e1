//! Values that threads take turns at, also across fork.

use softswap_sys::signals::{self, NEVER_BLOCKED};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, Ordering};

/// A value that threads take turns at, with the program's signals blocked: a
/// handler may start programs too. The lock names the process that has it, so
/// that a forked child does not wait for a thread it does not have.
pub(super) struct Turns<T> {
    owner: AtomicI32,
    value: UnsafeCell<T>,
}

// SAFETY: only whoever has the lock refers to the value.
unsafe impl<T: Send> Sync for Turns<T> {}

impl<T> Turns<T> {
    pub(super) const fn new(value: T) -> Turns<T> {
        Turns { owner: AtomicI32::new(0), value: UnsafeCell::new(value) }
    }

    pub(super) fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let mask = signals::block_all();
        // What `body` reads may be out.
        signals::set_mask(!NEVER_BLOCKED);
        let me = std::process::id() as i32;
        let mut seen = 0;
        while let Err(owner) =
            self.owner.compare_exchange_weak(seen, me, Ordering::Acquire, Ordering::Relaxed)
        {
            // Held in the parent when this process was forked off: take it.
            seen = if owner == me { 0 } else { owner };
            if owner == me {
                std::thread::yield_now();
            }
        }
        // SAFETY: the lock is ours.
        let result = body(unsafe { &mut *self.value.get() });
        self.owner.store(0, Ordering::Release);
        signals::set_mask(mask);
        result
    }
}
