//! Tables of entries that processes own.
//!
//! The first word of an entry holds its owner and its state, the second one the owner's start time.
//! A process takes a free entry by one compare-and-swap of the first word. If it is killed before
//! it has written the second word, its PID alone decides if it is dead. A generation increases each
//! time an entry is taken, so neither a late write nor a reaper affects the entry's next owner.

use softswap_sys::primitive::AtomicU64;
use softswap_sys::primitive::Ordering::{AcqRel, Acquire, Relaxed};
use softswap_sys::process_identity::{Liveness, NAMESPACE_BITS, ProcessIdentity};
use std::ops::Range;

/// Number of words of an entry before those of its user.
pub(crate) const OWNER_WORDS: usize = 2;
pub(crate) const FREE: u8 = 0;

const STATE_BITS: u32 = 3;
/// Bits of the kernel's largest PID.
const PID_BITS: u32 = 22;
const GENERATION_BITS: u32 = 64 - STATE_BITS - PID_BITS - NAMESPACE_BITS;
/// Bits of a start time; the generation is above them.
const START_BITS: u32 = 64 - GENERATION_BITS;

const fn low(word: u64, bits: u32) -> u64 {
    word & ((1 << bits) - 1)
}

/// Owner and state of a table entry, in one word, so that they are read and written together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) state: u8,
    pub(crate) pid: u32,
    pub(crate) namespace: u32,
    pub(crate) generation: u32,
}

impl Owner {
    pub(crate) fn of(word: u64) -> Owner {
        Owner {
            state: low(word, STATE_BITS) as u8,
            pid: low(word >> STATE_BITS, PID_BITS) as u32,
            namespace: low(word >> (STATE_BITS + PID_BITS), NAMESPACE_BITS) as u32,
            generation: (word >> START_BITS) as u32,
        }
    }

    pub(crate) fn word(self) -> u64 {
        let Owner { state, pid, namespace, generation } = self;
        let above =
            u64::from(generation) << NAMESPACE_BITS | low(u64::from(namespace), NAMESPACE_BITS);
        (above << PID_BITS | low(u64::from(pid), PID_BITS)) << STATE_BITS
            | low(u64::from(state), STATE_BITS)
    }

    pub(crate) fn to(self, state: u8) -> Owner {
        Owner { state, ..self }
    }

    pub(crate) fn freed(self) -> Owner {
        Owner { state: FREE, pid: 0, namespace: 0, ..self }
    }

    fn next_generation(self) -> u32 {
        low(u64::from(self.generation) + 1, GENERATION_BITS) as u32
    }

    fn start_word(self, start: u64) -> u64 {
        u64::from(self.generation) << START_BITS | low(start, START_BITS)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Membership {
    words: &'static [AtomicU64],
    entries: usize,
    entry_words: usize,
}

impl Membership {
    pub(crate) fn new(
        words: &'static [AtomicU64],
        entries: usize,
        entry_words: usize,
    ) -> Membership {
        Membership { words, entries, entry_words }
    }

    pub(crate) fn word(&self, at: usize, word: usize) -> &'static AtomicU64 {
        &self.words[at * self.entry_words + word]
    }

    pub(crate) fn entries(&self) -> Range<usize> {
        0..self.entries
    }

    pub(crate) fn owner(&self, at: usize) -> Owner {
        Owner::of(self.word(at, 0).load(Acquire))
    }

    pub(crate) fn owned(&self) -> impl Iterator<Item = (usize, Owner)> {
        self.entries().map(|at| (at, self.owner(at))).filter(|(_, owner)| owner.state != FREE)
    }

    pub(crate) fn change(&self, at: usize, from: Owner, to: Owner) -> bool {
        self.word(at, 0).compare_exchange(from.word(), to.word(), AcqRel, Relaxed).is_ok()
    }

    /// `clear` initializes the entry before the owner's start time becomes visible.
    pub(crate) fn join(
        &self,
        mut entries: Range<usize>,
        me: ProcessIdentity,
        state: u8,
        clear: impl Fn(usize),
    ) -> Option<(usize, Owner)> {
        let ProcessIdentity { pid, namespace, start } = me;
        entries.find_map(|at| {
            let before = self.owner(at);
            let owner = Owner { state, pid, namespace, generation: before.next_generation() };
            if before.state != FREE || !self.change(at, before, owner) {
                return None;
            }
            clear(at);
            self.publish_start(at, owner, start).then_some((at, owner))
        })
    }

    /// Writes the start time. Returns false, without a write to the next owner's entry, if the
    /// entry was reaped because this process was considered dead.
    fn publish_start(&self, at: usize, owner: Owner, start: u64) -> bool {
        let word = self.word(at, 1);
        loop {
            let seen = word.load(Acquire);
            if self.owner(at) != owner {
                return false;
            }
            if word.compare_exchange(seen, owner.start_word(start), AcqRel, Relaxed).is_ok() {
                return self.owner(at) == owner;
            }
        }
    }

    /// Returns the owner's start time, or `None` while it is joining.
    pub(crate) fn start(&self, at: usize, owner: Owner) -> Option<u64> {
        let word = self.word(at, 1).load(Acquire);
        (word >> START_BITS == u64::from(owner.generation)).then_some(low(word, START_BITS))
    }

    pub(crate) fn identity(&self, at: usize, owner: Owner) -> ProcessIdentity {
        let start = self.start(at, owner).unwrap_or(0);
        ProcessIdentity { pid: owner.pid, start, namespace: owner.namespace }
    }

    /// Calls `free` for each entry of a dead process. Processes may reap concurrently.
    pub(crate) fn reap(
        &self,
        liveness: impl Fn(ProcessIdentity) -> Liveness,
        mut free: impl FnMut(usize, Owner),
    ) {
        let is_dead =
            |&(at, owner): &(usize, Owner)| liveness(self.identity(at, owner)) == Liveness::Dead;
        self.owned().filter(is_dead).for_each(|(at, owner)| free(at, owner));
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_each_part_of_an_owner() {
        let largest = Owner {
            state: 7,
            generation: (1 << 21) - 1,
            namespace: (1 << 18) - 1,
            pid: (1 << 22) - 1,
        };
        for owner in [largest, Owner { state: 4, generation: 1, namespace: 2, pid: 3 }] {
            assert_eq!(Owner::of(owner.word()), owner);
        }
        assert_eq!((largest.next_generation(), largest.freed().word() & 7), (0, 0));
    }
}
