//! Moves pages from the pool or from a failed area to slots.

use crate::base::page::{Claim, Place};
use crate::base::stats::Counter;
use crate::core::Stores;
use crate::memory::context::{BATCH_PAGES, Context};
use crate::policy::admission::Admission;
use crate::steps::write_out::write_sealed;
use crate::store::swap::{SlotBatch, batch};
use softswap_sys::PAGE_SIZE;

/// Pages copied to a bounce buffer, to be written to slots. There are enough slots for all.
pub(crate) struct Relocation<'m, 't> {
    pub(crate) slots: SlotBatch,
    pub(crate) moved: &'m mut [Option<Relocating<'t>>],
}

pub(crate) struct Relocating<'t> {
    pub(crate) claim: Claim<'t>,
    /// Index of the page in the buffer.
    pub(crate) at: usize,
    /// Part number, if the page is stored in a compressed slot.
    pub(crate) part: Option<u8>,
}

impl Relocation<'_, '_> {
    /// Seals, writes and publishes the copies. Frees surplus slots and the pages' previous storage.
    pub(crate) fn carry_out(
        self,
        stores: &Stores,
        admission: &Admission,
        context: &mut Context,
        copies: &mut [u8],
    ) -> usize {
        let Relocation { slots, moved } = self;
        let mut used_parts = [0_u32; BATCH_PAGES];
        let mut count = 0;
        for Relocating { at, part, .. } in moved.iter().flatten() {
            count = count.max(at + 1);
            used_parts[*at] |= part.map_or(0, |part| 1 << part);
        }
        let (slots, left) = slots.as_slice().split_at(count);
        batch::runs(left).for_each(|run| stores.areas.free_unused(run.first, run.len));
        if count == 0 {
            return 0;
        }
        let written =
            write_sealed(stores, admission, context, slots, &mut copies[..count * PAGE_SIZE]);
        for (at, used) in used_parts.into_iter().enumerate() {
            if used != 0 && written.has(at) {
                let (area, slot) = stores.areas.of(slots[at]);
                area.set_parts(slot, used);
                stores.stats.add(Counter::SlotsPacked, 1);
                stores.stats.add(Counter::PagesPacked, u64::from(used.count_ones()));
            }
        }
        let mut gone = 0;
        for moved in moved {
            if let Some(Relocating { claim, at, part }) =
                moved.take().filter(|it| written.has(it.at))
            {
                let old = claim.before().place();
                let slot = slots[at];
                claim.publish(match part {
                    Some(part) => Place::CompressedSlot { slot, part },
                    None => Place::Slot { slot, is_incompressible: old.is_incompressible() },
                });
                stores.free(old);
                gone += 1;
            }
        }
        gone
    }
}
