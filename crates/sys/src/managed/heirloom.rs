//! What shows a process whether children that have a copy of its memory are
//! still there.
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
use crate::place;
use crate::raw;

/// Memory that only says by how many it is mapped. No page of it is ever touched.
#[derive(Debug)]
pub struct Heirloom {
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
fn call(number: i64, a: usize, b: usize, c: usize) -> Option<usize> {
    // SAFETY: private callers only, which say why each is sound.
    raw::check(unsafe { raw::syscall(number, [a, b, c, 0, 0, 0]) }).ok()
}

impl Heirloom {
    /// Makes one, which children inherit; `None` where the kernel has no such
    /// memory, or none left.
    #[must_use]
    pub fn make() -> Option<Heirloom> {
        let bytes = PAGE_SIZE + place::below(MOST_BYTES);
        let flags = libc::IPC_CREAT as usize | NO_RESERVE | READABLE;
        // Creates; maps at an address of the kernel's choice; and lets it go with
        // the last mapping.
        let id = call(libc::SYS_shmget, libc::IPC_PRIVATE as usize, bytes, flags)?;
        let address = call(libc::SYS_shmat, id, 0, libc::SHM_RDONLY as usize);
        call(libc::SYS_shmctl, id, libc::IPC_RMID as usize, 0);
        Some(Heirloom { id, address: address?, bytes })
    }

    /// Whether children that are forked from now on inherit it.
    pub fn hand_on(&self, on: bool) {
        let advice = if on { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
        // Changes no memory. What is refused is handed on.
        call(libc::SYS_madvise, self.address, self.bytes, advice as usize);
    }

    /// Whether nobody but this process has it.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        // SAFETY: plain numbers, of which all-zero is valid.
        let mut state: libc::shmid_ds = unsafe { std::mem::zeroed() };
        // Writes `state`.
        let told =
            call(libc::SYS_shmctl, self.id, libc::IPC_STAT as usize, &raw mut state as usize);
        told.is_some() && state.shm_segsz == self.bytes && state.shm_nattch == 1
    }

    /// In a child, which keeps what it has inherited until its end, and knows of
    /// no other.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Heirloom {
    fn drop(&mut self) {
        // By the general call, which is one of those that filters let pass. The
        // mapping was made by `make`, and nobody refers to it.
        call(libc::SYS_munmap, self.address, self.bytes, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{Ended, in_child};

    #[test]
    fn a_child_is_seen_until_its_end() {
        let Some(heirloom) = Heirloom::make() else { return eprintln!("skipped: not here") };
        assert!(heirloom.is_alone());
        // A child that has it sees that it is not the only one.
        let seen = in_child(|| i32::from(heirloom.is_alone()));
        assert_eq!(seen.unwrap(), Ended::Exit(0));
        assert!(heirloom.is_alone(), "the child is gone");
        heirloom.hand_on(false);
        let seen = in_child(|| i32::from(heirloom.is_alone()));
        assert_eq!(seen.unwrap(), Ended::Exit(1));
    }
}
