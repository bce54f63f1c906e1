//! The swap cache: resident pages whose stored copy is kept. While such a page is clean, it can be
//! evicted without another store.
//!
//! A page faulted in for a read keeps its copy and is write-protected. Its first write
//! ([`crate::steps::write_fault`]) removes the protection and frees the copy.
//!
//! A copy costs a fault if the page is written, and a slot or DRAM in any case. Therefore each
//! chunk learns how often its pages are written, separately for pages that refault early. Areas
//! that are half full free the slots of copies (the kernel's rule for its swap cache). Copies in
//! the pool have a share of the budget.

use crate::base::access::Access;
use crate::base::page::{OBJECT_BITS, PageNo, Place, SlotCopy, StoredCopy};
use crate::base::stats::{Counter, Stats};
use crate::core::{Core, Stores};
use crate::policy::partition::NEARLY_FULL_PERCENT;
use crate::policy::stored_copies::KeepCopy;
use crate::store::pool::Handle;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const _: () = assert!(OBJECT_BITS == Handle::OBJECT_BITS);

/// Decides if a page that is faulted in from `place` keeps its stored copy. If `is_touched`, the
/// page's age was decided already, so the clock knows if the page refaults early.
#[must_use]
pub(crate) fn keep_copy(
    core: &Core,
    page: PageNo,
    place: Place,
    access: Access,
    is_touched: bool,
) -> KeepCopy {
    if access == Access::Write {
        return KeepCopy::No;
    }
    let is_stored = place.in_slot().is_some() || matches!(place, Place::Pool { .. });
    if is_stored && (!core.stores.may_write() || core.recorder.is_some()) {
        // A forked child cannot write the page to a slot again, and inherited pool objects cost it
        // nothing. The recorder detects writes by the protection.
        return KeepCopy::Yes;
    }
    let has_space_left = match place {
        // An inherited slot cannot be used for other pages.
        Place::Slot { slot, .. } | Place::CompressedSlot { slot, .. }
            if core.stores.areas.is_inherited(slot) =>
        {
            return KeepCopy::Yes;
        }
        Place::Slot { slot, .. } | Place::CompressedSlot { slot, .. } => {
            core.stores.areas.area_of(slot).has_spare()
        }
        Place::Pool { handle } => may_keep_pooled(core, Handle::from_bits(handle)),
        _ => return KeepCopy::No,
    };
    core.policies.keep_copy(page, place, has_space_left, is_touched)
}

fn may_keep_pooled(core: &Core, handle: Handle) -> bool {
    let (used, limit) = (core.stores.pool.used_bytes(), core.stores.pool.limit_bytes());
    let has_share = core.policies.stored_copies.has_share(
        handle.compressed_bytes(),
        core.memory.budget.limit_bytes(),
        limit,
    );
    // A nearly full pool keeps only copies that are worth more than the pages written back for
    // them, and none of another codec: the present one suits a full pool.
    let has_space_left = used * 100 <= limit * NEARLY_FULL_PERCENT;
    has_share
        && (has_space_left
            || (outweighs_write_back(core) && core.policies.is_current_codec(handle.tag())))
}

/// Returns true if a copy in a full pool is worth more than the page written back for it. The copy
/// saves a compression after about as many evictions as there are resident pages. The other page
/// would save a read, at several times the cost, but was not touched for its age.
pub(crate) fn outweighs_write_back(core: &Core) -> bool {
    // If this process cannot write, nothing is written back.
    core.stores.may_write()
        && (core.memory.budget.pages() as u64).saturating_mul(4)
            < core.policies.partition.write_back_rate.age()
}

