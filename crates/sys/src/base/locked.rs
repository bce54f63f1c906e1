//! A value that threads take in turn, each with all its signals blocked.
//!
//! Unlike a mutex of the standard library's it can be taken in a handler, and for the
//! length of a fork: the child then finds the value whole, and releases what its parent's
//! thread took.

use crate::futex::Lock;
use crate::signals;
use std::cell::UnsafeCell;

/// The value, and its lock.
///
/// ```
/// use softswap_sys::locked::Locked;
///
/// static NAMES: Locked<Vec<&str>> = Locked::new(Vec::new());
/// NAMES.with(|names| names.push("zram"));
/// assert_eq!(NAMES.with(|names| names.len()), 1);
/// ```
pub struct Locked<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only touched under the lock, by one thread at a time. That may be
// another one each time, which a `T` that is `Send` allows.
unsafe impl<T: Send> Sync for Locked<T> {}

impl<T> Locked<T> {
    /// Nobody has it.
    pub const fn new(value: T) -> Locked<T> {
        Locked { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Runs `body` with the value. It must not ask for the value again.
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        signals::with_all_blocked(|| {
            self.lock.lock();
            // SAFETY: the lock is held, and signals are blocked: no other reference to
            // the value is in use until `body` returns.
            let result = body(unsafe { &mut *self.value.get() });
            self.lock.unlock();
            result
        })
    }

    /// Keeps other threads from having it while this one forks.
    pub fn lock_for_fork(&self) {
        self.lock.lock();
    }

    /// Ends what [`Locked::lock_for_fork`] began.
    pub fn unlock_after_fork(&self) {
        self.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_between_threads() {
        static COUNT: Locked<u64> = Locked::new(0);
        const EACH: u64 = 20_000;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..EACH).for_each(|_| COUNT.with(|count| *count += 1)));
            }
        });
        assert_eq!(COUNT.with(|count| *count), 4 * EACH);
    }
}
