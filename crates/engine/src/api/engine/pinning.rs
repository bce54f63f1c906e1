//! Memory held by system calls: pinned pages, and copies of pages.
//!
//! Pinned pages are not evictable. Therefore each call reserves pages before it pins them, and
//! without a reservation copies its data, transfers smaller pieces, or waits. A few pages without
//! which no call could proceed are held regardless.

use super::{Engine, Replacement};
use crate::base::access::Access;
use crate::base::page::PageNo;
use crate::base::stats::Tier;
use crate::core::errors::FaultError;
use crate::paths::page_in;
use softswap_sys::signals::{self, Mask};
use softswap_sys::{PAGE_SIZE, futex};
use std::sync::atomic::Ordering::Relaxed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pinned {
    pub bytes: usize,
    pub then: Then,
    /// Tier of the last page that was faulted in; `None` if all pages were resident.
    pub from: Option<Tier>,
}

/// Reason why pinning ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    Done,
    /// The next page is unmapped.
    Missing,
    /// The thread must take a signal first.
    Signal,
}

struct BeforePin {
    was_resident: bool,
    from: Option<Tier>,
}

impl Engine {
    /// Returns the maximum number of bytes that all calls together may hold.
    pub fn hold_limit_bytes(&self) -> usize {
        let budget = &self.core.memory.budget;
        let spent_bytes = budget.fixed_bytes() + budget.reserve_bytes();
        (budget.target_bytes().saturating_sub(spent_bytes) / 4) & !(PAGE_SIZE - 1)
    }

    /// Returns the limit of prefetching on request.
    pub fn half_of_budget_bytes(&self) -> usize {
        self.core.memory.budget.target_bytes() / 2
    }

    /// Returns the number of bytes that one [`Engine::bring_in`] faults in at most.
    pub fn bring_in_limit_bytes(&self) -> usize {
        self.half_of_budget_bytes() / 2
    }

    /// Returns the maximum number of bytes that one call pins.
    pub fn call_limit_bytes(&self) -> usize {
        let part_bytes = (self.core.memory.budget.target_bytes() / 8).clamp(64 << 10, 4 << 20);
        part_bytes.min(self.hold_limit_bytes()) & !(PAGE_SIZE - 1)
    }

    /// Reserves `pages`, within [`Engine::hold_limit_bytes`] for all calls together.
    #[must_use]
    pub fn try_hold(&self, pages: usize) -> bool {
        let most = self.hold_limit_bytes() / PAGE_SIZE;
        let fits = |held: usize| held.checked_add(pages).filter(|sum| *sum <= most);
        self.held.pages.fetch_update(Relaxed, Relaxed, fits).is_ok()
    }

    /// Reserves a few pages regardless of the limit.
    pub fn hold(&self, pages: usize) {
        self.held.pages.fetch_add(pages, Relaxed);
    }

    pub fn release(&self, pages: usize) {
        let before = self.held.pages.fetch_sub(pages, Relaxed);
        debug_assert!(before >= pages, "more pages released than were held");
        if self.held.waiting.load(Relaxed) > 0 {
            self.held.releases.fetch_add(1, Relaxed);
            futex::wake_all(&self.held.releases);
        }
    }

    /// As [`Engine::try_hold`], for memory outside the window, which is charged to the budget.
    #[must_use]
    pub fn try_hold_memory(&self, pages: usize) -> bool {
        let has_space = self.try_hold(pages);
        if has_space {
            self.core.memory.budget.charge(pages);
            if self.core.memory.budget.is_low(self.core.other_bytes()) {
                self.core.background.wake();
            }
        }
        has_space
    }

    pub fn release_memory(&self, pages: usize) {
        self.core.memory.budget.release(pages);
        self.release(pages);
    }

    /// Releases, in a forked child, memory that another thread of its parent holds.
    /// [`Engine::inherit_held`] corrects the number of held pages.
    pub fn uncharge(&self, pages: usize) {
        self.core.memory.budget.release(pages);
    }

    pub fn held_pages(&self) -> usize {
        self.held.pages.load(Relaxed)
    }

