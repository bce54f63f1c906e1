//! Brings the working set of a process back when it gets its turn: the pages evicted last, in the
//! order of their slots, in large reads. Evicts nothing for them.

use crate::base::access::Access;
use crate::base::page::PageNo;
use crate::core::Core;
use crate::memory::context::{Context, Contexts};
use crate::policy::prefetch::window::REQUEST_PAGES;
use crate::steps::swap_in_batch::{ReadLimit, SwapInBatch};
use softswap_sys::raw::current_cpu;

/// Entries that one search examines, and pages that it finds at most.
const SPAN_PAGES: u64 = 1 << 20;
const MOST_FOUND: usize = 1 << 16;

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There may be more to read.
    More,
    /// There is not enough free memory.
    Full,
    /// All pages were read or left out.
    Done,
}

/// Progress of one process.
#[derive(Debug)]
pub struct BringBack {
    /// Pages that are among this many evicted last come back.
    most: u64,
    /// Where the search continues.
    from: PageNo,
    /// Slots and pages found, in descending order of the slots.
    found: Vec<(u64, PageNo)>,
}

impl BringBack {
    /// Begins to bring back pages that are among the `most` evicted last.
    #[must_use]
    pub fn new(most: u64) -> BringBack {
        BringBack { most, from: 0, found: Vec::new() }
    }

    /// Reads the next pages.
    pub(crate) fn step(&mut self, core: &Core, contexts: &Contexts) -> Step {
        if self.found.is_empty() && !self.search(core) {
            return Step::Done;
        }
        let has_space = || !core.memory.budget.is_low(core.other_bytes());
        if !has_space() && !(core.grow_budget() && has_space()) {
            return Step::Full;
        }
        let rest = self.found.len().saturating_sub(REQUEST_PAGES);
        // Claimed per request, so that a fork can come in between.
        let done = read(core, &mut contexts.claim_prefetch(0), &self.found[rest..]);
        self.found.truncate(self.found.len() - done);
        if done == 0 { Step::Full } else { Step::More }
    }

    /// Finds further pages. Returns false at the end.
    fn search(&mut self, core: &Core) -> bool {
        let (space, high) = (&core.memory.space, core.memory.space.high());
        let end = self.from.saturating_add(SPAN_PAGES).min(high);
        while self.found.len() < MOST_FOUND {
            self.from = space.next_touched(self.from..high);
            if self.from >= end {
                break;
            }
            let distance = core.policies.clock.distance(self.from);
            if let Some(stored) = core.memory.pages.load(self.from).place().in_slot()
                && distance.is_some_and(|distance| distance <= self.most)
            {
                self.found.push((stored.slot(), self.from));
            }
            self.from += 1;
        }
        self.found.sort_unstable_by(|one, other| other.cmp(one));
        self.from < high || !self.found.is_empty()
    }
}

/// Reads pages that are still in their slots, from the end on, and returns the number of pages that
/// are done: as many as one read takes. What cannot be read is left to its fault.
fn read(core: &Core, context: &mut Context, found: &[(u64, PageNo)]) -> usize {
    let (count, Some((first, _))) = (found.len(), found.last()) else { return 0 };
    if !core.memory.budget.try_charge(count, core.other_bytes()) {
        return 0;
    }
    let (mut done, mut came) = (0, 0);
    if let Some(mut buffer) = core.stores.bounce.take_up_to(current_cpu(), count) {
        let most = ReadLimit::of(core, context, *first, buffer.len());
        let mut batch = SwapInBatch::new(None);
        let is_full = |(_, page): &(u64, PageNo)| !batch.add(core, *page, most);
        done = found.iter().rev().position(is_full).unwrap_or(count);
        if batch.read(core, context, &mut buffer, false) {
            came = batch.install(core, context, &mut buffer, Access::Read, false);
        }
    }
    core.memory.budget.release(count - came);
    done
}
