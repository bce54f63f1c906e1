//! Batch unmapping of scattered victims: write-protects a span, copies the victims, drops them.
//!
//! One call protects a whole span for one TLB shootdown; moving costs one for each page. All pages
//! of the span are claimed until the protection is undone, so no other thread finds a protected
//! page whose entry does not record it.
//!
//! With page protection, runs of victims become inaccessible. Pages between them need no claim.
//!
//! The kernel refuses to move a page that a device may write to, but not to drop it after a copy,
//! which would lose the device's write. So, if pages can be moved, they are unmapped here only
//! while the program holds nothing that pins memory for longer than a system call.

use crate::base::page::{Claim, PageNo, Place};
use crate::core::{Core, Memory};
use crate::memory::context::BATCH_PAGES;
use crate::policy::clock::Victim;
use crate::policy::mechanism::Mechanism;
use softswap_sys::PAGE_SIZE;
use softswap_sys::faults::Faults;
use softswap_sys::window::Writes;

/// A fault on one of its pages waits until all victims are unmapped. Claiming and protecting a page
/// takes about 50 ns; a TLB shootdown on virtual CPUs takes 20 us and more.
const SPAN_PAGES: usize = 512;
/// Victims with at least this many pages between them are in different spans.
const GAP_PAGES: u64 = 128;
/// TLB shootdowns per span: protect it, drop the victims, unprotect the rest.
const SHOOTDOWNS_PER_SPAN: usize = 3;

/// Unmapped pages, still claimed, in the order of their copies.
pub(crate) type Unmapped<'t> = [Victim<'t>; BATCH_PAGES];

/// Returns true if batch unmapping is safe and needs fewer shootdowns than moving.
pub(crate) fn is_better(core: &Core, victims: &[Victim<'_>]) -> bool {
    let memory = &core.memory;
    // Without UFFDIO_MOVE each page is copied and dropped in either case.
    !memory.window.uses_move()
        || (core.policies.has(Mechanism::BatchUnmap)
            && memory.pinners.is_safe_now()
            && takes_fewer_shootdowns(memory, victims))
}

fn takes_fewer_shootdowns(memory: &Memory, victims: &[Victim<'_>]) -> bool {
    let pages = || victims.iter().flatten().map(|(page, _)| *page);
    let (mut runs, mut shootdowns) = (1, SHOOTDOWNS_PER_SPAN);
    for (before, after) in pages().zip(pages().skip(1)) {
        runs += usize::from(before + 1 != after);
        shootdowns += match after.checked_sub(before + 1) {
            // The call to unprotect is split at each page that stays protected.
            Some(gap) if gap < GAP_PAGES => {
                (before + 1..after).filter(|page| memory.pages.load(*page).is_protected()).count()
            }
            _ => SHOOTDOWNS_PER_SPAN,
        };
    }
    shootdowns < runs
}

/// Copies and unmaps victims. Returns their number. The others stay at the front of `victims`.
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

/// Nearby victims and the pages between them, all claimed.
struct Span<'s> {
    first: PageNo,
    pages: usize,
    /// Number of victims, at least one.
    victims: usize,
    between: &'s mut [Option<Claim<'static>>; SPAN_PAGES],
}

impl<'s> Span<'s> {
    /// Claims a span. It starts at the first victim and ends before a page that cannot be claimed.
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

    fn unmap(
        &self,
        memory: &Memory,
        victims: &[Victim<'_>],
        copies: &mut [[u8; PAGE_SIZE]],
    ) -> usize {
        if memory.window.set_writes(self.first, self.pages, Writes::Caught).is_err() {
            // Part of the span may be protected.
            self.allow_writes(memory);
            return 0;
        }
        let gone = copy_and_drop(memory, victims, copies);
        self.allow_writes(memory);
        gone
    }

    /// Removes the protection, except from pages that were protected before; no victim was.
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

    /// Claims the pages up to the next victim. On failure claims none and returns false.
    fn claim_up_to(&mut self, memory: &Memory, victim: PageNo) -> bool {
        let gap = self.pages..(victim - self.first) as usize;
        for at in gap.clone() {
            let page = self.first + at as u64;
            let seen = memory.pages.load(page);
            let may_be = seen.place() != Place::Unmanaged && seen.pins() == 0;
            self.between[at] = may_be.then(|| memory.pages.try_claim(page, seen)).flatten();
            if self.between[at].is_none() {
                self.between[gap.start..at].fill_with(|| None);
                return false;
            }
        }
        true
    }

    fn release(self) {
        self.between[..self.pages].fill_with(|| None);
    }
}

fn allow_run(memory: &Memory, first: PageNo, count: usize) {
    if memory.window.set_writes(first, count, Writes::Allowed).is_ok() {
        return;
    }
    // Part of the range belongs to another mapping now, or the kernel no longer treats it as one
    // range. The kernel refuses single pages only if they are not managed.
    for page in first..first + count as u64 {
        let _ = memory.window.allow_writes(page);
    }
}
