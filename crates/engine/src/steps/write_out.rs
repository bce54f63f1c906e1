//! Writes pages to the swap area: allocates slots, seals, writes in one batch, handles failures.

use crate::base::page::PART_LIMIT;
use crate::base::stats::Counter;
use crate::codec::compressed_slot;
use crate::core::Stores;
use crate::core::errors::NoSlot;
use crate::memory::context::{BATCH_PAGES, Context};
use crate::policy::admission::Admission;
use crate::store::io::IoError;
use crate::store::swap::{AreaFull, Opened, SlotBatch};
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::{current_cpu, now_ns};
use std::sync::atomic::Ordering::Relaxed;

#[derive(Clone, Copy, Default)]
pub(crate) struct Written {
    pages: u32,
    /// Set if the whole area refuses writes.
    pub(crate) refusal: Option<AreaFull>,
}

impl Written {
    fn all(count: usize) -> Written {
        Written { pages: u32::MAX >> (BATCH_PAGES - count), refusal: None }
    }

    pub(crate) fn has(self, at: usize) -> bool {
        self.pages >> at & 1 == 1
    }
}

const _: () = assert!(BATCH_PAGES == u32::BITS as usize && BATCH_PAGES <= SlotBatch::MAX);
const _: () = assert!(compressed_slot::MAX_PARTS <= PART_LIMIT as usize);

/// Allocates up to `want` slots, not from an area that refused this context's last write.
pub(crate) fn alloc_slots_for_batch(
    stores: &Stores,
    context: &Context,
    want: usize,
) -> Result<SlotBatch, NoSlot> {
    if !stores.may_write() {
        return Err(no_area(stores));
    }
    loop {
        let seen = stores.areas.count();
        let found = match context.refusal {
            None => stores.areas.alloc_batch(current_cpu(), want),
            Some(refusal) => stores.areas.alloc_elsewhere(current_cpu(), want).map_err(|_| refusal),
        };
        let full = match found {
            Ok(batch) => return Ok(batch),
            Err(full) => full,
        };
        if !stores.areas.has_inherited() {
            return Err(full.into());
        }
        // A forked child opens new areas on demand.
        match stores.child_areas.open(&stores.areas, seen, stores.stats) {
            Opened::Yes => {}
            Opened::No if !stores.areas.has_own() => {
                stores.may_write.store(false, Relaxed);
                return Err(no_area(stores));
            }
            Opened::No | Opened::NotHere => return Err(full.into()),
        }
    }
}

fn no_area(stores: &Stores) -> NoSlot {
    match stores.child_areas.refusal() {
        Some(why) => NoSlot::NoOwnArea(why),
        None => NoSlot::ForkedChild,
    }
}

/// Seals copies in place and writes them to `slots` in one operation. On failure writes them one by
/// one, with the same seals, unless the whole area refuses writes. Slots that fail alone are
/// retired. If the whole area refuses, its slots are freed and the context avoids it for a while.
pub(crate) fn write_sealed(
    stores: &Stores,
    admission: &Admission,
    context: &mut Context,
    slots: &[u64],
    copies: &mut [u8],
) -> Written {
    for (slot, copy) in slots.iter().zip(copies.chunks_exact_mut(PAGE_SIZE)) {
        stores.seal(*slot, copy);
    }
    let mut written = Written::default();
    let Some(first) = slots.first().copied() else { return written };
    match write(stores, admission, context, slots, copies) {
        Ok(()) => return Written::all(slots.len()),
        // The device may have no space for some of the slots only.
        Err(error) if error.is_no_space() && slots.len() > 1 => {}
        Err(error) => written.refusal = stores.areas.area_of(first).refusal(&error),
    }
    for (at, (slot, copy)) in slots.iter().zip(copies.chunks_exact(PAGE_SIZE)).enumerate() {
        if written.refusal.is_none() && slots.len() > 1 {
            match write(stores, admission, context, &[*slot], copy) {
                Ok(()) => {
                    written.pages |= 1 << at;
                    continue;
                }
                Err(error) => written.refusal = stores.areas.area_of(first).refusal(&error),
            }
        }
        if written.refusal.is_some() {
            stores.areas.free_unused(*slot, 1);
        } else {
            let (area, slot) = stores.areas.of(*slot);
            area.retire(slot, 1);
        }
    }
    if matches!(written.refusal, Some(AreaFull::Write { .. })) {
        context.refusal = written.refusal;
    }
    stores.report_areas();
    written
}

fn write(
    stores: &Stores,
    admission: &Admission,
    context: &mut Context,
    slots: &[u64],
    copies: &[u8],
) -> Result<(), IoError> {
    let start = now_ns();
    let result = stores.areas.write_each(&mut context.lanes, slots, copies);
    match result {
        Ok(()) => {
            admission.wrote(slots.len(), now_ns() - start);
            stores.stats.add(Counter::PagesWritten, slots.len() as u64);
            stores.stats.add(Counter::BytesWritten, copies.len() as u64);
        }
        Err(_) => stores.stats.add(Counter::WriteErrors, 1),
    }
    result
}
