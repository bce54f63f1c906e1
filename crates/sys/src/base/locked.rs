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
        signals::with_all_blocked(|| self.with_mask_as_is(body))
    }

    /// The same, with the signals blocked that are already: whose handlers ask for the value must
    /// be among them.
    pub fn with_mask_as_is<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        self.lock.lock();
        self.run_and_unlock(body)
    }

    /// The same where nobody has the value; `None` where somebody has.
    pub fn try_with_mask_as_is<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.lock.try_lock().then(|| self.run_and_unlock(body))
    }

    /// Under the lock.
    fn run_and_unlock<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: only called with the lock just taken: no other reference to the value is in
        // use until it is released, after `body` has returned.
        let result = body(unsafe { &mut *self.value.get() });
        self.lock.unlock();
        result
    }

    /// In a forked child: the value is this one, and nobody has it, whatever other threads of the
    /// parent were about. What it was is forgotten.
    ///
    /// # Safety
    ///
    /// This thread is the only one of its process, and not within one of the above.
    pub unsafe fn renew(&self, value: T) {
        // SAFETY: there is no other thread, and no reference of this one's, as the caller says.
        // What was there may be half changed: it is not dropped.
        unsafe { self.value.get().write(value) };
        self.lock.unlock();
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

    #[test]
    fn what_is_renewed_is_nobodys() {
        static COUNT: Locked<u64> = Locked::new(0);
        COUNT.lock_for_fork();
        assert_eq!(COUNT.try_with_mask_as_is(|count| *count), None);
        // SAFETY: nobody else knows of it.
        unsafe { COUNT.renew(7) };
        assert_eq!(COUNT.try_with_mask_as_is(|count| *count), Some(7));
    }
}
