//! Pages that share slots come back: a part of walk 2.
//!
//! Neighbours in memory are neighbours in the slots, too. Where touches run
//! ahead, all that is needed of several slots is read in one go.

use crate::context::{BATCH_PAGES, Context};
use crate::copies;
use crate::page::{Claim, PageNo, Place};
use crate::page_in::{
    FaultError, Wanted, finish, install, open_seal, read_alone, read_run, writes,
};
use crate::parts::Parts;
use crate::pieces::PIECE_PAGES;
use crate::stats::Counter;
use crate::unpack;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::current_cpu;

/// Slots that are read in one go, at most.
const MAX_SLOTS: u64 = BATCH_PAGES as u64;

/// A page that comes with the one that was touched.
struct Ahead {
    claim: Claim<'static>,
    slot: u64,
    part: u8,
}

/// Reads a slot that several compressed pages share, and installs one of them.
/// Those after it come, too, as many as may and as long as they lie in this slot
/// and the next ones. Only the wanted page counts: trouble with the others leaves
/// them where they are. Returns how many came with it.
pub(crate) fn read(
    parts: &Parts,
    context: &mut Context,
    wanted: Wanted,
    slot: u64,
    part: u8,
) -> Result<usize, FaultError> {
    let Wanted { page, window, .. } = wanted;
    let mut ahead = [const { None }; PIECE_PAGES - 1];
    let count = claim_ahead(parts, page, slot, &mut ahead[..window - 1]);
    // Never at the price of direct reclaim: this is a guess.
    let count = if parts.budget.try_charge(count, parts.other_bytes()) { count } else { 0 };
    // Nobody is to wait for what does not come.
    ahead[count..].fill_with(|| None);
    let slots = ahead[..count].iter().flatten().map(|it| it.slot - slot + 1).max().unwrap_or(1);
    let arrived = if slots == 1 {
        read_one(parts, context, wanted, (slot, part), &mut ahead[..count])
    } else {
        read_several(parts, context, wanted, (slot, part), slots, &mut ahead[..count])
    };
    parts.budget.release(count - arrived.as_ref().unwrap_or(&0));
    parts.stats.add(Counter::PagesReadAhead, *arrived.as_ref().unwrap_or(&0) as u64);
    arrived
}

/// Claims the pages after `page` that lie in its slot and the following ones,
/// and that nobody has. Returns how many.
fn claim_ahead(parts: &Parts, page: PageNo, first_slot: u64, ahead: &mut [Option<Ahead>]) -> usize {
    let last = parts.window.pages() as PageNo - 1;
    let mut reached = first_slot;
    for (index, place) in ahead.iter_mut().enumerate() {
        let next = page + 1 + index as u64;
        let seen = parts.pages.load(next.min(last));
        let Place::Packed { slot, part } = seen.place() else { return index };
        let follows = slot == reached || slot == reached + 1;
        if next > last || !follows || slot - first_slot >= MAX_SLOTS {
            return index;
        }
        // Never waits: the toucher of this page has work to do.
        *place = parts.pages.try_claim(next, seen).map(|claim| Ahead { claim, slot, part });
        if place.is_none() {
            return index;
        }
        reached = slot;
    }
    ahead.len()
}

/// Reads one slot, which the calling thread waits for. Returns how many pages
/// came with the touched one.
fn read_one(
    parts: &Parts,
    context: &mut Context,
    wanted: Wanted,
    (slot, part): (u64, u8),
    ahead: &mut [Option<Ahead>],
) -> Result<usize, FaultError> {
    // The reserve has one for each context.
    let Some(mut buffer) = parts.bounce.take_for_read(current_cpu()) else {
        parts.die("no bounce buffer is left for a read");
    };
    read_alone(parts, context, slot, &mut buffer, wanted.waits)?;
    install_part(parts, context, wanted.page, &buffer, part, wanted.keep)?;
    Ok(install_ahead(parts, context, wanted, slot, &mut buffer, ahead))
}

/// Reads some slots in one go, as [`read_one`] does one.
fn read_several(
    parts: &Parts,
    context: &mut Context,
    wanted: Wanted,
    (slot, part): (u64, u8),
    slots: u64,
    ahead: &mut [Option<Ahead>],
) -> Result<usize, FaultError> {
    let Some(mut buffer) = parts.bounce.take(current_cpu(), slots as usize) else {
        ahead.fill_with(|| None);
        return read_one(parts, context, wanted, (slot, part), &mut []);
    };
    let bytes = &mut buffer[..];
    if !read_run(parts, context, slot, bytes) {
        // Perhaps only a slot further on is bad.
        drop(buffer);
        ahead.fill_with(|| None);
        return read_one(parts, context, wanted, (slot, part), &mut []);
    }
    open_seal(parts, slot, &mut bytes[..PAGE_SIZE], wanted.waits)?;
    install_part(parts, context, wanted.page, &bytes[..PAGE_SIZE], part, wanted.keep)?;
    Ok(install_ahead(parts, context, wanted, slot, bytes, ahead))
}

/// Installs the pages that follow, up to the first that cannot be had. Returns
/// how many.
fn install_ahead(
    parts: &Parts,
    context: &mut Context,
    wanted: Wanted,
    first_slot: u64,
    bytes: &mut [u8],
    ahead: &mut [Option<Ahead>],
) -> usize {
    let Wanted { page, keep, is_stream, .. } = wanted;
    // Each slot is opened once: opened again it would be something else.
    let mut opened = first_slot;
    for (index, place) in ahead.iter_mut().enumerate() {
        let Some(Ahead { claim, slot, part }) = place.take() else { return index };
        let copy = &mut bytes[(slot - first_slot) as usize * PAGE_SIZE..][..PAGE_SIZE];
        if slot != opened && !parts.open_sealed(slot, copy) {
            return index;
        }
        opened = slot;
        let next = page + 1 + index as u64;
        if install_part(parts, context, next, copy, part, keep).is_err() {
            return index;
        }
        let copy = copies::arrive(parts, claim.before().place(), keep);
        finish(parts, next, claim, parts.grace_ahead(next, is_stream), copy);
    }
    ahead.len()
}

/// Unpacks one part and installs it.
fn install_part(
    parts: &Parts,
    context: &mut Context,
    page: PageNo,
    copy: &[u8],
    part: u8,
    keep: bool,
) -> Result<(), FaultError> {
    unpack::part(parts, context, copy, part)?;
    install(parts, page, &context.page.0, writes(keep))
}
