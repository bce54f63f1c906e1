//! Reclaim within the pool: write-back of the oldest pages to the swap area, compressed, several to
//! a slot; and compaction of sparse slabs.

use crate::base::page::{Claim, PageNo, Place, StoredCopy};
use crate::base::stats::Counter;
use crate::codec::MAX_COMPRESSED_BYTES;
use crate::codec::compressed_slot::{MAX_PART_BYTES, SlotPacker};
use crate::core::Core;
use crate::core::errors::NoSlot;
use crate::memory::context::{BATCH_PAGES, Context, GROUP_PAGES, WRITE_BACK_PAGES};
use crate::policy::mechanism::Mechanism;
use crate::steps::relocate::{Relocating, Relocation};
use crate::steps::swap_cache;
use crate::steps::write_out::alloc_slots_for_batch;
use crate::store::pool::Handle;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::thread_cpu_ns;

const _: () =
    assert!(MAX_COMPRESSED_BYTES <= MAX_PART_BYTES, "each object fits into an empty slot");

/// Writes the pool's oldest pages to the swap area, and returns their number. Their entries stay
/// claimed meanwhile, so that no page changes and is compressed to the same place again.
pub(crate) fn write_back(core: &Core, context: &mut Context) -> Result<usize, NoSlot> {
    let Some(mut cluster) = core.buffer(BATCH_PAGES) else { return Ok(0) };
    let before_ns = thread_cpu_ns();
    // Allocate slots first: the search closes a slab to new objects, for nothing without slots.
    let slots = alloc_slots_for_batch(&core.stores, context, BATCH_PAGES)?;
    let mut moved = [const { None }; WRITE_BACK_PAGES];
    let batch = Batch::new(&mut cluster, slots.as_slice().len());
    let count = fill_batch(core, context, batch, &mut moved);
    let moves = Relocation { slots, moved: &mut moved[..count] };
    let written = moves.carry_out(&core.stores, &core.policies.admission, context, &mut cluster);
    core.stats.add(Counter::PagesWrittenBack, written as u64);
    core.policies.partition.write_back_rate.note_write_backs(written as u64);
    core.policies.partition.costs.note_write_backs(written as u64, thread_cpu_ns() - before_ns);
    Ok(written)
}

fn fill_batch(
    core: &Core,
    context: &mut Context,
    mut batch: Batch<'_>,
    moved: &mut [Option<Relocating<'static>>; WRITE_BACK_PAGES],
) -> usize {
    let mut count = 0;
    // Most objects after the first of a slab belong to neighbours that are in the batch already or
    // were moved.
    for _ in 0..WRITE_BACK_PAGES {
        let mut oldest = [(0, Handle::default())];
        if core.stores.pool.oldest(&mut oldest) == 0 {
            break;
        }
        let (owner, handle) = oldest[0];
        // If the object is only a copy of a resident page, free it: the closed slab is released
        // only when it is empty.
        swap_cache::reclaim_copy_of(core, owner, handle);
        let first = owner / GROUP_PAGES as u64 * GROUP_PAGES as u64;
        // A damaged header may contain any owner.
        let end = (first + GROUP_PAGES as u64).min(core.memory.window.pages() as u64);
        for page in first..end {
            if count < moved.len() {
                moved[count] = batch.add(core, context, page);
                if moved[count].is_some() {
                    count += 1;
                    let age = core.policies.clock.refaults.distance(page);
                    age.into_iter()
                        .for_each(|age| core.policies.partition.write_back_rate.note_age(age));
                }
            }
            if count == moved.len() || batch.is_full {
                // The object itself may not have fitted.
                core.stores.pool.return_oldest(handle);
                return count;
            }
        }
    }
    count
}

/// A bounce buffer being filled with objects of the pool.
struct Batch<'b> {
    pages: &'b mut [[u8; PAGE_SIZE]],
    count: usize,
    last: SlotPacker,
    /// True if an object did not fit into the last page, which is the last available one.
    is_full: bool,
}

