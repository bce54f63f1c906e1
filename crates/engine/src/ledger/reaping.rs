//! Taking back what dead processes hold, and what nobody holds for a seat that is not.

use super::layout::{Word, holder, started, tenant};
use super::{Identity, Ledger};
use crate::base::primitive::Ordering::{AcqRel, Acquire, Relaxed};

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
    /// It cannot be seen from here: another name space.
    Unknown,
}

impl Ledger {
    /// Takes back what those processes hold that are dead, as `fate` says, and what the table
    /// says of seats that nobody has. How many steps became free. Any number of processes may
    /// do so at once.
    pub fn reap(&self, fate: impl Fn(Identity) -> Fate) -> usize {
        let mut freed = 0;
        for at in 0..self.shape.seats {
            let (generation, pid) = tenant(self.seat_word(at, Word::Owner).load(Acquire));
            if pid != 0 && fate(self.identity(at, generation, pid)) == Fate::Dead {
                freed += self.vacate(at, generation, pid);
            }
        }
        freed + self.sweep()
    }

    /// As far as it has said who it is: one that is just taking its seat has not.
    fn identity(&self, at: usize, generation: u32, pid: u32) -> Identity {
        let word = self.seat_word(at, Word::Start).load(Acquire);
        let start = word ^ started(generation, 0);
        let start = if started(generation, start) == word { start } else { 0 };
        let namespace = self.seat_word(at, Word::Namespace).load(Relaxed);
        Identity { pid, start, namespace }
    }

    /// Frees steps of which the table says nothing that can be.
    fn sweep(&self) -> usize {
        let is_stray = |word: u64| {
            // The step first: who is seen to hold it had its seat before.
            let Some((at, generation)) = holder(word) else { return word != 0 };
            if at >= self.shape.seats {
                return true;
            }
            let (tenant, pid) = tenant(self.seat_word(at, Word::Owner).load(Acquire));
            pid == 0 || tenant != generation
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
