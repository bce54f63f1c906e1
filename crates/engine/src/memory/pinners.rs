//! Detects objects that pin program memory for longer than a system call. A page that a device may
//! write to must not be copied and dropped.

use softswap_sys::pinners::Mappings;
use softswap_sys::raw::now_ns;
use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

#[derive(Debug)]
pub(crate) struct Pinners {
    mappings: Option<Mappings>,
    /// Pinning objects of the engine itself.
    pinners: usize,
    is_safe: AtomicBool,
    next_check_ns: AtomicU64,
}

impl Pinners {
    /// Called when the engine has all its rings and the program has none. Without UFFDIO_MOVE,
    /// mappings are not read: page protection can create tens of thousands of them.
    pub(crate) fn start(uses_move: bool) -> Pinners {
        let mappings = if uses_move { Mappings::open() } else { None };
        let pinners = mappings.as_ref().and_then(Mappings::pinners);
        Pinners {
            mappings,
            pinners: pinners.unwrap_or(0),
            is_safe: AtomicBool::new(pinners.is_some()),
            next_check_ns: AtomicU64::new(if uses_move { 0 } else { u64::MAX }),
        }
    }

    /// Returns true if a new check is due. Until it is done, no page may be copied and dropped.
    #[must_use]
    pub(crate) fn is_due(&self) -> bool {
        now_ns() >= self.next_check_ns.load(Acquire)
    }

    pub(crate) fn is_safe_now(&self) -> bool {
        !self.is_due() && self.is_safe.load(Relaxed)
    }

    /// Repeats the check if it is due. Called by background reclaim only.
    pub(crate) fn recheck(&self) {
        if !self.is_due() {
            return;
        }
        let now = now_ns();
        let pinners = self.mappings.as_ref().and_then(Mappings::pinners);
        self.is_safe.store(pinners.is_some_and(|count| count <= self.pinners), Relaxed);
        // Publish the time last: once it is set, other threads rely on the result.
        self.next_check_ns.store(now + 100_000_000, Release);
    }

    /// Disables the checks: afterwards batch unmapping is used only if pages cannot be moved.
    pub(crate) fn stop(&self) {
        self.is_safe.store(false, Relaxed);
        self.next_check_ns.store(u64::MAX, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_sys::ring::Ring;

    #[test]
    fn pages_are_not_moved_while_program_has_ring() {
        let recheck = |found: &Pinners| {
            found.next_check_ns.store(0, Relaxed);
            found.recheck();
            found.is_safe.load(Relaxed)
        };
        // Other tests of this process may have rings for a while.
        let found = Pinners::start(true);
        if found.mappings.is_none() {
            return;
        }
        let found = Pinners { pinners: usize::MAX, ..found };
        assert!(recheck(&found));
        let Ok(_ring) = Ring::new(4) else { return };
        let found = Pinners { pinners: 0, ..found };
        assert!(!recheck(&found));
        found.stop();
        assert!(!found.is_safe.load(Relaxed));
    }
}
