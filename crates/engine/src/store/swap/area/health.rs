//! State of an area's storage: failed writes and results of discards.

use crate::store::io::IoError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Failed writes in a row after which the area counts as failed. A single bad block fails twice:
/// with its neighbours and alone.
const FAILED_AFTER: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct Health {
    failed_in_row: AtomicU32,
    has_failed: AtomicBool,
    /// Evacuation failed to read the pages left here: not retried before a write succeeds.
    pub(super) is_abandoned: AtomicBool,
    pauses_in_row: AtomicU32,
    paused_until_ns: AtomicU64,
}

impl Health {
    pub(super) fn note_write(&self, result: Result<(), IoError>, now_ns: u64) {
        let Err(error) = result else { return self.recover() };
        if error.is_no_space() || error.is_of_device() {
            self.pause(now_ns);
        }
        // Some storage is not claimed in advance, so lack of space shows up only on a write.
        if !error.is_no_space() && self.failed_in_row.fetch_add(1, Relaxed) + 1 >= FAILED_AFTER {
            self.has_failed.store(true, Release);
        }
    }

    fn recover(&self) {
        if self.failed_in_row.load(Relaxed) > 0 || self.has_failed.load(Acquire) {
            self.failed_in_row.store(0, Relaxed);
            self.is_abandoned.store(false, Relaxed);
            self.has_failed.store(false, Release);
        }
        if self.pauses_in_row.load(Relaxed) > 0 {
            self.pauses_in_row.store(0, Relaxed);
        }
    }

    /// Starts a pause of 1 s, doubled by each refusal in a row after a pause, up to 64 s.
    fn pause(&self, now_ns: u64) {
        if !self.is_paused(now_ns) {
            let doublings = self.pauses_in_row.fetch_add(1, Relaxed).min(6);
            self.paused_until_ns.store(now_ns + (1_000_000_000 << doublings), Relaxed);
        }
    }

    pub(super) fn is_paused(&self, now_ns: u64) -> bool {
        now_ns < self.paused_until_ns.load(Relaxed)
    }

    /// Returns true if there ever was a pause; otherwise the caller need not read the clock.
    pub(super) fn was_paused(&self) -> bool {
        self.paused_until_ns.load(Relaxed) > 0
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Acquire)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Discarded {
    Nothing,
    Bytes(u64),
    Unsupported,
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
    fn refused_writes_double_the_pause() {
        for number in [errno::ENOSPC, errno::ETIMEDOUT] {
            let health = Health::default();
            assert!(!health.was_paused());
            let mut now_ns = 5 * SECOND_NS;
            for pause in [1, 2, 4, 8, 16, 32, 64, 64, 64] {
                health.note_write(refused(number), now_ns);
                health.note_write(refused(number), now_ns + 1);
                assert!(health.is_paused(now_ns + pause * SECOND_NS - 1), "{pause} s");
                now_ns += pause * SECOND_NS;
                assert!(!health.is_paused(now_ns), "{pause} s");
            }
            health.note_write(Ok(()), now_ns);
            health.note_write(refused(number), now_ns);
            assert!(!health.is_paused(now_ns + SECOND_NS));
        }
    }

    #[test]
    fn bad_block_causes_no_pause_and_enospc_no_failure() {
        let health = Health::default();
        for _ in 0..FAILED_AFTER {
            assert!(!health.has_failed());
            health.note_write(refused(errno::EIO), 1);
        }
        assert!(health.has_failed() && !health.was_paused());
        health.note_write(Ok(()), 1);
        (0..2 * FAILED_AFTER).for_each(|_| health.note_write(refused(errno::ENOSPC), 1));
        assert!(!health.has_failed());
    }
}
