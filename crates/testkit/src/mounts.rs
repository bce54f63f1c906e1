//! A mount namespace for a test: other processes keep no copies of its mounts.

use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::cell::Cell;
use std::io;

/// Moves the calling thread to its own mount namespace, unless an earlier call did. Threads and
/// processes that it starts later inherit the namespace.
///
/// New mounts also appear in the namespaces of other processes until the caller makes the mounts
/// private.
///
/// # Errors
///
/// EPERM without CAP_SYS_ADMIN.
pub fn unshare() -> io::Result<()> {
    thread_local! {
        static IS_UNSHARED: Cell<bool> = const { Cell::new(false) };
    }
    if !IS_UNSHARED.get() {
        // SAFETY: the flag separates neither the memory nor the descriptors of threads.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
        IS_UNSHARED.set(true);
    }
    Ok(())
}
