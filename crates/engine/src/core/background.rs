//! The background thread that reclaims pages: whether there is one, how it is woken, and
//! who waits for room meanwhile.

use crate::memory::interrupted_wait::InterruptedWait;
use softswap_sys::futex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Grants more of a shared budget, if there is more that nobody has, and raises the limit by what
/// it is given, in bytes; whether it has. In a fault: it waits for nothing, and nothing is
/// allocated.
pub type More = fn(raise: &dyn Fn(usize)) -> bool;

/// Background reclaim, as others see it.
#[derive(Debug, Default)]
pub(crate) struct Background {
    /// Bumped to wake it.
    kick: AtomicU32,
    /// Whether it sleeps on `kick` until memory is low.
    is_asleep: AtomicBool,
    /// Whether there is a thread, about: a forked child has none.
    is_running: AtomicBool,
    /// Whether a lower limit was given up: pages had no place to go.
    pub(crate) limit_failed: AtomicBool,
    /// Who grants more of a budget that is shared with other processes, if it is.
    pub(crate) more: OnceLock<More>,
    /// Who was called away while room was waited for.
    pub(crate) interrupted_wait: InterruptedWait,
}

impl Background {
    /// Wakes it if it sleeps because there was nothing to do.
    pub(crate) fn wake(&self) {
        if self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::AcqRel) {
            self.wake_all();
        }
    }

    /// Wakes it, and all who wait for what it does.
    pub(crate) fn wake_all(&self) {
        self.kick.fetch_add(1, Ordering::Release);
        futex::wake_all(&self.kick);
    }

    /// What a sleep is to begin with: who is woken after this does not sleep.
    #[must_use]
    pub(crate) fn seen(&self) -> u32 {
        self.kick.load(Ordering::Acquire)
    }

    /// Sleeps until somebody is woken who has `seen` so many wakes, or for `ns`.
    pub(crate) fn pause(&self, seen: u32, ns: u64) {
        futex::wait(&self.kick, seen, Some(ns));
    }

    /// Sleeps until memory is low, or for `ns`; for the background thread.
    pub(crate) fn sleep(&self, seen: u32, ns: u64) {
        self.is_asleep.store(true, Ordering::Release);
        self.pause(seen, ns);
        self.is_asleep.store(false, Ordering::Relaxed);
    }

    /// Whether there is a background thread, about.
    #[must_use]
    pub(crate) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }

    /// Notes that the background thread begins, or ends.
    pub(crate) fn set_running(&self, is_running: bool) {
        self.is_running.store(is_running, Ordering::Relaxed);
    }

    /// In a forked child, which has no such thread.
    pub(crate) fn stop(&self) {
        self.is_asleep.store(false, Ordering::Relaxed);
        self.set_running(false);
    }
}
