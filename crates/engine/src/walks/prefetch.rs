//! What is brought in before it is touched: the windows of streams, by requests.
//!
//! Threads of its own do it, so that the device and other processors work while
//! the program goes over what is there: several, because a device is seldom busy
//! with one read, and while one request is put in place others are read. All of it
//! is a guess: it waits for nobody's claim, and leaves whatever is wrong to the
//! fault that may never come. Only a stream's window is worth taking others'
//! room: where background reclaim does not keep up, the thread lends a hand.

use crate::base::access::Access;
use crate::base::page::{Claim, PageNo, Place};
use crate::base::stats::Counter;
use crate::core::Core;
use crate::memory::context::{Context, Contexts};
use crate::policy::mechanism::Mechanism;
use crate::policy::prefetch::readahead;
use crate::policy::prefetch::window::{Pages, REQUEST_PAGES, ReadRequest};
use crate::steps::decompress;
use crate::steps::install;
use crate::steps::swap_cache;
use crate::steps::swap_in_batch::{ReadLimit, SwapInBatch};
use crate::store::pool::Handle;
use crate::walks::reclaim::{self, Round};
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::{current_cpu, now_ns};
use std::ops::Range;

/// How long a thread sleeps when nothing is asked for: it is woken before.
const NAP_NS: u64 = 1_000_000_000;
/// Batches taken out, at most, to make room for a request.
const ROOM_ROUNDS: usize = 4;

/// A charge to the budget; what is not spent is given back.
struct Charge<'p> {
    core: &'p Core,
    pages: usize,
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.core.memory.budget.release(self.pages);
    }
}

/// The work of one of the threads; returns when `go_on` says no.
pub(crate) fn run(core: &Core, contexts: &Contexts, thread: usize, go_on: impl Fn() -> bool) {
    core.policies.readahead.serve(true);
    core.stats.add(Counter::EngineThreads, 1);
    while go_on() {
        let seen = core.policies.readahead.kick();
        match core.policies.readahead.take() {
            // The context anew for each, so that a fork can come in between.
            Some(request) => bring(core, &mut contexts.claim_prefetch(thread), request),
            None => core.policies.readahead.sleep(seen, NAP_NS),
        }
    }
    core.policies.readahead.serve(false);
}

/// Brings in all of a request but its marker: first what is read from the disk, then
/// what is packed in the pool. Stops where there is no room for more, or something is
/// wrong.
fn bring(core: &Core, context: &mut Context, request: ReadRequest) {
    let Range { start, end } = request.range();
    let end = end.min(core.memory.window.pages() as PageNo);
    let marker = request.marker();
    let is_cached = core.policies.has(Mechanism::MarkerCache);
    let (mut page, mut to_cache) = (start, marker.filter(|_| is_cached));
    while page < end {
        let pages = request.pages(page..end);
        let Some(next) = from_disk(core, context, pages, end, marker, to_cache.take()) else {
            return;
        };
        page = next;
    }
    let mut page = start;
    while page < end {
        let in_a_row = if request.stride() == 1 { (end - page) as usize } else { 1 };
        let but_marker = in_a_row - usize::from(marker == Some(page + in_a_row as u64 - 1));
        let came = match core.memory.pages.load(page).place() {
            // Only what is read is cached; others are as good as there.
            Place::Pool { .. } if marker != Some(page) => {
                from_pool(core, context, page, but_marker.min(REQUEST_PAGES))
            }
            // There already, or nothing that could be unpacked.
            _ => Some(1),
        };
        let Some(came) = came else { return };
        page += came.max(1) as u64 * request.stride();
    }
}

/// Reads those of `pages` that are in the swap area, all at once, and installs them,
/// but not the marker; that is cached, in the first round. Returns the page to go on
/// with, `end` where there is none, `None` to stop.
fn from_disk(
    core: &Core,
    context: &mut Context,
    pages: Pages,
    end: PageNo,
    marker: Option<PageNo>,
    to_cache: Option<PageNo>,
) -> Option<PageNo> {
    let is_stored = |page: PageNo| core.memory.pages.load(page).place().in_slot().is_some();
    let wanted = || pages.clone().filter(|page| Some(*page) != marker && is_stored(*page));
    let cached = usize::from(to_cache.is_some());
    let most = wanted().count().min(REQUEST_PAGES - cached);
    let first = to_cache.filter(|page| is_stored(*page)).or(wanted().next());
    let Some(first) = first.and_then(|page| core.memory.pages.load(page).place().in_slot()) else {
        return Some(end);
    };
    let mut charge = charge(core, context, most)?;
    let mut buffer = core.stores.bounce.take_up_to(current_cpu(), most + cached)?;
    let most_read = ReadLimit::of(core, context, first.slot(), buffer.len());
    // Claimed until it is cached: its toucher may be here any moment.
    let caching = to_cache.and_then(|page| readahead::claim_stored(&core.memory.pages, page));
    let mut batch = SwapInBatch::new(caching.as_ref().map(|(stored, _)| *stored));
    // Others may have come meanwhile for which nothing is charged.
    let is_full = |page: &PageNo| batch.count() == most || !batch.add(core, *page, most_read);
    let full = wanted().find(is_full);
    let (reading, start) = (core.policies.admission.read(), now_ns());
    if !batch.read(core, context, &mut buffer, false) {
        return None;
    }
    reading.took(batch.pages_read(), now_ns() - start);
    if let Some((stored, claim)) = caching {
        core.stores.read_ahead_pages.cache(stored.slot(), batch.sealed(stored, &mut buffer));
        drop(claim);
    }
    let count = batch.count();
    if count == 0 && full.is_some_and(|page| Some(page) == wanted().next()) && to_cache.is_none() {
        // A buffer for nothing.
        return None;
    }
    let came = batch.install(core, context, &mut buffer, Access::Read, true);
    charge.pages -= came;
    (came == count).then(|| full.unwrap_or(end))
}

