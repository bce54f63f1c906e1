//! The turn of the tree, and the claims of its members.
//!
//! One word holds owner and end, so they change together. Members publish their claims; any
//! process computes the next turn from the claims ([`crate::turns`]) and swaps it in. A process
//! that waits checks the end by itself, so its wait ends even if no process advances the turn.

use super::layout::{Header, Word};
use super::{Ledger, Member};
use crate::turns::{Claimant, Id, MAX_MS, Turn, next};
use softswap_sys::primitive::Ordering::{AcqRel, Acquire, Relaxed};
use softswap_sys::primitive::{wait_shared, wake_shared};

/// Bits of the end in the turn's word, and of a generation. The entry, plus one, is above them.
const UNTIL_BITS: u32 = 32;
const GENERATION_BITS: u32 = 21;
/// Memory that a claimant keeps during another one's turn, in bytes: the minimum of an engine.
const LEFT_BYTES: u64 = 8 << 20;
/// Assumed speed at which working sets are exchanged, in bytes per ms.
const BYTES_PER_MS: u64 = 256 << 10;
/// Maximum age of a published load that counts, in ms.
const LOAD_MS: u64 = 2_000;

/// Figures that a member publishes for turns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Claim {
    /// Chunks that its working set needs; 0 without a claim.
    pub wants: usize,
    /// Share of the time that its threads waited for the disk, in thousandths.
    pub waited: u32,
    /// Share of the time that its threads ran, in thousandths.
    pub ran: u32,
    /// Time of its last progress, in ms.
    pub progress_ms: u64,
}

fn word_of(turn: Option<Turn>) -> u64 {
    turn.map_or(0, |Turn { owner: (entry, generation), until_ms }| {
        let owner = (entry as u64 + 1) << GENERATION_BITS | u64::from(generation);
        owner << UNTIL_BITS | u64::from(until_ms as u32)
    })
}

/// Returns `None` if the turn has ended, or if its end is implausible: the word was overwritten.
fn turn_of(word: u64, now_ms: u64) -> Option<Turn> {
    let left_ms = u64::from((word as u32).wrapping_sub(now_ms as u32));
    let owner = owner_of(word).filter(|_| (1..=MAX_MS).contains(&left_ms))?;
    Some(Turn { owner, until_ms: now_ms + left_ms })
}

fn owner_of(word: u64) -> Option<Id> {
    let entry = (word >> (UNTIL_BITS + GENERATION_BITS)).checked_sub(1)? as usize;
    Some((entry, (word >> UNTIL_BITS) as u32 & ((1 << GENERATION_BITS) - 1)))
}

impl Ledger {
    /// Allows turns, or disallows them and ends the present one.
    pub fn set_takes_turns(&self, takes: bool) {
        self.header(Header::TakesTurns).store(u64::from(takes), Relaxed);
        if !takes {
            let word = self.header(Header::Turn).load(Acquire);
            self.swap_turn(word, None, 0);
        }
    }

    /// Returns true if members may take turns.
    #[must_use]
    pub fn takes_turns(&self) -> bool {
        self.header(Header::TakesTurns).load(Relaxed) == 1
    }

    /// Returns the present turn.
    #[must_use]
    pub fn turn(&self, now_ms: u64) -> Option<Turn> {
        turn_of(self.header(Header::Turn).load(Acquire), now_ms)
    }

    /// Returns the PID of the turn's owner, and the time since which members take turns, in ms.
    #[must_use]
    pub fn turn_owner(&self, now_ms: u64) -> Option<(u32, u64)> {
        let (entry, generation) = self.turn(now_ms)?.owner;
        let owner = (entry < self.shape.members).then(|| self.members.owner(entry))?;
        let since_ms = self.header(Header::TurnsSince).load(Relaxed).min(now_ms);
        (owner.generation == generation).then_some((owner.pid, since_ms))
    }

