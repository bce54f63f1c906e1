//! Walk 1, a page goes out: victim -> unmap -> fill -> codec -> pool | slot ->
//! extent -> bounce -> io -> publish.
//!
//! Victims that nobody has written since they came in are dropped where they are
//! ([`clean_reclaim`]); those that are still stored leave for that. Others leave together,
//! where that takes fewer flushes ([`batch_unmap`]); the rest is moved out of the program's
//! reach into staging frames. From then on a touch finds them staged and takes them
//! straight back. Same-filled pages become a word, compressible ones go to the pool, the
//! others are copied to a bounce buffer, sealed, and written in one go. Only when the
//! write has succeeded is the slot published. When it fails, its pages are written one
//! by one: what is bad is taken out of service, and its page stays.

use crate::base::page::{Claim, PageNo, Place, SlotCopy, StoredCopy};
use crate::base::stats::Counter;
use crate::core::errors::NoSlot;
use crate::core::parts::Parts;
use crate::memory::context::{BATCH_PAGES, Context};
use crate::policy::clock::{HOT, Victim};
use crate::policy::grace::Grace;
use crate::steps::batch_unmap;
use crate::steps::clean_reclaim;
use crate::steps::compress;
use crate::steps::swap_cache;
use crate::steps::write_out::{allocate, write_sealed};
use crate::store::bounce::Buffer;
use crate::store::swap::AreaFull;
use softswap_sys::PAGE_SIZE;
use softswap_sys::futex;
use softswap_sys::raw::{current_cpu, thread_cpu_ns};
use softswap_sys::window::{StagedFrame, Writes};
use std::io;

/// Tries to put a page back before giving up: memory may be short for a moment.
const GIVE_BACK_TRIES: u32 = 10_000;

/// What one batch achieved.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Pages no longer in DRAM (or compressed in it).
    pub pages_out: usize,
    /// Of these, how many are in staging frames still, and charged to the budget.
    in_frames: usize,
    /// Of all that left, how many have a slot of their own.
    unpacked: usize,
    /// How many were to go to the swap area.
    pub for_disk: usize,
    /// Why pages that should have gone to the swap area did not.
    pub area_full: Option<NoSlot>,
}

impl Outcome {
    /// A page is at `place` now.
    fn note(&mut self, place: Place) {
        self.pages_out += 1;
        self.unpacked += usize::from(Grace::is_unpacked(place));
    }

    /// A page is at `place` now, and what was its memory is in a staging frame.
    fn note_in_frame(&mut self, place: Place) {
        self.note(place);
        self.in_frames += 1;
    }
}

/// The pages of one batch that wait in staging frames.
struct Staged {
    pages: [PageNo; BATCH_PAGES],
    count: usize,
    first_frame: usize,
}

impl Staged {
    fn frames(&self) -> impl Iterator<Item = (PageNo, u32)> + '_ {
        let first = self.first_frame as u32;
        self.pages[..self.count].iter().zip(first..).map(|(page, frame)| (*page, frame))
    }
}

/// Takes up to one batch of cold pages out.
pub fn page_out(parts: &Parts, context: &mut Context) -> Outcome {
    let before_ns = thread_cpu_ns();
    let mut victims = [const { None }; BATCH_PAGES];
    let times = parts.grace.times();
    let found = parts.clock.claim_victims(&parts.pages, &parts.space, times, &mut victims);
    let mut outcome = Outcome::default();
    let (protected, writable) = protected_first(&mut victims[..found]);
    let has_buffer = drop_out(parts, context, protected, writable, &mut outcome);
    if writable.iter().any(Option::is_some)
        && (!batch_unmap::is_better(parts, writable)
            || lift_out(parts, context, writable, &mut outcome) == 0)
    {
        take_out(parts, context, writable, &mut outcome);
    }
    if outcome.pages_out == 0 && !has_buffer {
        // With nothing claimed: the next batch finds one.
        drop(parts.wait_for_buffer(1));
    }
    debug_assert_eq!(outcome.in_frames, 0, "charged for ever");
    parts.write_load.note(found, outcome.for_disk);
    let left = outcome.pages_out as u64;
    // Not what was taken out and had to be put back.
    parts.stats.add(Counter::PagesOut, left);
    parts.grace.note_left(left, outcome.unpacked as u64);
    parts.partition.turnover().note_left(left);
    parts.codec_choice.note_left(left);
    parts.partition.prices().left(left, thread_cpu_ns() - before_ns);
    if outcome.pages_out > 0 {
        // Half a success is progress; the limit will be met again.
        outcome.area_full = None;
    }
    outcome
}

