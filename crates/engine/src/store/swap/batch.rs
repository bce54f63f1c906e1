//! Slots for a batch of pages, adjacent or not: in a fragmented area a single run would be short.

use super::Run;
use crate::store::io::MAX_PIECES;

#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotBatch {
    slots: [u64; SlotBatch::MAX],
    count: usize,
}

impl SlotBatch {
    /// Maximum number of pages of one write, even if none are adjacent.
    pub(crate) const MAX: usize = MAX_PIECES;

    /// Creates a batch from one run. Panics with more than [`SlotBatch::MAX`] slots.
    pub(crate) fn of(run: Run) -> SlotBatch {
        let mut batch = SlotBatch { slots: [0; SlotBatch::MAX], count: 0 };
        batch.add(run);
        batch
    }

    /// Adds another run of the same area. Panics with more than [`SlotBatch::MAX`] slots in all.
    pub(crate) fn add(&mut self, run: Run) {
        let to = &mut self.slots[self.count..self.count + run.len];
        to.iter_mut().zip(run.first..).for_each(|(to, slot)| *to = slot);
        self.count += run.len;
    }

    pub(crate) fn as_slice(&self) -> &[u64] {
        &self.slots[..self.count]
    }
}

pub(crate) fn runs(slots: &[u64]) -> impl Iterator<Item = Run> + '_ {
    let follows = |one: &u64, next: &u64| one + 1 == *next;
    slots.chunk_by(follows).map(|run| Run { first: run[0], len: run.len() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn adjacent_slots_form_runs(
            added in prop::collection::vec((1..1000u64, 1..=4usize), 1..=8),
        ) {
            let added: Vec<_> = added.into_iter().map(|(first, len)| Run { first, len }).collect();
            let mut batch = SlotBatch::of(added[0]);
            added[1..].iter().for_each(|run| batch.add(*run));
            let each = |run: Run| run.first..run.first + run.len as u64;
            let slots: Vec<u64> = added.iter().copied().flat_map(each).collect();
            prop_assert_eq!(batch.as_slice(), &slots[..]);
            let found: Vec<_> = runs(&slots).collect();
            prop_assert_eq!(found.iter().copied().flat_map(each).collect::<Vec<_>>(), slots);
            prop_assert!(found.windows(2).all(|pair| each(pair[0]).end != pair[1].first));
        }
    }
}
