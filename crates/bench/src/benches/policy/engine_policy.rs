//! softswap's own policy over a trace: the engine's clock, page table and space as
//! they are, told of what they are told in a program, which is misses.

use super::trace::Trace;
use softswap_engine::base::page::{Claim, PageNo, PageTable, Place};
use softswap_engine::memory::address_space::AddressSpace;
use softswap_engine::policy::clock::{Clock, PREFETCHED};
use softswap_engine::policy::prefetch::readahead;
use softswap_engine::policy::refault::FRESH;
use softswap_engine::store::standby::Standby;
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::{Page, reserve_u64};
use std::io;

/// What a page that comes back is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grants {
    /// What a fresh page has: the clock alone.
    None,
    /// What it earned by how soon it came.
    Refaults,
}

/// What was brought in, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) misses: u64,
    /// More than misses where neighbours come along.
    pub(super) pages_in: u64,
}

/// A program's memory under softswap, without its contents. Its tables stay until
/// the process ends, as an engine's do.
struct Memory {
    pages: PageTable<'static>,
    space: AddressSpace,
    clock: Clock,
    standby: Standby,
    /// Where kept pages are taken to; what they hold does not matter.
    page: Page,
    grants: Grants,
    most_resident: usize,
    resident: usize,
    /// Pages that have left and not come back.
    out: u64,
    /// The next slot: as if the area had no end.
    slot: u64,
    found: Found,
}

/// PollCounts what the clock brings in with so many pages of memory.
pub(super) fn run(
    trace: &Trace,
    most_resident: usize,
    grants: Grants,
    reads_ahead: bool,
) -> io::Result<Found> {
    let space = AddressSpace::new(trace.pages as u64)?;
    space.add(&mut space.lock(), 0..trace.pages as u64);
    let mut memory = Memory {
        pages: PageTable::new(reserve_u64(trace.pages)?),
        space,
        clock: Clock::new(trace.pages, most_resident)?,
        standby: Standby::new(most_resident),
        page: Page([0; PAGE_SIZE]),
        grants,
        most_resident,
        resident: 0,
        out: 0,
        slot: 1,
        found: Found::default(),
    };
    for page in &trace.touches {
        memory.touch(u64::from(*page), reads_ahead);
        memory.standby.tend()?;
    }
    Ok(memory.found)
}

impl Memory {
    fn touch(&mut self, page: PageNo, reads_ahead: bool) {
        let seen = self.pages.load(page);
        if seen.is_resident() {
            return;
        }
        let claim = self.pages.claim(page);
        let is_kept = self.is_kept(page, seen.place());
        self.found.misses += u64::from(!is_kept);
        self.make_room();
        let heat = match seen.place() {
            Place::Vacant => self.clock.heat_of_new(page),
            _ => self.grace(page),
        };
        self.finish(page, claim, heat);
        if is_kept {
            self.found.pages_in -= 1;
        } else if let Place::Slot { .. } = seen.place()
            && reads_ahead
        {
            self.read_ahead(page);
        }
    }

    fn grace(&self, page: PageNo) -> u8 {
        match self.grants {
            Grants::None => FRESH,
            Grants::Refaults => self.clock.heat_of_refault(page, self.resident),
        }
    }

    /// Whether a page that is touched has been kept since it left; notes that it is
    /// back.
    fn is_kept(&mut self, page: PageNo, place: Place) -> bool {
        let Place::Slot { slot, .. } = place else { return false };
        if self.grants == Grants::None {
            return false;
        }
        let is_kept = self.standby.take((slot, 0), &mut self.page.0);
        let left = self.clock.distance(page);
        left.into_iter().for_each(|left| self.standby.note_return(left, self.out));
        is_kept
    }

    /// One at a time: a batch of the engine's is little of its memory, and would be
    /// much of this one.
    fn make_room(&mut self) {
        while self.resident + self.standby.used_bytes() / PAGE_SIZE >= self.most_resident {
            let mut victims = [None];
            self.clock.claim_victims(&self.pages, &self.space, 1, &mut victims);
            // All memory but that of a page under way is somebody's, unclaimed.
            let [Some((page, claim))] = victims else { return };
            self.clock.note_eviction(page);
            claim.publish(Place::Slot { slot: self.slot, is_incompressible: true });
            if self.standby.is_on() {
                self.standby.keep((self.slot, 0), || true, |_| true);
            }
            self.space.sub_resident(page);
            self.slot += 1;
            self.out += 1;
            self.resident -= 1;
        }
    }

    fn finish(&mut self, page: PageNo, claim: Claim<'_>, heat: u8) {
        let was_out = matches!(claim.before().place(), Place::Slot { .. });
        self.space.touch(page);
        self.space.add_resident(page, 1);
        claim.publish(Place::resident(heat));
        self.resident += 1;
        self.out -= u64::from(was_out);
        self.found.pages_in += 1;
    }

    /// As walk 2 does, with what it asks.
    fn read_ahead(&mut self, page: PageNo) {
        let of_all = || (self.resident, self.resident + self.out as usize);
        let window = readahead::neighbours(&self.pages, page, of_all);
        let end = (page + window as u64).min(self.pages_in_all());
        for next in page + 1..end {
            let Some((_, claim)) = readahead::claim_stored(&self.pages, next) else { continue };
            self.make_room();
            let is_stream = readahead::is_stream(window) && self.grants == Grants::Refaults;
            let heat = if is_stream { self.grace(next) } else { PREFETCHED };
            self.finish(next, claim, heat);
        }
    }

    fn pages_in_all(&self) -> PageNo {
        self.space.high()
    }
}

#[cfg(test)]
mod tests {
    use super::super::other_policies::{fifo, optimum};
    use super::*;
    use proptest::prelude::*;

    const ALL: [(Grants, bool); 4] = [
        (Grants::None, false),
        (Grants::Refaults, false),
        (Grants::None, true),
        (Grants::Refaults, true),
    ];

    fn misses(trace: &Trace, memory: usize, grants: Grants) -> u64 {
        run(trace, memory, grants, false).unwrap().misses
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_more_pages_are_resident_than_fit_and_none_is_lost(
            touches in prop::collection::vec(0..40u32, 1..300), memory in 1..40usize
        ) {
            let trace = Trace::new("test", touches);
            let best = optimum(&trace, memory);
            for (grants, reads_ahead) in ALL {
                let found = run(&trace, memory, grants, reads_ahead).unwrap();
                prop_assert!(found.pages_in >= best && found.pages_in >= found.misses);
                if !reads_ahead {
                    prop_assert_eq!(found.pages_in, found.misses);
                }
                if memory >= trace.pages {
                    prop_assert_eq!(found.misses, trace.pages as u64);
                }
            }
        }
    }

    #[test]
    fn pages_in_order_leave_in_order_without_grants() {
        let trace = Trace::new("loop", (0..100).chain(0..100).collect());
        assert_eq!(misses(&trace, 50, Grants::None), 200);
        assert_eq!(fifo(&trace, 50), 200);
    }

    #[test]
    fn of_a_loop_some_pages_stay() {
        let round = 0..1000u32;
        let trace = Trace::new("loop", (0..20).flat_map(|_| round.clone()).collect());
        assert_eq!(misses(&trace, 750, Grants::None), 20_000);
        assert!(misses(&trace, 750, Grants::Refaults) < 12_000);
        let read = run(&trace, 750, Grants::Refaults, true).unwrap();
        assert!(read.misses < 3000 && read.pages_in < 14_000, "{read:?}");
    }
}
