//! Walk 2, a page comes back: fault -> entry -> fill | pool | slot -> extent ->
//! bounce -> io -> install.
//!
//! Runs in the thread that touched the page, inside its signal handler: no
//! allocation, no logging, no lock held over managed memory.

use crate::balance::Stopwatch;
use crate::context::{Context, Contexts};
use crate::copies::{self, Stays};
use crate::fill;
use crate::fresh;
use crate::gathered;
use crate::io::IoError;
use crate::page::{Claim, PageNo, Place, StoredCopy};
use crate::page_out::frame_of;
use crate::parts::Parts;
use crate::policy::HOT;
use crate::pool::Handle;
use crate::readahead::{self, Ahead, Touch};
use crate::reclaim::{self, Exhausted};
use crate::stats::{Counter, StopReason, Tier};
use crate::unpack::{self, UnpackError};
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::current_cpu;
use softswap_sys::signals::Mask;
use softswap_sys::uffd::Partial;
use softswap_sys::window::Writes;
use std::io;

/// Why a page cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    /// The address does not belong to the program.
    #[error("the address is not mapped")]
    NotMapped,
    /// Another mapping of the program's lies there: its fault is its own.
    #[error("the address is not managed")]
    Foreign,
    /// The swap area could not be read.
    #[error("a swapped-out page could not be read back: {0}")]
    Read(#[from] IoError),
    /// What was read is not what was written.
    #[error(
        "the swap area returned wrong data for slot {slot} (it does not match its seal); \
         the device or file system under it is not to be trusted"
    )]
    Corrupt {
        /// The slot.
        slot: u64,
    },
    /// It is compressed, and not what it was.
    #[error("a compressed page {0}")]
    Unpack(#[from] UnpackError),
    /// No memory can be freed for it.
    #[error("{0}")]
    Exhausted(#[from] Exhausted),
    /// The kernel refused to map it.
    #[error("the kernel refused to map a page ({0}); is a memory limit below --memory in force?")]
    Install(io::Error),
    /// The page vanished behind the engine's back.
    #[error("a page in memory was dropped behind softswap's back (by a raw system call?)")]
    Lost,
}

impl FaultError {
    /// Whether the thread is only to take a signal before it tries again.
    #[must_use]
    pub fn is_for_a_signal(&self) -> bool {
        matches!(self, FaultError::Exhausted(Exhausted::Signal))
    }

    /// The reason as statistics record it; `None` for what is no failure of
    /// the engine's.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        Some(match self {
            FaultError::NotMapped | FaultError::Foreign => return None,
            FaultError::Exhausted(Exhausted::Signal) => return None,
            FaultError::Read(_) => StopReason::ReadFailed,
            FaultError::Corrupt { .. } => StopReason::WrongData,
            FaultError::Unpack(_) => StopReason::PoolDamaged,
            FaultError::Exhausted(_) => StopReason::OutOfMemory,
            FaultError::Install(_) => StopReason::MapRefused,
            FaultError::Lost => StopReason::PageLost,
        })
    }
}

/// What the toucher was about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Write.
    Write,
}

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
        copies::before_write(parts, page, claim).map_err(FaultError::Install)?;
        return Ok(None);
    }
    let tier = bring(parts, &mut context, page, claim, (access, touch, open))?;
    drop(context);
    parts.note_peaks();
    let ns = parts.balance.prices().took(tier, &watch);
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
        (parts.streams.up_to_marker(page, behind), readahead::is_stream(behind));
    let is_in_stream = is_stream || touch == Touch::Early || touch.is_asked_for();
    note_way_back(parts, page, place, is_in_stream);
    let is_shared = place.in_slot().is_some() && (is_stream || touch != Touch::Alone);
    let heat = parts.grace(page, place, is_shared);
    let stays = copies::stays(parts, page, place, access, true);
    let wanted = Wanted { page, access, stays, window, may_have_companions, is_stream };
    match install_from(parts, context, place, wanted) {
        Ok(tier) => {
            parts.patience.note_back(place, tier, parts.balance.prices().faults_ns());
            let copy = copies::arrive(parts, place, stays);
            finish(parts, page, claim, heat, copy);
            match tier {
                Tier::Zero if access == Access::Write => fresh::run_ahead(parts, page),
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
    let touch = parts.streams.reach(page);
    if let Some(lost) = parts.streams.go_on(touch, &ahead(parts)) {
        parts.stats.add(Counter::WindowsReached, 1);
        parts.stats.add(Counter::WindowsLost, lost);
    }
    touch
}

/// Notes what would be touched next, and has it brought in where touches go on.
fn expect(parts: &Parts, page: PageNo, touch: Touch) {
    let lost = parts.streams.expect(page, touch, &ahead(parts));
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

pub(crate) fn finish(
    parts: &Parts,
    page: PageNo,
    claim: Claim<'_>,
    heat: u8,
    copy: Option<StoredCopy>,
) {
    parts.space.add_resident(page, 1);
    claim.publish(Place::Resident { heat, copy });
}

/// What is to come in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// The page.
    pub(crate) page: PageNo,
    /// What for.
    pub(crate) access: Access,
    /// What stays of what is stored of it, for as long as it is not written.
    pub(crate) stays: Stays,
    /// How many pages may come from the swap area, it included.
    pub(crate) window: usize,
    /// Whether pages beside it are to come that mostly follow it.
    pub(crate) may_have_companions: bool,
    /// Whether those that come with it can be relied on to be touched.
    pub(crate) is_stream: bool,
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
            match fill::decode(code) {
                0 => zeroes(parts, page, access)?,
                word => {
                    fill::fill(&mut context.page.0, word);
                    install(parts, page, &context.page.0, Writes::Allowed)?;
                }
            }
            Ok(Tier::Filled)
        }
        Place::Pool { handle } => {
            unpack::pooled(parts, context, Handle::from_bits(handle))?;
            install(parts, page, &context.page.0, wanted.stays.writes())?;
            Ok(Tier::Pool)
        }
        Place::Slot { slot } if parts.take_from_standby(slot, &mut context.page.0) => {
            install(parts, page, &context.page.0, wanted.stays.writes())?;
            Ok(Tier::Standby)
        }
        _ => match place.in_slot() {
            Some(stored) => {
                gathered::bring(parts, context, stored, wanted)?;
                Ok(Tier::Disk)
            }
            None => {
                zeroes(parts, page, access)?;
                Ok(Tier::Zero)
            }
        },
    }
}

