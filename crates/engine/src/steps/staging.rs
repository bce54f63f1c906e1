//! Moves pages to staging frames and back. While a staged page is compressed or written, a touch
//! can take it back.
//!
//! One call moves adjacent pages for one TLB shootdown, as much as for a single page (UFFDIO_MOVE).

use crate::base::page::{Claim, PageNo, Place};
use crate::core::Core;
use crate::memory::context::{BATCH_PAGES, Context};
use crate::policy::clock::{HOT, Victim};
use softswap_sys::window::{StagedFrame, Writes};
use softswap_sys::{PAGE_SIZE, futex};
use std::io;

/// Maximum tries to put a page back: memory may be short for a moment.
const RETURN_TRIES: u32 = 10_000;

pub(crate) type InFrame = (PageNo, u32);

/// The staged pages of one batch, in adjacent frames.
pub(crate) struct Staged {
    pages: [PageNo; BATCH_PAGES],
    count: usize,
    first_frame: usize,
}

impl Staged {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn pages(&self) -> impl Iterator<Item = InFrame> + '_ {
        let first = self.first_frame as u32;
        self.pages[..self.count].iter().zip(first..).map(|(page, frame)| (*page, frame))
    }

    fn next_frame(&self) -> usize {
        self.first_frame + self.count
    }

    fn publish(&mut self, core: &Core, victim: &mut Victim<'_>) {
        if let Some((page, claim)) = victim.take() {
            debug_assert!(!claim.before().is_protected(), "the stored copy would leak");
            core.policies.clock.refaults.note_eviction(page);
            claim.publish(Place::Staged { frame: self.next_frame() as u32 });
            core.memory.space.sub_resident(page);
            self.pages[self.count] = page;
            self.count += 1;
        }
    }
}

/// Moves victims into staging frames, adjacent ones in one call. The first `in_use` are occupied.
pub(crate) fn stage(
    core: &Core,
    context: &mut Context,
    victims: &mut [Victim<'_>],
    in_use: usize,
) -> Staged {
    let window = &core.memory.window;
    let first_frame = context.first_frame + in_use;
    let mut staged = Staged { pages: [0; BATCH_PAGES], count: 0, first_frame };
    let mut next = 0;
    while let Some(Some((first, _))) = victims.get(next) {
        let (first, run) = (*first, run_length(&victims[next..]));
        let moved = if window.takes_runs() {
            window.take_out(first, run, staged.next_frame()).pages
        } else {
            0
        };
        for victim in &mut victims[next..next + moved] {
            staged.publish(core, victim);
        }
        next += moved;
        if moved < run {
            stage_one(core, context, &mut staged, &mut victims[next]);
            next += 1;
        }
    }
    staged
}

fn run_length(victims: &[Victim<'_>]) -> usize {
    let pages = victims.iter().map_while(|v| v.as_ref().map(|(page, _)| *page));
    let first = victims.first().and_then(|v| v.as_ref()).map_or(0, |(page, _)| *page);
    pages.zip(first..).take_while(|(page, expected)| page == expected).count()
}

fn stage_one(core: &Core, context: &mut Context, staged: &mut Staged, victim: &mut Victim<'_>) {
    let Some((page, _)) = victim else { return };
    let (page, frame, window) = (*page, staged.next_frame(), &core.memory.window);
    let refused = if window.takes_runs() {
        window.take_out(page, 1, frame).error
    } else {
        Some(io::ErrorKind::Unsupported.into())
    };
    let is_moved = match refused {
        None => true,
        // After a fork the page may be shared with the child. Unshare it and retry. If a device has
        // the page pinned, the kernel refuses again, and the page stays.
        Some(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            window.move_unshared(page, || window.take_out(page, 1, frame).pages == 1)
        }
        // The protection differs from that of the frames, or UFFDIO_MOVE is not available.
        Some(_) => window.take_out_by_copy(page, frame, context.page).is_ok(),
    };
    if is_moved {
        staged.publish(core, victim);
    } else if let Some((_, claim)) = victim.take() {
        claim.publish(Place::resident(HOT));
    }
}

/// Stages a page whose only copy is `content`. Returns false if it was restored to the program.
pub(crate) fn stage_copy(
    core: &Core,
    frame: usize,
    page: PageNo,
    claim: Claim<'_>,
    content: &[u8; PAGE_SIZE],
) -> bool {
    let memory = &core.memory;
    let mut turns = 0;
    for _ in 0..RETURN_TRIES {
        if memory.window.fill_frame(frame, content).is_ok() {
            claim.publish(Place::Staged { frame: frame as u32 });
            return true;
        }
        if memory.window.install(page, content, Writes::Allowed).error.is_none() {
            memory.space.add_resident(page, 1);
            claim.publish(Place::resident(HOT));
            return false;
        }
        futex::relax(&mut turns);
    }
    core.die("an unmapped page could be neither staged nor restored");
}

/// As [`claim_in_frame`]. Drop the frame first: it must be free when the page can be claimed again.
pub(crate) fn claim_staged(core: &Core, in_frame: InFrame) -> Option<(StagedFrame<'_>, Claim<'_>)> {
    let claim = claim_in_frame(core, in_frame)?;
    Some((frame_of(core, in_frame.1), claim))
}

/// Claims a page if it is still staged in the given frame. Does not wait for the claim of a page
/// that has left the frame: its claimer may wait for the caller's buffer.
pub(crate) fn claim_in_frame(core: &Core, (page, frame): InFrame) -> Option<Claim<'static>> {
    core.memory.pages.claim_at(page, Place::Staged { frame })
}

pub(crate) fn frame_of(core: &Core, frame: u32) -> StagedFrame<'_> {
    match core.memory.window.claim_frame(frame as usize) {
        Some(content) => content,
        None => core.die("a staging frame is empty although its page is staged"),
    }
}

pub(crate) fn return_all(core: &Core, pages: &[InFrame]) {
    for in_frame in pages {
        if let Some((content, claim)) = claim_staged(core, *in_frame) {
            return_page(core, in_frame.0, content, claim);
        }
    }
}

fn return_page(core: &Core, page: PageNo, content: StagedFrame<'_>, claim: Claim<'_>) {
    let (mut content, mut turns) = (content, 0);
    for _ in 0..RETURN_TRIES {
        match content.restore_to(page) {
            Ok(()) => {
                core.memory.space.add_resident(page, 1);
                claim.publish(Place::resident(HOT));
                return;
            }
            Err((frame, _)) => content = frame,
        }
        futex::relax(&mut turns);
    }
    // The frame is the only copy and is about to be emptied.
    core.die("a staged page could be neither stored nor restored");
}
