//! Eviction of clean victims in one call. Those with a copy need no compression or write.
//!
//! A clean page is write-protected. While it is claimed, no thread removes the protection, and no
//! device can have it pinned for writing. So it can be dropped in place: a touch waits for the
//! claim and finds the stored copy. Dropping all in one call costs one TLB shootdown.

use crate::base::page::{Claim, PageNo, Place, SlotCopy, StoredCopy};
use crate::core::{Core, Stores};
use crate::memory::context::BATCH_PAGES;
use crate::policy::clock::Victim;
use crate::steps::batch_unmap::Unmapped;
use crate::steps::swap_cache;
use softswap_sys::PAGE_SIZE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reclaimed {
    /// Pages evicted to their copy.
    pub(crate) left: usize,
    pub(crate) to_store: usize,
}

/// Returns a bit for each clean victim that is evicted to its copy.
pub(crate) fn for_copy(core: &Core, victims: &[Victim<'_>]) -> u32 {
    let has_copy = |victim: &Victim<'_>| {
        victim.as_ref().is_some_and(|(page, claim)| is_evicted_to_copy(core, *page, claim))
    };
    victims.iter().enumerate().fold(0, |all, (at, victim)| all | u32::from(has_copy(victim)) << at)
}

/// Drops clean victims. The contents of those that are not in `for_copy` are stored in `copies`, in
/// the order of `unmapped`.
pub(crate) fn reclaim<'t>(
    core: &Core,
    victims: &mut [Victim<'t>],
    mut for_copy: u32,
    unmapped: &mut Unmapped<'t>,
    copies: &mut [[u8; PAGE_SIZE]],
) -> Reclaimed {
    let window = &core.memory.window;
    let mut pages = [0; BATCH_PAGES];
    let (mut count, mut copied) = (0, 0);
    for (at, (page, claim)) in victims.iter().flatten().enumerate() {
        if copied == copies.len() && is_in_slot(&core.stores, claim) {
            // No buffer is left to offer the page to the pool.
            for_copy |= 1 << at;
        }
        if for_copy >> at & 1 == 1 {
            keep_on_standby(core, *page, claim);
        } else if copied < copies.len() && window.read_page(*page, &mut copies[copied]).is_ok() {
            copied += 1;
        } else {
            continue;
        }
        pages[count] = *page;
        count += 1;
    }
    // The order is ascending except where the hand wrapped; a run of adjacent pages does not wrap.
    let gone = window.discard_each(&pages[..count]);
    let mut gone_pages = pages[..gone].iter().peekable();
    let mut done = Reclaimed { left: 0, to_store: 0 };
    for (at, (page, claim)) in victims.iter_mut().filter_map(Option::take).enumerate() {
        if gone_pages.next_if_eq(&&page).is_none() {
            continue;
        }
        if for_copy >> at & 1 == 1 {
            complete_eviction(core, page, claim);
            done.left += 1;
        } else {
            unmapped[done.to_store] = Some((page, claim));
            done.to_store += 1;
        }
    }
    done
}

fn keep_on_standby(core: &Core, page: PageNo, claim: &Claim<'_>) {
    let copy = claim.before().place().copy().and_then(StoredCopy::in_slot);
    if let Some(Place::Slot { slot, .. }) = copy.map(SlotCopy::place) {
        core.keep_on_standby(page, slot, |to| core.memory.window.read_page(page, to).is_ok());
    }
}

/// Returns true if a claimed page is evicted to its copy without an attempt to compress it.
fn is_evicted_to_copy(core: &Core, page: PageNo, claim: &Claim<'_>) -> bool {
    let Some(copy) = claim.before().place().copy() else { return false };
    match copy {
        // Pages that the pool may accept are offered to it. In a forked child the pool is reserved
        // for pages without another place.
        StoredCopy::Slot(copy) => {
            is_in_slot(&core.stores, claim)
                && (core.bypasses_pool(page)
                    || !core.stores.may_write()
                    || core.stores.areas.is_inherited(copy.slot())
                    || !core.policies.stored_copies.should_offer_to_pool())
        }
        // If the pool's copy is damaged, the page in DRAM is used.
        StoredCopy::Pool { .. } => swap_cache::is_sound(&core.stores, copy),
    }
}

fn is_in_slot(stores: &Stores, claim: &Claim<'_>) -> bool {
    let copy = claim.before().place().copy();
    copy.and_then(|copy| swap_cache::in_working_slot(stores, copy)).is_some()
}

fn complete_eviction(core: &Core, page: PageNo, claim: Claim<'_>) {
    let Some(copy) = claim.before().place().copy() else { return };
    core.policies.clock.refaults.note_eviction(page);
    core.memory.space.sub_resident(page);
    let place = swap_cache::drop_to_copy(core, page, copy);
    if place.in_slot().is_some() && !place.is_incompressible() && core.pool_view().is_nearly_full()
    {
        core.policies.note_bypassed(page);
    }
    claim.publish(place);
}
