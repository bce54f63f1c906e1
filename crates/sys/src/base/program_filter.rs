//! Whether the program has a seccomp filter of its own.
//!
//! Then the engine makes no calls but those that [`crate::exemption`] lists. Noted
//! here, below all who ask, because that is all of them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static IN_FORCE: AtomicBool = AtomicBool::new(false);
/// The process whose number filters know; 0 for none.
static KNOWN_PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether the program has a filter of its own: then the engine calls nothing
/// but what is listed in [`crate::exemption`].
#[must_use]
pub fn is_in_force() -> bool {
    IN_FORCE.load(Ordering::Relaxed)
}

/// Notes that there is one, or is about to be; or that there is none after all.
/// Returns what was noted before.
pub(crate) fn set_in_force(on: bool) -> bool {
    IN_FORCE.swap(on, Ordering::AcqRel)
}

/// The process whose number filters know; 0 for none.
pub(crate) fn known_process() -> u32 {
    KNOWN_PROCESS.load(Ordering::Relaxed)
}

pub(crate) fn set_known_process(process: u32) {
    KNOWN_PROCESS.store(process, Ordering::Relaxed);
}

/// Whether calls pass that signal this process by its number.
#[must_use]
pub(crate) fn may_signal(process: u32) -> bool {
    !is_in_force() || known_process() == process
}
