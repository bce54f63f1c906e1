//! Brings the working set of a process back when it gets its turn: the pages evicted last, in the
//! order of their addresses, in large reads.

use crate::base::page::PageNo;
use crate::core::Core;
use crate::memory::context::Contexts;
use crate::policy::prefetch::window::REQUEST_PAGES;
use crate::walks::prefetch;

/// Entries examined per step.
const SPAN_PAGES: u64 = 1 << 14;

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Continue at this page.
    Next(u64),
    /// There is not enough free memory, or a read failed.
    Stuck,
    /// All pages were examined.
    Done,
}

/// Reads the pages of the next request at or after `from` that are among the last `most` evicted
/// ones. Evicts no other pages for them.
pub(crate) fn step(core: &Core, contexts: &Contexts, from: PageNo, most: u64) -> Step {
    let high = core.memory.space.high();
    let is_wanted = |page: PageNo| {
        core.memory.pages.load(page).place().in_slot().is_some()
            && core.policies.clock.distance(page).is_some_and(|left| left <= most)
    };
    let mut page = from;
    let span_end = from.saturating_add(SPAN_PAGES).min(high);
    while page < span_end {
        page = core.memory.space.next_touched(page..high);
        if page < high && is_wanted(page) {
            break;
        }
        page += 1;
    }
    if page >= high {
        return Step::Done;
    }
    if page >= span_end {
        return Step::Next(page);
    }
    let has_room = || !core.memory.budget.is_low(core.other_bytes());
    if !has_room() && !(core.grow_budget() && has_room()) {
        return Step::Stuck;
    }
    let end = (page + REQUEST_PAGES as u64).min(high);
    // Claimed per request, so that a fork can come in between.
    let mut context = contexts.claim_prefetch(0);
    match prefetch::from_disk(core, &mut context, (page..end).step_by(1), end, None, None, false) {
        // The page may have been faulted in meanwhile.
        Some(next) => Step::Next(next.max(page + 1)),
        None => Step::Stuck,
    }
}
