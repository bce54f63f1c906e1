//! Victims that lie apart leave the program's memory together: write-protected
//! by one call, copied, and dropped by another.
//!
//! Moving a page that lies alone costs a flush of all processors' translations,
//! and so does protecting it; but one call protects a whole span of memory for one
//! flush. What lies between the victims is caught by it, too, so all of a span
//! is claimed until that is undone: nobody finds a page protected that is not
//! known to be.

use crate::context::BATCH_PAGES;
use crate::page::{Claim, PageNo, Place};
use crate::parts::Parts;
use crate::policy::Victim;
use softswap_sys::PAGE_SIZE;
use softswap_sys::window::Writes;

/// Most pages of a span: a fault on one of them waits for all to be lifted.
const SPAN_PAGES: usize = 256;
/// Victims in so few runs are moved as well.
const FEW_RUNS: usize = BATCH_PAGES / 8;

/// Lifted pages, in the order of their copies.
pub(crate) type Lifted<'t> = [Victim<'t>; BATCH_PAGES];

/// Whether victims lie so far apart that lifting them is better than moving.
pub(crate) fn is_better(parts: &Parts, victims: &[Victim<'_>]) -> bool {
    let pages = || victims.iter().flatten().map(|(page, _)| *page);
    let starts = pages().zip(pages().skip(1)).filter(|(before, after)| before + 1 != *after);
    starts.count() >= FEW_RUNS || !parts.window.uses_move()
}

/// Lifts victims out, as many as can be. Their contents go to `copies`; the
/// others stay at the front of `victims`, in their order. Returns how many were
/// lifted.
pub(crate) fn lift<'t>(
    parts: &Parts,
    victims: &mut [Victim<'t>],
    lifted: &mut Lifted<'t>,
    copies: &mut [[u8; PAGE_SIZE]],
) -> usize {
    let (mut count, mut kept, mut next) = (0, 0, 0);
    while next < victims.len() {
        let mut between = [const { None }; SPAN_PAGES];
        let span = Span::claim(parts, &victims[next..], &mut between);
        let done = span.lift(parts, &victims[next..][..span.victims], &mut copies[count..]);
        for at in next..next + span.victims {
            let victim = victims[at].take();
            if at < next + done {
                lifted[count] = victim;
                count += 1;
            } else {
                victims[kept] = victim;
                kept += 1;
            }
        }
        next += span.victims;
    }
    count
}

/// Neighbouring victims and all that lies between them, claimed.
struct Span<'s, 't> {
    first: PageNo,
    pages: usize,
    /// How many of the victims lie in it: one at least.
    victims: usize,
    between: &'s mut [Option<Claim<'t>>; SPAN_PAGES],
}

impl<'s, 't> Span<'s, 't> {
    /// Claims what lies between the first victims, as far as that can be had.
    fn claim(
        parts: &Parts,
        victims: &[Victim<'_>],
        between: &'s mut [Option<Claim<'static>>; SPAN_PAGES],
    ) -> Span<'s, 'static> {
        let pages = || victims.iter().map_while(|victim| victim.as_ref().map(|(page, _)| *page));
        let first = pages().next().unwrap_or(0);
        let mut span = Span { first, pages: 1, victims: 1, between };
        for victim in pages().skip(1) {
            let is_near = victim > first && (victim - first) < SPAN_PAGES as u64;
            if !is_near || !span.claim_up_to(parts, victim) {
                break;
            }
            span.pages = (victim - first) as usize + 1;
            span.victims += 1;
        }
        // What lies behind the last victim is nobody's concern.
        span.between[span.pages..].iter_mut().for_each(|claim| *claim = None);
        span
    }

    /// Lifts the victims, in order. Returns how many, from the first on.
    fn lift(&self, parts: &Parts, victims: &[Victim<'_>], copies: &mut [[u8; PAGE_SIZE]]) -> usize {
        // What is stored already has its protection, and a copy to go to.
        let is_plain = |victim: &Victim<'_>| {
            victim.as_ref().is_some_and(|(_, claim)| !claim.before().has_copy())
        };
        let plain = victims.iter().take_while(|victim| is_plain(victim)).count();
        if plain == 0 || parts.window.set_writes(self.first, self.pages, Writes::Caught).is_err() {
            return 0;
        }
        let mut pages = [0; BATCH_PAGES];
        let mut copied = 0;
        for ((page, _), copy) in victims[..plain].iter().flatten().zip(copies) {
            if parts.window.read_page(*page, copy).is_err() {
                break;
            }
            pages[copied] = *page;
            copied += 1;
        }
        let gone = parts.window.discard_each(&pages[..copied]);
        self.allow_writes(parts, victims);
        gone
    }

    /// Lifts the protection from all but those pages that have it for their copies.
    fn allow_writes(&self, parts: &Parts, victims: &[Victim<'_>]) {
        let is_kept = |at: usize| {
            let page = self.first + at as u64;
            let victim = victims.iter().flatten().find(|(victim, _)| *victim == page);
            let claim = victim.map(|(_, claim)| claim).or(self.between[at].as_ref());
            claim.is_some_and(|claim| claim.before().has_copy())
        };
        let mut from = 0;
        for at in 0..=self.pages {
            if at < self.pages && !is_kept(at) {
                continue;
            }
            if at > from {
                // Refused only where nothing is mapped any more.
                let page = self.first + from as u64;
                let _ = parts.window.set_writes(page, at - from, Writes::Allowed);
            }
            from = at + 1;
        }
    }
}

impl Span<'_, 'static> {
    /// Claims all pages from the last victim so far up to the next one. False, with
    /// some of them claimed, where one cannot be.
    fn claim_up_to(&mut self, parts: &Parts, victim: PageNo) -> bool {
        for at in self.pages..(victim - self.first) as usize {
            let page = self.first + at as u64;
            let seen = parts.pages.load(page);
            if seen.place() == Place::Foreign || seen.pins() > 0 {
                return false;
            }
            let Some(claim) = parts.pages.try_claim(page, seen) else { return false };
            self.between[at] = Some(claim);
        }
        true
    }
}