    /// Returns the number of turns so far.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.header(Header::Turns).load(Relaxed)
    }

    fn turn_floor(&self) -> usize {
        (LEFT_BYTES.div_ceil(self.chunk_bytes().max(1)) as usize).min(self.floor())
    }

    fn time_since(&self, entry: usize, word: Word, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.word(entry, word).load(Relaxed))
    }

    /// Returns the owner of the last turn that was not ended.
    pub(super) fn last_turn_owner(&self) -> Option<Id> {
        owner_of(self.header(Header::Turn).load(Acquire))
    }

    pub(super) fn claims(&self, entry: usize) -> bool {
        self.word(entry, Word::Wants).load(Relaxed) > 0
    }

    /// Returns the claimants, and the chunks for all. Chunks of a `leaving` owner are free.
    fn claimants(&self, now_ms: u64, leaving: Option<usize>) -> (Vec<Claimant>, usize) {
        let held = self.held_in(self.within());
        let (mut claimants, mut limit) = (Vec::new(), self.limit());
        for (entry, owner) in self.members.owned() {
            let wants = self.word(entry, Word::Wants).load(Relaxed) as usize;
            if Some(entry) == leaving {
                continue;
            }
            if wants == 0 {
                limit = limit.saturating_sub(held[entry]);
                continue;
            }
            let beat_ms = self.word(entry, Word::Beat).load(Relaxed).min(now_ms);
            let missing = wants.min(self.limit()).saturating_sub(held[entry]) as u64;
            let bytes = missing.saturating_mul(self.chunk_bytes());
            claimants.push(Claimant {
                id: (entry, owner.generation),
                wants,
                cost_ms: bytes / BYTES_PER_MS,
                waited_ms: self.time_since(entry, Word::ClaimsSince, now_ms),
                // Measured up to the last sign of life: a member that cannot run on a busy machine
                // is not idle.
                idle_ms: self.time_since(entry, Word::Progress, beat_ms),
                silent_ms: self.time_since(entry, Word::Beat, now_ms),
            });
        }
        let left = self.turn_floor() * claimants.len().saturating_sub(1);
        (claimants, limit.saturating_sub(left))
    }

    /// Returns the sums of the members' shares of time waited and run, in thousandths.
    #[must_use]
    pub fn pressure(&self, now_ms: u64) -> (u64, u64) {
        self.members.owned().fold((0, 0), |(waited, ran), (entry, _)| {
            if self.time_since(entry, Word::Beat, now_ms) > LOAD_MS {
                return (waited, ran);
            }
            let word = self.word(entry, Word::Load).load(Relaxed);
            (waited + (word >> 32), ran + (word & u64::from(u32::MAX)))
        })
    }

    /// Ends, begins or passes on the turn, if required, and returns the present one.
    pub fn advance_turn(&self, now_ms: u64, thrashes: bool) -> Option<Turn> {
        self.advance_without(now_ms, thrashes, None)
    }

    fn advance_without(&self, now_ms: u64, thrashes: bool, leaving: Option<usize>) -> Option<Turn> {
        let word = self.header(Header::Turn).load(Acquire);
        let turn = turn_of(word, now_ms);
        // An expired turn is passed on even if the tree does not thrash.
        let had = owner_of(word).map(|owner| turn.unwrap_or(Turn { owner, until_ms: now_ms }));
        let (claimants, limit) = self.claimants(now_ms, leaving);
        let next = match self.takes_turns() {
            true => next(had, now_ms, limit, thrashes, &claimants),
            false => None,
        };
        if next == turn && (word == 0 || next.is_some()) {
            return turn;
        }
        if !self.swap_turn(word, next, now_ms) {
            return self.turn(now_ms);
        }
        next
    }

    fn swap_turn(&self, word: u64, next: Option<Turn>, now_ms: u64) -> bool {
        let turn = self.header(Header::Turn);
        if turn.compare_exchange(word, word_of(next), AcqRel, Relaxed).is_err() {
            return false;
        }
        let had = owner_of(word);
        if had != next.map(|next| next.owner) {
            if let Some((entry, _)) = had.filter(|(entry, _)| *entry < self.shape.members) {
                self.word(entry, Word::ClaimsSince).store(now_ms, Relaxed);
            }
            if let Some(Turn { owner: (entry, _), .. }) = next {
                if had.is_none() {
                    self.header(Header::TurnsSince).store(now_ms, Relaxed);
                }
                self.header(Header::Turns).fetch_add(1, Relaxed);
                // Counts as progress, so the new owner is not considered idle before it can run.
                self.word(entry, Word::Progress).fetch_max(now_ms, Relaxed);
                self.notify(entry);
            }
        }
        wake_shared(turn);
        true
    }
}

impl Member {
    fn id(&self) -> Id {
        (self.entry, self.generation)
    }

    /// Publishes what this member claims, as a sign of life.
    pub fn publish_claim(&self, now_ms: u64, claim: Claim) {
        let Claim { wants, waited, ran, progress_ms } = claim;
        let word = |word| self.ledger.word(self.entry, word);
        let load = u64::from(waited) << 32 | u64::from(ran);
        word(Word::Load).store(load, Relaxed);
        word(Word::Beat).store(now_ms, Relaxed);
        word(Word::Progress).fetch_max(progress_ms.min(now_ms), Relaxed);
        if word(Word::Wants).swap(wants as u64, Relaxed) == 0 && wants > 0 {
            word(Word::ClaimsSince).store(now_ms, Relaxed);
        }
    }

    /// Returns true if this member owns the turn.
    #[must_use]
    pub fn has_turn(&self, now_ms: u64) -> bool {
        self.ledger.turn(now_ms).is_some_and(|turn| turn.owner == self.id())
    }

    /// Returns true if the faults of this member must wait: it claims a turn that another one has.
    #[must_use]
    pub fn must_wait(&self, now_ms: u64) -> bool {
        self.ledger.claims(self.entry)
            && self.ledger.turn(now_ms).is_some_and(|turn| turn.owner != self.id())
    }

    /// Waits for up to `ns`, or until the turn changes, if this member must wait at all. Returns
    /// true if it had to. Each fault calls this, so the clock is read only if there is a turn.
    #[must_use]
    pub fn await_turn(&self, now_ms: impl FnOnce() -> u64, ns: u64) -> bool {
        let turn = self.ledger.header(Header::Turn);
        let seen = turn.load(Acquire);
        let must_wait = seen != 0 && self.must_wait(now_ms());
        if must_wait && ns > 0 {
            wait_shared(turn, seen, ns);
        }
        must_wait
    }

