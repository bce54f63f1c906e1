//! The swap cache: pages in memory whose copies stay stored. While they are clean, they
//! can leave without being stored again.
//!
//! A page that comes in from the swap area or from the pool to be read leaves
//! its slot or its object there and is write-protected. The first write faults:
//! the protection is lifted, and the copy, which is out of date from then on, is
//! given up. What nobody wrote is dropped when it leaves.
//!
//! Keeping a copy costs a fault if the page is written after all, and a slot or
//! some DRAM in any case. So each chunk of pages remembers what became of its
//! copies, apart for pages that come back soon, which are touched often enough to
//! be written, and for the others; areas that are half full take their slots back
//! (the kernel's rule for its swap cache), and copies in the pool have a share of
//! the budget, and a place in a pool that is nearly full only where that is worth more
//! than what goes on to the disk for it.

use crate::base::access::Access;
use crate::base::page::{Claim, OBJECT_BITS, PageNo, Place, SlotCopy, StoredCopy};
use crate::base::stats::{Counter, Stats};
use crate::core::{Core, Stores};
use crate::policy::partition::NEARLY_FULL_PERCENT;
use crate::policy::stored_copies::Stays;
use crate::store::pool::Handle;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Pages looked at, at most, to give copies up.
const SHED_SPAN: u64 = 1 << 16;
/// Reading a page takes about so many times as long as packing it does.
const READ_COSTS_TIMES: u64 = 4;

const _: () = assert!(OBJECT_BITS == Handle::OBJECT_BITS);

/// What is to stay of a page that comes in from `place`. One that `is_touched` has been
/// given its grace, which tells of which kind it is; of those that come along nobody
/// knows.
#[must_use]
pub(crate) fn stays(
    core: &Core,
    page: PageNo,
    place: Place,
    access: Access,
    is_touched: bool,
) -> Stays {
    if access == Access::Write {
        return Stays::Nothing;
    }
    let is_stored = place.in_slot().is_some() || matches!(place, Place::Pool { .. });
    if is_stored && (!core.stores.may_write() || core.recorder.is_some()) {
        // A forked child could not store it in a slot again, and what it inherited in the
        // pool costs it nothing. A recorder is told of writes so.
        return Stays::Copy;
    }
    let is_room = match place {
        // Nobody else gets it.
        Place::Slot { slot, .. } | Place::Packed { slot, .. }
            if core.stores.areas.is_inherited(slot) =>
        {
            return Stays::Copy;
        }
        Place::Slot { slot, .. } | Place::Packed { slot, .. } => core.stores.areas.has_spare(slot),
        Place::Pool { handle } => may_stay(core, Handle::from_bits(handle)),
        _ => return Stays::Nothing,
    };
    core.policies.stays(page, place, is_room, is_touched)
}

/// Whether DRAM can be spared for a copy in the pool.
fn may_stay(core: &Core, handle: Handle) -> bool {
    let (used, limit) = (core.stores.pool.used_bytes(), core.stores.pool.limit_bytes());
    let has_share = core.policies.stored_copies.has_share(
        handle.packed_bytes(),
        core.memory.budget.limit_bytes(),
        limit,
    );
    // Beyond, only those that outweigh what goes on. What another codec packed is to be packed
    // by that of now, which suits a full pool.
    let is_room = used * 100 <= limit * NEARLY_FULL_PERCENT;
    has_share && (is_room || (outweigh(core) && core.policies.is_of_now(handle.tag())))
}

/// Whether a copy in a pool that is full is worth more than what goes on to the disk for
/// it. The copy spares packing once, when its page leaves, after about as many others as
/// are resident; what would go on spares a read, which takes a few times as long, when it
/// is touched, and it was not for as long as it is old.
#[must_use]
pub(crate) fn outweigh(core: &Core) -> bool {
    // Who cannot write has nothing that goes on.
    core.stores.may_write()
        && (core.memory.budget.pages() as u64).saturating_mul(READ_COSTS_TIMES)
            < core.policies.partition.write_back_rate().age()
}

