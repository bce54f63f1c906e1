//! Waiting on a word, without allocation.

use crate::raw;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const WAIT_PRIVATE: usize = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
const WAKE_PRIVATE: usize = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;

/// Waits at the address of an atomic's four bytes.
fn wait_at(address: usize, expected: u32, timeout_ns: Option<u64>) -> isize {
    wait_by(WAIT_PRIVATE, address, expected, timeout_ns)
}

fn wait_by(how: usize, address: usize, expected: u32, timeout_ns: Option<u64>) -> isize {
    let time = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let time_ptr = time.as_ref().map_or(0, |t| std::ptr::from_ref(t) as usize);
    // SAFETY: the kernel reads four bytes at `address`, where it answers EFAULT if there
    // is nothing to be read, and a `timespec` at `time_ptr`, which is `time` or null.
    unsafe { raw::syscall(libc::SYS_futex, [address, how, expected as usize, time_ptr, 0, 0]) }
}

fn wake_at(address: usize, count: i32) {
    wake_by(WAKE_PRIVATE, address, count);
}

fn wake_by(how: usize, address: usize, count: i32) {
    // SAFETY: the kernel compares the address with those that others wait at; what is
    // there it does not read.
    unsafe {
        raw::syscall(libc::SYS_futex, [address, how, count as usize, 0, 0, 0]);
    }
}

/// Sleeps while `word` holds `expected`; may return early for no reason.
pub fn wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    wait_at(word.as_ptr() as usize, expected, timeout_ns);
}

/// Sleeps for the program while `word` holds `expected`: the error is what its call may
/// end by, EINTR or ETIMEDOUT, or EAGAIN where `word` held something else.
pub fn wait_for_program(
    word: &AtomicU32,
    expected: u32,
    timeout_ns: Option<u64>,
) -> Result<(), i32> {
    match wait_at(word.as_ptr() as usize, expected, timeout_ns) {
        0.. => Ok(()),
        error => Err(-error as i32),
    }
}

/// Wakes everyone who sleeps on `word`.
pub fn wake_all(word: &AtomicU32) {
    wake_at(word.as_ptr() as usize, i32::MAX);
}

/// Wakes up to `count` of those who sleep on `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    wake_at(word.as_ptr() as usize, i32::try_from(count).unwrap_or(i32::MAX));
}

/// Sleeps while the low half of `word` equals the low half of `expected`.
pub fn wait_low(word: &AtomicU64, expected: u64) {
    // x86_64 is little-endian: the low half is at the word's own address.
    wait_at(word.as_ptr() as usize, expected as u32, None);
}

/// Wakes everyone who sleeps in [`wait_low`] on `word`.
pub fn wake_low(word: &AtomicU64) {
    wake_at(word.as_ptr() as usize, i32::MAX);
}

/// As [`wait_low`], for up to `ns`, on a word that processes share.
pub fn wait_shared(word: &AtomicU64, expected: u64, ns: u64) {
    wait_by(libc::FUTEX_WAIT as usize, word.as_ptr() as usize, expected as u32, Some(ns));
}

/// Wakes everyone who sleeps in [`wait_shared`] on `word`, in whichever process.
pub fn wake_shared(word: &AtomicU64) {
    wake_by(libc::FUTEX_WAKE as usize, word.as_ptr() as usize, i32::MAX);
}

/// For who waits for what another thread is about to do and nobody tells of: looks again at
/// once some `turns`, then sleeps a moment each time. Giving the processor away would not
/// do, because a thread of higher priority keeps it.
pub fn relax(turns: &mut u32) {
    const AT_ONCE: u32 = 1000;
    if *turns < AT_ONCE {
        *turns += 1;
        std::hint::spin_loop();
    } else {
        sleep_a_moment();
    }
}

/// Sleeps for 20 us: for who looks at once and then again.
pub fn sleep_a_moment() {
    const MOMENT_NS: u64 = 20_000;
    wait(&AtomicU32::new(0), 0, Some(MOMENT_NS));
}

/// A lock whose waiters sleep: one of higher priority leaves its processor to the owner. Taken
/// with signals blocked where a handler may want it, too. A forked child may release what
/// its parent's thread took before.
///
/// ```
/// use softswap_sys::futex::Lock;
///
/// static LOCK: Lock = Lock::new();
/// LOCK.lock();
/// // Nobody else is here.
/// LOCK.unlock();
/// ```
#[derive(Debug, Default)]
pub struct Lock(AtomicU32);

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and somebody may sleep.
const WANTED: u32 = 2;

impl Lock {
    /// A free lock.
    #[must_use]
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Takes the lock where nobody has it; whether it did.
    pub fn try_lock(&self) -> bool {
        self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock, after whoever has it.
    pub fn lock(&self) {
        if self.try_lock() {
            return;
        }
        while self.0.swap(WANTED, Ordering::Acquire) != FREE {
            wait(&self.0, WANTED, None);
        }
    }

    /// Releases what [`Lock::lock`] took.
    pub fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == WANTED {
            wake(&self.0, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_the_lock() {
        static LOCK: Lock = Lock::new();
        static COUNT: AtomicU64 = AtomicU64::new(0);
        const EACH: u64 = 20_000;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        LOCK.lock();
                        // Not one step: two at a time would lose some.
                        let seen = COUNT.load(Ordering::Relaxed);
                        COUNT.store(seen + 1, Ordering::Relaxed);
                        LOCK.unlock();
                    }
                });
            }
        });
        assert_eq!(COUNT.load(Ordering::Relaxed), 4 * EACH);
    }
}
