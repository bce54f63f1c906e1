//! Page-out: victim -> unmap -> same-filled word | pool | bounce -> slot -> extent -> write ->
//! publish. Steps 1 to 5 are in [`evict`], 6 to 8 in [`store`], 8 to 10 in [`write_staged`].
//!
//! Clean victims are dropped in place ([`clean_reclaim`]). Dirty ones are unmapped in a batch if
//! that takes fewer TLB shootdowns ([`batch_unmap`]), or moved to staging frames ([`staging`]), from
//! which a touch takes them back. After a failed write the pages are written one by one. Slots that
//! fail are retired, and their pages stay in memory.

use crate::base::page::{PageNo, Place, SlotCopy, StoredCopy};
use crate::base::stats::Counter;
use crate::core::Core;
use crate::core::errors::NoSlot;
use crate::core::policies::Batch;
use crate::memory::context::{BATCH_PAGES, Context};
use crate::policy::clock::Victim;
use crate::steps::compress::{self, NotInDram};
use crate::steps::staging::{self, InFrame, Staged};
use crate::steps::write_out::{alloc_slots_for_batch, write_sealed};
use crate::steps::{batch_unmap, clean_reclaim, mapping_pressure, swap_cache};
use crate::store::bounce::Buffer;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::{current_cpu, thread_cpu_ns};

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Pages evicted, including those compressed in DRAM.
    pub(crate) pages_out: usize,
    /// Evicted pages whose staging frames are still in use and charged.
    in_frames: usize,
    pub(crate) for_disk: usize,
    /// Reason why pages intended for the swap area were not written.
    pub(crate) area_full: Option<NoSlot>,
}

impl Outcome {
    fn note_in_frame(&mut self) {
        self.pages_out += 1;
        self.in_frames += 1;
    }
}

pub(crate) fn page_out(core: &Core, context: &mut Context) -> Outcome {
    let outcome = evict(core, context, false);
    if outcome.pages_out > 0 || core.stores.may_write() {
        return outcome;
    }
    // A process that cannot write can still evict clean pages, which may be far from the hand.
    let of_clean = evict(core, context, true);
    if of_clean.pages_out > 0 { of_clean } else { outcome }
}

fn evict(core: &Core, context: &mut Context, only_clean: bool) -> Outcome {
    let start_ns = thread_cpu_ns();
    let mut outcome = Outcome::default();
    let mut victims = [const { None }; BATCH_PAGES];
    // 1. Claim cold pages in address order.
    let found = claim_victims(core, only_clean, &mut victims);
    // 2. Separate the clean ones.
    let (clean, dirty) = clean_first(&mut victims[..found]);
    // 3. Drop clean pages in place.
    let has_buffer = reclaim_clean(core, context, clean, dirty, &mut outcome);
    // 4. Unmap scattered dirty pages in a batch, unless step 3 has staged them.
    if dirty.iter().any(Option::is_some) && !unmap_batch(core, context, dirty, &mut outcome) {
        // 5. Move the others to staging frames, adjacent ones together, and store them (6 to 10).
        let staged = staging::stage(core, context, dirty, 0);
        store_and_empty(core, context, &staged, &mut outcome);
    }
    if outcome.pages_out == 0 && !has_buffer {
        // Wait without claims; the next batch will find a buffer.
        drop(core.wait_for_buffer(1));
    }
    debug_assert_eq!(outcome.in_frames, 0, "evicted pages are still charged");
    report_to_policies(core, found, &outcome, start_ns);
    if outcome.pages_out > 0 {
        // Partial success is progress. A full area will be noticed again.
        outcome.area_full = None;
    }
    outcome
}

