//! What is brought in before it is touched: the windows of streams.
//!
//! A thread of its own does it, so that the device and another processor work
//! while the program goes over what is there. All of it is a guess: it takes
//! what is free of the budget or soon will be, waits for nobody's claim,
//! and leaves whatever is wrong to the fault that may never come.

use crate::context::{Context, Contexts};
use crate::copies;
use crate::page::{Claim, PageNo, Place};
use crate::page_in::{self, Access, Wanted};
use crate::parts::Parts;
use crate::pool::Handle;
use crate::readahead::{Direction, MAX_PAGES, Window};
use crate::stats::Counter;
use crate::unpack;
use softswap_sys::PAGE_SIZE;
use softswap_sys::futex;
use softswap_sys::raw::current_cpu;
use softswap_sys::window::Writes;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// How long the thread sleeps when nothing is asked for: it is woken before.
const NAP_NS: u64 = 1_000_000_000;
/// How long background reclaim is given to make room, and how often.
const ROOM_PAUSE_NS: u64 = 50_000;
const ROOM_PAUSES: u32 = 20;
/// Pages brought in before the context is given up for a moment, for a fork
/// that waits for it.
const STRETCH_PAGES: u64 = MAX_PAGES as u64;

/// The thread's work; returns when `go_on` says no.
pub fn run(parts: &Parts, contexts: &Contexts, go_on: impl Fn() -> bool) {
    parts.streams.serve(true);
    while go_on() {
        let seen = parts.streams.kick();
        match parts.streams.take() {
            Some(window) => bring(parts, contexts, window),
            None => parts.streams.sleep(seen, NAP_NS),
        }
    }
    parts.streams.serve(false);
}

/// Brings in all of a window but its marker, what is touched first first.
fn bring(parts: &Parts, contexts: &Contexts, window: Window) {
    let mut steps = 1;
    while steps < window.pages as u64 {
        let count = (window.pages as u64 - steps).min(STRETCH_PAGES);
        let Some(stretch) = stretch(window, steps, count) else { return };
        let mut context = contexts.claim_prefetch();
        if !bring_stretch(parts, &mut context, stretch) {
            return;
        }
        steps += count;
    }
}

/// The pages `steps` on from a window's marker and after, in ascending order.
fn stretch(window: Window, steps: u64, count: u64) -> Option<Range<PageNo>> {
    let (near, far) = (window.onward(steps), window.onward(steps + count - 1));
    match window.direction {
        Direction::Up => Some(near?..far? + 1),
        // Down to the first page, if it is so near.
        Direction::Down => Some(far.unwrap_or(0)..near? + 1),
    }
}

/// Brings pages in, in ascending order. False when there is no room for more, or
/// something is wrong.
fn bring_stretch(parts: &Parts, context: &mut Context, stretch: Range<PageNo>) -> bool {
    let end = stretch.end.min(parts.window.pages() as PageNo);
    let mut page = stretch.start;
    while page < end {
        let Some(came) = bring_at(parts, context, page, end) else { return false };
        page += came.max(1) as u64;
    }
    true
}

/// Brings the page in and those after it that come with it, short of `end`.
/// Returns how many came; `None` to stop.
fn bring_at(parts: &Parts, context: &mut Context, page: PageNo, end: PageNo) -> Option<usize> {
    let seen = parts.pages.load(page);
    let most = ((end - page) as usize).min(MAX_PAGES);
    match seen.place() {
        Place::Pool { .. } => from_pool(parts, context, page, most),
        place @ (Place::Slot { .. } | Place::Packed { .. }) => {
            if seen.is_busy() {
                return Some(0);
            }
            // The others' share is charged where they are read.
            charge(parts, most)?;
            parts.budget.release(most - 1);
            let Some(claim) = parts.pages.try_claim(page, seen) else {
                parts.budget.release(1);
                return Some(0);
            };
            let keep = copies::are_kept(parts, page, place, Access::Read);
            let (access, waits) = (Access::Read, false);
            let wanted = Wanted { page, access, keep, window: most, is_stream: true, waits };
            let Ok(came) = page_in::install_from(parts, context, place, wanted) else {
                parts.budget.release(1);
                return None;
            };
            parts.stats.add(Counter::PagesReadAhead, 1);
            let copy = copies::arrive(parts, place, keep);
            page_in::finish(parts, page, claim, parts.grace_ahead(page, true), copy);
            Some(came.pages)
        }
        // There already, or nothing that could be read.
        _ => Some(0),
    }
}