fn zeroes(parts: &Parts, page: PageNo, access: Access) -> Result<(), FaultError> {
    // The shared page of zeroes costs a second fault when it is written.
    let done = match access {
        Access::Read => parts.window.install_zero(page, 1),
        Access::Write => parts.window.install(page, fresh::zeroes(1), Writes::Allowed),
    };
    done.error.map_or(Ok(()), |error| Err(FaultError::Install(error)))
}

pub(crate) fn install(
    parts: &Parts,
    page: PageNo,
    bytes: &[u8],
    writes: Writes,
) -> Result<(), FaultError> {
    let done = parts.window.install(page, bytes, writes);
    done.error.map_or(Ok(()), |error| Err(FaultError::Install(error)))
}

/// Reads the page of one slot, which the calling thread has nothing to do without:
/// it may poll.
pub(crate) fn read_alone(
    parts: &Parts,
    context: &mut Context,
    slot: u64,
    page: &mut [u8],
) -> Result<(), FaultError> {
    if let Err(error) = parts.areas.read_page(&mut context.lanes, slot, page) {
        parts.stats.add(Counter::ReadErrors, 1);
        return Err(FaultError::Read(error));
    }
    count_read(parts, PAGE_SIZE);
    if parts.open_sealed(slot, page) {
        return Ok(());
    }
    parts.stats.add(Counter::ChecksumErrors, 1);
    Err(FaultError::Corrupt { slot })
}

/// Reads one page from each of `slots`, which lie in one area. False when it cannot be
/// read: that is for whoever cannot do without one of them to find out, and to count.
pub(crate) fn read_each(
    parts: &Parts,
    context: &mut Context,
    slots: &[u64],
    buffer: &mut [u8],
    waits: bool,
) -> bool {
    let result = parts.areas.read_each(&mut context.lanes, slots, buffer, waits);
    if result.is_ok() {
        count_read(parts, buffer.len());
    }
    result.is_ok()
}

/// Opens the seals of pages read from `slots`, up to the first that is not what it
/// should be; left to its toucher as in [`read_each`]. Returns how many.
pub(crate) fn open_run(parts: &Parts, slots: impl Iterator<Item = u64>, bytes: &mut [u8]) -> usize {
    let pages = slots.zip(bytes.chunks_exact_mut(PAGE_SIZE));
    pages.map(|(slot, page)| parts.open_sealed(slot, page)).take_while(|is_it| *is_it).count()
}

/// Installs pages in one call, or the first alone: one call cannot cross a change
/// of protection.
pub(crate) fn install_run(parts: &Parts, page: PageNo, bytes: &[u8], writes: Writes) -> Partial {
    let done = parts.window.install(page, bytes, writes);
    if done.pages == 0 && bytes.len() > PAGE_SIZE {
        return parts.window.install(page, &bytes[..PAGE_SIZE], writes);
    }
    done
}

fn count_read(parts: &Parts, bytes: usize) {
    parts.stats.add(Counter::PagesRead, (bytes / PAGE_SIZE) as u64);
    parts.stats.add(Counter::BytesRead, bytes as u64);
}