/// What an arriving page keeps of `place`; what is stored there is freed if that is
/// not to stay.
pub(crate) fn arrive(core: &Core, place: Place, stays: Stays) -> Option<StoredCopy> {
    let copy = stays.copy_of(place);
    match (copy, place) {
        (Some(_), Place::Pool { handle }) => {
            let bytes = Handle::from_bits(handle).packed_bytes();
            core.policies.stored_copies.pooled.fetch_add(1, Relaxed);
            core.policies.stored_copies.pooled_bytes.fetch_add(bytes, Relaxed);
            core.stats.add(Counter::PoolCopiesKept, 1);
        }
        (Some(_), _) => {
            core.policies.stored_copies.count.fetch_add(1, Relaxed);
            core.stats.add(Counter::CopiesKept, 1);
        }
        (None, _) => core.stores.free(place),
    }
    copy
}

/// Whether a copy in the pool is what was stored there.
#[must_use]
pub(crate) fn is_sound(stores: &Stores, copy: StoredCopy) -> bool {
    let StoredCopy::Pool { object } = copy else { return true };
    let handle = stores.pool.handle_of(object);
    handle.is_some_and(|handle| stores.pool.peek(handle, |_| ()).is_ok())
}

/// A resident page has its copy no more: where that is from now on. `None` where
/// the pool does not know it any more, because it was overwritten.
fn part_from(core: &Core, copy: StoredCopy) -> Option<Place> {
    match copy {
        StoredCopy::Slot(copy) => {
            core.policies.stored_copies.count.fetch_sub(1, Relaxed);
            Some(copy.place())
        }
        StoredCopy::Pool { object } => {
            core.policies.stored_copies.pooled.fetch_sub(1, Relaxed);
            let handle = core.stores.pool.handle_of(object)?;
            let less = |bytes: usize| Some(bytes.saturating_sub(handle.packed_bytes()));
            let _ = core.policies.stored_copies.pooled_bytes.fetch_update(Relaxed, Relaxed, less);
            Some(Place::Pool { handle: handle.to_bits() })
        }
    }
}

/// The page of a claimed entry is about to be written: lifts the protection and
/// gives its copy up.
///
/// # Errors
/// The kernel's refusal; then nothing is changed.
pub(crate) fn make_writable(core: &Core, page: PageNo, claim: Claim<'_>) -> io::Result<()> {
    let Place::Resident { heat, copy } = claim.before().place() else { return Ok(()) };
    // Also without a copy: should a protection ever be left over, it goes here.
    core.memory.window.allow_writes(page)?;
    let Some(copy) = copy else { return Ok(()) };
    claim.publish(Place::resident(heat));
    give_up(core, copy);
    core.policies.stored_copies.note(page, core.policies.clock.comes_soon(page), true);
    count(core.stats, copy, Counter::CopiesWritten, Counter::PoolCopiesWritten);
    Ok(())
}

/// Counts a copy by where it is.
fn count(stats: Stats, copy: StoredCopy, in_slot: Counter, in_pool: Counter) {
    match copy {
        StoredCopy::Slot(_) => stats.add(in_slot, 1),
        StoredCopy::Pool { .. } => stats.add(in_pool, 1),
    }
}

/// A page is leaving DRAM for its copy. Returns where that is.
pub(crate) fn leave_for(core: &Core, page: PageNo, copy: StoredCopy) -> Place {
    core.policies.stored_copies.note(page, core.policies.clock.comes_soon(page), false);
    count(core.stats, copy, Counter::PagesUnchanged, Counter::PoolPagesUnchanged);
    match part_from(core, copy) {
        Some(place) => place,
        None => core.die("the pool has lost the copy of a page that has left"),
    }
}

/// Frees the copy of a page that is no longer the same, or goes elsewhere.
pub(crate) fn give_up(core: &Core, copy: StoredCopy) {
    if let Some(place) = part_from(core, copy) {
        core.stores.free(place);
    }
}

/// The copy of an unchanged page that leaves, if it is in an area that works; else it
/// is given up, and the page is stored elsewhere.
pub(crate) fn unless_failed(core: &Core, page: PageNo, copy: StoredCopy) -> Option<SlotCopy> {
    let in_slot = in_sound_slot(&core.stores, copy);
    if in_slot.is_none() {
        core.policies.stored_copies.note(page, core.policies.clock.comes_soon(page), false);
        give_up(core, copy);
    }
    in_slot
}

