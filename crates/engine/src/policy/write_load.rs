//! Where pages that leave go of late: whether they need the disk.
//!
//! Taking a page out changes the program's memory, and each change must be known
//! to all processors that the program runs on. A thread that takes pages out on
//! another processor interrupts the program for that, on virtual machines at
//! several microseconds each, and waits for it; the program's own thread, where it
//! is the only one that runs, interrupts nobody. So where processors are short, pages
//! that stay in DRAM had better be taken out by the thread that needs room. What goes to
//! the disk is to be waited for, by somebody else.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// All pages.
const WHOLE: u32 = 1 << 16;
/// Of pages that leave, so many may go to the disk before nobody is to wait for
/// them who has better things to do: one in two batches then has one.
const RARELY: u32 = WHOLE / 64;
/// What one batch changes: a 16th of what is missing.
const WEIGHT_SHIFT: u32 = 4;

/// The share of pages that were to go to the disk, of those that left.
#[derive(Debug)]
pub(crate) struct WriteLoad {
    to_disk: AtomicU32,
}

impl Default for WriteLoad {
    /// Not known: as if all of them needed the disk.
    fn default() -> WriteLoad {
        WriteLoad { to_disk: AtomicU32::new(WHOLE) }
    }
}

impl WriteLoad {
    /// Notes a batch: of `pages`, `for_disk` were to go to the disk. Batches may
    /// overwrite each other's note: it is an estimate.
    pub(crate) fn note(&self, pages: usize, for_disk: usize) {
        if pages == 0 {
            return;
        }
        let seen = self.to_disk.load(Relaxed);
        let now = (for_disk.min(pages) as u64 * u64::from(WHOLE) / pages as u64) as u32;
        let moved = match now > seen {
            true => seen + (now - seen).div_ceil(1 << WEIGHT_SHIFT),
            false => seen - (seen - now).div_ceil(1 << WEIGHT_SHIFT),
        };
        self.to_disk.store(moved, Relaxed);
    }

    /// Whether hardly any page needs the disk.
    #[must_use]
    pub(crate) fn spares_the_disk(&self) -> bool {
        self.to_disk.load(Relaxed) < RARELY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(batches: usize, for_disk: usize) -> WriteLoad {
        let leaving = WriteLoad::default();
        (0..batches).for_each(|_| leaving.note(32, for_disk));
        leaving
    }

    #[test]
    fn at_first_the_disk_is_needed() {
        assert!(!WriteLoad::default().spares_the_disk());
    }

    #[test]
    fn one_batch_for_the_disk_is_enough_to_leave_the_next_ones_to_others() {
        let leaving = after(100, 0);
        assert!(leaving.spares_the_disk());
        leaving.note(0, 0);
        leaving.note(32, 1);
        assert!(leaving.spares_the_disk(), "one page now and then does not matter");
        leaving.note(32, 32);
        assert!(!leaving.spares_the_disk());
    }

    #[test]
    fn a_page_for_the_disk_in_every_batch_is_too_often() {
        let leaving = after(1000, 1);
        assert!(!leaving.spares_the_disk());
        (0..1000).for_each(|at| leaving.note(32, usize::from(at % 4 == 0)));
        assert!(leaving.spares_the_disk());
    }
}
