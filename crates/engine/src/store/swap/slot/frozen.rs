//! Frozen slots: freed, but not handed out again yet.
//!
//! A forked child reads the slots that its parent had at the fork, so the parent
//! must not write to them while the child lives. A fork marks what is in use, a bit
//! for each slot, and raises a count for the whole area: while that is above zero,
//! what is freed of the marked goes into limbo. What was handed out after the last
//! fork no child knows of: it is free at once, so that a parent whose data changes
//! beside a child takes twice the room of its data at most.

use super::shelf::lock;
use super::{SlotAllocator, WORDS};
use softswap_sys::primitive::Ordering::{Acquire, Relaxed, SeqCst};

impl SlotAllocator {
    /// Frees slots of one word, but for those that a child may read; returns how many
    /// were in use.
    pub(super) fn release_or_remember(&self, word: usize, mask: u64) -> u32 {
        if self.frozen.load(SeqCst) == 0 {
            return self.release(word, mask);
        }
        // The marks are taken off by a thaw only, after the count has fallen.
        let kept = mask & self.kept[word].load(SeqCst);
        let freed = if mask == kept { 0 } else { self.release(word, mask & !kept) };
        freed + if kept == 0 { 0 } else { self.remember(word, kept) }
    }

    /// Puts freed slots of one word into limbo; returns how many were in use.
    fn remember(&self, word: usize, mask: u64) -> u32 {
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

    /// From now on the slots that are in use keep their content when they are
    /// freed, until [`Self::thaw`]. A forked child reads the slots that its parent
    /// had at the fork.
    pub(crate) fn freeze(&self) {
        // Waits for a thaw that is still freeing the slots of its own time.
        let _alone = lock(&self.freezing);
        for word in self.touched_words() {
            let (kept, bits) = (&self.kept[word], self.bits[word].load(SeqCst));
            // What holds nothing stays out of DRAM.
            if bits & !kept.load(Relaxed) != 0 {
                kept.fetch_or(bits, SeqCst);
            }
        }
        // After the marks: who sees the count sees them.
        self.frozen.fetch_add(1, SeqCst);
    }

    /// The words of the clusters that have been allocated from.
    fn touched_words(&self) -> impl Iterator<Item = usize> {
        self.touched().flat_map(|cluster| cluster * WORDS..(cluster + 1) * WORDS)
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
        for word in self.touched_words() {
            let kept = &self.kept[word];
            if kept.load(Relaxed) != 0 {
                kept.store(0, SeqCst);
            }
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