impl<'b> Batch<'b> {
    fn new(cluster: &'b mut [u8], pages: usize) -> Batch<'b> {
        let (all, _) = cluster.as_chunks_mut::<PAGE_SIZE>();
        Batch { pages: &mut all[..pages], count: 0, last: SlotPacker::FULL, is_full: false }
    }

    fn fits(&self, compressed_bytes: usize) -> bool {
        self.last.fits(compressed_bytes) || self.count < self.pages.len()
    }

    /// Claims and copies a page; `None` if it is elsewhere, busy or damaged, or does not fit.
    fn add(
        &mut self,
        core: &Core,
        context: &mut Context,
        page: PageNo,
    ) -> Option<Relocating<'static>> {
        let seen = core.memory.pages.load(page);
        let Place::Pool { handle } = seen.place() else { return None };
        let handle = Handle::from_bits(handle);
        if !self.fits(handle.compressed_bytes()) {
            self.is_full = true;
            return None;
        }
        let claim = core.memory.pages.try_claim(page, seen)?;
        let (at, part) = self.pack(handle.tag(), copy_compressed(core, context, handle)?)?;
        Some(Relocating { claim, at, part: Some(part) })
    }

    /// Appends a part. Pages come in address order, so the parts of a slot are neighbours.
    fn pack(&mut self, tag: u8, compressed: &[u8]) -> Option<(usize, u8)> {
        let last = self.count.wrapping_sub(1);
        if let Some(page) = self.pages.get_mut(last)
            && let Some(part) = self.last.add(page, tag, compressed)
        {
            return Some((last, part));
        }
        self.last = SlotPacker::default();
        let part = self.last.add(&mut self.pages[self.count], tag, compressed)?;
        self.count += 1;
        Some((self.count - 1, part))
    }
}

/// Moves the sparsest slab's objects into gaps of others, if that pays. Returns their number.
pub(crate) fn compact(core: &Core, context: &mut Context) -> usize {
    if !core.policies.has(Mechanism::Compaction) {
        return 0;
    }
    let Some(slab) = core.stores.pool.sparsest() else { return 0 };
    let mut moved = 0;
    core.stores.pool.each_object(slab, |page, handle| {
        moved += usize::from(move_object(core, context, page, handle));
    });
    core.stores.pool.reopen(slab);
    core.stats.add(Counter::PagesCompacted, moved as u64);
    moved
}

/// Returns false if the page is busy, there is no gap, or the object is damaged.
fn move_object(core: &Core, context: &mut Context, page: PageNo, handle: Handle) -> bool {
    let Some(claim) = claim_stored(core, page, handle) else { return false };
    let compressed = copy_compressed(core, context, handle);
    let moved =
        compressed.map(|compressed| core.stores.pool.store_in_gap(compressed, page, handle.tag()));
    let Some(Ok(new)) = moved else { return false };
    let at = claim.before().place();
    claim.publish(swap_cache::renamed(at, new));
    core.stores.pool.free(handle);
    true
}

fn copy_compressed<'c>(core: &Core, context: &'c mut Context, handle: Handle) -> Option<&'c [u8]> {
    let copy = &mut context.compressed.0[..handle.compressed_bytes()];
    core.stores.pool.peek(handle, |compressed| copy.copy_from_slice(compressed)).ok()?;
    Some(copy)
}

/// Claims `page` if the object of `handle` stores it or is its copy; `None` if `page` is busy.
fn claim_stored(core: &Core, page: PageNo, handle: Handle) -> Option<Claim<'static>> {
    // A damaged header may contain any owner.
    if page >= core.memory.window.pages() as u64 {
        return None;
    }
    let bits = handle.to_bits();
    let seen = core.memory.pages.load(page);
    let place = seen.place();
    let is_stored =
        place == Place::Pool { handle: bits } || place.copy() == Some(StoredCopy::pooled(bits));
    is_stored.then(|| core.memory.pages.try_claim(page, seen)).flatten()
}
