//! Victims that nobody has written since they came in: many are dropped in one call,
//! wherever they lie, and for those that are stored already nothing is packed or written.
//!
//! Such a page is write-protected, and while it is claimed nobody lifts that, nor can a
//! device have got it to write to: that would have lifted it. So it may be dropped where the program can see it:
//! whoever touches it then waits for the claim and finds what is stored. Moving it into
//! a staging frame would cost a flush of all processors' translations for each page that
//! lies alone; one call that drops them all costs one. Who touches a page that is yet to
//! be stored waits for those before it to be packed.

use crate::base::page::{Claim, PageNo, Place, SlotCopy, StoredCopy};
use crate::core::parts::Parts;
use crate::memory::context::BATCH_PAGES;
use crate::policy::clock::Victim;
use crate::policy::grace::Grace;
use crate::steps::batch_unmap::Lifted;
use crate::steps::swap_cache;
use softswap_sys::PAGE_SIZE;

/// What became of protected victims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone {
    /// So many left for what is stored of them.
    pub(crate) left: usize,
    /// Of these, so many have a slot of their own.
    pub(crate) unpacked: usize,
    /// And so many have yet to be stored.
    pub(crate) lifted: usize,
}

/// Which of the protected victims are stored as they are: a bit for each.
pub(crate) fn stored_as_they_are(parts: &Parts, victims: &[Victim<'_>]) -> u32 {
    let is_stored = |victim: &Victim<'_>| {
        victim.as_ref().is_some_and(|(page, claim)| leaves_as_it_is(parts, *page, claim))
    };
    victims.iter().enumerate().fold(0, |all, (at, victim)| all | u32::from(is_stored(victim)) << at)
}

/// Drops protected victims in one call. Those that are `stored` leave; the contents of
/// the others, as far as there is room for them, are in `copies`, in the order of
/// `lifted`. Victims that do not go have another day.
pub(crate) fn drop_where_they_are<'t>(
    parts: &Parts,
    victims: &mut [Victim<'t>],
    mut stored: u32,
    lifted: &mut Lifted<'t>,
    copies: &mut [[u8; PAGE_SIZE]],
) -> Gone {
    let mut pages = [0; BATCH_PAGES];
    let (mut count, mut copied) = (0, 0);
    for (at, (page, claim)) in victims.iter().flatten().enumerate() {
        if copied == copies.len() && is_in_slot(parts, claim) {
            // It need not be offered to the pool.
            stored |= 1 << at;
        }
        if stored >> at & 1 == 1 {
            keep_on_standby(parts, *page, claim);
        } else if copied < copies.len()
            && parts.window.read_page(*page, &mut copies[copied]).is_ok()
        {
            copied += 1;
        } else {
            continue;
        }
        pages[count] = *page;
        count += 1;
    }
    // The hand may have wrapped in the middle, but no run of neighbours does.
    let gone = parts.window.discard_each(&pages[..count]);
    let mut gone_pages = pages[..gone].iter().peekable();
    let mut gone = Gone { left: 0, unpacked: 0, lifted: 0 };
    for (at, (page, claim)) in victims.iter_mut().filter_map(Option::take).enumerate() {
        if gone_pages.next_if_eq(&&page).is_none() {
            continue;
        }
        if stored >> at & 1 == 1 {
            let place = leave(parts, page, claim);
            gone.left += 1;
            gone.unpacked += usize::from(place.is_some_and(Grace::is_unpacked));
        } else {
            lifted[gone.lifted] = Some((page, claim));
            gone.lifted += 1;
        }
    }
    gone
}

/// A page is about to leave for its slot.
fn keep_on_standby(parts: &Parts, page: PageNo, claim: &Claim<'_>) {
    let copy = claim.before().place().copy().and_then(StoredCopy::in_slot);
    if let Some(Place::Slot { slot }) = copy.map(SlotCopy::place) {
        parts.keep_on_standby(page, slot, |to| parts.window.read_page(page, to).is_ok());
    }
}

/// Whether a claimed page goes back to its copy without being looked at.
fn leaves_as_it_is(parts: &Parts, page: PageNo, claim: &Claim<'_>) -> bool {
    let Some(copy) = claim.before().place().copy() else { return false };
    match copy {
        // What the pool may take is offered to it; in a forked child the pool is for what
        // has no other place.
        StoredCopy::Slot(_) => {
            is_in_slot(parts, claim)
                && (parts.passes_pool(page) || !parts.may_write() || !parts.copies.may_be_packed())
        }
        // What is in DRAM is the better one if the pool's is damaged.
        StoredCopy::Pool { .. } => swap_cache::is_sound(parts, copy),
        StoredCopy::Nowhere => false,
    }
}

/// Whether a claimed page is stored in an area that works.
fn is_in_slot(parts: &Parts, claim: &Claim<'_>) -> bool {
    let copy = claim.before().place().copy();
    copy.and_then(|copy| swap_cache::in_sound_slot(parts, copy)).is_some()
}

/// A page whose memory is gone. Returns where it is now.
fn leave(parts: &Parts, page: PageNo, claim: Claim<'_>) -> Option<Place> {
    let copy = claim.before().place().copy()?;
    parts.clock.note_leaving(page);
    parts.space.sub_resident(page);
    let place = swap_cache::leave_for(parts, page, copy);
    claim.publish(place);
    Some(place)
}
