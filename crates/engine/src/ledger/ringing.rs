//! Who gives way when nothing is free: the seat whose memory is worth least.

use super::layout::{Word, held_by, holder, tenant};
use super::{Ledger, Seat};
use crate::base::primitive::AtomicU64;
use crate::base::primitive::Ordering::{AcqRel, Acquire, Relaxed};

/// A seat that was asked to give steps back.
///
/// ```
/// use softswap_engine::ledger::Rung;
/// let rung = Rung { seat: 3, steps: 16 };
/// assert!(rung.steps > 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rung {
    /// Its number.
    pub seat: usize,
    /// How many steps it was asked for.
    pub steps: usize,
}

impl Ledger {
    /// Seats that are taken.
    #[must_use]
    pub fn taken_seats(&self) -> usize {
        (0..self.shape.seats).filter(|at| self.tenant_of(*at).1 != 0).count()
    }

    /// Steps that each process may keep, whatever the others' are worth: half of what it had
    /// if all had as much.
    #[must_use]
    pub fn floor(&self) -> usize {
        (self.limit() / (2 * self.taken_seats().max(1))).max(1)
    }

    fn tenant_of(&self, at: usize) -> (u32, u32) {
        tenant(self.seat_word(at, Word::Owner).load(Acquire))
    }

    /// Steps within the limit, by the seat that holds them.
    fn held_by_all(&self) -> Vec<usize> {
        self.held_of(&self.table()[..self.limit()])
    }

    /// Of these steps, how many each seat holds.
    pub(super) fn held_of(&self, steps: &[AtomicU64]) -> Vec<usize> {
        let mut held = vec![0; self.shape.seats];
        for step in steps {
            let Some((at, generation)) = holder(step.load(Relaxed)) else { continue };
            if at < held.len() && self.tenant_of(at).0 == generation {
                held[at] += 1;
            }
        }
        held
    }

    /// Asks a seat to keep no more than `keep` steps; less that was asked before still holds.
    fn ask(&self, at: usize, keep: usize) {
        let asked = self.seat_word(at, Word::Asked);
        let less = |before: u64| {
            let keep = keep as u64 + 1;
            (before == 0 || keep < before).then_some(keep)
        };
        // Refused where as little is asked already.
        let _ = asked.fetch_update(AcqRel, Relaxed, less);
        let bell = self.seat_word(at, Word::Bell);
        bell.fetch_add(1, AcqRel);
        super::wake(bell);
    }

    /// Rings all that hold steps beyond the limit.
    pub(super) fn ring_beyond(&self) {
        for at in 0..self.shape.seats {
            let (generation, pid) = self.tenant_of(at);
            let mark = held_by(at, generation);
            let beyond = self.extent().iter().skip(self.limit());
            if pid != 0 && beyond.into_iter().any(|step| step.load(Relaxed) == mark) {
                let bell = self.seat_word(at, Word::Bell);
                bell.fetch_add(1, AcqRel);
                super::wake(bell);
            }
        }
    }
}

impl Seat {
    /// Asks for up to `need` steps of the seat whose memory is worth least, if that is less
    /// than this one's, or this one has less than its floor. Nobody is asked below the floor,
    /// nor who `is_passed_over`: it was asked before, and did not answer.
    #[must_use]
    pub fn ring(&self, need: usize, is_passed_over: impl Fn(usize) -> bool) -> Option<Rung> {
        let (ledger, floor) = (&self.ledger, self.ledger.floor());
        let held = ledger.held_by_all();
        let worth = |at: usize| ledger.seat_word(at, Word::Worth).load(Relaxed);
        let may_give = |at: &usize| *at != self.at && held[*at] > floor && !is_passed_over(*at);
        // Of those worth as little the one that has most.
        let least = |at: &usize| (worth(*at), usize::MAX - held[*at]);
        let victim = (0..held.len()).filter(may_give).min_by_key(least)?;
        let has_too_little = held[self.at] < floor;
        if !has_too_little && worth(victim) >= worth(self.at) {
            return None;
        }
        // Up to the floor it is owed; beyond that the other keeps as much as it has.
        let owed = if has_too_little { floor - held[self.at] } else { need };
        let steps = need.min(owed).min(held[victim] - floor);
        ledger.ask(victim, held[victim] - steps);
        Some(Rung { seat: victim, steps })
    }
}
