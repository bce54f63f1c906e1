//! Words that each hold the tag of their owner, or 0 if they are free.

use softswap_sys::primitive::AtomicU64;
use softswap_sys::primitive::Ordering::{AcqRel, Acquire, Relaxed};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Claims(pub(crate) &'static [AtomicU64]);

impl Claims {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes free words, one with each call of `next`, starting at `from` and wrapping around.
    pub(crate) fn take(&self, tag: u64, from: usize) -> impl Iterator<Item = usize> {
        (from..self.len()).chain(0..from).filter(move |at| self.change(*at, 0, tag))
    }

    pub(crate) fn free(&self, tag: u64, at: usize) -> bool {
        self.change(at, tag, 0)
    }

    /// Frees words of `tag` from the last one downwards, one with each call of `next`.
    pub(crate) fn free_from_end(&self, tag: u64) -> impl Iterator<Item = usize> {
        (0..self.len()).rev().filter(move |at| self.free(tag, *at))
    }

    fn change(&self, at: usize, from: u64, to: u64) -> bool {
        let word = &self.0[at];
        word.load(Acquire) == from && word.compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }

    pub(crate) fn count(&self, tag: u64) -> usize {
        self.0.iter().filter(|word| word.load(Relaxed) == tag).count()
    }

    /// Returns the number of freed words. Does not allocate. Processes may reap concurrently.
    pub(crate) fn reap(&self, mut is_released: impl FnMut(u64) -> bool) -> usize {
        /// Number of cached answers of `is_released`: neighbours often have the same owner.
        const ANSWERS: usize = 16;
        let mut answers = [(0, false); ANSWERS];
        let is_freed = |at: &usize| {
            let tag = self.0[*at].load(Acquire);
            let answer = &mut answers[tag as usize % ANSWERS];
            if answer.0 != tag {
                *answer = (tag, tag != 0 && is_released(tag));
            }
            answer.1 && self.free(tag, *at)
        };
        (0..self.len()).filter(is_freed).count()
    }
}
