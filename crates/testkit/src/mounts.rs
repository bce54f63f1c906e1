//! A mount namespace for a test: other processes keep no copies of its mounts.

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::cell::Cell;
use std::io;

/// Moves the calling thread to its own mount namespace, unless an earlier call did. Threads and
/// processes that it starts later inherit the namespace. Mounts in it appear in no other.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN.
pub fn unshare() -> io::Result<()> {
    thread_local! {
        static IS_UNSHARED: Cell<bool> = const { Cell::new(false) };
    }
    if !IS_UNSHARED.get() {
        // SAFETY: the flag separates neither the memory nor the descriptors of threads.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        IS_UNSHARED.set(true);
    }
    Ok(())
}
