//! Who gives way when nothing is free: the seat whose memory is worth least.

use super::layout::{URGENT, Word, holder};
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
        (0..self.shape.seats).filter(|at| self.owner(*at).pid != 0).count()
    }

    /// Steps that each process may keep, whatever the others' are worth: half of what it had
    /// if all had as much.
    #[must_use]
    pub fn floor(&self) -> usize {
        (self.limit() / (2 * self.taken_seats().max(1))).max(1)
    }

    /// What each seat holds within the limit.
    fn holdings(&self) -> Vec<Holding> {
        let held = self.held_of(&self.table()[..self.limit()]);
        let of = |(at, held): (usize, &usize)| {
            let word = |word| self.seat_word(at, word).load(Acquire);
            let left = self.left_by_questions(word(Word::Asked), *held);
            Holding { held: *held, left, worth: word(Word::Worth) }
        };
        held.iter().enumerate().map(of).collect()
    }

    /// Of these steps, how many each seat holds.
    pub(super) fn held_of(&self, steps: &[AtomicU64]) -> Vec<usize> {
        let mut held = vec![0; self.shape.seats];
        for step in steps {
            let Some((at, generation)) = holder(step.load(Relaxed)) else { continue };
            if at < held.len() && self.owner(at).generation == generation {
                held[at] += 1;
            }
        }
        held
    }

    /// Rings all that hold steps beyond the limit. To be done now and then: one may have taken
    /// steps by the limit before.
    pub fn ring_beyond(&self) {
        let beyond = self.extent().get(self.limit()..).unwrap_or(&[]);
        let holders = self.held_of(beyond);
        (0..holders.len()).filter(|at| holders[*at] > 0).for_each(|at| self.ring_bell(at));
    }
}

impl Ledger {
    /// Asks others for what processes want that cannot ask ([`Seat::want`]), up to their floor
    /// or beyond it ([`Seat::want_urgently`]). How many steps were asked for.
    pub fn ring_for_others(&self) -> usize {
        let wanted = |at: usize| {
            let word = self.seat_word(at, Word::Wanted);
            if word.load(Relaxed) == 0 { 0 } else { word.swap(0, AcqRel) }
        };
        let each = (0..self.shape.seats).map(|at| {
            let (wanted, owner) = (wanted(at), self.owner(at));
            if wanted == 0 || owner.pid == 0 {
                return 0;
            }
            let steps = usize::try_from(wanted & !URGENT).unwrap_or(usize::MAX);
            let seat = Seat { ledger: *self, at, generation: owner.generation, pid: owner.pid };
            let owed = match wanted & URGENT {
                0 => self.floor().saturating_sub(seat.held()),
                _ => self.limit(),
            };
            seat.ring(steps.min(owed), |_| false).map_or(0, |rung| rung.steps)
        });
        each.sum()
    }
}

/// Worth so many times as much is clearly more: what is published is an estimate.
const CLEARLY: u64 = 2;

/// What a seat holds, and what that is worth.
#[derive(Clone, Copy)]
struct Holding {
    held: usize,
    /// Without what it has been asked for already: that is others'.
    left: usize,
    worth: u64,
}

impl Holding {
    /// Worth clearly less than another's.
    fn is_cheaper(self, than: Holding) -> bool {
        self.worth.saturating_mul(CLEARLY) < than.worth
    }

    /// Not worth clearly more than another's, and clearly more of it.
    fn is_larger(self, than: Holding) -> bool {
        !than.is_cheaper(self) && self.left > than.held + than.held / 4 + 1
    }
}

impl Seat {
    /// Asks another seat for up to `need` steps: the one whose memory is worth least, if that is
    /// clearly less than this one's, or this one has less than its floor. Else, of those worth
    /// about as much, the one that has most, if that is clearly more: up to half of what it has
    /// more. So of two alike neither starves. Nobody is asked below the floor, nor who
    /// `is_passed_over`: it was asked before, and did not answer.
    #[must_use]
    pub fn ring(&self, need: usize, is_passed_over: impl Fn(usize) -> bool) -> Option<Rung> {
        let (ledger, floor) = (&self.ledger, self.ledger.floor());
        let holdings = ledger.holdings();
        let own = holdings[self.at];
        let others = || {
            let others = holdings
                .iter()
                .enumerate()
                .filter(|(at, it)| *at != self.at && it.left > floor && !is_passed_over(*at));
            others.map(|(at, it)| (at, *it))
        };
        let has_too_little = own.held < floor;
        let is_cheap = |(_, it): &(usize, Holding)| has_too_little || it.is_cheaper(own);
        // Of those worth as little the one that has most.
        let cheapest =
            others().filter(is_cheap).min_by_key(|(_, it)| (it.worth, usize::MAX - it.left));
        let larger = || others().filter(|(_, it)| it.is_larger(own)).max_by_key(|(_, it)| it.left);
        let (victim, its, most) = match cheapest {
            // Up to the floor it is owed; beyond that the other keeps as much as it has.
            Some((at, its)) if has_too_little => (at, its, floor - own.held),
            Some((at, its)) => (at, its, need),
            None => larger().map(|(at, its)| (at, its, (its.left - own.held) / 2))?,
        };
        let steps = ledger.ask(victim, its.held, floor, need.min(most));
        // Another has been quicker.
        (steps > 0).then_some(Rung { seat: victim, steps })
    }
}