fn claim_victims(core: &Core, only_clean: bool, victims: &mut [Victim<'static>]) -> usize {
    let (clock, memory) = (&core.policies.clock, &core.memory);
    let found = clock.claim_victims(&memory.pages, &memory.space, only_clean, victims);
    match mapping_pressure::cluster_pages(memory) {
        1 => found,
        cluster => mapping_pressure::claim_clusters(memory, cluster, &mut victims[..]),
    }
}

fn clean_first<'v, 't>(
    victims: &'v mut [Victim<'t>],
) -> (&'v mut [Victim<'t>], &'v mut [Victim<'t>]) {
    let mut clean = 0;
    for at in 0..victims.len() {
        if victims[at].as_ref().is_some_and(|(_, claim)| claim.before().is_protected()) {
            victims[clean..=at].rotate_right(1);
            clean += 1;
        }
    }
    victims.split_at_mut(clean)
}

fn report_to_policies(core: &Core, found: usize, outcome: &Outcome, start_ns: u64) {
    let left = outcome.pages_out as u64;
    // Pages that were restored to the program do not count.
    core.stats.add(Counter::PagesOut, left);
    let cpu_ns = thread_cpu_ns() - start_ns;
    core.policies.note_batch(found, Batch { left, for_disk: outcome.for_disk, cpu_ns });
}

