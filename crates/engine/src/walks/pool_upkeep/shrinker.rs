//! The shrinker: pages of the pool go on to the swap area before it is full,
//! when nobody seems to miss what has gone there. Opt-in.
//!
//! It works in proportion: for each batch that leaves memory, one page in so
//! many of those the pool could do without. These are fewer the more pages come
//! back from the disk, as in the zswap shrinker of Linux.

use super::write_back::write_back;
use crate::base::stats::{Counter, Tier};
use crate::core::Core;
use crate::memory::context::Context;
use std::sync::atomic::Ordering::Relaxed;

/// Of what may go, this share goes with each batch that leaves memory.
const SHARE: usize = 128;
/// What protects a page of the pool fades by this share with each batch.
const FADE: usize = 64;

/// What the shrinker remembers.
#[derive(Debug, Default)]
pub(crate) struct Shrinker {
    faults_seen: u64,
    /// Pages to be left alone, because so many came back from the disk lately.
    protected: usize,
    /// What is due, in 1/[`SHARE`] of a page.
    due: usize,
}

impl Shrinker {
    /// Called after each batch of background reclaim.
    pub(crate) fn step(&mut self, core: &Core, context: &mut Context) {
        let faults = core.stats.faults(Tier::Disk);
        let came_back = faults.saturating_sub(self.faults_seen);
        self.faults_seen = faults;
        self.protected -= self.protected / FADE;
        self.protected += usize::try_from(came_back).unwrap_or(usize::MAX / 2);
        if !core.policies.pool_shrinks.load(Relaxed) {
            return;
        }
        self.due += self.eligible(core);
        if self.due >= SHARE * crate::memory::context::BATCH_PAGES {
            // What it could not do for want of a slot is not made good later.
            self.due = 0;
            let gone = write_back(core, context).unwrap_or(0);
            core.stats.add(Counter::PagesShrunk, gone as u64);
        }
    }

    /// Pages that the pool could do without, by what they take: one that packs
    /// to a third counts as a third.
    fn eligible(&self, core: &Core) -> usize {
        let objects = core.stores.pool.objects();
        let spare = objects.saturating_sub(self.protected);
        let packed_bytes = core.stores.pool.stored_bytes() / objects.max(1);
        spare * packed_bytes / softswap_sys::PAGE_SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protection_fades_and_never_goes_wrong() {
        let mut shrinker = Shrinker { protected: 10_000, ..Shrinker::default() };
        for _ in 0..1_000 {
            shrinker.protected -= shrinker.protected / FADE;
        }
        assert!(shrinker.protected < FADE);
    }
}