/// Unpacks the page and those after it that are in the pool, and installs them
/// together. As [`bring_at`].
fn from_pool(parts: &Parts, context: &mut Context, page: PageNo, most: usize) -> Option<usize> {
    let mut claims: [Option<(Claim<'static>, Handle)>; MAX_PAGES] = [const { None }; MAX_PAGES];
    let is_pooled = |next: &PageNo| {
        let seen = parts.pages.load(*next);
        matches!(seen.place(), Place::Pool { .. }) && !seen.is_busy()
    };
    let wanted = (page..page + most as u64).take_while(is_pooled).count();
    if wanted == 0 {
        return Some(0);
    }
    // Before there is a buffer: who has one waits for nobody but the disk.
    charge(parts, wanted)?;
    let sizes = std::iter::successors(Some(wanted), |wanted| Some(wanted / 2));
    let mut buffers = sizes.take_while(|wanted| *wanted > 0);
    let buffer = buffers.find_map(|wanted| parts.bounce.take(current_cpu(), wanted));
    let Some(mut buffer) = buffer else {
        parts.budget.release(wanted);
        return None;
    };
    let count = claim_pooled(parts, page, &mut claims[..buffer.len() / PAGE_SIZE]);
    let (copies, _) = buffer.as_chunks_mut::<PAGE_SIZE>();
    let mut good = 0;
    for ((_, handle), copy) in claims.iter().flatten().zip(copies) {
        if unpack::pooled(parts, context, *handle).is_err() {
            break;
        }
        *copy = context.page.0;
        good += 1;
    }
    let bytes = &buffer[..good * PAGE_SIZE];
    let mut came =
        if good == 0 { 0 } else { parts.window.install(page, bytes, Writes::Allowed).pages };
    if came == 0 && good > 1 {
        // One call cannot cross a change of protection.
        came = parts.window.install(page, &bytes[..PAGE_SIZE], Writes::Allowed).pages;
    }
    parts.budget.release(wanted - came);
    parts.stats.add(Counter::PagesReadAhead, came as u64);
    for (next, claim) in (page..).zip(&mut claims[..came]) {
        if let Some((claim, handle)) = claim.take() {
            parts.pool.free(handle);
            page_in::finish(parts, next, claim, parts.grace_ahead(next, true), None);
        }
    }
    (came > 0 || count == 0).then_some(came)
}

/// Charges pages to the budget, if it has room for them soon. With no claim in
/// hand: whoever touches a page is not to wait for others' room.
fn charge(parts: &Parts, pages: usize) -> Option<()> {
    for _ in 0..ROOM_PAUSES {
        if parts.budget.try_charge(pages, parts.other_bytes()) {
            if parts.budget.is_low(parts.other_bytes()) {
                parts.wake_reclaim();
            }
            return Some(());
        }
        parts.wake_reclaim();
        futex::wait(&parts.kick, parts.kick.load(Ordering::Relaxed), Some(ROOM_PAUSE_NS));
    }
    None
}

/// Claims pages from `page` on that are in the pool and that nobody has. Returns
/// how many.
fn claim_pooled(
    parts: &Parts,
    page: PageNo,
    claims: &mut [Option<(Claim<'static>, Handle)>],
) -> usize {
    for (index, place) in claims.iter_mut().enumerate() {
        let next = page + index as u64;
        let seen = parts.pages.load(next);
        let Place::Pool { handle } = seen.place() else { return index };
        let Some(claim) = parts.pages.try_claim(next, seen) else { return index };
        *place = Some((claim, Handle::from_bits(handle)));
    }
    claims.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_brought_in_from_its_near_end_in_stretches() {
        let up = Window { marker: 100, pages: 128, direction: Direction::Up };
        assert_eq!(stretch(up, 1, 64), Some(101..165));
        assert_eq!(stretch(up, 65, 63), Some(165..228));
        let down = Window { marker: 100, pages: 128, direction: Direction::Down };
        assert_eq!(stretch(down, 1, 64), Some(36..100));
        assert_eq!(stretch(down, 65, 63), Some(0..36));
        assert_eq!(stretch(Window { marker: 0, ..down }, 1, 64), None);
    }
}
