//! Clean victims, which nobody has written since they came in: many are dropped in one
//! call, wherever they lie, and those that leave for their copy need no packing or writing.
//!
//! Such a page is write-protected, and while it is claimed nobody ends that, nor can a
//! device have got it to write to: that would have ended it. So it may be dropped where
//! the program can see it: whoever touches it then waits for the claim and finds what is
//! stored. Moving it into a staging frame would cost a TLB shootdown for each page that
//! lies alone; one call that drops them all costs one. Who touches a page that is yet to
//! be stored waits for those before it to be packed.

use crate::base::page::{Claim, PageNo, Place, SlotCopy, StoredCopy};
use crate::core::{Core, Stores};
use crate::memory::context::BATCH_PAGES;
use crate::policy::clock::Victim;
use crate::policy::passing_over::PassingOver;
use crate::steps::batch_unmap::Unmapped;
use crate::steps::swap_cache;
use softswap_sys::PAGE_SIZE;

/// What became of clean victims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reclaimed {
    /// So many left for the copy that they had.
    pub(crate) left: usize,
    /// Of these, so many are known not to pack.
    pub(crate) incompressible: usize,
    /// And so many are unmapped and have yet to be stored.
    pub(crate) to_store: usize,
}

/// Which of the clean victims leave for their copies: a bit for each.
pub(crate) fn for_copy(core: &Core, victims: &[Victim<'_>]) -> u32 {
    let has_copy = |victim: &Victim<'_>| {
        victim.as_ref().is_some_and(|(page, claim)| leaves_for_copy(core, *page, claim))
    };
    victims.iter().enumerate().fold(0, |all, (at, victim)| all | u32::from(has_copy(victim)) << at)
}

/// Drops clean victims in one call. Those of `for_copy` leave; the contents of
/// the others, as far as there is room for them, are in `copies`, in the order of
/// `unmapped`. Victims that do not go have another day.
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
            // It need not be offered to the pool.
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
    // The hand may have wrapped in the middle, but no run of neighbours does.
    let gone = window.discard_each(&pages[..count]);
    let mut gone_pages = pages[..gone].iter().peekable();
    let mut done = Reclaimed { left: 0, incompressible: 0, to_store: 0 };
    for (at, (page, claim)) in victims.iter_mut().filter_map(Option::take).enumerate() {
        if gone_pages.next_if_eq(&&page).is_none() {
            continue;
        }
        if for_copy >> at & 1 == 1 {
            let place = leave(core, page, claim);
            done.left += 1;
            done.incompressible += usize::from(place.is_some_and(PassingOver::is_incompressible));
        } else {
            unmapped[done.to_store] = Some((page, claim));
            done.to_store += 1;
        }
    }
    done
}

/// A page is about to leave for its slot.
fn keep_on_standby(core: &Core, page: PageNo, claim: &Claim<'_>) {
    let copy = claim.before().place().copy().and_then(StoredCopy::in_slot);
    if let Some(Place::Slot { slot, .. }) = copy.map(SlotCopy::place) {
        core.keep_on_standby(page, slot, |to| core.memory.window.read_page(page, to).is_ok());
    }
}

/// Whether a claimed page goes back to its copy without being looked at.
fn leaves_for_copy(core: &Core, page: PageNo, claim: &Claim<'_>) -> bool {
    let Some(copy) = claim.before().place().copy() else { return false };
    match copy {
        // What the pool may take is offered to it; in a forked child the pool is for what
        // has no other place.
        StoredCopy::Slot(copy) => {
            is_in_slot(&core.stores, claim)
                && (core.bypasses_pool(page)
                    || !core.stores.may_write()
                    || core.stores.areas.is_inherited(copy.slot())
                    || !core.policies.stored_copies.may_be_packed())
        }
        // What is in DRAM is the better one if the pool's is damaged.
        StoredCopy::Pool { .. } => swap_cache::is_sound(&core.stores, copy),
    }
}

/// Whether a claimed page has a copy in an area that works.
fn is_in_slot(stores: &Stores, claim: &Claim<'_>) -> bool {
    let copy = claim.before().place().copy();
    copy.and_then(|copy| swap_cache::in_sound_slot(stores, copy)).is_some()
}

/// A page whose memory is gone. Returns where it is now.
fn leave(core: &Core, page: PageNo, claim: Claim<'_>) -> Option<Place> {
    let copy = claim.before().place().copy()?;
    core.policies.clock.note_eviction(page);
    core.memory.space.sub_resident(page);
    let place = swap_cache::leave_for(core, page, copy);
    if place.in_slot().is_some() && !place.is_incompressible() && core.pool_view().is_nearly_full()
    {
        core.policies.note_passed(page);
    }
    claim.publish(place);
    Some(place)
}