/// Drops clean victims in place, and stores those that are not evicted to a copy. Stages the
/// `dirty` victims before a write to the disk. Returns false if there is no buffer.
fn reclaim_clean(
    core: &Core,
    context: &mut Context,
    clean: &mut [Victim<'_>],
    dirty: &mut [Victim<'_>],
    outcome: &mut Outcome,
) -> bool {
    if clean.is_empty() {
        return true;
    }
    let for_copy = clean_reclaim::for_copy(core, clean);
    let to_store = clean.len() - for_copy.count_ones() as usize;
    // Pages without a buffer are retried in a later batch.
    let some = || core.stores.bounce.take_up_to(current_cpu(), to_store).or_else(|| core.buffer(1));
    let mut buffer = (to_store > 0).then(|| core.buffer(to_store).or_else(some)).flatten();
    let mut unmapped = [const { None }; BATCH_PAGES];
    let copies = buffer.as_mut().map_or(&mut [][..], |buffer| buffer.as_chunks_mut().0);
    let done = clean_reclaim::reclaim(core, clean, for_copy, &mut unmapped, copies);
    outcome.pages_out += done.left;
    core.memory.budget.release(done.left);
    let Some(mut buffer) = buffer else { return to_store == 0 };
    let unmapped = &mut unmapped[..done.to_store];
    let for_disk = store_unmapped(core, context, unmapped, &mut buffer, outcome);
    if !for_disk.is_empty() {
        // Stage the dirty ones first: their touches must not wait for the write.
        let staged = staging::stage(core, context, dirty, for_disk.count);
        write_staged(core, context, &for_disk, &mut buffer, outcome);
        // A thread that holds a buffer must not wait for another.
        drop(buffer);
        store_and_empty(core, context, &staged, outcome);
    }
    true
}

/// Unmaps scattered victims in a batch and stores them, if a batch costs less and there is a
/// buffer. Returns true if any were unmapped; the claims of the others are then released.
fn unmap_batch(
    core: &Core,
    context: &mut Context,
    victims: &mut [Victim<'_>],
    outcome: &mut Outcome,
) -> bool {
    if !batch_unmap::is_better(core, victims) {
        return false;
    }
    let buffer = core.stores.bounce.take(current_cpu(), victims.len());
    let Some(mut buffer) = buffer else { return false };
    let mut unmapped = [const { None }; BATCH_PAGES];
    let (copies, _) = buffer.as_chunks_mut::<PAGE_SIZE>();
    let count = batch_unmap::unmap(&core.memory, victims, &mut unmapped, copies);
    if count > 0 {
        // Release the rest: their touches must not wait for the write.
        victims.iter_mut().for_each(|victim| drop(victim.take()));
    }
    let unmapped = &mut unmapped[..count];
    let for_disk = store_unmapped(core, context, unmapped, &mut buffer, outcome);
    if !for_disk.is_empty() {
        write_staged(core, context, &for_disk, &mut buffer, outcome);
        empty_frames(core, context, outcome);
    }
    count > 0
}

/// Staged pages to be written. Their contents are at the front of a bounce buffer.
#[derive(Default)]
struct ForDisk {
    pages: [InFrame; BATCH_PAGES],
    count: usize,
    incompressible: u32,
}

const _: () = assert!(BATCH_PAGES <= u32::BITS as usize);

impl ForDisk {
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn pages(&self) -> &[InFrame] {
        &self.pages[..self.count]
    }

    fn push(&mut self, page: InFrame, why: NotInDram) {
        self.pages[self.count] = page;
        self.incompressible |= u32::from(why == NotInDram::Incompressible) << self.count;
        self.count += 1;
    }

    fn is_incompressible(&self, at: usize) -> bool {
        self.incompressible >> at & 1 != 0
    }
}

/// Stores unmapped victims, with contents in `buffer`. Stages and returns those to be written.
fn store_unmapped(
    core: &Core,
    context: &mut Context,
    unmapped: &mut [Victim<'_>],
    buffer: &mut Buffer<'_>,
    outcome: &mut Outcome,
) -> ForDisk {
    let memory = &core.memory;
    memory.budget.begin_eviction(unmapped.len());
    let (copies, _) = buffer.as_chunks_mut::<PAGE_SIZE>();
    let mut for_disk = ForDisk::default();
    for (at, (page, claim)) in unmapped.iter_mut().filter_map(Option::take).enumerate() {
        core.policies.clock.refaults.note_eviction(page);
        memory.space.sub_resident(page);
        let stored = claim.before().place().copy();
        let stored = stored.and_then(|copy| swap_cache::copy_in_working_area(core, page, copy));
        let place = place_without_write(core, context, page, &copies[at], stored);
        memory.budget.end_eviction(1);
        let waiting = for_disk.count;
        let frame = context.first_frame + waiting;
        match place {
            Ok(place) => {
                // Release immediately: the next page may need memory for the pool.
                memory.budget.release(1);
                claim.publish(place);
                keep_or_free_copy(core, page, stored, place);
                outcome.pages_out += 1;
            }
            Err(why) if staging::stage_copy(core, frame, page, claim, &copies[at]) => {
                for_disk.push((page, frame as u32), why);
                copies.copy_within(at..=at, waiting);
            }
            Err(_) => {}
        }
    }
    for_disk
}

/// Returns a place without a write: in DRAM (steps 6 and 7), or the existing copy.
fn place_without_write(
    core: &Core,
    context: &mut Context,
    page: PageNo,
    content: &[u8; PAGE_SIZE],
    copy: Option<SlotCopy>,
) -> Result<Place, NotInDram> {
    let compressed = compress::store_in_dram(core, context, page, content);
    let Some(copy) = copy else { return compressed };
    core.policies.stored_copies.note_compressed(compressed.is_ok());
    if let (Err(_), Place::Slot { slot, .. }) = (compressed, copy.place()) {
        core.keep_on_standby(page, slot, |to| filled_from(to, content));
    }
    Ok(match compressed {
        Ok(place) => place,
        Err(NotInDram::Incompressible) => copy.place().marked_incompressible(),
        Err(NotInDram::PoolRefused) => copy.place(),
    })
}

fn keep_or_free_copy(core: &Core, page: PageNo, copy: Option<SlotCopy>, place: Place) {
    let Some(copy) = copy else { return };
    if place.in_slot().is_some_and(|now| now.is_same_place(copy)) {
        swap_cache::drop_to_copy(core, page, StoredCopy::Slot(copy));
    } else {
        swap_cache::free_copy(core, StoredCopy::Slot(copy));
    }
}

fn store_and_empty(core: &Core, context: &mut Context, staged: &Staged, outcome: &mut Outcome) {
    core.memory.budget.begin_eviction(staged.count());
    store(core, context, staged, outcome);
    // End the eviction before the release, or a page would count both as free and as being evicted.
    core.memory.budget.end_eviction(staged.count());
    empty_frames(core, context, outcome);
}

fn empty_frames(core: &Core, context: &Context, outcome: &mut Outcome) {
    core.memory.window.empty_frames(context.first_frame, BATCH_PAGES);
    core.memory.budget.release(std::mem::take(&mut outcome.in_frames));
}

fn store(core: &Core, context: &mut Context, staged: &Staged, outcome: &mut Outcome) {
    let mut buffer = None;
    let mut for_disk = ForDisk::default();
    for in_frame in staged.pages() {
        let Some(mut held) = staging::claim_staged(core, in_frame) else { continue };
        // 6 and 7. Same-filled pages become their word, compressible ones pool objects.
        let why = match compress::store_in_dram(core, context, in_frame.0, held.0.bytes()) {
            Ok(place) => {
                let (content, claim) = held;
                // Release the frame first, so that the next claimer finds it free.
                drop(content);
                claim.publish(place);
                outcome.note_in_frame();
                continue;
            }
            Err(why) => why,
        };
        // 8. The remaining pages are copied to a bounce buffer and get slots (`write_staged`).
        if buffer.is_none() {
            buffer = core.buffer(staged.count());
        }
        if buffer.is_none() {
            // Wait without a claim: a touch must not wait for the disk, and the buffer's holder may
            // wait for a thread that needs the claim.
            drop(held);
            buffer = Some(core.wait_for_buffer(staged.count()));
            let Some(again) = staging::claim_staged(core, in_frame) else { continue };
            held = again;
        }
        let Some(buffer) = &mut buffer else { continue };
        buffer[for_disk.count * PAGE_SIZE..][..PAGE_SIZE].copy_from_slice(held.0.bytes());
        for_disk.push(in_frame, why);
    }
    if let Some(buffer) = &mut buffer {
        write_staged(core, context, &for_disk, buffer, outcome);
    }
}

fn write_staged(
    core: &Core,
    context: &mut Context,
    for_disk: &ForDisk,
    buffer: &mut Buffer<'_>,
    outcome: &mut Outcome,
) {
    let Core { stores, policies, .. } = core;
    let pages = for_disk.pages();
    outcome.for_disk += pages.len();
    let mut done = 0;
    while done < pages.len() {
        // 8. Allocate slots of one area, in few runs.
        let slots = match alloc_slots_for_batch(stores, context, pages.len() - done) {
            Ok(slots) => slots,
            Err(full) => {
                outcome.area_full = Some(full);
                staging::return_all(core, &pages[done..]);
                return;
            }
        };
        let slots = slots.as_slice();
        let copies = &mut buffer[done * PAGE_SIZE..][..slots.len() * PAGE_SIZE];
        // 9. Seal each page for its slot, and write all in one batch.
        let written = write_sealed(stores, &policies.admission, context, slots, copies);
        // 10. Publish the written pages; put the others back.
        for (at, slot) in slots.iter().enumerate() {
            let page = &pages[done + at];
            if written.has(at) {
                let is_incompressible = for_disk.is_incompressible(done + at);
                publish_slot(core, *page, *slot, is_incompressible, outcome);
            } else {
                staging::return_all(core, std::slice::from_ref(page));
            }
        }
        if let Some(refusal) = written.refusal {
            outcome.area_full = Some(refusal.into());
        }
        done += slots.len();
    }
}

fn filled_from(to: &mut [u8; PAGE_SIZE], from: &[u8; PAGE_SIZE]) -> bool {
    to.copy_from_slice(from);
    true
}

fn publish_slot(
    core: &Core,
    (page, frame): InFrame,
    slot: u64,
    is_incompressible: bool,
    outcome: &mut Outcome,
) {
    let Some(claim) = staging::claim_in_frame(core, (page, frame)) else {
        // Rescued or discarded during the write: the slot's content is stale.
        core.stores.areas.free_unused(slot, 1);
        return;
    };
    let content = |to: &mut _| filled_from(to, staging::frame_of(core, frame).bytes());
    core.keep_on_standby(page, slot, content);
    let place = Place::Slot { slot, is_incompressible };
    claim.publish(place);
    outcome.note_in_frame();
}
