//! What reclaim does inside the pool: the oldest pages go on to the swap area,
//! and what is left in sparse slabs moves together.

use crate::codec;
use crate::context::{BATCH_PAGES, Context};
use crate::page::{Claim, PageNo, Place};
use crate::page_out::{Moves, NoSlot, allocate};
use crate::parts::Parts;
use crate::pool::Handle;
use crate::stats::Counter;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::current_cpu;

/// Moves the oldest pages of the pool to the swap area. Returns how many went.
///
/// The entries stay claimed while the write is under way: a page must not be
/// changed and packed again into the same place meanwhile.
pub fn write_back(parts: &Parts, context: &mut Context) -> Result<usize, NoSlot> {
    let Some(mut cluster) = parts.bounce.take_cluster(current_cpu()) else { return Ok(0) };
    // The slots first: asking for the oldest closes their slab to new pages,
    // which would be for nothing if they had nowhere to go.
    let run = allocate(parts, BATCH_PAGES)?;
    let mut oldest = [(0, Handle::from_bits(0)); BATCH_PAGES];
    let found = parts.pool.oldest(&mut oldest[..run.len]);
    let mut claims = [const { None }; BATCH_PAGES];
    let mut count = 0;
    for (page, handle) in &oldest[..found] {
        if let Some(claim) = unpack(parts, context, *page, *handle) {
            cluster[count * PAGE_SIZE..][..PAGE_SIZE].copy_from_slice(&context.page.0);
            claims[count] = Some(claim);
            count += 1;
        }
    }
    let moves = Moves { run, claims: &mut claims[..count] };
    let gone = moves.carry_out(parts, context, &cluster);
    parts.stats.add(Counter::PagesWrittenBack, gone as u64);
    Ok(gone)
}

/// Claims a page of the pool and unpacks it into the context's page, if it is
/// still where the pool says and nobody else has it.
fn unpack(
    parts: &Parts,
    context: &mut Context,
    page: PageNo,
    handle: Handle,
) -> Option<Claim<'static>> {
    let claim = claim_pooled(parts, page, handle)?;
    let target = &mut context.page.0;
    parts.pool.load(handle, |packed| codec::decompress(packed, target)).ok()?.ok()?;
    Some(claim)
}

/// Claims a page if it is still where the pool says and nobody else has it.
fn claim_pooled(parts: &Parts, page: PageNo, handle: Handle) -> Option<Claim<'static>> {
    let seen = parts.pages.load(page);
    let is_there = seen.place() == (Place::Pool { handle: handle.to_bits() });
    is_there.then(|| parts.pages.try_claim(page, seen)).flatten()
}

/// Empties the sparsest slab into the gaps of others, where that is worth while.
/// Returns how many pages moved.
pub fn compact(parts: &Parts, context: &mut Context) -> usize {
    let Some(slab) = parts.pool.sparsest() else { return 0 };
    let mut moved = 0;
    let mut listed = [(0, Handle::default()); BATCH_PAGES];
    loop {
        let (count, more) = parts.pool.list(slab, &mut listed);
        for (page, handle) in &listed[..count] {
            moved += usize::from(move_object(parts, context, *page, *handle));
        }
        if !more {
            break;
        }
    }
    parts.pool.reopen(slab);
    parts.stats.add(Counter::PagesCompacted, moved as u64);
    moved
}

/// Moves one page's object; false where it stays, because somebody has the page
/// or there is no gap. What is damaged stays, too: whoever touches it is told.
fn move_object(parts: &Parts, context: &mut Context, page: PageNo, handle: Handle) -> bool {
    let Some(claim) = claim_pooled(parts, page, handle) else { return false };
    let room = &mut context.packed.0;
    let copied = parts.pool.load(handle, |packed| room[..packed.len()].copy_from_slice(packed));
    let packed = &context.packed.0[..handle.packed_bytes()];
    let moved = copied.is_ok().then(|| parts.pool.store_in_gap(packed, page, handle.tag()));
    let Some(Ok(new)) = moved else { return false };
    claim.publish(Place::Pool { handle: new.to_bits() });
    parts.pool.free(handle);
    true
}
