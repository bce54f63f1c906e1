//! What is brought in before it is touched: the windows of streams, by pieces.
//!
//! Threads of its own do it, so that the device and other processors work while
//! the program goes over what is there: several, because a device is seldom busy
//! with one read, and while one piece is put in place others are read. All of it
//! is a guess: it waits for nobody's claim, and leaves whatever is wrong to the
//! fault that may never come. Only a stream's window is worth taking others'
//! room: where background reclaim does not keep up, the thread lends a hand.

use crate::context::{Context, Contexts};
use crate::copies;
use crate::io::MAX_PIECES;
use crate::page::{Claim, PageNo, Place};
use crate::page_in::{self, Access, Wanted};
use crate::parts::Parts;
use crate::pieces::{PIECE_PAGES, Piece};
use crate::pool::Handle;
use crate::reclaim::{self, Round};
use crate::stats::Counter;
use crate::unpack;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::current_cpu;
use std::ops::Range;

/// How long a thread sleeps when nothing is asked for: it is woken before.
const NAP_NS: u64 = 1_000_000_000;
/// Batches taken out, at most, to make room for a piece.
const ROOM_ROUNDS: usize = 4;
/// Pages installed together: who waits for the first of a piece can go on while
/// the others come.
const INSTALL_PAGES: usize = 16;

/// A charge to the budget; what is not spent is given back.
struct Charge<'p> {
    parts: &'p Parts,
    pages: usize,
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.parts.budget.release(self.pages);
    }
}

/// The work of one of the threads; returns when `go_on` says no.
pub fn run(parts: &Parts, contexts: &Contexts, thread: usize, go_on: impl Fn() -> bool) {
    parts.streams.serve(true);
    while go_on() {
        let seen = parts.streams.kick();
        match parts.streams.take() {
            // The context anew for each, so that a fork can come in between.
            Some(piece) => bring(parts, &mut contexts.claim_prefetch(thread), piece),
            None => parts.streams.sleep(seen, NAP_NS),
        }
    }
    parts.streams.serve(false);
}

/// Brings in all of a piece but its marker: first what is read from the disk, then
/// what is packed. Stops where there is no room for more, or something is wrong.
fn bring(parts: &Parts, context: &mut Context, piece: Piece) {
    let end = (piece.first + piece.pages as u64).min(parts.window.pages() as PageNo);
    let marker = piece.marker();
    let mut page = piece.first;
    while page < end {
        let Some(next) = from_slots(parts, context, page..end, marker) else { return };
        page = next;
    }
    let mut page = piece.first;
    while page < end {
        let most = ((end - page) as usize).min(PIECE_PAGES);
        let but_marker = most - usize::from(marker == Some(page + most as u64 - 1));
        let came = match parts.pages.load(page).place() {
            // Only what is read is parked; others are as good as there.
            _ if marker == Some(page) => Some(1),
            Place::Pool { .. } => from_pool(parts, context, page, but_marker),
            place @ Place::Packed { .. } => from_packed(parts, context, page, place, but_marker),
            // There already, or nothing that could be read.
            _ => Some(1),
        };
        let Some(came) = came else { return };
        page += came.max(1) as u64;
    }
}

/// Pages that are read together, wherever their slots are, in ascending order.
struct Gathered {
    pages: [PageNo; PIECE_PAGES],
    slots: [u64; PIECE_PAGES],
    /// A marker has none: its toucher is not to wait for it.
    claims: [Option<Claim<'static>>; PIECE_PAGES],
    count: usize,
}

impl Gathered {
    /// Claims what can be read at once of `range`: the pages of one area that lie in
    /// at most [`MAX_PIECES`] runs of slots. Returns the page to go on with, too.
    fn claim(parts: &Parts, range: Range<PageNo>) -> (Gathered, PageNo) {
        let mut gathered = Gathered {
            pages: [0; PIECE_PAGES],
            slots: [0; PIECE_PAGES],
            claims: [const { None }; PIECE_PAGES],
            count: 0,
        };
        let mut runs = 0;
        for page in range.clone() {
            let seen = parts.pages.load(page);
            let Place::Slot { slot } = seen.place() else { continue };
            let count = gathered.count;
            let last = count.checked_sub(1).map(|last| gathered.slots[last]);
            if last.is_some_and(|last| !parts.areas.are_together(last, slot)) {
                continue;
            }
            runs += usize::from(last.is_none_or(|last| last + 1 != slot));
            if runs > MAX_PIECES || count == PIECE_PAGES {
                return (gathered, page);
            }
            if let Some(claim) = parts.pages.try_claim(page, seen) {
                gathered.pages[count] = page;
                gathered.slots[count] = slot;
                gathered.claims[count] = Some(claim);
                gathered.count += 1;
            }
        }
        (gathered, range.end)
    }

