//! Chooses the member that releases chunks if none is free.

use super::layout::{URGENT, Word};
use super::{Ledger, Member};
use softswap_sys::primitive::Ordering::{AcqRel, Acquire, Relaxed};

/// A request to a member to release chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// Entry of the asked member.
    pub entry: usize,
    /// Number of requested chunks.
    pub chunks: usize,
}

impl Ledger {
    /// Returns the number of members.
    #[must_use]
    pub fn member_count(&self) -> usize {
        self.members.owned().count()
    }

    /// Returns the chunks that a member may keep with the lowest benefit: half of an equal share.
    #[must_use]
    pub fn floor(&self) -> usize {
        (self.limit() / (2 * self.member_count().max(1))).max(1)
    }

    pub(super) fn holdings(&self) -> Vec<Holding> {
        let held = self.held_in(self.within());
        let holding = |(entry, held): (usize, &usize)| {
            let word = |word| self.word(entry, word).load(Acquire);
            let left = self.remaining(word(Word::Target), *held);
            Holding { held: *held, left, benefit: word(Word::Benefit) }
        };
        held.iter().enumerate().map(holding).collect()
    }

    /// Notifies members with chunks beyond the limit, again if they took them under a former limit.
    pub fn notify_excess(&self) {
        let held = self.held_in(self.beyond());
        (0..held.len()).filter(|entry| held[*entry] > 0).for_each(|entry| self.notify(entry));
    }

    /// Requests chunks for the members that demand them ([`Member::demand`]). Returns their number.
    pub fn serve_demands(&self) -> usize {
        let serve = |(entry, owner)| {
            let word = self.word(entry, Word::Demand);
            let demand = if word.load(Relaxed) == 0 { 0 } else { word.swap(0, AcqRel) };
            let member = self.member_at(entry, owner);
            let most = match demand & URGENT {
                0 => self.floor().saturating_sub(member.held()),
                _ => self.limit(),
            };
            let chunks = usize::try_from(demand & !URGENT).unwrap_or(usize::MAX).min(most);
            let request = (chunks > 0).then(|| member.request_release(chunks, |_| false));
            request.flatten().map_or(0, |request| request.chunks)
        };
        self.members.owned().map(serve).sum()
    }
}

/// Minimum ratio of two benefits that count as different: benefits are estimates.
const CLEARLY: u64 = 2;

#[derive(Clone, Copy)]
pub(super) struct Holding {
    pub(super) held: usize,
    /// Chunks that remain once the member has met the pending request.
    pub(super) left: usize,
    benefit: u64,
}

impl Holding {
    fn has_clearly_less_benefit(self, than: Holding) -> bool {
        self.benefit.saturating_mul(CLEARLY) < than.benefit
    }

    fn is_larger(self, than: Holding) -> bool {
        !than.has_clearly_less_benefit(self) && self.left > than.held + than.held / 4 + 1
    }
}

impl Member {
    /// Requests up to `need` chunks from another member.
    ///
    /// Asks the member with the lowest benefit, if that is clearly lower than this one's, or if
    /// this one holds less than its floor. Otherwise asks the largest member of about the same
    /// benefit, if it holds clearly more, for up to half of the difference: so neither of two equal
    /// members starves. Skips members at their floor, and the turn's owner.
    #[must_use]
    pub fn request_release(
        &self,
        need: usize,
        is_skipped: impl Fn(usize) -> bool,
    ) -> Option<ReleaseRequest> {
        let (ledger, floor) = (&self.ledger, self.ledger.floor());
        let holdings = ledger.holdings();
        let own = holdings[self.entry];
        let is_below_floor = own.held < floor;
        let exempt = ledger.last_turn_owner().map(|(entry, _)| entry);
        let may_give = |entry| entry != self.entry && Some(entry) != exempt && !is_skipped(entry);
        let others = || {
            let others = (0..holdings.len()).map(|entry| (entry, holdings[entry]));
            others.filter(|(entry, it)| it.left > floor && may_give(*entry))
        };
        let lowest = others()
            .filter(|(_, it)| is_below_floor || it.has_clearly_less_benefit(own))
            .min_by_key(|(_, it)| (it.benefit, usize::MAX - it.left));
        let largest = || others().filter(|(_, it)| it.is_larger(own)).max_by_key(|(_, it)| it.left);
        let (entry, other, most) = match lowest {
            Some((entry, other)) if is_below_floor => (entry, other, floor - own.held),
            Some((entry, other)) => (entry, other, need),
            None => largest().map(|(entry, it)| (entry, it, (it.left - own.held) / 2))?,
        };
        let chunks = ledger.request(entry, other.held, floor, need.min(most));
        // Another process may have requested these chunks first.
        (chunks > 0).then_some(ReleaseRequest { entry, chunks })
    }
}