/// The copy, if it is in an area that works.
#[must_use]
pub(crate) fn in_sound_slot(stores: &Stores, copy: StoredCopy) -> Option<SlotCopy> {
    copy.in_slot().filter(|copy| !stores.areas.has_failed(copy.slot()))
}

/// The object in the pool that is a page's copy, or the page itself, is another
/// one from now on. `at` is where the page was claimed.
#[must_use]
pub(crate) fn renamed(at: Place, new: Handle) -> Place {
    match at {
        Place::Resident { heat, .. } => {
            Place::Resident { heat, copy: Some(StoredCopy::pooled(new.to_bits())) }
        }
        _ => Place::Pool { handle: new.to_bits() },
    }
}

/// Gives the copy of a resident page up, if it has one that `unwanted` names and nobody
/// has the page. True when it did.
pub(crate) fn forget(core: &Core, page: PageNo, unwanted: impl Fn(StoredCopy) -> bool) -> bool {
    let seen = core.memory.pages.load(page);
    let Place::Resident { heat, copy: Some(copy) } = seen.place() else { return false };
    if seen.is_busy() || !unwanted(copy) {
        return false;
    }
    let Some(claim) = core.memory.pages.try_claim(page, seen) else { return false };
    if core.memory.window.allow_writes(page).is_err() {
        return false;
    }
    claim.publish(Place::resident(heat));
    give_up(core, copy);
    true
}

/// Gives up to `want` copies up, because the areas are full. Returns how many.
pub(crate) fn shed(core: &Core, want: usize) -> usize {
    let is_it = |copy: StoredCopy| copy.in_slot().is_some();
    let shed = shed_those(core, want, &core.policies.stored_copies.count, is_it);
    core.stats.add(Counter::CopiesShed, shed as u64);
    shed
}

/// As [`shed`], of those in the pool, because that is nearly full.
pub(crate) fn shed_pooled(core: &Core, want: usize) -> usize {
    let is_it = |copy: StoredCopy| matches!(copy, StoredCopy::Pool { .. });
    let shed = shed_those(core, want, &core.policies.stored_copies.pooled, is_it);
    core.stats.add(Counter::PoolCopiesShed, shed as u64);
    shed
}

/// Gives the copy of `page` up that is this object of the pool's, if it is one.
pub(crate) fn shed_one(core: &Core, page: PageNo, object: Handle) {
    let is_it = |copy| copy == StoredCopy::pooled(object.to_bits());
    // A damaged header may name any page.
    if page < core.memory.window.pages() as PageNo && forget(core, page, is_it) {
        core.stats.add(Counter::PoolCopiesShed, 1);
    }
}

/// Gives up to `want` copies of a kind up, of which there are `count`.
fn shed_those(
    core: &Core,
    want: usize,
    count: &AtomicUsize,
    is_it: impl Fn(StoredCopy) -> bool,
) -> usize {
    let (copies, high) = (&core.policies.stored_copies, core.memory.space.high());
    let mut shed = 0;
    let mut left = high.min(SHED_SPAN);
    while left > 0 && shed < want && count.load(Relaxed) > 0 {
        left -= 1;
        let page = copies.next.fetch_add(1, Relaxed) % high;
        let next = core.memory.space.next_resident(page..high);
        if next == page {
            shed += usize::from(forget(core, page, &is_it));
        } else {
            copies.next.fetch_add(next - page - 1, Relaxed);
        }
    }
    shed
}

/// In a forked child, whose pages lost their protection: none is known to be unchanged
/// any more. Nothing else runs.
pub(crate) fn forget_all(core: &Core) {
    let high = core.memory.space.high();
    let mut page = core.memory.space.next_resident(0..high);
    let copies = &core.policies.stored_copies;
    while page < high && copies.count() + copies.pooled() > 0 {
        let claim = core.memory.pages.claim(page);
        if let Place::Resident { heat, copy: Some(copy) } = claim.before().place() {
            claim.publish(Place::resident(heat));
            give_up(core, copy);
        }
        page = core.memory.space.next_resident(page + 1..high);
    }
}
