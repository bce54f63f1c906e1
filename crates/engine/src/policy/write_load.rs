//! The share of recently evicted pages that needed the disk.
//!
//! Unmapping a page requires a TLB shootdown on all CPUs that run the program, at several
//! microseconds each on virtual machines. If the program's only running thread reclaims, it
//! interrupts no CPU. So if CPUs are short, the thread that needs memory should evict pages that
//! stay in DRAM. Another thread should wait for writes to the disk.

use crate::base::average::follow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WHOLE: u64 = 1 << 16;

#[derive(Debug)]
pub(crate) struct WriteLoad {
    to_disk: AtomicU64,
}

impl Default for WriteLoad {
    fn default() -> WriteLoad {
        WriteLoad { to_disk: AtomicU64::new(WHOLE) }
    }
}

impl WriteLoad {
    /// Concurrent updates may be lost.
    pub(crate) fn note(&self, pages: usize, for_disk: usize) {
        if pages > 0 {
            let share = for_disk.min(pages) as u64 * WHOLE / pages as u64;
            // A batch moves the share by 1/16 of the difference.
            follow(&self.to_disk, share, 16);
        }
    }

    /// Returns true if hardly any page needs the disk: fewer than one in two batches.
    pub(crate) fn avoids_disk(&self) -> bool {
        self.to_disk.load(Relaxed) < WHOLE / 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(batches: usize, for_disk: usize) -> WriteLoad {
        let write_load = WriteLoad::default();
        (0..batches).for_each(|_| write_load.note(32, for_disk));
        write_load
    }

    #[test]
    fn disk_is_initially_needed() {
        assert!(!WriteLoad::default().avoids_disk());
    }

    #[test]
    fn one_disk_batch_delegates_next_batches() {
        let write_load = after(100, 0);
        assert!(write_load.avoids_disk());
        write_load.note(0, 0);
        write_load.note(32, 1);
        assert!(write_load.avoids_disk(), "one page now and then does not matter");
        write_load.note(32, 32);
        assert!(!write_load.avoids_disk());
    }

    #[test]
    fn disk_page_in_every_batch_is_heavy() {
        let write_load = after(1000, 1);
        assert!(!write_load.avoids_disk());
        (0..1000).for_each(|at| write_load.note(32, usize::from(at % 4 == 0)));
        assert!(write_load.avoids_disk());
    }
}
