//! Whether forked children are still there: the attach count of a System V segment.
//!
//! A mapping that a child inherits is gone when the child has ended or called
//! exec, and no earlier, whatever the child does to its descriptors. Of memory
//! that is shared by System V's calls the kernel counts the mappings, and tells
//! their number to whoever asks. No descriptor is needed, so nothing of this can
//! be met at a number of the program's, or be closed.
//!
//! A process that leaves its name space of such memory cannot ask any more: then
//! it counts as if children were there for ever. So that memory of others under
//! the same number is not taken for it, each has a size of its own, by chance.

use crate::PAGE_SIZE;
use crate::aslr;
use crate::raw;

/// Memory that only says by how many it is mapped. No page of it is ever touched.
///
/// ```
/// use softswap_sys::attach_count::AttachCount;
///
/// if let Some(count) = AttachCount::make() {
///     assert!(count.is_alone(), "no child has been forked");
/// }
/// ```
#[derive(Debug)]
pub struct AttachCount {
    id: usize,
    address: usize,
    bytes: usize,
}

/// So many sizes there are; none is larger.
const MOST_BYTES: usize = 1 << 20;
/// Whoever this process becomes may still ask.
const READABLE: usize = 0o444;
const NO_RESERVE: usize = 0o10000;

/// A call of which nothing is to be known but whether it succeeds.
///
/// # Safety
/// What the call does to this process's memory is sound.
unsafe fn call(number: i64, a: usize, b: usize, c: usize) -> Option<usize> {
    // SAFETY: what the call does to memory is sound, as asked for above.
    raw::check(unsafe { raw::syscall(number, [a, b, c, 0, 0, 0]) }).ok()
}

impl AttachCount {
    /// Makes one, which children inherit; `None` where the kernel has no such
    /// memory, or none left.
    #[must_use]
    pub fn make() -> Option<AttachCount> {
        let bytes = PAGE_SIZE + aslr::below(MOST_BYTES);
        let flags = libc::IPC_CREAT as usize | NO_RESERVE | READABLE;
        // SAFETY: the call takes no pointers, and maps nothing.
        let id = unsafe { call(libc::SYS_shmget, libc::IPC_PRIVATE as usize, bytes, flags)? };
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe { call(libc::SYS_shmat, id, 0, libc::SHM_RDONLY as usize) };
        // SAFETY: lets the memory go with its last mapping; no mapping changes.
        unsafe { call(libc::SYS_shmctl, id, libc::IPC_RMID as usize, 0) };
        Some(AttachCount { id, address: address?, bytes })
    }

    /// Whether children that are forked from now on inherit it.
    pub fn hand_on(&self, on: bool) {
        let advice = if on { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
        // What is refused is handed on.
        // SAFETY: no content changes, only what children get.
        unsafe { call(libc::SYS_madvise, self.address, self.bytes, advice as usize) };
    }

    /// Whether nobody but this process has it.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        // SAFETY: integers, for which zero is valid.
        let mut state: libc::shmid_ds = unsafe { std::mem::zeroed() };
        let (ask, place) = (libc::IPC_STAT as usize, &raw mut state as usize);
        // SAFETY: the kernel writes one `struct shmid_ds` to `state`.
        let told = unsafe { call(libc::SYS_shmctl, self.id, ask, place) };
        told.is_some() && state.shm_segsz == self.bytes && state.shm_nattch == 1
    }

    /// In a child, which keeps what it has inherited until its end, and knows of
    /// no other.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for AttachCount {
    fn drop(&mut self) {
        // By the general call, which is one of those that filters let pass.
        // SAFETY: the mapping is this value's own, and nobody refers to it.
        unsafe { call(libc::SYS_munmap, self.address, self.bytes, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{Ended, in_child};

    #[test]
    fn a_child_is_seen_until_its_end() {
        let Some(attached) = AttachCount::make() else { return eprintln!("skipped: not here") };
        assert!(attached.is_alone());
        // A child that has it sees that it is not the only one.
        let seen = in_child(|| i32::from(attached.is_alone()));
        assert_eq!(seen.unwrap(), Ended::Exit(0));
        assert!(attached.is_alone(), "the child is gone");
        attached.hand_on(false);
        let seen = in_child(|| i32::from(attached.is_alone()));
        assert_eq!(seen.unwrap(), Ended::Exit(1));
    }
}
