//! Walk 2, a page comes back: fault -> entry -> fill | pool | slot -> extent ->
//! bounce -> io -> install.
//!
//! Runs in the thread that touched the page, inside its signal handler: no
//! allocation, no logging, no lock held over managed memory.

use crate::base::access::Access;
use crate::base::page::{Claim, PageNo, Place};
use crate::base::stats::{Counter, Tier};
use crate::codec::same_filled;
use crate::core::errors::FaultError;
use crate::core::parts::Parts;
use crate::memory::context::{Context, Contexts};
use crate::policy::clock::HOT;
use crate::policy::partition::Stopwatch;
use crate::policy::prefetch::readahead::{self, Ahead, Touch};
use crate::steps::decompress;
use crate::steps::fault_around;
use crate::steps::install::{finish, install, install_zeroes};
use crate::steps::swap_cache;
use crate::steps::swap_in_batch::{self, Wanted};
use crate::store::pool::Handle;
use crate::walks::page_out::frame_of;
use crate::walks::reclaim;
use softswap_sys::raw::current_cpu;
use softswap_sys::signals::Mask;
use softswap_sys::window::Writes;

/// Brings a page in, and says from where, or finds that it is there. A wait for room ends
/// when one of the signals `open` is pending.
pub fn page_in(
    parts: &Parts,
    contexts: &Contexts,
    page: PageNo,
    (access, open): (Access, Mask),
) -> Result<Option<Tier>, FaultError> {
    let watch = Stopwatch::start();
    // First of all, before anything is waited for: what comes next takes its
    // time, too.
    let touch = reach(parts, page);
    // The context first: whoever holds all contexts (fork) then knows that no
    // page is half-way in.
    let mut context = contexts.claim(current_cpu());
    let Some(claim) = claim_missing(parts, page, access)? else { return Ok(None) };
    if claim.before().is_resident() {
        swap_cache::before_write(parts, page, claim).map_err(FaultError::Install)?;
        return Ok(None);
    }
    let tier = bring(parts, &mut context, page, claim, (access, touch, open))?;
    drop(context);
    parts.note_peaks();
    let ns = parts.partition.prices().took(tier, &watch);
    parts.stats.record_fault(tier, ns);
    Ok(Some(tier))
}

/// Claims the page's entry, or finds that somebody else has brought it in. A
/// resident page is claimed if it may be protected from the write that is due.
fn claim_missing(
    parts: &Parts,
    page: PageNo,
    access: Access,
) -> Result<Option<Claim<'static>>, FaultError> {
    loop {
        let seen = parts.pages.wait(page);
        match seen.place() {
            Place::Foreign => return Err(FaultError::Foreign),
            Place::Resident { copy, .. } => {
                let is_protected = copy.is_some() && access == Access::Write;
                let absent = !is_protected && matches!(parts.window.is_present(page), Ok(false));
                if absent && parts.pages.load(page).is_resident() {
                    return still_lost(parts, page);
                }
                if access == Access::Read {
                    return Ok(None);
                }
            }
            Place::Vacant => parts.space.touch(page),
            _ => {}
        }
        if let Some(claim) = parts.pages.try_claim(page, seen) {
            return Ok(Some(claim));
        }
    }
}

/// Resident by its entry, absent by the kernel: between the two looks the
/// page may have come or gone, so decide while nobody can move it.
fn still_lost(parts: &Parts, page: PageNo) -> Result<Option<Claim<'static>>, FaultError> {
    let claim = parts.pages.claim(page);
    let resident = claim.before().is_resident();
    if resident && matches!(parts.window.is_present(page), Ok(false)) {
        return Err(FaultError::Lost);
    }
    Ok(None)
}

