//! Slots whose reuse is delayed.
//!
//! A forked child reads the slots that its parent had at the fork. A fork marks the used slots, one
//! bit each, and increments a count. While the count is above zero, a freed slot with a mark is in
//! *limbo*: not reusable until the thaw, when the count is zero again. Slots allocated after the
//! last fork are reusable immediately, so a parent needs at most twice the space of its data.

use super::free_lists::lock;
use super::{SlotAllocator, WORDS};
use softswap_sys::primitive::Ordering::{Acquire, Relaxed, SeqCst};

impl SlotAllocator {
    /// Frees slots of one word, or puts them into limbo. Returns the number that was in use.
    pub(super) fn release_or_keep(&self, word: usize, mask: u64) -> u32 {
        if self.freezes.count.load(SeqCst) == 0 {
            return self.release(word, mask);
        }
        // A thaw clears marks only after it has decremented the count.
        let kept = mask & self.freezes.kept[word].load(SeqCst);
        let freed = if mask == kept { 0 } else { self.release(word, mask & !kept) };
        freed + if kept == 0 { 0 } else { self.put_in_limbo(word, kept) }
    }

    fn put_in_limbo(&self, word: usize, mask: u64) -> u32 {
        let mask = mask & self.bits[word].load(Acquire);
        let known = self.freezes.limbo[word].fetch_or(mask, SeqCst) & mask;
        self.freezes.limbo_clusters.insert((word / WORDS) as u32);
        let mask = mask & !known;
        if self.freezes.count.load(SeqCst) == 0 {
            // The thaw may have read this word too early, so its slots are freed here. Only this
            // call's bits: other bits may belong to a new freeze.
            let left = self.freezes.limbo[word].fetch_and(!mask, SeqCst) & mask;
            self.release(word, left);
        }
        mask.count_ones()
    }

    pub(crate) fn freeze(&self) {
        // Wait for a thaw in progress.
        let _alone = lock(&self.freezes.changing);
        for word in self.touched_words() {
            let (kept, bits) = (&self.freezes.kept[word], self.bits[word].load(SeqCst));
            // Skip needless writes, which would populate the page of the table.
            if bits & !kept.load(Relaxed) != 0 {
                kept.fetch_or(bits, SeqCst);
            }
        }
        // Increment the count after the marks: a thread that sees the count sees the marks.
        self.freezes.count.fetch_add(1, SeqCst);
    }

    fn touched_words(&self) -> impl Iterator<Item = usize> {
        self.touched.iter().flat_map(|cluster| cluster * WORDS..(cluster + 1) * WORDS)
    }

    /// Ends one freeze; the last one frees the slots in limbo.
    pub(crate) fn thaw(&self) {
        let _alone = lock(&self.freezes.changing);
        let frozen = self.freezes.count.load(SeqCst);
        debug_assert!(frozen > 0, "thaw without freeze");
        self.freezes.count.store(frozen.saturating_sub(1), SeqCst);
        if frozen != 1 {
            return;
        }
        for word in self.touched_words() {
            let kept = &self.freezes.kept[word];
            if kept.load(Relaxed) != 0 {
                kept.store(0, SeqCst);
            }
        }
        let grown = self.clusters.load(SeqCst) as usize;
        for cluster in self.freezes.limbo_clusters.drain(grown) {
            for word in cluster * WORDS..(cluster + 1) * WORDS {
                self.release(word, self.freezes.limbo[word].swap(0, SeqCst));
            }
        }
    }
}
