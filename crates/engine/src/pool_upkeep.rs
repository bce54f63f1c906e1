//! What reclaim does inside the pool: the oldest pages go on to the swap area,
//! and what is left in sparse slabs moves together.

use crate::codec;
use crate::context::{BATCH_PAGES, Context};
use crate::packed::{MAX_PART_BYTES, Packer};
use crate::page::{Claim, PageNo, Place};
use crate::page_out::{Moved, Moves, NoSlot, allocate};
use crate::parts::Parts;
use crate::pool::Handle;
use crate::stats::Counter;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::current_cpu;

/// Pages that go on to the swap area together. Some of their copies share a page.
const WRITE_BACK_PAGES: usize = 2 * BATCH_PAGES;

/// Moves the oldest pages of the pool to the swap area, still compressed where
/// several fit into a page. Returns how many went.
///
/// The entries stay claimed while the write is under way: a page must not be
/// changed and packed again into the same place meanwhile.
pub fn write_back(parts: &Parts, context: &mut Context) -> Result<usize, NoSlot> {
    let Some(mut cluster) = parts.bounce.take_cluster(current_cpu()) else { return Ok(0) };
    // The slots first: asking for the oldest closes their slab to new pages,
    // which would be for nothing if they had nowhere to go.
    let run = allocate(parts, BATCH_PAGES)?;
    let mut batch = Batch::new(&mut cluster, run.len);
    let mut moved = [const { None }; WRITE_BACK_PAGES];
    let mut count = 0;
    let mut oldest = [(0, Handle::default()); BATCH_PAGES];
    while count < moved.len() {
        // No more than have room, whatever their length.
        let most = (moved.len() - count).min(batch.free_pages()).min(oldest.len());
        let found = parts.pool.oldest(&mut oldest[..most]);
        let before = count;
        for (page, handle) in &oldest[..found] {
            if let Some(one) = batch.add(parts, context, *page, *handle) {
                moved[count] = Some(one);
                count += 1;
            }
        }
        if count == before {
            break;
        }
    }
    let moves = Moves { run, moved: &mut moved[..count] };
    let gone = moves.carry_out(parts, context, &cluster);
    parts.stats.add(Counter::PagesWrittenBack, gone as u64);
    Ok(gone)
}

/// A cluster buffer that is being filled with pages of the pool.
struct Batch<'b> {
    pages: &'b mut [[u8; PAGE_SIZE]],
    /// How full each page is that was begun: packed, or whole.
    begun: [Packer; BATCH_PAGES],
    count: usize,
}

impl<'b> Batch<'b> {
    fn new(cluster: &'b mut [u8], pages: usize) -> Batch<'b> {
        let (all, _) = cluster.as_chunks_mut::<PAGE_SIZE>();
        Batch { pages: &mut all[..pages], begun: [Packer::FULL; BATCH_PAGES], count: 0 }
    }

    fn free_pages(&self) -> usize {
        self.pages.len() - self.count
    }

    /// Claims a page of the pool and copies it into the batch, which has a free
    /// page. `None` when somebody has it, or it is damaged: whoever touches it
    /// will be told.
    fn add(
        &mut self,
        parts: &Parts,
        context: &mut Context,
        page: PageNo,
        handle: Handle,
    ) -> Option<Moved<'static>> {
        let claim = claim_pooled(parts, page, handle)?;
        if handle.packed_bytes() > MAX_PART_BYTES {
            let target = &mut self.pages[self.count];
            parts.pool.load(handle, |packed| codec::decompress(packed, target)).ok()?.ok()?;
            self.count += 1;
            return Some(Moved { claim, at: self.count - 1, part: None });
        }
        let room = &mut context.packed.0;
        parts.pool.load(handle, |packed| room[..packed.len()].copy_from_slice(packed)).ok()?;
        let (at, part) = self.pack(handle.tag(), &context.packed.0[..handle.packed_bytes()])?;
        Some(Moved { claim, at, part: Some(part) })
    }

    /// Adds a part to the first page that it fits, or to another.
    fn pack(&mut self, tag: u8, packed: &[u8]) -> Option<(usize, u8)> {
        for at in 0..self.count {
            if let Some(part) = self.begun[at].add(&mut self.pages[at], tag, packed) {
                return Some((at, part));
            }
        }
        let at = self.count;
        self.begun[at] = Packer::default();
        let part = self.begun[at].add(&mut self.pages[at], tag, packed)?;
        self.count += 1;
        Some((at, part))
    }
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
