//! Swaps the working set of a process in when it gets its turn: the pages evicted last, in the
//! order of their slots, in large reads. Evicts no pages to make space.

use crate::base::access::Access;
use crate::base::page::PageNo;
use crate::base::stats::{BUCKETS, bucket_floor, bucket_of};
use crate::core::Core;
use crate::memory::context::{Context, Contexts};
use crate::policy::prefetch::window::REQUEST_PAGES;
use crate::steps::swap_in_batch::{ReadLimit, SwapInBatch};
use softswap_sys::raw::current_cpu;

/// Maximum number of entries that one search examines, and of pages that it finds.
const SPAN_PAGES: u64 = 1 << 20;
const MAX_FOUND: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    More,
    /// There is not enough free memory.
    Full,
    Done,
}

#[derive(Debug)]
pub struct BringBack {
    wanted: u64,
    /// Pages outside DRAM per bucket of distances. Only their order counts: the unit may change.
    distances: Vec<u64>,
    /// Pages with a shorter distance are swapped in; 0 until all are counted.
    below: u64,
    from: PageNo,
}

impl BringBack {
    pub fn new(wanted: u64) -> BringBack {
        BringBack { wanted, distances: vec![0; BUCKETS], below: 0, from: 0 }
    }

    /// Lets the readahead threads swap in further pages.
    pub(crate) fn step(&mut self, core: &Core, contexts: &Contexts) -> Step {
        let _context = contexts.claim_prefetch(0);
        let mut returning = core.background.returning();
        while returning.is_empty() {
            if self.below == 0 {
                self.count(core);
            } else if !self.search(core, &mut returning) {
                return Step::Done;
            }
        }
        if !has_space(core) {
            return Step::Full;
        }
        core.policies.readahead.wake();
        Step::More
    }

    /// Counts further pages by their distances. At the end decides how many of them to swap in.
    fn count(&mut self, core: &Core) {
        let end = self.from.saturating_add(SPAN_PAGES);
        while let Some((_, _, distance)) = self.next(core, end) {
            self.distances[bucket_of(distance)] += 1;
        }
        if self.from < core.memory.space.high() {
            return;
        }
        let mut wanted = self.wanted;
        let exceeds = |count: &u64| {
            let fits = *count <= wanted;
            wanted = wanted.saturating_sub(*count);
            !fits
        };
        let last = self.distances.iter().position(exceeds);
        self.below = last.map_or(u64::MAX, |last| bucket_floor(last + 1).max(1));
        self.from = 0;
    }

    /// Finds further pages. Returns false at the end.
    fn search(&mut self, core: &Core, found: &mut Vec<(u64, PageNo)>) -> bool {
        let end = self.from.saturating_add(SPAN_PAGES);
        while found.len() < MAX_FOUND
            && let Some((page, slot, distance)) = self.next(core, end)
        {
            if distance < self.below {
                found.push((slot, page));
            }
        }
        found.sort_unstable_by(|one, other| other.cmp(one));
        self.from < core.memory.space.high() || !found.is_empty()
    }

    /// Returns the next page before `end` that is in a slot, its slot, and its distance.
    fn next(&mut self, core: &Core, end: PageNo) -> Option<(PageNo, u64, u64)> {
        let high = core.memory.space.high();
        loop {
            let page = core.memory.space.next_touched(self.from..high);
            self.from = page;
            if page >= end.min(high) {
                return None;
            }
            self.from += 1;
            if let Some(stored) = core.memory.pages.load(page).place().in_slot() {
                let distance = core.policies.clock.refaults.distance(page).unwrap_or(u64::MAX - 1);
                return Some((page, stored.slot(), distance));
            }
        }
    }
}

fn has_space(core: &Core) -> bool {
    let has_space = || !core.memory.budget.is_low(core.other_bytes());
    has_space() || core.grow_budget() && has_space()
}

/// Reads the next pages. Returns false if there are none, or if memory is short.
pub(crate) fn read_next(core: &Core, context: &mut Context) -> bool {
    let mut next = [(0, 0); REQUEST_PAGES];
    let next = {
        let mut returning = core.background.returning();
        if returning.is_empty() || !has_space(core) {
            return false;
        }
        let rest = returning.len().saturating_sub(REQUEST_PAGES);
        let next = &mut next[..returning.len() - rest];
        next.copy_from_slice(&returning[rest..]);
        returning.truncate(rest);
        next
    };
    let done = read(core, context, next);
    if done < next.len() {
        core.background.returning().extend_from_slice(&next[..next.len() - done]);
    }
    done > 0
}

/// Reads pages, from the end on, as many as one read takes. Returns their number, including failed
/// ones, which remain in their slots.
fn read(core: &Core, context: &mut Context, found: &[(u64, PageNo)]) -> usize {
    let (count, Some((first, _))) = (found.len(), found.last()) else { return 0 };
    if !core.memory.budget.try_charge(count, core.other_bytes()) {
        return 0;
    }
    // Report the pages before they are resident: otherwise `softswap run` takes them for memory
    // outside the budget.
    core.report_peaks();
    let (mut done, mut installed) = (0, 0);
    if let Some(mut buffer) = core.stores.bounce.take_up_to(current_cpu(), count) {
        let most = ReadLimit::of(core, context, *first, buffer.len());
        let mut batch = SwapInBatch::new(None);
        let is_full = |(_, page): &(u64, PageNo)| !batch.add(core, *page, most);
        done = found.iter().rev().position(is_full).unwrap_or(count);
        if batch.read(core, context, &mut buffer, false) {
            installed = batch.install(core, context, &mut buffer, Access::Read, false);
        }
    }
    core.memory.budget.release(count - installed);
    done
}
