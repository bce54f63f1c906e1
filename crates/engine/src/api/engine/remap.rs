//! `mremap` of managed memory to managed memory. All checks precede the first change. Locked memory
//! stays locked at its new address.

use super::{Engine, Move};
use crate::base::access::Access;
use crate::base::page::PageNo;
use crate::paths::{mapping, page_in};
use softswap_sys::PAGE_SIZE;
use softswap_sys::window::Protection;
use std::io;
use std::ops::Range;
use std::sync::PoisonError;

/// Treatment of the old address range of a moved mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Unmapped,
    /// The old range stays mapped and reads as zeroes.
    Emptied,
}

fn error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EFAULT: i32 = 14;

impl Engine {
    /// Returns true if a range is managed and uniform, so that it counts as one mapping.
    pub fn is_one_mapping(&self, address: usize, len: usize) -> bool {
        self.pages_of(address, len).is_ok_and(|range| {
            self.core.memory.space.is_range_mapped(&range)
                && self.layout(|layout| layout.is_uniform(&range))
        })
    }

    /// Changes a mapping's length, moving it if allowed. Returns its address.
    pub fn remap(
        &self,
        address: usize,
        old_len: usize,
        new_len: usize,
        may_move: Move,
    ) -> io::Result<usize> {
        let old = self.pages_of(address, old_len)?;
        let count = new_len.div_ceil(PAGE_SIZE) as u64;
        if count <= old.end - old.start {
            // The part that is cut off need not be one mapping.
            if !self.core.memory.space.is_mapped(old.start) {
                return Err(error(EFAULT));
            }
            if old.start + count < old.end {
                mapping::unmap(&self.core, old.start + count..old.end)?;
            }
            return Ok(address);
        }
        if !self.is_one_mapping(address, old_len) {
            return Err(error(EFAULT));
        }
        if mapping::grow(&self.core.memory, old.clone(), count)? {
            if self.has_locked(address, old_len) {
                // If locking fails, the new part stays unlocked, as in Linux.
                let _ = self.lock_range(address, new_len);
            }
            return Ok(address);
        }
        let target = self
            .map_target(count, self.protection(address), may_move)?
            .ok_or_else(|| error(ENOMEM))?;
        self.move_pages(old, target..target + count, Source::Unmapped)?;
        Ok(self.address_of(target))
    }

    /// Moves a mapping to `target` (`None`: anywhere), replacing the mappings there, and changes
    /// its length. The ranges must not overlap. Returns the new address.
    pub fn remap_to(
        &self,
        address: usize,
        old_len: usize,
        new_len: usize,
        target: Option<usize>,
        source: Source,
    ) -> io::Result<usize> {
        if !self.is_one_mapping(address, old_len) {
            return Err(error(EFAULT));
        }
        let old = self.pages_of(address, old_len)?;
        let count = new_len.div_ceil(PAGE_SIZE) as u64;
        let protection = self.protection(address);
        let target = match target {
            Some(target) => {
                let range = self.pages_of(target, new_len)?;
                mapping::map_at(&self.core, range.clone(), protection, true)?;
                range
            }
            None => {
                let target = self.map_target(count, protection, Move::Anywhere)?;
                let target = target.ok_or_else(|| error(ENOMEM))?;
                target..target + count
            }
        };
        let start = target.start;
        self.move_pages(old, target, source)?;
        Ok(self.address_of(start))
    }

    /// Moves content and attributes to `new`, which is mapped and empty. Unmaps it on failure.
    fn move_pages(&self, old: Range<PageNo>, new: Range<PageNo>, source: Source) -> io::Result<()> {
        let moves = old.start..old.end.min(old.start + (new.end - new.start));
        let locked = self.unlock_pages(&old)?;
        if let Err(refused) = self.transfer(moves, new.start) {
            mapping::unmap(&self.core, new)?;
            self.lock_again(&locked);
            return Err(refused);
        }
        self.core.memory.space.lock().copy_fork_treatment(&old, &new);
        if source == Source::Unmapped {
            mapping::unmap(&self.core, old)?;
        }
        if !locked.is_empty() {
            self.lock_again(&[new]);
        }
        Ok(())
    }

    /// Ignores failures, because they do not affect the content.
    fn lock_again(&self, ranges: &[Range<PageNo>]) {
        for range in ranges {
            let (start, len) = self.bytes_of(range);
            let _ = self.lock_range(start, len);
        }
    }

    /// Maps the target of a mapping that grows. Only a large one gets a growth gap, because such a
    /// mapping needs page tables of its own.
    fn map_target(
        &self,
        count: u64,
        protection: Protection,
        may_move: Move,
    ) -> io::Result<Option<PageNo>> {
        use crate::memory::address_space::CHUNK_PAGES;
        if may_move == Move::Never {
            return Ok(None);
        }
        let wants_gap = may_move == Move::ToGrowable || count >= CHUNK_PAGES / 4;
        let growable = if wants_gap {
            mapping::map_growable(&self.core.memory, count, protection)?
        } else {
            None
        };
        if growable.is_none() && may_move == Move::Anywhere {
            return mapping::map(&self.core.memory, count, protection);
        }
        Ok(growable)
    }

    pub fn move_to(&self, from: usize, len: usize, to: usize) -> io::Result<()> {
        self.transfer(self.pages_of(from, len)?, self.page_of(to))
    }

    fn transfer(&self, from: Range<PageNo>, to: PageNo) -> io::Result<()> {
        let _moving = self.remapping.lock().unwrap_or_else(PoisonError::into_inner);
        mapping::transfer(&self.core, from, to, |page| {
            page_in::page_in(&self.core, &self.contexts, page, Access::Read, 0)
                .map(drop)
                .map_err(|_| error(EIO))
        })
    }
}