/// Puts the victims that nobody has written before the others.
fn protected_first<'v, 't>(
    victims: &'v mut [Victim<'t>],
) -> (&'v mut [Victim<'t>], &'v mut [Victim<'t>]) {
    let mut protected = 0;
    for at in 0..victims.len() {
        if victims[at].as_ref().is_some_and(|(_, claim)| claim.before().is_protected()) {
            victims[protected..=at].rotate_right(1);
            protected += 1;
        }
    }
    victims.split_at_mut(protected)
}

/// Moves victims into staging frames and finds each a place to stay.
fn take_out(
    parts: &Parts,
    context: &mut Context,
    victims: &mut [Victim<'_>],
    outcome: &mut Outcome,
) {
    let staged = stage(parts, context, victims, 0);
    store_and_empty(parts, context, &staged, outcome);
}

/// Finds every staged page a place to stay, and empties all of the context's frames.
fn store_and_empty(parts: &Parts, context: &mut Context, staged: &Staged, outcome: &mut Outcome) {
    parts.budget.begin_to_leave(staged.count);
    store(parts, context, staged, outcome);
    // First: no page is to count for more than itself.
    parts.budget.end_to_leave(staged.count);
    empty_frames(parts, context, outcome);
}

/// Empties all of the context's frames: what was in them has a place elsewhere.
fn empty_frames(parts: &Parts, context: &Context, outcome: &mut Outcome) {
    parts.window.empty_frames(context.first_frame, BATCH_PAGES);
    parts.budget.release(std::mem::take(&mut outcome.in_frames));
}

/// Drops protected victims where they are, and finds those a place to stay that have none.
/// Where that needs the disk, the `others` of the batch are staged meanwhile and follow.
/// False where there is no buffer.
fn drop_out(
    parts: &Parts,
    context: &mut Context,
    victims: &mut [Victim<'_>],
    others: &mut [Victim<'_>],
    outcome: &mut Outcome,
) -> bool {
    if victims.is_empty() {
        return true;
    }
    let stored = clean_reclaim::stored_as_they_are(parts, victims);
    let to_copy = victims.len() - stored.count_ones() as usize;
    // What there is no room for has another day.
    let some = || parts.bounce.take_up_to(current_cpu(), to_copy).or_else(|| parts.buffer(1));
    let mut buffer = (to_copy > 0).then(|| parts.buffer(to_copy).or_else(some)).flatten();
    let mut lifted = [const { None }; BATCH_PAGES];
    let copies = buffer.as_mut().map_or(&mut [][..], |buffer| buffer.as_chunks_mut().0);
    let gone = clean_reclaim::drop_where_they_are(parts, victims, stored, &mut lifted, copies);
    outcome.pages_out += gone.left;
    outcome.unpacked += gone.unpacked;
    parts.budget.release(gone.left);
    let Some(mut buffer) = buffer else { return to_copy == 0 };
    let lifted = &mut lifted[..gone.lifted];
    let (for_disk, waiting) = place_lifted(parts, context, lifted, &mut buffer, outcome);
    if waiting > 0 {
        // Whoever wants these is not to wait for the disk.
        let staged = stage(parts, context, others, waiting);
        write_staged(parts, context, &for_disk[..waiting], &mut buffer, outcome);
        // Who has a buffer waits for no other.
        drop(buffer);
        store_and_empty(parts, context, &staged, outcome);
    }
    true
}

/// Takes victims that lie apart out together, if there is a buffer, and finds each a
/// place to stay. Where some went, those that did not have another day. Returns how
/// many did.
fn lift_out(
    parts: &Parts,
    context: &mut Context,
    victims: &mut [Victim<'_>],
    outcome: &mut Outcome,
) -> usize {
    let Some(mut buffer) = parts.bounce.take(current_cpu(), victims.len()) else { return 0 };
    let mut lifted = [const { None }; BATCH_PAGES];
    let (copies, _) = buffer.as_chunks_mut::<PAGE_SIZE>();
    let count = batch_unmap::lift(parts, victims, &mut lifted, copies);
    if count > 0 {
        // Nobody is to wait for them while the others are written.
        victims.iter_mut().for_each(|victim| drop(victim.take()));
    }
    let lifted = &mut lifted[..count];
    let (for_disk, waiting) = place_lifted(parts, context, lifted, &mut buffer, outcome);
    if waiting > 0 {
        write_staged(parts, context, &for_disk[..waiting], &mut buffer, outcome);
        empty_frames(parts, context, outcome);
    }
    count
}

/// Finds victims a place to stay that are in memory no more, but in `buffer`. Returns
/// those that must be written, which are staged, and how many: they are at its front then.
fn place_lifted(
    parts: &Parts,
    context: &mut Context,
    lifted: &mut [Victim<'_>],
    buffer: &mut Buffer<'_>,
    outcome: &mut Outcome,
) -> ([(PageNo, u32); BATCH_PAGES], usize) {
    parts.budget.begin_to_leave(lifted.len());
    let (copies, _) = buffer.as_chunks_mut::<PAGE_SIZE>();
    let mut for_disk = [(0, 0); BATCH_PAGES];
    let mut waiting = 0;
    for (at, (page, claim)) in lifted.iter_mut().filter_map(Option::take).enumerate() {
        parts.clock.note_leaving(page);
        parts.space.sub_resident(page);
        let stored = claim.before().place().copy();
        let stored = stored.and_then(|copy| swap_cache::unless_failed(parts, page, copy));
        let place = place_of(parts, context, page, (&copies[at], stored));
        parts.budget.end_to_leave(1);
        match place {
            Some(place) => {
                // At once: the next may need room in the pool.
                parts.budget.release(1);
                claim.publish(place);
                settle(parts, page, stored, place);
                outcome.note(place);
            }
            None if publish_copied(parts, context, (page, claim), waiting, &copies[at]) => {
                for_disk[waiting] = (page, (context.first_frame + waiting) as u32);
                copies.copy_within(at..=at, waiting);
                waiting += 1;
            }
            None => {}
        }
    }
    (for_disk, waiting)
}

/// Publishes a page as staged whose only copy is `content`. False if it could only
/// be put back where it was.
fn publish_copied(
    parts: &Parts,
    context: &Context,
    (page, claim): (PageNo, Claim<'_>),
    frame: usize,
    content: &[u8; PAGE_SIZE],
) -> bool {
    let frame = context.first_frame + frame;
    let mut turns = 0;
    for _ in 0..GIVE_BACK_TRIES {
        if parts.window.fill_frame(frame, content).is_ok() {
            claim.publish(Place::Staged { frame: frame as u32 });
            return true;
        }
        if parts.window.install(page, content, Writes::Allowed).error.is_none() {
            parts.space.add_resident(page, 1);
            claim.publish(Place::resident(HOT));
            return false;
        }
        futex::relax(&mut turns);
    }
    parts.die("a page that was taken out could neither be kept nor put back");
}

/// Moves the victims into staging frames, neighbours in one call. So many of the context's
/// are `in_use`.
fn stage(
    parts: &Parts,
    context: &mut Context,
    victims: &mut [Victim<'_>],
    in_use: usize,
) -> Staged {
    let first_frame = context.first_frame + in_use;
    let mut staged = Staged { pages: [0; BATCH_PAGES], count: 0, first_frame };
    let mut next = 0;
    while let Some(Some((first, _))) = victims.get(next) {
        let (first, run) = (*first, run_length(&victims[next..]));
        let moved = if parts.window.uses_move() {
            parts.window.take_out(first, run, first_frame + staged.count).pages
        } else {
            0
        };
        for victim in &mut victims[next..next + moved] {
            publish_staged(parts, &mut staged, victim);
        }
        next += moved;
        if moved < run {
            stage_one(parts, context, &mut staged, &mut victims[next]);
            next += 1;
        }
    }
    staged
}

/// How many of the victims from the first on are neighbours.
fn run_length(victims: &[Victim<'_>]) -> usize {
    let pages = victims.iter().map_while(|v| v.as_ref().map(|(page, _)| *page));
    let first = victims.first().and_then(|v| v.as_ref()).map_or(0, |(page, _)| *page);
    pages.zip(first..).take_while(|(page, expected)| page == expected).count()
}

fn publish_staged(parts: &Parts, staged: &mut Staged, victim: &mut Victim<'_>) {
    if let Some((page, claim)) = victim.take() {
        debug_assert!(!claim.before().is_protected(), "a copy would be forgotten");
        parts.clock.note_leaving(page);
        let frame = (staged.first_frame + staged.count) as u32;
        claim.publish(Place::Staged { frame });
        parts.space.sub_resident(page);
        staged.pages[staged.count] = page;
        staged.count += 1;
    }
}

/// Takes out one page that did not move with its neighbours.
fn stage_one(parts: &Parts, context: &mut Context, staged: &mut Staged, victim: &mut Victim<'_>) {
    let Some((page, _)) = victim else { return };
    let (page, frame) = (*page, staged.first_frame + staged.count);
    let refused = if parts.window.uses_move() {
        parts.window.take_out(page, 1, frame).error
    } else {
        Some(io::ErrorKind::Unsupported.into())
    };
    let out = match refused {
        None => true,
        // Left shared by fork? Then it moves once it is the program's own. A
        // page that a device is reading or writing refuses again, and stays.
        Some(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            parts.window.unshare(page).is_ok() && parts.window.take_out(page, 1, frame).pages == 1
        }
        // Its protection differs from the frames', or there is no MOVE.
        Some(_) => parts.window.take_out_by_copy(page, frame, context.page).is_ok(),
    };
    if out {
        publish_staged(parts, staged, victim);
    } else if let Some((_, claim)) = victim.take() {
        claim.publish(Place::resident(HOT));
    }
}

/// Finds every staged page a place to stay.
fn store(parts: &Parts, context: &mut Context, staged: &Staged, outcome: &mut Outcome) {
    let mut cluster = None;
    let mut for_disk: [(PageNo, u32); BATCH_PAGES] = [(0, 0); BATCH_PAGES];
    let mut waiting = 0;
    for (page, frame) in staged.frames() {
        let Some(mut held) = claim_staged(parts, page, frame) else { continue };
        if let Some(place) = compress::in_dram(parts, context, page, held.0.bytes()) {
            let (content, claim) = held;
            drop(content);
            claim.publish(place);
            outcome.note_in_frame(place);
            continue;
        }
        if cluster.is_none() {
            cluster = parts.buffer(staged.count);
        }
        if cluster.is_none() {
            // With no page of the batch claimed: who touches it is not to wait for
            // the disk, nor who moves it, for whom the buffer's holder may wait.
            drop(held);
            cluster = Some(parts.wait_for_buffer(staged.count));
            let Some(again) = claim_staged(parts, page, frame) else { continue };
            held = again;
        }
        let Some(cluster) = &mut cluster else { continue };
        cluster[waiting * PAGE_SIZE..][..PAGE_SIZE].copy_from_slice(held.0.bytes());
        for_disk[waiting] = (page, frame);
        waiting += 1;
    }
    if let Some(cluster) = &mut cluster {
        write_staged(parts, context, &for_disk[..waiting], cluster, outcome);
    }
}

/// Where a page can go without being written: into DRAM, or back to its copy.
fn place_of(
    parts: &Parts,
    context: &mut Context,
    page: PageNo,
    (content, copy): (&[u8; PAGE_SIZE], Option<SlotCopy>),
) -> Option<Place> {
    let packed = compress::in_dram(parts, context, page, content);
    let Some(copy) = copy else { return packed };
    parts.copies.note_packed(packed.is_some());
    if let (None, Place::Slot { slot }) = (packed, copy.place()) {
        parts.keep_on_standby(page, slot, |to| filled_from(to, content));
    }
    Some(packed.unwrap_or(copy.place()))
}

/// A page is at `place` now: its copy, if it had one, is that or given up.
fn settle(parts: &Parts, page: PageNo, copy: Option<SlotCopy>, place: Place) {
    let Some(copy) = copy else { return };
    if copy.place() == place {
        swap_cache::leave_for(parts, page, StoredCopy::Slot(copy));
    } else {
        swap_cache::give_up(parts, StoredCopy::Slot(copy));
    }
}

/// Claims a page that is still staged in that frame. Dropped in this order: the
/// next one who claims the page finds the frame free.
fn claim_staged<'p>(
    parts: &'p Parts,
    page: PageNo,
    frame: u32,
) -> Option<(StagedFrame<'p>, Claim<'p>)> {
    let claim = parts.pages.claim(page);
    is_staged(&claim, frame).then(|| (frame_of(parts, frame), claim))
}

fn is_staged(claim: &Claim<'_>, in_frame: u32) -> bool {
    matches!(claim.before().place(), Place::Staged { frame } if frame == in_frame)
}

/// The frame of a page whose claimed entry says that it is staged there.
pub fn frame_of(parts: &Parts, frame: u32) -> StagedFrame<'_> {
    match parts.window.claim_frame(frame as usize) {
        Some(content) => content,
        None => parts.die("a staging frame is empty although its page is staged"),
    }
}

/// Gives a staged page back to the program: it has nowhere to go.
fn give_back(parts: &Parts, page: PageNo, content: StagedFrame<'_>, claim: Claim<'_>) {
    let (mut content, mut turns) = (content, 0);
    for _ in 0..GIVE_BACK_TRIES {
        match content.give_back(page) {
            Ok(()) => {
                parts.space.add_resident(page, 1);
                claim.publish(Place::resident(HOT));
                return;
            }
            Err((frame, _)) => content = frame,
        }
        futex::relax(&mut turns);
    }
    // The frame is about to be emptied, and it is the only copy.
    parts.die("a page that could not be stored could not be put back either");
}

/// Writes the copies in `cluster` and publishes their slots.
fn write_staged(
    parts: &Parts,
    context: &mut Context,
    pages: &[(PageNo, u32)],
    cluster: &mut Buffer<'_>,
    outcome: &mut Outcome,
) {
    outcome.for_disk += pages.len();
    let mut done = 0;
    while done < pages.len() {
        let slots = match allocate(parts, pages.len() - done) {
            Ok(slots) => slots,
            Err(full) => {
                outcome.area_full = Some(full);
                keep(parts, &pages[done..]);
                return;
            }
        };
        let slots = slots.as_slice();
        let copies = &mut cluster[done * PAGE_SIZE..][..slots.len() * PAGE_SIZE];
        let written = write_sealed(parts, context, slots, copies);
        for (at, slot) in slots.iter().enumerate() {
            let page = &pages[done + at];
            if written.has(at) {
                publish_slot(parts, page, *slot, outcome);
            } else {
                keep(parts, std::slice::from_ref(page));
            }
        }
        if written.is_refused {
            outcome.area_full = Some(AreaFull::Failed.into());
        }
        done += slots.len();
    }
}

fn filled_from(to: &mut [u8; PAGE_SIZE], from: &[u8; PAGE_SIZE]) -> bool {
    to.copy_from_slice(from);
    true
}

fn publish_slot(parts: &Parts, page: &(PageNo, u32), slot: u64, outcome: &mut Outcome) {
    let claim = parts.pages.claim(page.0);
    if is_staged(&claim, page.1) {
        parts.keep_on_standby(page.0, slot, |to| filled_from(to, frame_of(parts, page.1).bytes()));
        claim.publish(Place::Slot { slot });
        outcome.note_in_frame(Place::Slot { slot });
    } else {
        // Rescued while it was being written: the copy is stale.
        parts.areas.give_back(slot, 1);
    }
}

/// Puts pages that could not be written back where they were.
fn keep(parts: &Parts, pages: &[(PageNo, u32)]) {
    for (page, frame) in pages {
        let claim = parts.pages.claim(*page);
        if !is_staged(&claim, *frame) {
            continue;
        }
        give_back(parts, *page, frame_of(parts, *frame), claim);
    }
}
