//! Pages that share a slot with a touched one go back to the pool: a part of walk 2.
//!
//! They went on to the swap area together, packed as they were, when the pool had no
//! room. Who reads the slot for one of them has all of them. Where the pool has room
//! again, what is packed is stored there as it is, a copy of some hundred bytes each, and
//! whoever touches these pages does not wait for the disk. They are looked for beside the
//! touched one: what goes on together mostly lies together.
//!
//! Not while the partition gives the pool's memory to resident pages: what the pool takes back then would have to be written again. And not in a
//! forked child, which may not write: what it has in its parent's slots costs it nothing.

use crate::base::page::{Claim, PageNo, Place, SlotCopy};
use crate::base::stats::Counter;
use crate::codec::packed_slot;
use crate::codec::{Codec, MAX_PACKED_BYTES};
use crate::core::Core;
use crate::memory::context::Context;
use crate::policy::mechanism::Mechanism;
use crate::policy::partition::NEARLY_FULL_PERCENT;
use crate::steps::relocate::GROUP_PAGES;

/// Stores in the pool what a slot, of which `copy` is the content, holds of pages beside
/// `page`. That page's own claim keeps the slot as it is meanwhile.
pub(crate) fn neighbours(
    core: &Core,
    context: &Context,
    page: PageNo,
    stored: SlotCopy,
    copy: &[u8],
) {
    if stored.part().is_none() || !may_be(core, context) {
        return;
    }
    let reach = GROUP_PAGES as u64 - 1;
    let end = (page + reach + 1).min(core.memory.window.pages() as u64);
    let mut count = 0;
    for near in page.saturating_sub(reach)..end {
        let seen = core.memory.pages.load(near);
        let Place::Packed { slot, part } = seen.place() else { continue };
        if slot != stored.slot() || near == page || core.bypasses_pool(near) {
            continue;
        }
        if !has_room(core) {
            break;
        }
        let Some(claim) = core.memory.pages.try_claim(near, seen) else { continue };
        if !store(core, near, claim, (slot, part), copy) {
            break;
        }
        count += 1;
    }
    core.stats.add(Counter::PagesRegained, count);
}

/// Whether pages are to go back to the pool at all.
fn may_be(core: &Core, context: &Context) -> bool {
    // In a fork memory stays as it is.
    context.may_reclaim
        && core.policies.has(Mechanism::Readmit)
        && core.stores.may_write()
        && !core.policies.partition.gives_way()
}

/// Stores one page in the pool, of which a slot's content has that part. False where the
/// pool or the budget is full: then it stays where it is.
fn store(
    core: &Core,
    page: PageNo,
    claim: Claim<'_>,
    (slot, part): (u64, u8),
    copy: &[u8],
) -> bool {
    // What is not there, or nothing that was ever in the pool, is for its toucher to find.
    let Ok((tag, packed)) = packed_slot::part(copy, part) else { return false };
    if packed.len() > MAX_PACKED_BYTES || Codec::from_tag(tag).is_none() {
        return false;
    }
    let Some(_room) = core.room_for_pool(0) else { return false };
    let Ok(handle) = core.stores.pool.store(packed, page, tag) else { return false };
    claim.publish(Place::Pool { handle: handle.to_bits() });
    core.stores.areas.free_part(slot, part);
    true
}

/// Whether the pool has something to spare.
fn has_room(core: &Core) -> bool {
    core.stores.pool.used_bytes() * 100 < core.stores.pool.limit_bytes() * NEARLY_FULL_PERCENT
}
