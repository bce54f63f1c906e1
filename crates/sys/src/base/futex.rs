//! Futex waits and a lock, without allocation.

use crate::raw;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const WAIT_PRIVATE: usize = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
const WAKE_PRIVATE: usize = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;

fn wait_at(address: usize, expected: u32, timeout_ns: Option<u64>) -> isize {
    wait_by(WAIT_PRIVATE, address, expected, timeout_ns)
}

fn wait_by(how: usize, address: usize, expected: u32, timeout_ns: Option<u64>) -> isize {
    let time = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let time_ptr = time.as_ref().map_or(0, |t| std::ptr::from_ref(t) as usize);
    // SAFETY: the kernel reads four bytes at `address`, and returns EFAULT if they are not
    // readable. It reads a `timespec` at `time_ptr`, which is `time` or null.
    unsafe { raw::syscall(libc::SYS_futex, [address, how, expected as usize, time_ptr, 0, 0]) }
}

fn wake_at(address: usize, count: i32) {
    wake_by(WAKE_PRIVATE, address, count);
}

fn wake_by(how: usize, address: usize, count: i32) {
    // SAFETY: the kernel only compares the address with those of waiters and does not read it.
    unsafe {
        raw::syscall(libc::SYS_futex, [address, how, count as usize, 0, 0, 0]);
    }
}

/// Sleeps while `word` holds `expected`; may return early.
pub fn wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    wait_at(word.as_ptr() as usize, expected, timeout_ns);
}

/// Sleeps like [`wait`]. The error is EINTR, ETIMEDOUT, or EAGAIN if `word` held another value.
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

pub fn wake_all(word: &AtomicU32) {
    wake_at(word.as_ptr() as usize, i32::MAX);
}

pub fn wake(word: &AtomicU32, count: u32) {
    wake_at(word.as_ptr() as usize, i32::try_from(count).unwrap_or(i32::MAX));
}

/// Sleeps while the low half of `word` equals the low half of `expected`.
pub fn wait_low(word: &AtomicU64, expected: u64) {
    // x86_64 is little-endian: the low half is at the word's own address.
    wait_at(word.as_ptr() as usize, expected as u32, None);
}

pub fn wake_low(word: &AtomicU64) {
    wake_at(word.as_ptr() as usize, i32::MAX);
}

/// Sleeps like [`wait_low`], for up to `ns` ns, on a word that processes share.
pub fn wait_shared(word: &AtomicU64, expected: u64, ns: u64) {
    wait_by(libc::FUTEX_WAIT as usize, word.as_ptr() as usize, expected as u32, Some(ns));
}

pub fn wake_shared(word: &AtomicU64) {
    wake_by(libc::FUTEX_WAKE as usize, word.as_ptr() as usize, i32::MAX);
}

/// Faults in a page for writing by an atomic "or 0" in the kernel: before 5.14 no advice does so.
/// Returns false if `address` is not writable. A thread that waits on this word may wake early.
pub fn fault_in_for_writing(address: usize) -> bool {
    const WAKE_OP_PRIVATE: usize = (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG) as usize;
    const OR_ZERO: usize = (libc::FUTEX_OP_OR as usize) << 28;
    let own = AtomicU32::new(0);
    let args = [own.as_ptr() as usize, WAKE_OP_PRIVATE, 0, 0, address, OR_ZERO];
    // SAFETY: the kernel does not read `own`, on which no thread waits. It changes no bit at
    // `address`, and returns EFAULT if that is not writable.
    unsafe { raw::syscall(libc::SYS_futex, args) >= 0 }
}

/// Spins at first, then sleeps: after a yield, a waiter of higher priority would run again.
pub fn relax(turns: &mut u32) {
    const AT_ONCE: u32 = 1000;
    if *turns < AT_ONCE {
        *turns += 1;
        std::hint::spin_loop();
    } else {
        sleep_a_moment();
    }
}

pub fn sleep_a_moment() {
    const MOMENT_NS: u64 = 20_000;
    wait(&AtomicU32::new(0), 0, Some(MOMENT_NS));
}

/// A lock whose waiters sleep, so that an owner of lower priority can run. If a signal handler
/// takes it, other code must block signals first. A forked child may release its parent's lock.
#[derive(Debug, Default)]
pub struct Lock(AtomicU32);

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and threads may be asleep.
const WANTED: u32 = 2;

impl Lock {
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    pub fn try_lock(&self) -> bool {
        self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    pub fn lock(&self) {
        if self.try_lock() {
            return;
        }
        while self.0.swap(WANTED, Ordering::Acquire) != FREE {
            wait(&self.0, WANTED, None);
        }
    }

    pub fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == WANTED {
            wake(&self.0, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{self, PAGE_SIZE};

    #[test]
    fn page_is_faulted_in_for_writing_only_if_writable() {
        let page = memory::map_new(PAGE_SIZE).unwrap();
        let is_present = || {
            let mut present = [0u8];
            let args = [page, PAGE_SIZE, present.as_mut_ptr() as usize, 0, 0, 0];
            // SAFETY: the kernel writes one byte, for one page.
            assert_eq!(unsafe { raw::syscall(libc::SYS_mincore, args) }, 0);
            present[0] & 1 == 1
        };
        // SAFETY: the page is mapped above, and no Rust reference points to it.
        unsafe { memory::protect(page, PAGE_SIZE, libc::PROT_READ) }.unwrap();
        assert!(!fault_in_for_writing(page) && !is_present());
        // SAFETY: as above.
        unsafe { memory::protect(page, PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE) }.unwrap();
        assert!(fault_in_for_writing(page) && is_present());
        // SAFETY: as above.
        unsafe { memory::unmap(page, PAGE_SIZE) };
    }

    #[test]
    fn lock_is_exclusive() {
        static LOCK: Lock = Lock::new();
        static COUNT: AtomicU64 = AtomicU64::new(0);
        const EACH: u64 = 20_000;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        LOCK.lock();
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