/// Brings a claimed page in from wherever it is and publishes it as resident.
fn bring(
    parts: &Parts,
    context: &mut Context,
    page: PageNo,
    claim: Claim<'_>,
    (access, touch, open): (Access, Touch, Mask),
) -> Result<Tier, FaultError> {
    let place = claim.before().place();
    // A staged page never left DRAM, so it is charged already.
    if let Place::Staged { frame } = place {
        if let Err((_, error)) = frame_of(parts, frame).give_back(page) {
            return Err(FaultError::Install(error));
        }
        finish(parts, page, claim, HOT, None);
        return Ok(Tier::Staged);
    }
    if place == Place::Vacant && !parts.space.is_mapped(page) {
        return Err(FaultError::NotMapped);
    }
    reclaim::make_room(parts, context, 1, open)?;
    // Before the copy's fate is decided. Should the page not come after all, it is
    // as if it had come and left.
    parts.note_return(page, place);
    let (behind, may_have_companions) = match touch {
        // What follows is on its way.
        _ if touch.is_asked_for() => (1, false),
        // Nothing comes along from elsewhere, and looking costs what it costs.
        _ if place.in_slot().is_none() => (1, false),
        _ => match readahead::neighbours(&parts.pages, page, || parts.resident_of_all()) {
            1 => (1, true),
            behind => (behind, false),
        },
    };
    let (window, is_stream) =
        (parts.readahead.up_to_marker(page, behind), readahead::is_stream(behind));
    let is_in_stream = is_stream || touch == Touch::Early || touch.is_asked_for();
    note_way_back(parts, page, place, is_in_stream);
    let is_shared = place.in_slot().is_some() && (is_stream || touch != Touch::Alone);
    let heat = parts.grace(page, place, is_shared);
    let stays = swap_cache::stays(parts, page, place, access, true);
    let wanted = Wanted { page, access, stays, window, may_have_companions, is_stream };
    match install_from(parts, context, place, wanted) {
        Ok(tier) => {
            parts.grace.note_back(place, tier, parts.partition.prices().faults_ns());
            let copy = swap_cache::arrive(parts, place, stays);
            finish(parts, page, claim, heat, copy);
            match tier {
                Tier::Zero if access == Access::Write => fault_around::run_ahead(parts, page),
                Tier::Standby | Tier::Pool | Tier::Disk => expect(parts, page, touch),
                _ => {}
            }
            Ok(tier)
        }
        Err(error) => {
            parts.budget.release(1);
            Err(error)
        }
    }
}

/// Notes whether a page that is stored comes back in a stream, or was waited for.
fn note_way_back(parts: &Parts, page: PageNo, place: Place, is_stream: bool) {
    if is_stream {
        parts.note_streamed(page, place);
    } else {
        parts.note_waited_for(page, place);
    }
}

/// Looks how a touched page lies in a stream, and has the next window brought in
/// where it has reached one. The touch of a page that is there is nobody's.
fn reach(parts: &Parts, page: PageNo) -> Touch {
    if is_there(parts, page) {
        return Touch::Alone;
    }
    let touch = parts.readahead.reach(page);
    if let Some(lost) = parts.readahead.go_on(touch, &ahead(parts)) {
        parts.stats.add(Counter::WindowsReached, 1);
        parts.stats.add(Counter::WindowsLost, lost);
    }
    touch
}

/// Notes what would be touched next, and has it brought in where touches go on.
fn expect(parts: &Parts, page: PageNo, touch: Touch) {
    let lost = parts.readahead.expect(page, touch, &ahead(parts));
    if lost > 0 {
        parts.stats.add(Counter::WindowsLost, lost);
    }
}

fn ahead(parts: &Parts) -> Ahead<impl Fn(PageNo) -> bool> {
    Ahead { end: parts.window.pages() as PageNo, is_there: |page| is_there(parts, page) }
}

fn is_there(parts: &Parts, page: PageNo) -> bool {
    matches!(parts.pages.load(page).place(), Place::Resident { .. } | Place::Staged { .. })
}

/// Puts a page's content into the program's memory, and that of others that are to
/// come with it. Those are published; the page itself is the caller's.
fn install_from(
    parts: &Parts,
    context: &mut Context,
    place: Place,
    wanted: Wanted,
) -> Result<Tier, FaultError> {
    let Wanted { page, access, .. } = wanted;
    match place {
        Place::Filled { code } => {
            match same_filled::decode(code) {
                0 => install_zeroes(parts, page, access)?,
                word => {
                    same_filled::fill(&mut context.page.0, word);
                    install(parts, page, &context.page.0, Writes::Allowed)?;
                }
            }
            Ok(Tier::Filled)
        }
        Place::Pool { handle } => {
            decompress::pooled(parts, context, Handle::from_bits(handle))?;
            install(parts, page, &context.page.0, wanted.stays.writes())?;
            Ok(Tier::Pool)
        }
        Place::Slot { slot } if parts.take_from_standby(slot, &mut context.page.0) => {
            install(parts, page, &context.page.0, wanted.stays.writes())?;
            Ok(Tier::Standby)
        }
        _ => match place.in_slot() {
            Some(stored) => {
                swap_in_batch::bring(parts, context, stored, wanted)?;
                Ok(Tier::Disk)
            }
            None => {
                install_zeroes(parts, page, access)?;
                Ok(Tier::Zero)
            }
        },
    }
}
