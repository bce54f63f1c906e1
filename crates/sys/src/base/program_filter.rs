//! Records that the program has installed a seccomp filter, which may kill the process for any call
//! that [`crate::exemption`] does not list.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static IN_FORCE: AtomicBool = AtomicBool::new(false);
/// ID of the process that the exempted filters know; 0 for none.
static KNOWN_PROCESS: AtomicU32 = AtomicU32::new(0);

pub fn is_in_force() -> bool {
    IN_FORCE.load(Ordering::Relaxed)
}

/// Records that the program has a filter or is about to install one. Returns the previous value.
pub(crate) fn set_in_force(on: bool) -> bool {
    IN_FORCE.swap(on, Ordering::AcqRel)
}

pub(crate) fn known_process() -> u32 {
    KNOWN_PROCESS.load(Ordering::Relaxed)
}

pub(crate) fn set_known_process(process: u32) {
    KNOWN_PROCESS.store(process, Ordering::Relaxed);
}

/// Returns true if the engine may send a signal to this process by its ID, `process`.
pub(crate) fn may_signal(process: u32) -> bool {
    !is_in_force() || known_process() == process
}
