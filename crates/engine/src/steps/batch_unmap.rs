//! Victims that lie apart are unmapped in a batch: write-protected by one call, copied,
//! and dropped by another.
//!
//! Moving a page that lies alone costs a TLB shootdown, and so does protecting it; but
//! one call protects a whole span of memory for one shootdown. What lies between the
//! victims is caught by it, too, so all of a span is claimed until that is undone: nobody
//! finds a page protected that is not known to be. Where victims are few among pages that
//! stay, moving costs less. Clean victims leave by themselves
//! ([`crate::steps::clean_reclaim`]).
//!
//! With page protection each run of victims is made inaccessible and copied, and one call drops
//! all. Pages between the victims need no claim.
//!
//! A page that a device writes to would be copied too early and dropped: moving
//! such a page is refused by the kernel, this is not. So pages are unmapped here only
//! while the program has nothing by which memory is pinned for longer than a system call.

use crate::base::page::{Claim, PageNo, Place};
use crate::core::{Core, Memory};
use crate::memory::context::BATCH_PAGES;
use crate::policy::clock::Victim;
use crate::policy::mechanism::Mechanism;
use softswap_sys::PAGE_SIZE;
use softswap_sys::faults::Faults;
use softswap_sys::window::Writes;

/// Most pages of a span, and between two victims of one: a fault on one of them waits
/// for all to be unmapped. To claim and protect a page that stays takes some 50 ns, a TLB
/// shootdown where processors are virtual some 20 us and more.
const SPAN_PAGES: usize = 512;
const GAP_PAGES: u64 = 128;
/// One to protect a span, one to drop its victims, one to end the protection of
/// what lies between.
const SHOOTDOWNS_PER_SPAN: usize = 3;

/// Unmapped pages, still claimed, in the order of their copies.
pub(crate) type Unmapped<'t> = [Victim<'t>; BATCH_PAGES];

