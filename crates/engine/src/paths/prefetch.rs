//! Background readahead: reads the windows of streams by requests.
//!
//! Several threads do this, so that one request is read while another is installed. Prefetching
//! does not wait for claims, and ignores errors, which a later fault reports. It evicts pages only
//! for windows of streams.

use crate::base::access::Access;
use crate::base::page::{Claim, PageNo, Place};
use crate::base::stats::Counter;
use crate::core::Core;
use crate::memory::context::{Context, Contexts};
use crate::paths::bring_back;
use crate::paths::reclaim::{self, Round};
use crate::policy::mechanism::Mechanism;
use crate::policy::prefetch::readahead;
use crate::policy::prefetch::window::{Pages, REQUEST_PAGES, ReadRequest};
use crate::steps::swap_in_batch::{ReadLimit, SwapInBatch};
use crate::steps::{decompress, install, swap_cache};
use crate::store::pool::Handle;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::{current_cpu, now_ns};
use std::ops::Range;

/// A charge to the budget. The unused part is released on drop.
struct Charge<'p> {
    core: &'p Core,
    pages: usize,
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.core.memory.budget.release(self.pages);
    }
}

pub(crate) fn run(core: &Core, contexts: &Contexts, thread: usize, next_window: impl Fn() -> bool) {
    core.policies.readahead.serve(true);
    core.stats.add(Counter::EngineThreads, 1);
    while next_window() {
        let seen = core.policies.readahead.wakeups();
        match core.policies.readahead.take() {
            // Claim per request, so that a fork can run between requests.
            Some(request) => bring(core, &mut contexts.claim_prefetch(thread), request),
            None if bring_back::read_next(core, &mut contexts.claim_prefetch(thread)) => {}
            // Sleep at most 1 s without a request, which would wake the thread.
            None => core.policies.readahead.sleep(seen, 1_000_000_000),
        }
    }
    core.policies.readahead.serve(false);
}

/// Reads the request's pages except its marker. Stops on an error, or if memory is short.
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
        let installed = match core.memory.pages.load(page).place() {
            // A marker in the pool is not cached: its fault is nearly as fast without the cache.
            Place::Pool { .. } if marker != Some(page) => {
                from_pool(core, context, page, but_marker.min(REQUEST_PAGES))
            }
            // Resident, or not in the pool.
            _ => Some(1),
        };
        let Some(installed) = installed else { return };
        page += installed.max(1) as u64 * request.stride();
    }
}

/// Reads those of `pages` that are in the swap area, caches `to_cache`, and installs all except the
/// marker. Returns the next page, `end` if none is left, `None` to stop.
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
    let max_read = ReadLimit::of(core, context, first.slot(), buffer.len());
    // The marker is claimed until it is cached, because it may be touched at any moment.
    let caching = to_cache.and_then(|page| readahead::claim_stored(&core.memory.pages, page));
    let mut batch = SwapInBatch::new(caching.as_ref().map(|(stored, _)| *stored));
    // More pages may be wanted by now than were charged.
    let is_full = |page: &PageNo| batch.count() == most || !batch.add(core, *page, max_read);
    let full = wanted().find(is_full);
    let (reading, start) = (core.policies.admission.read(), now_ns());
    if !batch.read(core, context, &mut buffer, false) {
        return None;
    }
    reading.took(batch.pages_read(), now_ns() - start);
    if let Some((stored, claim)) = caching {
        let tenant = (stored.slot(), core.stores.areas.generation(stored.slot()));
        core.stores.read_ahead_pages.cache(tenant, batch.sealed(stored, &mut buffer));
        drop(claim);
    }
    let count = batch.count();
    if count == 0 && full.is_some_and(|page| Some(page) == wanted().next()) && to_cache.is_none() {
        // Nothing could be read.
        return None;
    }
    let installed = batch.install(core, context, &mut buffer, Access::Read, true);
    charge.pages -= installed;
    (installed == count).then(|| full.unwrap_or(end))
}

fn install_claimed(
    core: &Core,
    page: PageNo,
    bytes: &[u8],
    claims: &mut [Option<Claim<'static>>],
) -> usize {
    // The first page decides for all, because one call installs all with the same protection.
    let place = claims[0].as_ref().map_or(Place::Vacant, |claim| claim.before().place());
    let keep_copy = swap_cache::keep_copy(core, page, place, Access::Read, false);
    let installed = install::install_run(&core.memory, page, bytes, keep_copy.writes()).pages;
    for (next, claim) in (page..).zip(&mut claims[..installed]) {
        if let Some(claim) = claim.take() {
            let (place, resident) = (claim.before().place(), core.memory.budget.pages());
            core.policies.note_streamed(next, place, core.stores.pool.limit_bytes());
            let copy = swap_cache::on_swap_in(core, place, keep_copy);
            let age = core.policies.age_of_read_ahead(next, true, resident);
            install::finish(&core.memory, next, claim, age, copy);
        }
    }
    core.stats.add(Counter::PagesReadAhead, installed as u64);
    installed
}

/// Installs the page and those after it that are in the pool. Returns their number, `None` to stop.
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
    let installed = install_claimed(core, page, &buffer[..good * PAGE_SIZE], &mut claims);
    charge.pages -= installed;
    (installed > 0).then_some(installed)
}

/// Charges pages, with reclaim. Therefore the caller must hold no claims and no buffers.
fn charge<'p>(core: &'p Core, context: &mut Context, pages: usize) -> Option<Charge<'p>> {
    // Evict at most four batches for a request.
    for _ in 0..=4 {
        if core.try_charge(&mut context.scratch, pages, core.other_bytes()) {
            if core.memory.budget.is_low(core.other_bytes()) {
                core.background.wake();
            }
            return Some(Charge { core, pages });
        }
        core.background.wake();
        if !matches!(reclaim::direct_round(core, context), Round::Progress) {
            return None;
        }
    }
    None
}

/// Claims consecutive idle pages of the pool, from `page` on. Returns their number.
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