    pub fn wait_for_release(&self) {
        let seen = self.held.releases.load(Relaxed);
        self.held.waiting.fetch_add(1, Relaxed);
        // Not every release wakes waiters, so the sleep is bounded.
        futex::wait(&self.held.releases, seen, Some(5_000_000));
        self.held.waiting.fetch_sub(1, Relaxed);
    }

    /// Resets the held pages in a forked child to those of the thread that forked.
    pub fn inherit_held(&self, pages: usize) {
        self.held.pages.store(pages, Relaxed);
        self.held.waiting.store(0, Relaxed);
    }

    /// Faults a range in for an access from outside the program, up to
    /// [`Engine::bring_in_limit_bytes`]. Returns the length of that part. Skips pages that are
    /// unmanaged or not mapped.
    pub fn bring_in(
        &self,
        address: usize,
        len: usize,
        access: Access,
    ) -> Result<usize, FaultError> {
        let len = len.min(self.bring_in_limit_bytes());
        let end = address.saturating_add(len);
        let mut at = address;
        while at < end {
            if self.contains(at) {
                match self.fault(at, access) {
                    Ok(()) | Err(FaultError::NotMapped | FaultError::Unmanaged) => {}
                    Err(error) => return Err(error),
                }
            }
            at = (at | (PAGE_SIZE - 1)).saturating_add(1);
        }
        Ok(len)
    }

    /// Faults in and pins up to `most` bytes of a buffer, fewer if the rest is not mapped.
    pub fn pin(&self, address: usize, len: usize, most: usize) -> Result<usize, FaultError> {
        self.pin_until(address, len.min(most), 0).map(|pinned| pinned.bytes)
    }

    /// Faults in and pins the pages of a buffer. Ends early if a signal in `open` is pending.
    pub fn pin_until(&self, address: usize, len: usize, open: Mask) -> Result<Pinned, FaultError> {
        let (mut done, mut brought, mut from) = (0, 0, None);
        let end = |bytes: usize, then: Then, from| Ok(Pinned { bytes: bytes.min(len), then, from });
        while done < len && self.contains(address + done) {
            match self.pin_page(self.page_of(address + done), open) {
                Ok(Some(before)) => {
                    done += PAGE_SIZE - (address + done) % PAGE_SIZE;
                    brought += usize::from(!before.was_resident);
                    from = before.from.or(from);
                }
                Ok(None) => return end(done, Then::Missing, from),
                Err(error) if error.is_for_a_signal() => return end(done, Then::Signal, from),
                Err(error) => {
                    self.unpin(address, done);
                    return Err(error);
                }
            }
            if brought == 16 && done < len {
                brought = 0;
                if signals::pending() & open != 0 {
                    return end(done, Then::Signal, from);
                }
            }
        }
        end(done, if done < len { Then::Missing } else { Then::Done }, from)
    }

    /// Returns `None` for an unmapped page. Does nothing with an unmanaged page, which the kernel
    /// handles; nor does [`Engine::unpin`].
    fn pin_page(&self, page: PageNo, open: Mask) -> Result<Option<BeforePin>, FaultError> {
        let mut before = BeforePin { was_resident: true, from: None };
        while !self.core.memory.pages.try_pin(page) {
            before.was_resident = false;
            match page_in::page_in(&self.core, &self.contexts, page, Access::Write, open) {
                Ok(from) => before.from = from.or(before.from),
                Err(FaultError::NotMapped | FaultError::Unmanaged) => {
                    match self.replacement(page) {
                        Some(Replacement::Managed) => {}
                        Some(Replacement::Unmanaged) => {
                            return Ok(Some(BeforePin { was_resident: true, ..before }));
                        }
                        // The kernel will report the error.
                        None => return Ok(None),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(before))
    }

    /// Pins the page at a managed address. Returns false if it is not resident or is protected.
    #[must_use]
    pub fn pin_resident(&self, address: usize) -> bool {
        self.core.memory.pages.try_pin(self.page_of(address))
    }

    pub fn unpin(&self, address: usize, len: usize) {
        if len == 0 {
            return;
        }
        for page in self.page_of(address)..=self.page_of(address + len - 1) {
            self.core.memory.pages.unpin(page);
        }
    }

    pub fn pages_under(&self, address: usize, len: usize) -> usize {
        if len == 0 { 0 } else { (address % PAGE_SIZE + len).div_ceil(PAGE_SIZE) }
    }
}
