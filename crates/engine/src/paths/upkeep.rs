//! Upkeep of swap areas while memory is free: moves pages away from failed areas, discards emptied
//! clusters, shrinks swap files. Works in small steps with pauses, to use little disk and CPU.

use crate::base::page::{Claim, PageNo, Place};
use crate::base::stats::Counter;
use crate::core::Core;
use crate::memory::context::{BATCH_PAGES, Context, Contexts};
use crate::steps::relocate::{Relocating, Relocation};
use crate::steps::{decompress, swap_cache};
use crate::store::swap::SwapArea;
use crate::store::swap::area::Discarded;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::current_cpu;

#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    next: PageNo,
    moved_in_round: usize,
}

impl Upkeep {
    /// Does one step. Returns true if there may be more to do soon.
    pub(crate) fn step(&mut self, core: &Core, contexts: &Contexts) -> bool {
        // A fork waits for this context: a lock that is held at a fork stays locked in the child.
        let mut context = contexts.claim_background();
        if core.stores.areas.iter().any(SwapArea::is_evacuating)
            && self.move_away(core, &mut context)
        {
            return true;
        }
        let discarded = core.stores.areas.discard_one();
        core.stores.count_discarded(discarded);
        if discarded == Discarded::Nothing {
            core.stats.add(Counter::ShrunkBytes, core.stores.areas.shrink());
        }
        discarded != Discarded::Nothing
    }

    /// Moves some pages of failed areas elsewhere. After a round that moved nothing, abandons the
    /// rest. Returns false if nothing can be done now.
    fn move_away(&mut self, core: &Core, context: &mut Context) -> bool {
        let Some(mut cluster) = core.buffer(BATCH_PAGES) else { return false };
        let Ok(slots) = core.stores.areas.alloc_elsewhere(current_cpu(), BATCH_PAGES) else {
            return false;
        };
        let mut moved = [const { None }; BATCH_PAGES];
        let (copies, _) = cluster.as_chunks_mut();
        let copies = &mut copies[..slots.as_slice().len()];
        let count = self.gather(core, context, copies, &mut moved);
        let moves = Relocation { slots, moved: &mut moved[..count] };
        let gone = moves.carry_out(&core.stores, &core.policies.admission, context, &mut cluster);
        core.stats.add(Counter::PagesMoved, gone as u64);
        self.moved_in_round += gone;
        if self.next >= core.memory.space.high() {
            if self.moved_in_round == 0 {
                core.stores
                    .areas
                    .iter()
                    .filter(|area| area.is_evacuating())
                    .for_each(SwapArea::abandon_pages);
            }
            *self = Upkeep::default();
        }
        true
    }

    /// Claims the next pages to move and reads them. Examines 65,536 entries at most.
    fn gather(
        &mut self,
        core: &Core,
        context: &mut Context,
        copies: &mut [[u8; PAGE_SIZE]],
        moved: &mut [Option<Relocating<'static>>],
    ) -> usize {
        let mut count = 0;
        let high = core.memory.space.high();
        for _ in 0..1 << 16 {
            self.next = core.memory.space.next_touched(self.next..high);
            if self.next == high || count == copies.len() {
                break;
            }
            let page = self.next;
            self.next += 1;
            if core.memory.space.has_resident(page)
                && swap_cache::forget(core, page, |copy| {
                    copy.in_slot()
                        .is_some_and(|copy| core.stores.areas.area_of(copy.slot()).is_evacuating())
                })
            {
                self.moved_in_round += 1;
            }
            let Some(claim) = claim_for_evacuation(core, page) else { continue };
            if read_copy(core, context, claim.before().place(), &mut copies[count]).is_some() {
                moved[count] = Some(Relocating { claim, at: count, part: None });
                count += 1;
            }
        }
        count
    }
}

fn claim_for_evacuation(core: &Core, page: PageNo) -> Option<Claim<'static>> {
    let seen = core.memory.pages.load(page);
    let (Place::Slot { slot, .. } | Place::CompressedSlot { slot, .. }) = seen.place() else {
        return None;
    };
    let wanted = !seen.is_busy() && core.stores.areas.area_of(slot).is_evacuating();
    wanted.then(|| core.memory.pages.try_claim(page, seen)).flatten()
}

/// Reads a stored page. Returns `None` if its seal does not match, or if memory is short.
fn read_copy(
    core: &Core,
    context: &mut Context,
    place: Place,
    copy: &mut [u8; PAGE_SIZE],
) -> Option<()> {
    let (Place::Slot { slot, .. } | Place::CompressedSlot { slot, .. }) = place else {
        return None;
    };
    core.stores.areas.read(&mut context.lanes, slot, copy).ok()?;
    if !core.stores.open_sealed(slot, copy) {
        return None;
    }
    if let Place::CompressedSlot { part, .. } = place {
        // Charge only the memory of the codec.
        if !core.try_charge(&mut context.scratch, 0, core.other_bytes()) {
            return None;
        }
        decompress::part(&core.stores, context, copy, part).ok()?;
        *copy = context.page.0;
    }
    Some(())
}