/// Returns the copy that a page from `place` keeps. If the page keeps none, frees its storage.
pub(crate) fn on_swap_in(core: &Core, place: Place, keep_copy: KeepCopy) -> Option<StoredCopy> {
    let copy = keep_copy.copy_of(place);
    match (copy, place) {
        (Some(_), Place::Pool { handle }) => {
            let bytes = Handle::from_bits(handle).compressed_bytes();
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

pub(crate) fn is_sound(stores: &Stores, copy: StoredCopy) -> bool {
    let StoredCopy::Pool { object } = copy else { return true };
    let handle = stores.pool.handle_of(object);
    handle.is_some_and(|handle| stores.pool.peek(handle, |_| ()).is_ok())
}

/// Removes a copy from the counts. Returns `None` if its header in the pool was overwritten.
fn detach_copy(core: &Core, copy: StoredCopy) -> Option<Place> {
    match copy {
        StoredCopy::Slot(copy) => {
            core.policies.stored_copies.count.fetch_sub(1, Relaxed);
            Some(copy.place())
        }
        StoredCopy::Pool { object } => {
            core.policies.stored_copies.pooled.fetch_sub(1, Relaxed);
            let handle = core.stores.pool.handle_of(object)?;
            let less = |bytes: usize| Some(bytes.saturating_sub(handle.compressed_bytes()));
            let _ = core.policies.stored_copies.pooled_bytes.fetch_update(Relaxed, Relaxed, less);
            Some(Place::Pool { handle: handle.to_bits() })
        }
    }
}

pub(super) fn count_copy(stats: Stats, copy: StoredCopy, in_slot: Counter, in_pool: Counter) {
    match copy {
        StoredCopy::Slot(_) => stats.add(in_slot, 1),
        StoredCopy::Pool { .. } => stats.add(in_pool, 1),
    }
}

/// Turns the copy of an evicted page into its place.
pub(crate) fn drop_to_copy(core: &Core, page: PageNo, copy: StoredCopy) -> Place {
    core.policies.stored_copies.note(
        page,
        core.policies.clock.refaults.refaults_early(page),
        false,
    );
    count_copy(core.stats, copy, Counter::PagesUnchanged, Counter::PoolPagesUnchanged);
    match detach_copy(core, copy) {
        Some(place) => place,
        None => core.die("the pool's copy of an evicted page is damaged"),
    }
}

pub(crate) fn free_copy(core: &Core, copy: StoredCopy) {
    if let Some(place) = detach_copy(core, copy) {
        core.stores.free(place);
    }
}

/// Returns the copy if it is in a working area. Otherwise frees it: the page needs another place.
pub(crate) fn copy_in_working_area(
    core: &Core,
    page: PageNo,
    copy: StoredCopy,
) -> Option<SlotCopy> {
    let in_slot = in_working_slot(&core.stores, copy);
    if in_slot.is_none() {
        core.policies.stored_copies.note(
            page,
            core.policies.clock.refaults.refaults_early(page),
            false,
        );
        free_copy(core, copy);
    }
    in_slot
}

pub(crate) fn in_working_slot(stores: &Stores, copy: StoredCopy) -> Option<SlotCopy> {
    copy.in_slot().filter(|copy| !stores.areas.area_of(copy.slot()).has_failed())
}

/// Returns the place of a page that was `at`, after its pool object was moved to `new`.
pub(crate) fn renamed(at: Place, new: Handle) -> Place {
    match at {
        Place::Resident { age, .. } => {
            Place::Resident { age, copy: Some(StoredCopy::pooled(new.to_bits())) }
        }
        _ => Place::Pool { handle: new.to_bits() },
    }
}

/// Frees a page's copy if `unwanted` selects it and the page is not busy. Returns true if it did.
pub(crate) fn forget(core: &Core, page: PageNo, unwanted: impl Fn(StoredCopy) -> bool) -> bool {
    let seen = core.memory.pages.load(page);
    let Place::Resident { age, copy: Some(copy) } = seen.place() else { return false };
    if seen.is_busy() || !unwanted(copy) {
        return false;
    }
    let Some(claim) = core.memory.pages.try_claim(page, seen) else { return false };
    if core.memory.window.allow_writes(page).is_err() {
        return false;
    }
    claim.publish(Place::resident(age));
    free_copy(core, copy);
    true
}

/// Frees up to `want` copies in slots, because the areas are full. Returns their number.
pub(crate) fn reclaim_copies(core: &Core, want: usize) -> usize {
    let is_wanted = |copy: StoredCopy| copy.in_slot().is_some();
    let freed = reclaim_selected(core, want, &core.policies.stored_copies.count, is_wanted);
    core.stats.add(Counter::CopiesShed, freed as u64);
    freed
}

pub(crate) fn reclaim_pooled_copies(core: &Core, want: usize) -> usize {
    let is_wanted = |copy: StoredCopy| matches!(copy, StoredCopy::Pool { .. });
    let freed = reclaim_selected(core, want, &core.policies.stored_copies.pooled, is_wanted);
    core.stats.add(Counter::PoolCopiesShed, freed as u64);
    freed
}

pub(crate) fn reclaim_copy_of(core: &Core, page: PageNo, object: Handle) {
    let is_wanted = |copy| copy == StoredCopy::pooled(object.to_bits());
    // A damaged header may contain any page.
    if page < core.memory.window.pages() as PageNo && forget(core, page, is_wanted) {
        core.stats.add(Counter::PoolCopiesShed, 1);
    }
}

fn reclaim_selected(
    core: &Core,
    want: usize,
    count: &AtomicUsize,
    is_wanted: impl Fn(StoredCopy) -> bool,
) -> usize {
    let (copies, high) = (&core.policies.stored_copies, core.memory.space.high());
    let mut freed = 0;
    // Maximum number of pages examined to free copies.
    let mut left = high.min(1 << 16);
    while left > 0 && freed < want && count.load(Relaxed) > 0 {
        left -= 1;
        let page = copies.next.fetch_add(1, Relaxed) % high;
        let next = core.memory.space.next_resident(page..high);
        if next == page {
            freed += usize::from(forget(core, page, &is_wanted));
        } else {
            copies.next.fetch_add(next - page - 1, Relaxed);
        }
    }
    freed
}

/// Frees all copies in a forked child. Its pages lost their write protection, so it is unknown
/// which of them are clean. No other thread runs.
pub(crate) fn forget_all(core: &Core) {
    let high = core.memory.space.high();
    let mut page = core.memory.space.next_resident(0..high);
    let copies = &core.policies.stored_copies;
    while page < high && copies.count() + copies.pooled() > 0 {
        let claim = core.memory.pages.claim(page);
        if let Place::Resident { age, copy: Some(copy) } = claim.before().place() {
            claim.publish(Place::resident(age));
            free_copy(core, copy);
        }
        page = core.memory.space.next_resident(page + 1..high);
    }
}
