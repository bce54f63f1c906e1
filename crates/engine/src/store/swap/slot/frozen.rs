//! Frozen slots: freed, but not handed out again yet.
//!
//! A forked child reads the slots that its parent had at the fork, so the parent
//! must not write to them while the child lives. One count for the whole area is
//! enough, and costs a fork nothing per page: while it is above zero, what is
//! freed goes into limbo.

use super::shelf::lock;
use super::{SlotAllocator, WORDS};
use crate::base::primitive::Ordering::{Acquire, SeqCst};

impl SlotAllocator {
    /// Puts freed slots of one word into limbo; returns how many were in use.
    pub(super) fn remember(&self, word: usize, mask: u64) -> u32 {
        let mask = mask & self.bits[word].load(Acquire);
        let known = self.limbo[word].fetch_or(mask, SeqCst) & mask;
        let cluster = word / WORDS;
        self.limbo_clusters[cluster / 64].fetch_or(1 << (cluster % 64), SeqCst);
        let mask = mask & !known;
        if self.frozen.load(SeqCst) == 0 {
            // The thaw may have looked here too early: what it left behind is
            // freed here. Only the own bits, others may belong to a new freeze.
            let left = self.limbo[word].fetch_and(!mask, SeqCst) & mask;
            self.release(word, left);
        }
        mask.count_ones()
    }

    /// From now on freed slots keep their content, until [`Self::thaw`]. A
    /// forked child reads the slots that its parent had at the fork.
    pub(crate) fn freeze(&self) {
        // Waits for a thaw that is still freeing the slots of its own time.
        let _alone = lock(&self.freezing);
        self.frozen.fetch_add(1, SeqCst);
    }

    /// Ends one freeze; at the last one all that was freed meanwhile is free.
    pub(crate) fn thaw(&self) {
        let _alone = lock(&self.freezing);
        let frozen = self.frozen.load(SeqCst);
        debug_assert!(frozen > 0, "thaw without freeze");
        self.frozen.store(frozen.saturating_sub(1), SeqCst);
        if frozen != 1 {
            return;
        }
        let grown = self.clusters.load(SeqCst) as usize;
        for (index, flags) in self.limbo_clusters[..grown.div_ceil(64)].iter().enumerate() {
            let mut flags = flags.swap(0, SeqCst);
            while flags != 0 {
                let cluster = index * 64 + flags.trailing_zeros() as usize;
                flags &= flags - 1;
                for word in cluster * WORDS..(cluster + 1) * WORDS {
                    self.release(word, self.limbo[word].swap(0, SeqCst));
                }
            }
        }
    }
}