/// Whether a batch had better be unmapped here than moved: it costs fewer shootdowns.
pub(crate) fn is_better(core: &Core, victims: &[Victim<'_>]) -> bool {
    let memory = &core.memory;
    // Without UFFDIO_MOVE each page is copied and dropped in either case.
    !memory.window.uses_move()
        || (core.policies.has(Mechanism::BatchUnmap)
            && memory.pinners.is_safe_now()
            && takes_fewer_shootdowns(memory, victims))
}

/// Whether this takes fewer TLB shootdowns than moving each run of victims.
fn takes_fewer_shootdowns(memory: &Memory, victims: &[Victim<'_>]) -> bool {
    let pages = || victims.iter().flatten().map(|(page, _)| *page);
    let (mut runs, mut shootdowns) = (1, SHOOTDOWNS_PER_SPAN);
    for (before, after) in pages().zip(pages().skip(1)) {
        runs += usize::from(before + 1 != after);
        shootdowns += match after.checked_sub(before + 1) {
            // The protection ends around each page that keeps it.
            Some(gap) if gap < GAP_PAGES => {
                (before + 1..after).filter(|page| memory.pages.load(*page).is_protected()).count()
            }
            _ => SHOOTDOWNS_PER_SPAN,
        };
    }
    shootdowns < runs
}

/// Unmaps victims that may be written, as many as can be. Their
/// contents go to `copies`; the others stay at the front of `victims`, in their
/// order. Returns how many were unmapped.
pub(crate) fn unmap<'t>(
    memory: &Memory,
    victims: &mut [Victim<'t>],
    unmapped: &mut Unmapped<'t>,
    copies: &mut [[u8; PAGE_SIZE]],
) -> usize {
    if memory.window.faults() == Faults::Protection {
        return take_each(memory, victims, unmapped, copies);
    }
    let mut between = [const { None }; SPAN_PAGES];
    let (mut count, mut kept, mut next) = (0, 0, 0);
    while next < victims.len() {
        let span = Span::claim(memory, &victims[next..], &mut between);
        let done = span.unmap(memory, &victims[next..][..span.victims], &mut copies[count..]);
        for at in next..next + span.victims {
            let victim = victims[at].take();
            if at < next + done {
                unmapped[count] = victim;
                count += 1;
            } else {
                victims[kept] = victim;
                kept += 1;
            }
        }
        next += span.victims;
        span.release();
    }
    count
}

/// Implements [`unmap`] with page protection: pages between the victims need no claim.
fn take_each<'t>(
    memory: &Memory,
    victims: &mut [Victim<'t>],
    unmapped: &mut Unmapped<'t>,
    copies: &mut [[u8; PAGE_SIZE]],
) -> usize {
    let (mut pages, mut found) = ([0; BATCH_PAGES], 0);
    for (to, (page, _)) in pages.iter_mut().zip(victims.iter().flatten()) {
        *to = *page;
        found += 1;
    }
    debug_assert_eq!(found, victims.len(), "a victim is missing");
    let count = memory.window.take_each(&pages[..found], copies);
    unmapped[..count].swap_with_slice(&mut victims[..count]);
    victims.rotate_left(count);
    count
}

/// Copies protected victims and drops them, in order. Returns how many, from the first on.
fn copy_and_drop(memory: &Memory, victims: &[Victim<'_>], copies: &mut [[u8; PAGE_SIZE]]) -> usize {
    let mut pages = [0; BATCH_PAGES];
    let mut copied = 0;
    for ((page, _), copy) in victims.iter().flatten().zip(copies) {
        if memory.window.read_page(*page, copy).is_err() {
            break;
        }
        pages[copied] = *page;
        copied += 1;
    }
    memory.window.discard_each(&pages[..copied])
}

/// Neighbouring victims and all that lies between them, claimed.
struct Span<'s> {
    first: PageNo,
    pages: usize,
    /// How many of the victims lie in it: one at least.
    victims: usize,
    between: &'s mut [Option<Claim<'static>>; SPAN_PAGES],
}

impl<'s> Span<'s> {
    /// Claims what lies between the first victims, as far as that can be had.
    fn claim(
        memory: &Memory,
        victims: &[Victim<'_>],
        between: &'s mut [Option<Claim<'static>>; SPAN_PAGES],
    ) -> Span<'s> {
        let pages = || victims.iter().map_while(|victim| victim.as_ref().map(|(page, _)| *page));
        let first = pages().next().unwrap_or(0);
        let mut span = Span { first, pages: 1, victims: 1, between };
        for victim in pages().skip(1) {
            let end = first + span.pages as u64;
            let is_near =
                victim >= end && victim - end < GAP_PAGES && victim - first < SPAN_PAGES as u64;
            if !is_near || !span.claim_up_to(memory, victim) {
                break;
            }
            span.pages = (victim - first) as usize + 1;
            span.victims += 1;
        }
        span
    }

    /// Unmaps the victims, in order. Returns how many, from the first on.
    fn unmap(
        &self,
        memory: &Memory,
        victims: &[Victim<'_>],
        copies: &mut [[u8; PAGE_SIZE]],
    ) -> usize {
        if memory.window.set_writes(self.first, self.pages, Writes::Caught).is_err() {
            // Perhaps only from somewhere in the middle on.
            self.allow_writes(memory);
            return 0;
        }
        let gone = copy_and_drop(memory, victims, copies);
        self.allow_writes(memory);
        gone
    }

    /// Ends the protection of all but those pages that had it before. Victims had
    /// not.
    fn allow_writes(&self, memory: &Memory) {
        let is_kept = |at: usize| {
            self.between[at].as_ref().is_some_and(|claim| claim.before().is_protected())
        };
        let mut from = 0;
        for at in 0..=self.pages {
            if at < self.pages && !is_kept(at) {
                continue;
            }
            if at > from {
                allow_run(memory, self.first + from as u64, at - from);
            }
            from = at + 1;
        }
    }

    /// Claims all pages from the last victim so far up to the next one. False, with
    /// none of them claimed, where one cannot be.
    fn claim_up_to(&mut self, memory: &Memory, victim: PageNo) -> bool {
        let gap = self.pages..(victim - self.first) as usize;
        for at in gap.clone() {
            let page = self.first + at as u64;
            let seen = memory.pages.load(page);
            let may_be = seen.place() != Place::Foreign && seen.pins() == 0;
            self.between[at] = may_be.then(|| memory.pages.try_claim(page, seen)).flatten();
            if self.between[at].is_none() {
                self.between[gap.start..at].fill_with(|| None);
                return false;
            }
        }
        true
    }

    /// Ends the claims on what lies between.
    fn release(self) {
        self.between[..self.pages].fill_with(|| None);
    }
}

fn allow_run(memory: &Memory, first: PageNo, count: usize) {
    if memory.window.set_writes(first, count, Writes::Allowed).is_ok() {
        return;
    }
    // Part of it belongs to somebody else by now, or the range is no longer one
    // for the kernel. Alone a page is refused only where it is not the engine's.
    for page in first..first + count as u64 {
        let _ = memory.window.allow_writes(page);
    }
}
