//! Reaps dead members, and reports all members.

use super::layout::{Word, holder};
use super::{Counts, Ledger, Sizes};
use crate::membership::FREE;
use softswap_sys::primitive::Ordering::Relaxed;
use softswap_sys::process_identity::{Liveness, ProcessIdentity};

/// Published data of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberInfo {
    /// Process.
    pub identity: ProcessIdentity,
    /// Number of chunks that it holds, including those beyond a lowered limit.
    pub chunks: usize,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Maximum of the bytes in use.
    pub peak_bytes: u64,
    /// Counters of events since its start.
    pub counts: Counts,
    /// Memory in use.
    pub sizes: Sizes,
    /// Name, up to the first zero byte.
    pub name: [u8; 16],
}

impl Ledger {
    /// Releases the chunks and entries of dead processes, and chunks whose holder is not a member.
    /// Returns the number of released chunks. Processes may reap concurrently.
    pub fn reap(&self, liveness: impl Fn(ProcessIdentity) -> Liveness) -> usize {
        let mut released = 0;
        self.members.reap(liveness, |entry, owner| {
            released += self.vacate(&self.member_at(entry, owner));
        });
        // The chunk's owner is read before the membership is checked, and a process joins before it
        // takes a chunk. So no chunk of a new member is released.
        let stray = self.chunks().reap(|tag| !holder(tag).is_some_and(|it| self.is_member(it)));
        if stray > 0 {
            self.note_release();
        }
        released + stray
    }

    fn is_member(&self, (entry, generation): (usize, u32)) -> bool {
        entry < self.shape.members && {
            let owner = self.members.owner(entry);
            owner.state != FREE && owner.generation == generation
        }
    }

    /// Returns, for each entry, how many of these chunks its owner holds.
    pub(super) fn held_in(&self, chunks: crate::claims::Claims) -> Vec<usize> {
        let mut held = vec![0; self.shape.members];
        for chunk in chunks.0 {
            if let Some(holder) = holder(chunk.load(Relaxed)).filter(|it| self.is_member(*it)) {
                held[holder.0] += 1;
            }
        }
        held
    }

    /// Returns the members in the order of their entries.
    #[must_use]
    pub fn members(&self) -> Vec<MemberInfo> {
        let held = self.held_in(self.chunks());
        let info = |(entry, owner)| {
            // Until this owner has joined, the words are those of the entry's previous owner.
            let has_joined = self.members.start(entry, owner).is_some();
            let (counts, sizes, name) = match has_joined {
                true => (self.counts(entry), self.sizes(entry), self.name(entry)),
                false => Default::default(),
            };
            let bytes = |word| if has_joined { self.word(entry, word).load(Relaxed) } else { 0 };
            MemberInfo {
                identity: self.members.identity(entry, owner),
                chunks: held[entry],
                used_bytes: bytes(Word::Used),
                peak_bytes: bytes(Word::Peak),
                counts,
                sizes,
                name,
            }
        };
        self.members.owned().map(info).collect()
    }
}
