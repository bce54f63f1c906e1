//! Memory that the program locks (`mlock`). The engine pins it. The kernel locks it as well,
//! because it checks limits and privileges and counts locked memory.

use super::Engine;
use crate::base::page::PageNo;
use crate::codec::seal::Sealer;
use crate::paths::mapping;
use softswap_sys::PAGE_SIZE;
use std::io;
use std::ops::Range;

/// Divisor: at most a quarter of the budget may be locked.
pub(super) const SHARE: usize = 4;

impl Engine {
    /// Returns true if `bytes` may be locked in all. Takes more of a shared budget if necessary.
    pub fn may_lock(&self, bytes: usize) -> bool {
        // Pauses of 1 ms, in which other processes may release memory.
        const PAUSES: usize = 20;
        let background = &self.core.background;
        let mut pauses = 0..PAUSES;
        while bytes > self.lock_limit_bytes() {
            if self.core.grow_budget() {
                continue;
            }
            if background.more.get().is_none() || pauses.next().is_none() {
                return false;
            }
            background.pause(background.seen(), 1_000_000);
        }
        true
    }

    fn lock_limit_bytes(&self) -> usize {
        self.core.memory.budget.target_bytes() / SHARE
    }

    /// Faults a range in and locks it, or fails and locks nothing: with ENOMEM beyond the kernel's
    /// limit or [`Engine::may_lock`], with EAGAIN if a page cannot be faulted in.
    pub fn lock_range(&self, address: usize, len: usize) -> io::Result<()> {
        self.lock_or_wait(address, len, true)
    }

    /// Waits for more of a shared budget only if `waits`.
    pub(super) fn lock_or_wait(&self, address: usize, len: usize, waits: bool) -> io::Result<()> {
        const EAGAIN: i32 = 11;
        let range = self.pages_of(address, len)?;
        let memory = &self.core.memory;
        let lock =
            || mapping::lock(memory, range.clone(), (self.lock_limit_bytes() / PAGE_SIZE) as u64);
        let new = match lock() {
            Err(_) if waits && self.may_lock(mapping::locked_bytes(memory).saturating_add(len)) => {
                lock()?
            }
            result => result?,
        };
        let mut failed = None;
        for part in &new {
            let (start, len) = self.bytes_of(part);
            // These pins do not count toward the limit of pages that calls may pin.
            if failed.is_none() && self.pin(start, len, len).is_err() {
                failed = Some(part.start);
            }
        }
        let Some(failed) = failed else { return Ok(()) };
        for part in &new {
            for were in mapping::unlock(&self.core.memory, part)? {
                // Only the pages before the failed part are pinned.
                were.filter(|_| part.start < failed)
                    .for_each(|page| self.core.memory.pages.unpin(page));
            }
        }
        Err(io::Error::from_raw_os_error(EAGAIN))
    }

    /// Discards the content of a range. Parts that were locked are locked again.
    pub fn discard_locked(&self, address: usize, len: usize) -> io::Result<()> {
        let locked = self.unlock_pages(&self.pages_of(address, len)?)?;
        let done = self.discard(address, len);
        for part in &locked {
            let (start, len) = self.bytes_of(part);
            self.lock_range(start, len)?;
        }
        done
    }

    pub fn unlock_range(&self, address: usize, len: usize) -> io::Result<()> {
        self.unlock_pages(&self.pages_of(address, len)?).map(drop)
    }

    pub fn unlock_all(&self) -> io::Result<()> {
        self.unlock_pages(&(0..self.core.memory.window.pages() as PageNo)).map(drop)
    }

    /// Locks the engine's own secrets again, after the kernel has unlocked all memory.
    pub fn all_was_unlocked(&self) {
        self.core.stores.areas.sealers().for_each(Sealer::lock_again);
    }

    pub fn has_locked(&self, address: usize, len: usize) -> bool {
        self.pages_of(address, len)
            .is_ok_and(|range| self.layout(|layout| layout.has_locked(&range)))
    }

    /// Unlocks and unpins a range. Returns the parts that were locked.
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