    /// Keeps the first so many.
    fn truncate(&mut self, count: usize) {
        // Nobody is to wait for what does not come.
        self.claims[count..].fill_with(|| None);
        self.count = count;
    }

    /// How many from `first` on are claimed neighbours in memory, so many at most.
    fn neighbours(&self, first: usize, most: usize) -> usize {
        let is_next = |at: &usize| {
            let offset = (at - first) as u64;
            self.claims[*at].is_some() && self.pages[*at] == self.pages[first] + offset
        };
        (first..self.count.min(first + most)).take_while(is_next).count()
    }
}

/// Reads pages of `range` that lie in slots of their own, all at once, and installs
/// them; the marker is parked. Returns the page to go on with, `None` to stop.
fn from_slots(
    parts: &Parts,
    context: &mut Context,
    range: Range<PageNo>,
    marker: Option<PageNo>,
) -> Option<PageNo> {
    let is_wanted = |page: &PageNo| matches!(parts.pages.load(*page).place(), Place::Slot { .. });
    let most = range.clone().filter(is_wanted).count().min(PIECE_PAGES);
    if most == 0 {
        return Some(range.end);
    }
    let mut charge = charge(parts, context, most)?;
    let (mut gathered, mut next) = Gathered::claim(parts, range);
    if gathered.count == 0 {
        return Some(next);
    }
    // Others may have come meanwhile for which nothing is charged.
    let mut buffer = parts.bounce.take_up_to(current_cpu(), gathered.count.min(most))?;
    let count = buffer.len() / PAGE_SIZE;
    if count < gathered.count {
        next = gathered.pages[count];
        gathered.truncate(count);
    }
    if !page_in::read_each(parts, context, &gathered.slots[..gathered.count], &mut buffer) {
        return None;
    }
    if let Some(at) = gathered.pages[..gathered.count].iter().position(|p| Some(*p) == marker) {
        // Its toucher may be waiting: first, and back to where it is.
        parts.parked.park(gathered.slots[at], &buffer[at * PAGE_SIZE..][..PAGE_SIZE]);
        gathered.claims[at] = None;
    }
    let mut at = 0;
    while at < gathered.count {
        let run = gathered.neighbours(at, INSTALL_PAGES);
        let came = install_slots(parts, &mut gathered, at..at + run, &mut buffer);
        charge.pages -= came;
        if came < run {
            // Opened already: what did not come must be read again.
            return None;
        }
        at += run.max(1);
    }
    Some(next)
}

/// Opens, installs and publishes neighbours that were read, up to the first that is
/// not what it should be. Returns how many.
fn install_slots(
    parts: &Parts,
    gathered: &mut Gathered,
    run: Range<usize>,
    bytes: &mut [u8],
) -> usize {
    let bytes = &mut bytes[run.start * PAGE_SIZE..run.end * PAGE_SIZE];
    let good = page_in::open_run(parts, gathered.slots[run.clone()].iter().copied(), bytes);
    if good == 0 {
        return 0;
    }
    let page = gathered.pages[run.start];
    install_claimed(parts, page, &bytes[..good * PAGE_SIZE], &mut gathered.claims[run])
}

/// Installs and publishes neighbours, all of which are claimed. Returns how many.
fn install_claimed(
    parts: &Parts,
    page: PageNo,
    bytes: &[u8],
    claims: &mut [Option<Claim<'static>>],
) -> usize {
    // What holds for the first: one call installs all of them alike.
    let place = claims[0].as_ref().map_or(Place::Vacant, |claim| claim.before().place());
    let keep = copies::are_kept(parts, page, place, Access::Read, true);
    let came = page_in::install_run(parts, page, bytes, page_in::writes(keep)).pages;
    for (next, claim) in (page..).zip(&mut claims[..came]) {
        if let Some(claim) = claim.take() {
            let copy = copies::arrive(parts, claim.before().place(), keep);
            page_in::finish(parts, next, claim, parts.grace_ahead(next, true), copy);
        }
    }
    parts.stats.add(Counter::PagesReadAhead, came as u64);
    came
}

/// As [`from_slots`], from slots that several compressed pages share.
fn from_packed(
    parts: &Parts,
    context: &mut Context,
    page: PageNo,
    place: Place,
    most: usize,
) -> Option<usize> {
    // The others' share is charged where they are read.
    let mut charge = charge(parts, context, most)?;
    parts.budget.release(most - 1);
    charge.pages = 1;
    let seen = parts.pages.load(page);
    let is_it = seen.place() == place && !seen.is_busy();
    let Some(claim) = (if is_it { parts.pages.try_claim(page, seen) } else { None }) else {
        return Some(0);
    };
    let keep = copies::are_kept(parts, page, place, Access::Read, true);
    let access = Access::Read;
    let wanted = Wanted { page, access, keep, window: most, is_stream: true, waits: false };
    let came = page_in::install_from(parts, context, place, wanted).ok()?;
    charge.pages = 0;
    parts.stats.add(Counter::PagesReadAhead, 1);
    let copy = copies::arrive(parts, place, keep);
    page_in::finish(parts, page, claim, parts.grace_ahead(page, true), copy);
    Some(came.pages)
}

/// Unpacks the page and those after it that are in the pool, and installs them
/// together. As [`from_slots`].
fn from_pool(parts: &Parts, context: &mut Context, page: PageNo, most: usize) -> Option<usize> {
    let is_pooled = |next: &PageNo| {
        let seen = parts.pages.load(*next);
        matches!(seen.place(), Place::Pool { .. }) && !seen.is_busy()
    };
    let wanted = (page..page + most as u64).take_while(is_pooled).count();
    if wanted == 0 {
        return Some(0);
    }
    let mut charge = charge(parts, context, wanted)?;
    let mut buffer = parts.bounce.take_up_to(current_cpu(), wanted)?;
    let mut claims = [const { None }; PIECE_PAGES];
    let count = claim_pooled(parts, page, &mut claims[..buffer.len() / PAGE_SIZE]);
    let (copies, _) = buffer.as_chunks_mut::<PAGE_SIZE>();
    let mut good = 0;
    for (claim, copy) in claims.iter().flatten().zip(copies) {
        let Place::Pool { handle } = claim.before().place() else { break };
        if unpack::pooled(parts, context, Handle::from_bits(handle)).is_err() {
            break;
        }
        *copy = context.page.0;
        good += 1;
    }
    if good == 0 {
        return (count == 0).then_some(0);
    }
    let came = install_claimed(parts, page, &buffer[..good * PAGE_SIZE], &mut claims);
    charge.pages -= came;
    (came > 0).then_some(came)
}

/// Charges pages to the budget. Before there is a claim or a buffer: nobody who
/// has one waits for room.
fn charge<'p>(parts: &'p Parts, context: &mut Context, pages: usize) -> Option<Charge<'p>> {
    for _ in 0..=ROOM_ROUNDS {
        if parts.budget.try_charge(pages, parts.other_bytes()) {
            if parts.budget.is_low(parts.other_bytes()) {
                parts.wake_reclaim();
            }
            return Some(Charge { parts, pages });
        }
        parts.wake_reclaim();
        if !matches!(reclaim::round_for_room(parts, context), Round::Progress(_)) {
            return None;
        }
    }
    None
}

/// Claims pages from `page` on that are in the pool and that nobody has. Returns
/// how many.
fn claim_pooled(parts: &Parts, page: PageNo, claims: &mut [Option<Claim<'static>>]) -> usize {
    for (index, place) in claims.iter_mut().enumerate() {
        let next = page + index as u64;
        let seen = parts.pages.load(next);
        let Place::Pool { .. } = seen.place() else { return index };
        let Some(claim) = parts.pages.try_claim(next, seen) else { return index };
        *place = Some(claim);
    }
    claims.len()
}