    /// Requests chunks of the other claimants, until the owner of the turn may hold `wants`.
    pub fn request_for_turn(&self, wants: usize) {
        let ledger = &self.ledger;
        let (holdings, floor) = (ledger.holdings(), ledger.turn_floor());
        let pending: usize = holdings.iter().map(|it| it.held - it.left).sum();
        let has = holdings[self.entry].held + ledger.free_chunks() + pending;
        let mut need = wants.saturating_sub(has);
        for (entry, it) in holdings.iter().enumerate() {
            if need > 0 && entry != self.entry && ledger.claims(entry) && it.left > floor {
                need = need.saturating_sub(ledger.request(entry, it.held, floor, need));
            }
        }
    }

    /// Ends this member's claim, and passes its turn on, since its process exits.
    pub fn end_claim(&self, now_ms: u64) {
        if self.has_turn(now_ms) {
            let _ = self.ledger.advance_without(now_ms, false, Some(self.entry));
        }
        self.publish_claim(now_ms, Claim::default());
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::ledger::tests::{LIMIT, SMALL, ledger_of, process};

    fn claim(member: &Member, now_ms: u64, wants: usize) {
        member.publish_claim(now_ms, Claim { wants, waited: 900, ran: 100, progress_ms: now_ms });
    }

    fn two() -> [Member; 2] {
        let ledger = ledger_of(SMALL, LIMIT);
        ledger.set_takes_turns(true);
        [1, 2].map(|pid| ledger.join(process(pid)).unwrap())
    }

    #[test]
    fn a_turn_survives_its_word() {
        for now_ms in [5, 1 << 32, (3 << 32) - 7] {
            let turn = Turn { owner: (1023, (1 << 21) - 1), until_ms: now_ms + MAX_MS };
            assert_eq!(turn_of(word_of(Some(turn)), now_ms), Some(turn));
            assert_eq!(turn_of(word_of(Some(turn)), turn.until_ms), None, "the turn has ended");
            assert_eq!(turn_of(word_of(Some(turn)), now_ms - 1), None, "no turn is that long");
        }
        assert_eq!(turn_of(0, 7), None);
        assert_eq!(turn_of(u64::MAX, 7).map(|turn| turn.owner.0), None);
    }

    #[test]
    fn only_the_other_claimants_wait_and_at_most_for_the_turn() {
        let [one, other] = two();
        let ledger = *one.ledger();
        let third = ledger.join(process(3)).unwrap();
        claim(&one, 1_000, 10);
        claim(&other, 1_000, 12);
        assert_eq!(ledger.pressure(1_000), (1_800, 200));
        assert_eq!(ledger.advance_turn(1_000, false), None);
        let turn = ledger.advance_turn(1_000, true).unwrap();
        assert_eq!((ledger.turn_owner(1_500), ledger.turns()), (Some((1, 1_000)), 1));
        let wait = |now_ms| [one, other, third].map(|member| member.must_wait(now_ms));
        assert_eq!(wait(1_010), [false, true, false]);
        assert_eq!(wait(turn.until_ms), [false; 3], "no process has advanced the turn");
        claim(&other, turn.until_ms, 12);
        claim(&one, turn.until_ms, 10);
        assert!(ledger.advance_turn(turn.until_ms, false).is_some(), "no cause is needed");
        assert_eq!(wait(turn.until_ms), [true, false, false]);
        other.release_entry();
        assert_eq!(ledger.advance_turn(turn.until_ms, false), None, "one claimant is left");
        assert_eq!(wait(turn.until_ms), [false; 3]);
    }

    #[test]
    fn turned_off_at_run_time_nobody_waits() {
        let [one, other] = two();
        claim(&one, 1_000, 10);
        claim(&other, 1_000, 12);
        assert!(one.ledger().advance_turn(1_000, true).is_some() && other.must_wait(1_000));
        one.ledger().set_takes_turns(false);
        assert!(!other.must_wait(1_000));
        assert_eq!(one.ledger().advance_turn(1_000, true), None);
    }

    #[test]
    fn the_owner_gets_what_it_wants_and_releases_nothing() {
        let [one, other] = two();
        assert_eq!((one.take(8), other.take(8)), (8, 8));
        claim(&one, 1_000, 12);
        claim(&other, 1_000, 14);
        assert!(one.ledger().advance_turn(1_000, true).is_some() && one.has_turn(1_000));
        one.request_for_turn(12);
        let keep = || other.release_target().map(|target| target.keep);
        assert_eq!(keep(), Some(4));
        one.request_for_turn(12);
        assert_eq!(keep(), Some(4), "requested once");
        other.publish(9, 0);
        assert_eq!(other.request_release(4, |_| false), None);
        one.end_claim(1_500);
        assert!(!other.must_wait(1_500));
        assert!(other.request_release(4, |_| false).is_some());
    }
}
