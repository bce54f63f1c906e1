//! State of the background reclaim thread, and of threads that wait for memory.

use crate::base::page::PageNo;
use softswap_sys::futex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Takes free chunks of a shared budget and calls `raise` with the new limit in bytes. Returns true
/// if the limit rose. Called in faults, so it must not wait or allocate.
pub type More = fn(raise: &dyn Fn(usize)) -> bool;

/// Reason why faults of a process wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    Turn,
    Parked,
}

/// Waits for up to this many ns while faults of the process must wait. Returns the reason if the
/// calling thread's fault must still wait. Called in faults, so it must not allocate.
pub type AwaitTurn = fn(ns: u64) -> Option<Waiting>;

#[derive(Debug, Default)]
pub(crate) struct Background {
    wakeups: AtomicU32,
    /// True while the thread sleeps on `wakeups` until memory is low.
    is_asleep: AtomicBool,
    /// True while the thread exists (approximate). A forked child has no background thread.
    is_running: AtomicBool,
    /// True if a lower limit was abandoned, because pages could not be evicted.
    pub(crate) limit_failed: AtomicBool,
    pub(crate) more: OnceLock<More>,
    pub(crate) await_turn: OnceLock<AwaitTurn>,
    /// Slots and pages to swap in for a turn, in descending order of the slots. A thread locks it
    /// only while it holds a context, so it is never locked during a fork.
    returning: Mutex<Vec<(u64, PageNo)>>,
    pub(crate) interrupted_wait: InterruptedWait,
}

impl Background {
    pub(crate) fn returning(&self) -> MutexGuard<'_, Vec<(u64, PageNo)>> {
        self.returning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread if it sleeps because there was nothing to do.
    pub(crate) fn wake(&self) {
        if self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::AcqRel) {
            self.wake_all();
        }
    }

    /// Wakes the thread, and all threads that wait for its progress.
    pub(crate) fn wake_all(&self) {
        self.wakeups.fetch_add(1, Ordering::Release);
        futex::wake_all(&self.wakeups);
    }

    /// Returns the value to pass to a sleep; a later wake-up ends that sleep immediately.
    #[must_use]
    pub(crate) fn seen(&self) -> u32 {
        self.wakeups.load(Ordering::Acquire)
    }

    pub(crate) fn pause(&self, seen: u32, ns: u64) {
        futex::wait(&self.wakeups, seen, Some(ns));
    }

    pub(crate) fn sleep(&self, seen: u32, ns: u64) {
        self.is_asleep.store(true, Ordering::Release);
        self.pause(seen, ns);
        self.is_asleep.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }

    pub(crate) fn set_running(&self, is_running: bool) {
        self.is_running.store(is_running, Ordering::Relaxed);
    }

    pub(crate) fn stop(&self) {
        self.is_asleep.store(false, Ordering::Relaxed);
        self.set_running(false);
    }
}

/// A wait for free memory that a signal interrupted. It resumes when the faulting instruction is
/// repeated, so that its timeout also expires in a program with many signals.
#[derive(Debug, Default)]
pub(crate) struct InterruptedWait {
    waited_ns: AtomicU64,
    /// Time of the last interruption; 0 if there was none.
    at_ns: AtomicU64,
}

impl InterruptedWait {
    pub(crate) fn note(&self, waited_ns: u64, now_ns: u64) {
        self.waited_ns.fetch_max(waited_ns, Ordering::Relaxed);
        self.at_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Returns and clears the recorded wait, for the next thread that has to wait.
    pub(crate) fn take_wait(&self, now_ns: u64) -> (u64, u64) {
        match self.at_ns.swap(0, Ordering::Relaxed) {
            0 => (0, now_ns),
            at_ns => (self.waited_ns.swap(0, Ordering::Relaxed), at_ns.min(now_ns)),
        }
    }

    pub(crate) fn forget(&self) {
        if self.at_ns.load(Ordering::Relaxed) > 0 {
            self.at_ns.store(0, Ordering::Relaxed);
            self.waited_ns.store(0, Ordering::Relaxed);
        }
    }
}
