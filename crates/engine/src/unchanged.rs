//! Victims that are stored already: nothing is packed or written, and many are
//! dropped in one call, wherever they lie.
//!
//! While a page has a copy it is write-protected, and while it is claimed nobody
//! lifts that, so it may be dropped where the program can see it: whoever
//! touches it then waits for the claim and finds the copy. Moving it into a
//! staging frame would cost a flush of all processors' translations for each
//! page that lies alone; one call that drops them all costs one.

use crate::context::BATCH_PAGES;
use crate::copies;
use crate::page::{Claim, PageNo, Place, SlotCopy, StoredCopy};
use crate::parts::Parts;
use crate::policy::Victim;

/// Drops those of the victims that are stored as they are, and puts the others
/// at the front, in their order. Returns how many left.
pub(crate) fn drop_where_they_are(parts: &Parts, victims: &mut [Victim<'_>]) -> usize {
    let mut pages = [0; BATCH_PAGES];
    let mut count = 0;
    for (page, claim) in victims.iter().flatten() {
        if leaves_as_it_is(parts, claim) {
            let copy = claim.before().place().copy().and_then(StoredCopy::in_slot);
            if let Some(Place::Slot { slot }) = copy.map(SlotCopy::place) {
                parts.keep_on_standby(slot, |to| parts.window.read_page(*page, to).is_ok());
            }
            pages[count] = *page;
            count += 1;
        }
    }
    // The hand may have wrapped in the middle, but no run of neighbours does.
    let gone = parts.window.discard_each(&pages[..count]);
    let mut gone_pages = pages[..gone].iter().peekable();
    let mut kept = 0;
    for at in 0..victims.len() {
        let Some((page, claim)) = victims[at].take() else { continue };
        if gone_pages.next_if_eq(&&page).is_some() {
            leave(parts, page, claim);
        } else {
            victims[kept] = Some((page, claim));
            kept += 1;
        }
    }
    gone
}

/// Whether a claimed page goes back to its copy without being looked at.
fn leaves_as_it_is(parts: &Parts, claim: &Claim<'_>) -> bool {
    let Some(copy) = claim.before().place().copy() else { return false };
    match copy.in_slot() {
        // What the pool may take is staged and offered to it.
        Some(copy) => !parts.areas.has_failed(copy.slot()) && !parts.copies.may_be_packed(),
        // What is in DRAM is the better one if the pool's is damaged.
        None => copies::is_sound(parts, copy),
    }
}

/// A page whose memory is gone.
fn leave(parts: &Parts, page: PageNo, claim: Claim<'_>) {
    let Some(copy) = claim.before().place().copy() else { return };
    parts.clock.note_leaving(page);
    parts.space.sub_resident(page);
    let place = copies::leave_for(parts, page, copy);
    claim.publish(place);
}