/// Installs and publishes neighbours from the pool, all of which are claimed. Returns
/// how many.
fn install_claimed(
    core: &Core,
    page: PageNo,
    bytes: &[u8],
    claims: &mut [Option<Claim<'static>>],
) -> usize {
    // What holds for the first: one call installs all of them alike.
    let place = claims[0].as_ref().map_or(Place::Vacant, |claim| claim.before().place());
    let stays = swap_cache::stays(core, page, place, Access::Read, false);
    let came = install::install_run(&core.memory, page, bytes, stays.writes()).pages;
    for (next, claim) in (page..).zip(&mut claims[..came]) {
        if let Some(claim) = claim.take() {
            let (place, resident) = (claim.before().place(), core.memory.budget.pages());
            core.policies.note_streamed(next, place, core.stores.pool.limit_bytes());
            let copy = swap_cache::arrive(core, place, stays);
            let heat = core.policies.grace_ahead(next, true, resident);
            install::finish(&core.memory, next, claim, heat, copy);
        }
    }
    core.stats.add(Counter::PagesReadAhead, came as u64);
    came
}

/// Unpacks the page and those after it that are in the pool, and installs them
/// together. As [`from_disk`].
fn from_pool(core: &Core, context: &mut Context, page: PageNo, most: usize) -> Option<usize> {
    let is_pooled = |next: &PageNo| {
        let seen = core.memory.pages.load(*next);
        matches!(seen.place(), Place::Pool { .. }) && !seen.is_busy()
    };
    let wanted = (page..page + most as u64).take_while(is_pooled).count();
    if wanted == 0 {
        return Some(0);
    }
    let mut charge = charge(core, context, wanted)?;
    let mut buffer = core.stores.bounce.take_up_to(current_cpu(), wanted)?;
    let mut claims = [const { None }; REQUEST_PAGES];
    let count = claim_pooled(core, page, &mut claims[..buffer.len() / PAGE_SIZE]);
    let (copies, _) = buffer.as_chunks_mut::<PAGE_SIZE>();
    let mut good = 0;
    for (claim, copy) in claims.iter().flatten().zip(copies) {
        let Place::Pool { handle } = claim.before().place() else { break };
        if decompress::pooled(&core.stores, context, Handle::from_bits(handle)).is_err() {
            break;
        }
        *copy = context.page.0;
        good += 1;
    }
    if good == 0 {
        return (count == 0).then_some(0);
    }
    let came = install_claimed(core, page, &buffer[..good * PAGE_SIZE], &mut claims);
    charge.pages -= came;
    (came > 0).then_some(came)
}

/// Charges pages to the budget. Before there is a claim or a buffer: nobody who
/// has one waits for room.
fn charge<'p>(core: &'p Core, context: &mut Context, pages: usize) -> Option<Charge<'p>> {
    for _ in 0..=ROOM_ROUNDS {
        if core.try_charge(&mut context.scratch, pages, core.other_bytes()) {
            if core.memory.budget.is_low(core.other_bytes()) {
                core.background.wake();
            }
            return Some(Charge { core, pages });
        }
        core.background.wake();
        if !matches!(reclaim::round_for_room(core, context), Round::Progress) {
            return None;
        }
    }
    None
}

/// Claims pages from `page` on that are in the pool and that nobody has. Returns
/// how many.
fn claim_pooled(core: &Core, page: PageNo, claims: &mut [Option<Claim<'static>>]) -> usize {
    for (index, place) in claims.iter_mut().enumerate() {
        let next = page + index as u64;
        let seen = core.memory.pages.load(next);
        let Place::Pool { .. } = seen.place() else { return index };
        let Some(claim) = core.memory.pages.try_claim(next, seen) else { return index };
        *place = Some(claim);
    }
    claims.len()
}
