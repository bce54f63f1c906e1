//! Memory that the program keeps in DRAM (`mlock`): pinned by the engine, and
//! locked by the kernel, which knows limits and privileges and counts.

use super::Engine;
use crate::base::page::PageNo;
use crate::codec::seal::Sealer;
use crate::walks::mapping;
use softswap_sys::PAGE_SIZE;
use softswap_sys::signals;
use std::io;
use std::ops::Range;

/// Of the budget at most so many a part is locked: all else has to live in the rest.
pub(super) const SHARE: usize = 4;

impl Engine {
    /// How much can be locked.
    #[must_use]
    pub fn lock_limit_bytes(&self) -> usize {
        self.core.memory.budget.target_bytes() / SHARE
    }

    /// Brings a range in and keeps it, within the kernel's limits and
    /// [`Engine::lock_limit_bytes`]: beyond that ENOMEM; where a page cannot be had EAGAIN.
    /// Then nothing is locked that was not before.
    pub fn lock_range(&self, address: usize, len: usize) -> io::Result<()> {
        const EAGAIN: i32 = 11;
        let range = self.pages_of(address, len)?;
        let most = self.lock_limit_bytes() / PAGE_SIZE;
        let new = mapping::lock(&self.core.memory, range, most as u64)?;
        let mut failed = None;
        for part in &new {
            let (start, len) = self.bytes_of(part);
            // Not held as a system call's pages are, which are to be few at a time.
            if failed.is_none() && self.pin(start, len, len).is_err() {
                failed = Some(part.start);
            }
        }
        let Some(failed) = failed else { return Ok(()) };
        for part in &new {
            for were in mapping::unlock(&self.core.memory, part)? {
                // Those before the one that failed are pinned.
                were.filter(|_| part.start < failed)
                    .for_each(|page| self.core.memory.pages.unpin(page));
            }
        }
        Err(io::Error::from_raw_os_error(EAGAIN))
    }

    /// Drops the content of a range, and locks again what was locked of it.
    pub fn discard_locked(&self, address: usize, len: usize) -> io::Result<()> {
        let locked = self.unlock_pages(&self.pages_of(address, len)?)?;
        let done = self.discard(address, len);
        for part in &locked {
            let (start, len) = self.bytes_of(part);
            self.lock_range(start, len)?;
        }
        done
    }

    /// Ends what [`Engine::lock_range`] began.
    pub fn unlock_range(&self, address: usize, len: usize) -> io::Result<()> {
        self.unlock_pages(&self.pages_of(address, len)?).map(drop)
    }

    /// Ends all that [`Engine::lock_range`] began.
    pub fn unlock_all(&self) -> io::Result<()> {
        self.unlock_pages(&(0..self.core.memory.window.pages() as PageNo)).map(drop)
    }

    /// After the kernel has unlocked all that the process had locked: what the
    /// engine itself keeps out of the kernel's swap is locked again.
    pub fn all_was_unlocked(&self) {
        self.core.stores.areas.sealers().for_each(Sealer::lock_again);
    }

    /// Whether some page of a range is locked.
    #[must_use]
    pub fn has_locked(&self, address: usize, len: usize) -> bool {
        self.pages_of(address, len).is_ok_and(|range| {
            signals::with_all_blocked(|| self.core.memory.space.lock().has_locked(&range))
        })
    }

    /// Returns what was locked.
    pub(super) fn unlock_pages(&self, range: &Range<PageNo>) -> io::Result<Vec<Range<PageNo>>> {
        let were = mapping::unlock(&self.core.memory, range)?;
        for part in &were {
            part.clone().for_each(|page| self.core.memory.pages.unpin(page));
        }
        Ok(were)
    }

    pub(super) fn bytes_of(&self, range: &Range<PageNo>) -> (usize, usize) {
        (self.address_of(range.start), (range.end - range.start) as usize * PAGE_SIZE)
    }
}
