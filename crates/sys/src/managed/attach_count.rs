//! Attach count of a System V segment: shows whether forked children that read slots are alive.
//!
//! Replaces [`crate::open_mark`] for forked children that read their parent's unnamed swap file. A
//! child may close any descriptor, even that of a mark; the parent would then reuse slots that the
//! child still reads. But a child does not close a mapping in this way. The kernel counts the
//! mappings of a System V segment, and drops a child's mapping when the child exits or calls exec.
//!
//! A process that leaves its IPC namespace cannot read the count: then children count as alive for
//! ever. Each segment has a random size, so that no other segment with the same ID is mistaken for
//! it.

use crate::PAGE_SIZE;
use crate::aslr;
use crate::raw;

/// A segment whose mappings are counted. Its pages are never touched.
#[derive(Debug)]
pub struct AttachCount {
    id: usize,
    address: usize,
    bytes: usize,
}

/// Upper bound of the random part of the size, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Permission that lets the process read the count after it has changed its user.
const READABLE: usize = 0o444;
const NO_RESERVE: usize = 0o10000;

/// Makes a system call; returns `None` if it fails.
///
/// # Safety
/// The call's effect on this process's memory is sound.
unsafe fn call(number: i64, a: usize, b: usize, c: usize) -> Option<usize> {
    // SAFETY: the caller promises that the call's effect on memory is sound.
    raw::check(unsafe { raw::syscall(number, [a, b, c, 0, 0, 0]) }).ok()
}

impl AttachCount {
    /// Creates a segment, which children inherit; returns `None` if the kernel refuses.
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

    /// Makes children that are forked later inherit the mapping, or not.
    pub fn hand_on(&self, on: bool) {
        let advice = if on { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
        // If the call fails, children inherit the mapping.
        // SAFETY: no content changes, only the children's mappings.
        unsafe { call(libc::SYS_madvise, self.address, self.bytes, advice as usize) };
    }

    /// Returns true if the segment is mapped only once, by this process. Returns false if the count
    /// cannot be read.
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
        // A child that inherited the mapping sees that it is not alone.
        let seen = in_child(|| i32::from(attached.has_single_process()));
        assert_eq!(seen.unwrap(), Ended::Exit(0));
        assert!(attached.has_single_process(), "the child has exited");
        attached.hand_on(false);
        let seen = in_child(|| i32::from(attached.has_single_process()));
        assert_eq!(seen.unwrap(), Ended::Exit(1));
    }
}
