//! What calls to the kernel hold in DRAM: pages pinned where they are, and copies made of
//! them in memory.
//!
//! None of it can leave. So all calls together hold a share of the budget at most, and each
//! counts what it takes before it takes it: who is refused copies to where it costs no
//! memory, does with less at a time, or waits until others have let go. Only a few pages,
//! without which nothing could be done, are held whatever others do.

use super::Engine;
use crate::base::access::Access;
use crate::base::page::PageNo;
use crate::base::stats::Tier;
use crate::core::errors::FaultError;
use crate::walks::page_in;
use softswap_sys::signals::{self, Mask};
use softswap_sys::{PAGE_SIZE, futex};
use std::sync::atomic::Ordering::Relaxed;

/// Of what the budget leaves for pages, calls may hold one part in so many.
const SHARE: usize = 4;
/// So long at most sleeps who waits for others to let go: not everybody rings.
const NAP_NS: u64 = 5_000_000;
/// Pages brought in for a call after which signals are looked for.
const PAGES_BETWEEN_LOOKS: usize = 16;

/// How far the pinning of a buffer came, and why no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pinned {
    /// Bytes from its start that are pinned.
    pub bytes: usize,
    /// Why no more are.
    pub then: Then,
    /// Where the last page came from that was brought in for it, if one was.
    pub from: Option<Tier>,
}

/// Why no more is pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// All is that was asked for.
    Done,
    /// The rest is not mapped, or not the engine's.
    Missing,
    /// The thread is to take a signal first.
    Signal,
}

/// How a page came that a call is to have.
struct Came {
    was_there: bool,
    from: Option<Tier>,
}

impl Engine {
    /// How much all calls together may hold.
    #[must_use]
    pub fn hold_limit_bytes(&self) -> usize {
        let budget = &self.core.memory.budget;
        let spent_bytes = budget.fixed_bytes() + budget.reserve_bytes();
        (budget.target_bytes().saturating_sub(spent_bytes) / SHARE) & !(PAGE_SIZE - 1)
    }

    /// Half of the budget, in bytes: what is brought in ahead of touches on request.
    #[must_use]
    pub fn half_of_budget_bytes(&self) -> usize {
        self.core.memory.budget.target_bytes() / 2
    }

    /// How much of it one call pins: an eighth of the budget, within bounds.
    #[must_use]
    pub fn call_limit_bytes(&self) -> usize {
        let part_bytes = (self.core.memory.budget.target_bytes() / 8).clamp(64 << 10, 4 << 20);
        part_bytes.min(self.hold_limit_bytes()) & !(PAGE_SIZE - 1)
    }

    /// Counts `pages` more as held, if the share of all calls allows it.
    #[must_use]
    pub fn try_hold(&self, pages: usize) -> bool {
        let most = self.hold_limit_bytes() / PAGE_SIZE;
        let fits = |held: usize| held.checked_add(pages).filter(|sum| *sum <= most);
        self.held.pages.fetch_update(Relaxed, Relaxed, fits).is_ok()
    }

    /// Counts `pages` more as held, whatever others hold: a few.
    pub fn hold(&self, pages: usize) {
        self.held.pages.fetch_add(pages, Relaxed);
    }

    /// Ends what [`Engine::try_hold`] or [`Engine::hold`] began.
    pub fn let_go(&self, pages: usize) {
        let before = self.held.pages.fetch_sub(pages, Relaxed);
        debug_assert!(before >= pages, "more pages let go than were held");
        if self.held.waiting.load(Relaxed) > 0 {
            self.held.rings.fetch_add(1, Relaxed);
            futex::wake_all(&self.held.rings);
        }
    }

    /// Counts `pages` of memory outside the window as held, and against the budget, if the
    /// share of all calls allows it: others leave for them.
    #[must_use]
    pub fn try_hold_memory(&self, pages: usize) -> bool {
        let has_room = self.try_hold(pages);
        if has_room {
            self.core.memory.budget.charge(pages);
            if self.core.memory.budget.is_low(self.core.other_bytes()) {
                self.core.background.wake();
            }
        }
        has_room
    }

    /// Ends what [`Engine::try_hold_memory`] began.
    pub fn let_go_memory(&self, pages: usize) {
        self.core.memory.budget.release(pages);
        self.let_go(pages);
    }

    /// Pages that are held now.
    #[must_use]
    pub fn held_pages(&self) -> usize {
        self.held.pages()
    }

