//! A mutex that is locked with all signals blocked. Unlike a standard mutex, a signal handler can
//! take it, and a thread can hold it across fork: parent and child both release it.

use crate::futex::Lock;
use crate::signals;
use std::cell::UnsafeCell;

pub struct Locked<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only under the lock, by one thread at a time. That may be a
// different thread each time, which `T: Send` allows.
unsafe impl<T: Send> Sync for Locked<T> {}

impl<T> Locked<T> {
    pub const fn new(value: T) -> Locked<T> {
        Locked { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Runs `body` with the value and all signals blocked. `body` must not lock the value again.
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        signals::with_all_blocked(|| self.with_mask_as_is(body))
    }

    /// Runs `body` under a mask that already blocks the signals whose handlers lock the value.
    pub fn with_mask_as_is<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        self.lock.lock();
        self.run_and_unlock(body)
    }

    /// Returns `None` if the value is locked.
    pub fn try_with_mask_as_is<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.lock.try_lock().then(|| self.run_and_unlock(body))
    }

    fn run_and_unlock<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: both callers have just taken the lock, so no other reference to the value exists
        // until it is released, after `body` has returned.
        let result = body(unsafe { &mut *self.value.get() });
        self.lock.unlock();
        result
    }

    /// Replaces and unlocks the value in a forked child, without dropping the old one.
    ///
    /// # Safety
    ///
    /// This thread is the only one of its process, and is not inside another method of this value.
    pub unsafe fn renew(&self, value: T) {
        // SAFETY: the caller promises that no other thread and no reference exist. The old value
        // may be inconsistent, so it is not dropped.
        unsafe { self.value.get().write(value) };
        self.lock.unlock();
    }

    pub fn lock_for_fork(&self) {
        self.lock.lock();
    }

    pub fn unlock_after_fork(&self) {
        self.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_update_is_lost_between_threads() {
        static COUNT: Locked<u64> = Locked::new(0);
        const EACH: u64 = 20_000;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..EACH).for_each(|_| COUNT.with(|count| *count += 1)));
            }
        });
        assert_eq!(COUNT.with(|count| *count), 4 * EACH);
    }

    #[test]
    fn renewed_lock_is_free() {
        static COUNT: Locked<u64> = Locked::new(0);
        COUNT.lock_for_fork();
        assert_eq!(COUNT.try_with_mask_as_is(|count| *count), None);
        // SAFETY: only this test uses the value.
        unsafe { COUNT.renew(7) };
        assert_eq!(COUNT.try_with_mask_as_is(|count| *count), Some(7));
    }
}
