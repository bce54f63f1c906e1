//! Waiting on a word, without allocation.

use crate::raw;
use std::sync::atomic::{AtomicU32, AtomicU64};

const WAIT_PRIVATE: usize = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
const WAKE_PRIVATE: usize = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;

fn wait_at(address: usize, expected: u32, timeout_ns: Option<u64>) {
    let time = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let time_ptr = time.as_ref().map_or(0, |t| std::ptr::from_ref(t) as usize);
    // SAFETY: the caller passes the address of a live 4-byte aligned atomic;
    // `time` outlives the call. Any result just means "look again".
    unsafe {
        raw::syscall(libc::SYS_futex, [address, WAIT_PRIVATE, expected as usize, time_ptr, 0, 0]);
    }
}

fn wake_at(address: usize, count: i32) {
    // SAFETY: FUTEX_WAKE only uses the address as a key.
    unsafe {
        raw::syscall(libc::SYS_futex, [address, WAKE_PRIVATE, count as usize, 0, 0, 0]);
    }
}

/// Sleeps while `word` holds `expected`; may return early for no reason.
pub fn wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    wait_at(word.as_ptr() as usize, expected, timeout_ns);
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
