//! Where pages are that are not in the program's memory: the pool, the swap areas, the
//! standby list; the buffers between, and the seal of what leaves DRAM.

use crate::base::page::Place;
use crate::base::stats::{Counter, Stats};
use crate::codec::Workspaces;
use crate::core::errors::die;
use crate::store::bounce;
use crate::store::pool::{Handle, Pool};
use crate::store::read_ahead_pages::ReadAheadPages;
use crate::store::standby::Standby;
use crate::store::swap::Areas;
use crate::store::swap::ChildAreas;
use crate::store::swap::area::Discarded;
use softswap_sys::PAGE_SIZE;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Where pages are that are not resident.
pub(crate) struct Stores {
    /// Compressed pages.
    pub(crate) pool: Pool,
    /// The swap areas.
    pub(crate) areas: Areas,
    /// What has just left for a slot.
    pub(crate) standby: Standby,
    /// Pages of streams that were read before they were touched.
    pub(crate) read_ahead_pages: ReadAheadPages,
    /// I/O buffers.
    pub(crate) bounce: bounce::Pools,
    /// What the codecs have taken beside their scratch.
    pub(crate) workspaces: Arc<Workspaces>,
    /// Areas that a forked child may open.
    pub(crate) child_areas: ChildAreas,
    /// Whether pages may be written: not in a forked child that has no area of its own
    /// and can open none.
    pub(crate) may_write: AtomicBool,
    /// Counters shared with `softswap run`.
    pub(crate) stats: Stats,
}

impl Stores {
    /// Whether this process may write pages: a forked child does so to areas of its own.
    #[must_use]
    pub(crate) fn may_write(&self) -> bool {
        self.may_write.load(Relaxed)
    }

    /// Seals a page, in place, for a slot that was handed out for it: once.
    pub(crate) fn seal(&self, slot: u64, page: &mut [u8]) {
        if self.areas.is_inherited(slot) {
            // The parent seals with the same key, for the same slots.
            die(self.stats, "a forked child was about to seal a page for its parent's area");
        }
        match self.areas.sealer(slot).seal(slot, self.areas.generation(slot), page) {
            Some(seal) => self.areas.set_seal(slot, seal),
            None => die(self.stats, "a page cannot be encrypted"),
        }
    }

    /// Makes what was read from a slot the page again, in place. False when it is
    /// not what was written there.
    #[must_use]
    pub(crate) fn open_sealed(&self, slot: u64, page: &mut [u8]) -> bool {
        let (generation, seal) = (self.areas.generation(slot), self.areas.seal(slot));
        self.areas.sealer(slot).open(slot, generation, page, seal)
    }

    /// Takes what has left for a slot lately, if it is on the standby list.
    #[must_use]
    pub(crate) fn take_from_standby(&self, slot: u64, page: &mut [u8; PAGE_SIZE]) -> bool {
        self.standby.take((slot, self.areas.generation(slot)), page)
    }

    /// Frees what a place outside the program's memory occupies.
    pub(crate) fn free(&self, place: Place) {
        match place {
            Place::Pool { handle } => self.pool.free(Handle::from_bits(handle)),
            Place::Slot { slot, .. } => self.areas.free(slot, 1),
            Place::Packed { slot, part } => self.areas.free_part(slot, part),
            _ => {}
        }
    }

    /// What all of it takes of DRAM, in bytes.
    #[must_use]
    pub(crate) fn used_bytes(&self) -> usize {
        self.pool.used_bytes()
            + self.areas.metadata_bytes() as usize
            + self.bounce.extra_bytes()
            + self.standby.used_bytes()
            + self.workspaces.touched_bytes()
    }

    /// Counts what discarding came to.
    pub(crate) fn count_discarded(&self, discarded: Discarded) {
        match discarded {
            Discarded::Bytes(bytes) => self.stats.add(Counter::DiscardedBytes, bytes),
            Discarded::Failed => self.stats.add(Counter::DiscardErrors, 1),
            Discarded::Nothing | Discarded::Unsupported => {}
        }
    }

    /// Says how the swap areas are.
    pub(crate) fn report_areas(&self) {
        let failed = self.areas.iter().filter(|area| area.has_failed()).count();
        self.stats.set(Counter::AreasFailed, failed as u64);
        self.stats.set(Counter::SlotsRetired, self.areas.retired_slots());
    }

    /// Says how the bounce buffers are used. Not in a fault: it looks at what
    /// every processor writes to.
    pub(crate) fn report_buffers(&self) {
        let usage = self.bounce.usage();
        let figures = [
            (Counter::BounceSlots, usage.slots as u64),
            (Counter::BounceUsed, usage.used as u64),
            (Counter::BouncePeakSlots, usage.high_water as u64),
            (Counter::BounceTransient, usage.transient as u64),
            (Counter::BounceTakes, usage.takes),
            (Counter::BounceLent, usage.lent),
            (Counter::BounceMisses, usage.misses),
            (Counter::BounceAreasVisited, usage.areas_visited),
            (Counter::BounceContended, usage.contended),
            (Counter::BounceGrown, usage.grown),
            (Counter::BounceReleased, usage.released),
        ];
        figures.into_iter().for_each(|(counter, value)| self.stats.set(counter, value));
    }
}