    /// Sleeps until others have let go of some, or for a moment.
    pub fn await_letting_go(&self) {
        let seen = self.held.rings.load(Relaxed);
        self.held.waiting.fetch_add(1, Relaxed);
        futex::wait(&self.held.rings, seen, Some(NAP_NS));
        self.held.waiting.fetch_sub(1, Relaxed);
    }

    /// In a forked child: only what the thread that forked holds is held, `pages` pages.
    pub fn inherit_held(&self, pages: usize) {
        self.held.pages.store(pages, Relaxed);
        self.held.waiting.store(0, Relaxed);
    }

    /// Brings in the pages of a range for a reader outside the program, up to a quarter of the
    /// budget. Returns the length of that part of the range. Pages that are not the engine's are
    /// left out.
    ///
    /// # Errors
    /// If a page cannot be brought in.
    pub fn bring_in(&self, address: usize, len: usize) -> Result<usize, FaultError> {
        let len = len.min(self.half_of_budget_bytes() / 2);
        let end = address.saturating_add(len);
        let mut at = address;
        while at < end {
            if self.contains(at) {
                match self.fault(at, Access::Read) {
                    Ok(()) | Err(FaultError::NotMapped | FaultError::Foreign) => {}
                    Err(error) => return Err(error),
                }
            }
            at = (at | (PAGE_SIZE - 1)).saturating_add(1);
        }
        Ok(len)
    }

    /// Brings in and pins the pages of a buffer, up to `most` bytes of it. Returns how many
    /// bytes from its start are pinned: less than asked for when the rest is not mapped.
    pub fn pin(&self, address: usize, len: usize, most: usize) -> Result<usize, FaultError> {
        self.pin_until(address, len.min(most), 0).map(|pinned| pinned.bytes)
    }

    /// Brings in and pins the pages of a buffer. `open` are the signals that end it early.
    pub fn pin_until(&self, address: usize, len: usize, open: Mask) -> Result<Pinned, FaultError> {
        let (mut done, mut brought, mut from) = (0, 0, None);
        let end = |bytes: usize, then: Then, from| Ok(Pinned { bytes: bytes.min(len), then, from });
        while done < len && self.contains(address + done) {
            match self.pin_page(self.page_of(address + done), open) {
                Ok(Some(came)) => {
                    done += PAGE_SIZE - (address + done) % PAGE_SIZE;
                    brought += usize::from(!came.was_there);
                    from = came.from.or(from);
                }
                Ok(None) => return end(done, Then::Missing, from),
                Err(error) if error.is_for_a_signal() => return end(done, Then::Signal, from),
                Err(error) => {
                    self.unpin(address, done);
                    return Err(error);
                }
            }
            if brought == PAGES_BETWEEN_LOOKS && done < len {
                brought = 0;
                if signals::pending() & open != 0 {
                    return end(done, Then::Signal, from);
                }
            }
        }
        end(done, if done < len { Then::Missing } else { Then::Done }, from)
    }

    /// Brings a page in and pins it; how it came, or `None` when it is not the engine's.
    fn pin_page(&self, page: PageNo, open: Mask) -> Result<Option<Came>, FaultError> {
        let mut came = Came { was_there: true, from: None };
        while !self.core.memory.pages.try_pin(page) {
            came.was_there = false;
            match page_in::page_in(&self.core, &self.contexts, page, Access::Write, open) {
                Ok(from) => came.from = from.or(came.from),
                // The kernel says what is wrong, or brings it in by itself.
                Err(FaultError::NotMapped | FaultError::Foreign) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(came))
    }

    /// Pins the page at a managed address if it is resident; whether it was.
    #[must_use]
    pub fn pin_resident(&self, address: usize) -> bool {
        self.core.memory.pages.try_pin(self.page_of(address))
    }

    /// Takes back what [`Engine::pin`] pinned, or [`Engine::pin_resident`].
    pub fn unpin(&self, address: usize, len: usize) {
        if len == 0 {
            return;
        }
        for page in self.page_of(address)..=self.page_of(address + len - 1) {
            self.core.memory.pages.unpin(page);
        }
    }

    /// How many pages `len` bytes from `address` lie in.
    #[must_use]
    pub fn pages_under(&self, address: usize, len: usize) -> usize {
        if len == 0 { 0 } else { (address % PAGE_SIZE + len).div_ceil(PAGE_SIZE) }
    }
}
