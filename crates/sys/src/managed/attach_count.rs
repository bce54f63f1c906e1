//! Attach count of a System V segment: shows whether forked children that read slots are alive.
//!
//! A child may close the descriptor of a [`crate::open_mark`], but the kernel drops its mapping
//! only when it exits or calls exec. A process that leaves its IPC namespace cannot read the count:
//! then children count as alive for ever. Each segment has a random size, which distinguishes it
//! from others with the same ID.

use crate::PAGE_SIZE;
use crate::aslr;
use crate::raw;

#[derive(Debug)]
pub struct AttachCount {
    id: usize,
    address: usize,
    bytes: usize,
}

const MAX_BYTES: usize = 1 << 20;
/// Permission that lets the process read the count after it has changed its user.
const READABLE: usize = 0o444;
const NO_RESERVE: usize = 0o10000;

/// # Safety
/// The call's effect on this process's memory is sound.
unsafe fn call(number: i64, a: usize, b: usize, c: usize) -> Option<usize> {
    // SAFETY: the caller promises that the call's effect on memory is sound.
    raw::check(unsafe { raw::syscall(number, [a, b, c, 0, 0, 0]) }).ok()
}

impl AttachCount {
    /// Creates a segment, which children inherit. Returns `None` if the kernel refuses.
    pub fn make() -> Option<AttachCount> {
        let bytes = PAGE_SIZE + aslr::below(MAX_BYTES);
        let flags = libc::IPC_CREAT as usize | NO_RESERVE | READABLE;
        // SAFETY: the call takes no pointers and maps nothing.
        let id = unsafe { call(libc::SYS_shmget, libc::IPC_PRIVATE as usize, bytes, flags)? };
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe { call(libc::SYS_shmat, id, 0, libc::SHM_RDONLY as usize) };
        // SAFETY: the kernel removes the segment once its last mapping is gone; no mapping changes.
        unsafe { call(libc::SYS_shmctl, id, libc::IPC_RMID as usize, 0) };
        Some(AttachCount { id, address: address?, bytes })
    }

    pub fn hand_on(&self, on: bool) {
        let advice = if on { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
        // If the call fails, children inherit the mapping.
        // SAFETY: no content changes, only the children's mappings.
        unsafe { call(libc::SYS_madvise, self.address, self.bytes, advice as usize) };
    }

    /// Returns true if only this process maps the segment; false if the count cannot be read.
    pub fn has_single_process(&self) -> bool {
        let mut state: libc::shmid_ds = crate::AnyBits::zeroed();
        let (command, target) = (libc::IPC_STAT as usize, &raw mut state as usize);
        // SAFETY: the kernel writes one `struct shmid_ds` to `state`.
        let result = unsafe { call(libc::SYS_shmctl, self.id, command, target) };
        result.is_some() && state.shm_segsz == self.bytes && state.shm_nattch == 1
    }

    /// Keeps the inherited mapping in a child until it exits.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for AttachCount {
    fn drop(&mut self) {
        // munmap instead of shmdt, because the exemption from the program's filters lists it.
        // SAFETY: the mapping belongs to this value, and nothing refers to it.
        unsafe { call(libc::SYS_munmap, self.address, self.bytes, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{Ended, in_child};

    #[test]
    fn child_is_counted_until_exit() {
        let Some(attached) = AttachCount::make() else {
            return eprintln!("skipped: no System V shared memory");
        };
        assert!(attached.has_single_process());
        let seen = in_child(|| i32::from(attached.has_single_process()));
        assert_eq!(seen.unwrap(), Ended::Exit(0));
        assert!(attached.has_single_process(), "the child has exited");
        attached.hand_on(false);
        let seen = in_child(|| i32::from(attached.has_single_process()));
        assert_eq!(seen.unwrap(), Ended::Exit(1));
    }
}
