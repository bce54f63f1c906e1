//! Pages that go from one place outside the program's memory to another: out of the
//! pool, or out of an area that has failed, into slots.

use crate::base::page::{Claim, Place};
use crate::base::stats::Counter;
use crate::core::Stores;
use crate::memory::context::{BATCH_PAGES, Context};
use crate::policy::admission::Admission;
use crate::steps::write_out::write_sealed;
use crate::store::swap::{SlotBatch, batch};
use softswap_sys::PAGE_SIZE;

/// Pages whose copies are in a bounce buffer, on their way to slots, of which there
/// are enough for all of them.
pub(crate) struct Relocation<'m, 't> {
    /// Where they go.
    pub(crate) slots: SlotBatch,
    /// The pages, with where their copies are.
    pub(crate) moved: &'m mut [Option<Relocating<'t>>],
}

/// A page whose copy is in a bounce buffer.
pub(crate) struct Relocating<'t> {
    /// The page.
    pub(crate) claim: Claim<'t>,
    /// Which page of the buffer.
    pub(crate) at: usize,
    /// Which part of it, if it is a packed one.
    pub(crate) part: Option<u8>,
}

impl Relocation<'_, '_> {
    /// Seals the copies in place, writes them and publishes the slots of those that were written;
    /// the slots that were left, and what the pages had before, are freed.
    /// Returns how many pages went.
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
        batch::runs(left).for_each(|run| stores.areas.give_back(run.first, run.len));
        if count == 0 {
            return 0;
        }
        let written =
            write_sealed(stores, admission, context, slots, &mut copies[..count * PAGE_SIZE]);
        for (at, used) in used_parts.into_iter().enumerate() {
            if used != 0 && written.has(at) {
                stores.areas.set_parts(slots[at], used);
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
                    Some(part) => Place::Packed { slot, part },
                    None => Place::Slot { slot, is_incompressible: old.is_incompressible() },
                });
                stores.free(old);
                gone += 1;
            }
        }
        gone
    }
}
