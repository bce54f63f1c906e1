//! Taking back what dead processes hold, and what nobody holds for a seat that is not.

use super::layout::{Owner, Word, holder, start_of};
use super::{Counts, Identity, Ledger, Sizes};
use crate::base::primitive::Ordering::{AcqRel, Acquire, Relaxed};
use softswap_sys::birth::{self, Seen};

/// What is known of a process.
///
/// ```
/// use softswap_engine::ledger::Fate;
/// // Only of the dead is anything taken.
/// assert!(Fate::Dead != Fate::Unknown);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It runs, or is stopped.
    Alive,
    /// It has ended, or its number is another's.
    Dead,
    /// It cannot be told from here: another name space, or no means of asking.
    Unknown,
}

/// Who has a seat, and with how much.
///
/// ```
/// use softswap_engine::ledger::{Identity, Ledger, SHAPE};
/// let words = softswap_sys::memory::reserve_u64(SHAPE.words()).unwrap();
/// let ledger = Ledger::create(words, SHAPE, 1 << 20, 64);
/// let me = Identity { pid: 7, start: 1, namespace: 2 };
/// assert_eq!(ledger.take_seat(me).unwrap().take(3), 3);
/// assert_eq!((ledger.tenants()[0].identity, ledger.tenants()[0].steps), (me, 3));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenant {
    /// Which process.
    pub identity: Identity,
    /// Steps that it holds, those beyond a lowered limit among them.
    pub steps: usize,
    /// What it last said that it uses, and the most of that; 0 where it says nothing.
    pub used_bytes: u64,
    /// The most that it has said.
    pub peak_bytes: u64,
    /// What it has last said that it has done.
    pub counts: Counts,
    /// What it has last said that it has.
    pub sizes: Sizes,
    /// What it is called, up to the first 0.
    pub name: [u8; 16],
}

impl Identity {
    /// This process. `None` where its name space is not told. Where only its beginning is not,
    /// for want of a descriptor, others judge it by its number.
    ///
    /// ```
    /// use softswap_engine::ledger::{Fate, Identity};
    /// assert_eq!(Identity::own().unwrap().fate(), Fate::Alive);
    /// ```
    #[must_use]
    pub fn own() -> Option<Identity> {
        let pid = softswap_sys::raw::current_process();
        let start = birth::own().unwrap_or(0);
        Some(Identity { pid, start, namespace: birth::namespace()? })
    }

    /// What is known of it here. Of one that has not said when it began, only whether there is
    /// a process of that number.
    #[must_use]
    pub fn fate(&self) -> Fate {
        if birth::namespace() != Some(self.namespace) {
            return Fate::Unknown;
        }
        match birth::look(self.pid) {
            Seen::Began(start) if start == self.start || self.start == 0 => Fate::Alive,
            Seen::Began(_) | Seen::Ended => Fate::Dead,
            Seen::Unknown => Fate::Unknown,
        }
    }
}

impl Ledger {
    /// Takes back what those processes hold that are dead, as `fate` says, and what the table
    /// says of seats that nobody has. How many steps became free. Any number of processes may
    /// do so at once.
    pub fn reap(&self, fate: impl Fn(Identity) -> Fate) -> usize {
        let mut freed = 0;
        for at in 0..self.shape.seats {
            let owner = self.owner(at);
            if owner.pid != 0 && fate(self.identity(at, owner)) == Fate::Dead {
                freed += self.vacate(at, owner.generation, owner.pid);
            }
        }
        freed + self.sweep()
    }

    /// Who has a seat, with how much, in the order of the seats.
    #[must_use]
    pub fn tenants(&self) -> Vec<Tenant> {
        let held = self.held_of(self.extent());
        let tenants = held.iter().enumerate().filter_map(|(at, steps)| {
            let owner = self.owner(at);
            let of = |word| self.seat_word(at, word).load(Relaxed);
            let mut name = [0; 16];
            name[..8].copy_from_slice(&of(Word::Name).to_le_bytes());
            name[8..].copy_from_slice(&of(Word::NameRest).to_le_bytes());
            // Until it has said when it began, what is there is of the one before it.
            let start = start_of(owner.generation, self.seat_word(at, Word::Start).load(Acquire));
            let (counts, sizes) = start.map(|_| self.account(at)).unwrap_or_default();
            let tenant = Tenant {
                identity: self.identity(at, owner),
                steps: *steps,
                used_bytes: of(Word::Used),
                peak_bytes: of(Word::Peak),
                counts,
                sizes,
                name,
            };
            (owner.pid != 0).then_some(tenant)
        });
        tenants.collect()
    }

    /// As far as it has said who it is: one that is just taking its seat has not said when it
    /// began.
    fn identity(&self, at: usize, owner: Owner) -> Identity {
        let start = self.seat_word(at, Word::Start).load(Acquire);
        let start = start_of(owner.generation, start).unwrap_or(0);
        Identity { pid: owner.pid, start, namespace: owner.namespace }
    }

    /// Frees steps of which the table says nothing that can be.
    fn sweep(&self) -> usize {
        let is_stray = |word: u64| {
            // The step first: who is seen to hold it had its seat before.
            let Some((at, generation)) = holder(word) else { return word != 0 };
            if at >= self.shape.seats {
                return true;
            }
            let owner = self.owner(at);
            owner.pid == 0 || owner.generation != generation
        };
        let stray = self.extent().iter().filter(|step| {
            let word = step.load(Acquire);
            word != 0 && is_stray(word) && step.compare_exchange(word, 0, AcqRel, Relaxed).is_ok()
        });
        let freed = stray.count();
        if freed > 0 {
            self.note_freed();
        }
        freed
    }
}
