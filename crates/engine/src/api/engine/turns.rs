//! Turns of the processes of a tree: the wait for one, and the swap-in of the working set.

use super::Engine;
use crate::base::page::{PageNo, Place};
use crate::base::stats::{Counter, RETURN_KINDS, Return, Tier, bucket_floor};
pub use crate::core::background::{AwaitTurn, Waiting};
use crate::core::errors::{Exhausted, FaultError};
pub use crate::paths::bring_back::{BringBack, Step};
use crate::paths::reclaim;
use softswap_sys::raw::now_ns;
use softswap_sys::signals::{self, Mask};

/// Refaults so far that read the disk, for the size of the working set.
///
/// ```
/// use softswap_engine::api::engine::turns::DiskRefaults;
/// let (before, now) = (
///     DiskRefaults { count: 10, distances: 1_000, waited_ns: 0 },
///     DiskRefaults { count: 30, distances: 9_000, waited_ns: 5 },
/// );
/// assert_eq!(now.since(before).mean_distance(), 400);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskRefaults {
    pub count: u64,
    /// Sum of the refaults' distances, in pages.
    pub distances: u64,
    pub waited_ns: u64,
}

impl DiskRefaults {
    pub fn since(self, before: DiskRefaults) -> DiskRefaults {
        DiskRefaults {
            count: self.count.saturating_sub(before.count),
            distances: self.distances.saturating_sub(before.distances),
            waited_ns: self.waited_ns.saturating_sub(before.waited_ns),
        }
    }

    /// The working set would fit with that many more resident pages.
    pub fn mean_distance(self) -> u64 {
        self.distances / self.count.max(1)
    }
}

impl Engine {
    /// Makes the faults of the program wait while `await_turn` requires it.
    pub fn share_turns(&self, await_turn: AwaitTurn) {
        self.core.background.await_turn.get_or_init(|| await_turn);
    }

    /// Waits while another process has a turn, if the page must be read from the disk, or if memory
    /// is low. In a parked tree waits if the page is absent. Holds no claims while it waits.
    pub(super) fn await_turn(&self, page: PageNo, open: Mask) -> Result<(), FaultError> {
        let core = &self.core;
        let Some(await_turn) = core.background.await_turn.get() else { return Ok(()) };
        let Some(first) = await_turn(0) else { return Ok(()) };
        let needs_more = |waiting| match core.memory.pages.load(page).place() {
            Place::Resident { .. } | Place::Staged { .. } | Place::Unmanaged => false,
            place if place.in_slot().is_some() => true,
            _ => waiting == Waiting::Parked || core.memory.budget.is_low(core.other_bytes()),
        };
        // The forking thread holds all contexts.
        if !needs_more(first) || self.contexts.is_forker() {
            return Ok(());
        }
        let (mut since_ns, mut waited_ns, mut outcome) = (now_ns(), 0, Ok(()));
        // Check for signals every 5 ms.
        while let Some(waiting) = await_turn(5_000_000).filter(|it| needs_more(*it)) {
            let now = now_ns();
            // Time in a parked tree is not lost for lack of memory.
            waited_ns += if waiting == Waiting::Turn { now - since_ns } else { 0 };
            since_ns = now;
            if signals::pending() & open != 0 {
                outcome = Err(FaultError::Exhausted(Exhausted::Signal));
                break;
            }
        }
        core.stats.add(Counter::TurnWaitNs, waited_ns);
        core.stats.add(Counter::StalledNs, waited_ns);
        outcome
    }

    pub fn is_faulting(&self) -> bool {
        self.contexts.is_any_in_use()
    }

    /// For a parked tree: evicts a batch, or a part of the pool. False if nothing is evictable.
    pub fn evict_more(&self) -> bool {
        let mut context = self.contexts.claim_background();
        reclaim::evict_more(&self.core, &mut context)
    }

    pub fn resident_pages(&self) -> usize {
        self.core.memory.budget.pages()
    }

    /// Continues to swap the working set in, by the readahead threads.
    pub fn bring_back(&self, progress: &mut BringBack) -> Step {
        progress.step(&self.core, &self.contexts)
    }

    pub fn end_bring_back(&self) {
        let _context = self.contexts.claim_prefetch(0);
        self.core.background.returning().clear();
    }

    pub fn disk_refaults(&self) -> DiskRefaults {
        let stats = &self.core.stats;
        let mut sums =
            DiskRefaults { waited_ns: stats.waited_ns(Tier::Disk), ..Default::default() };
        for from in RETURN_KINDS.into_iter().filter(|from| *from != Return::Pool) {
            for (bucket, count) in stats.returns(from).into_iter().enumerate() {
                sums.count += count;
                sums.distances += count.saturating_mul(bucket_floor(bucket) * 9 / 8);
            }
        }
        sums
    }
}
