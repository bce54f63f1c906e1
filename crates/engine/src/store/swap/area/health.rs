//! How an area's storage is doing: failed writes, and what discarding came to.

use crate::store::io::IoError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Writes that fail one after the other before the area is given up: one bad
/// place fails twice, with its neighbours and alone.
const FAILED_AFTER: u32 = 8;

/// How long a device that takes nothing is left alone, at first. Each time that it takes
/// nothing then either doubles it, so many times.
const REST_NS: u64 = 1_000_000_000;
const MOST_DOUBLINGS: u32 = 6;

/// How the storage is doing.
#[derive(Debug, Default)]
pub(super) struct Health {
    failed_in_row: AtomicU32,
    has_failed: AtomicBool,
    /// What is left in it cannot be read either.
    pub(super) is_given_up: AtomicBool,
    rests_in_row: AtomicU32,
    rests_until_ns: AtomicU64,
}

impl Health {
    /// Notes what a write that ended at `now_ns` came to.
    pub(super) fn note_write(&self, result: Result<(), IoError>, now_ns: u64) {
        let Err(error) = result else { return self.recover() };
        if error.is_no_space() || error.is_of_device() {
            self.rest(now_ns);
        }
        // Want of space is no failure of the device: it has to be claimed first
        // where that works, and elsewhere it comes to light only here.
        if !error.is_no_space() && self.failed_in_row.fetch_add(1, Relaxed) + 1 >= FAILED_AFTER {
            self.has_failed.store(true, Release);
        }
    }

    fn recover(&self) {
        if self.failed_in_row.load(Relaxed) > 0 || self.has_failed.load(Acquire) {
            self.failed_in_row.store(0, Relaxed);
            self.is_given_up.store(false, Relaxed);
            self.has_failed.store(false, Release);
        }
        if self.rests_in_row.load(Relaxed) > 0 {
            self.rests_in_row.store(0, Relaxed);
        }
    }

    /// Many may find at once that it takes nothing: that is one rest.
    fn rest(&self, now_ns: u64) {
        if !self.rests(now_ns) {
            let doublings = self.rests_in_row.fetch_add(1, Relaxed).min(MOST_DOUBLINGS);
            self.rests_until_ns.store(now_ns + (REST_NS << doublings), Relaxed);
        }
    }

    /// Whether it took nothing a short time ago.
    pub(super) fn rests(&self, now_ns: u64) -> bool {
        now_ns < self.rests_until_ns.load(Relaxed)
    }

    /// Whether it ever took nothing: only then the time matters.
    pub(super) fn has_rested(&self) -> bool {
        self.rests_until_ns.load(Relaxed) > 0
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Acquire)
    }
}

/// What discarding a cluster came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discarded {
    /// None waited.
    Nothing,
    /// So many bytes were discarded.
    Bytes(u64),
    /// The storage cannot; it is not asked again.
    Unsupported,
    /// It failed, and is not asked again.
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::io::{IoErrorKind, Operation};
    use softswap_sys::file::errno;

    const SECOND_NS: u64 = 1_000_000_000;

    fn refused(number: i32) -> Result<(), IoError> {
        let kind = IoErrorKind::Errno(number);
        let (operation, length) = (Operation::Write, 4096);
        Err(IoError { kind, operation, offset: 0, length, transferred: 0 })
    }

    #[test]
    fn what_takes_nothing_rests_longer_each_time_until_it_takes_a_page() {
        for number in [errno::ENOSPC, errno::ETIMEDOUT] {
            let health = Health::default();
            assert!(!health.has_rested());
            let mut now_ns = 5 * SECOND_NS;
            for rest in [1, 2, 4, 8, 16, 32, 64, 64, 64] {
                health.note_write(refused(number), now_ns);
                // So do others that had begun before.
                health.note_write(refused(number), now_ns + 1);
                assert!(health.rests(now_ns + rest * SECOND_NS - 1), "{rest} s");
                now_ns += rest * SECOND_NS;
                assert!(!health.rests(now_ns), "{rest} s");
            }
            health.note_write(Ok(()), now_ns);
            health.note_write(refused(number), now_ns);
            assert!(!health.rests(now_ns + SECOND_NS));
        }
    }

    #[test]
    fn a_bad_place_is_no_reason_to_rest_and_want_of_space_no_failure() {
        let health = Health::default();
        for _ in 0..FAILED_AFTER {
            assert!(!health.has_failed());
            health.note_write(refused(errno::EIO), 1);
        }
        assert!(health.has_failed() && !health.has_rested());
        health.note_write(Ok(()), 1);
        (0..2 * FAILED_AFTER).for_each(|_| health.note_write(refused(errno::ENOSPC), 1));
        assert!(!health.has_failed());
    }
}
