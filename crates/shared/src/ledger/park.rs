//! A parked tree: the faults of all members wait, and members evict all of their memory.
//!
//! `softswap run` extends the time until which the tree is parked, until all processes are stopped.
//! If it is killed before, the faults of the members continue when that time has passed.

use super::layout::{Header, Word};
use super::{Ledger, Member};
use softswap_sys::primitive::Ordering::{Acquire, Relaxed, Release};
use softswap_sys::primitive::{wait_shared, wake_shared};

/// Time for which a tree is parked at a time, in ms. A later end counts as overwritten.
pub const LEASE_MS: u64 = 10_000;

/// Progress of a member of a parked tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// It evicts nothing: the tree is not parked, or no thread of the member can evict.
    None,
    /// It evicts memory, or starts the thread that does.
    Running,
    /// It has evicted all memory that it can.
    Done,
}

impl Ledger {
    /// Parks the tree until `until_ms`, or ends that if it is 0. Notifies all members of a change.
    pub fn park_until(&self, until_ms: u64) {
        let word = self.header(Header::ParkedUntil);
        if word.load(Acquire) == 0 {
            let entries = self.members.owned().map(|(entry, _)| entry);
            entries.for_each(|entry| self.word(entry, Word::Eviction).store(0, Relaxed));
        }
        let before_ms = word.swap(until_ms, Release);
        if (before_ms == 0) != (until_ms == 0) {
            wake_shared(word);
            self.members.owned().for_each(|(entry, _)| self.notify(entry));
        }
    }

    /// Returns true if the tree is parked.
    #[must_use]
    pub fn is_parked(&self, now_ms: u64) -> bool {
        is_before(now_ms, self.header(Header::ParkedUntil).load(Acquire))
    }

    /// Returns the number of members with this progress.
    #[must_use]
    pub fn members_at(&self, eviction: Eviction) -> usize {
        let is_there = |entry| self.word(entry, Word::Eviction).load(Relaxed) == eviction as u64;
        self.members.owned().filter(|(entry, _)| is_there(*entry)).count()
    }
}

fn is_before(now_ms: u64, until_ms: u64) -> bool {
    (1..=LEASE_MS).contains(&until_ms.saturating_sub(now_ms))
}

impl Member {
    /// Publishes the progress of this member.
    pub fn publish_eviction(&self, eviction: Eviction) {
        self.ledger.word(self.entry, Word::Eviction).store(eviction as u64, Relaxed);
    }

    /// Waits for up to `ns`, or until the parking ends, if the tree is parked. Returns true if it
    /// was. Each fault calls this, so the clock is read only if the tree may be parked.
    #[must_use]
    pub fn await_unpark(&self, now_ms: impl FnOnce() -> u64, ns: u64) -> bool {
        let word = self.ledger.header(Header::ParkedUntil);
        let seen = word.load(Acquire);
        let is_parked = seen != 0 && is_before(now_ms(), seen);
        if is_parked && ns > 0 {
            wait_shared(word, seen, ns);
        }
        is_parked
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::Eviction;
    use crate::ledger::tests::{LIMIT, SMALL, ledger_of, process};

    #[test]
    fn a_parked_tree_continues_at_the_latest_when_its_time_has_passed() {
        let ledger = ledger_of(SMALL, LIMIT);
        let member = ledger.join(process(1)).unwrap();
        let seen = member.notifications();
        assert!(!member.await_unpark(|| unreachable!("the clock is read"), 1));
        ledger.park_until(2_000);
        let noticed = member.notifications();
        assert!(noticed != seen && member.await_unpark(|| 1_999, 0));
        ledger.park_until(3_000);
        assert_eq!(member.notifications(), noticed, "an extension wakes no member");
        assert!(ledger.is_parked(2_999) && !ledger.is_parked(3_000));
        assert!(!member.await_unpark(|| 3_000, 1), "nobody has extended it");
        assert_eq!(ledger.members_at(Eviction::None), 1);
        member.publish_eviction(Eviction::Done);
        assert_eq!([Eviction::None, Eviction::Done].map(|it| ledger.members_at(it)), [0, 1]);
        ledger.park_until(u64::MAX);
        assert!(!ledger.is_parked(3_000), "the word is implausible");
        ledger.park_until(0);
        assert!(member.notifications() != noticed && !ledger.is_parked(0));
    }
}
