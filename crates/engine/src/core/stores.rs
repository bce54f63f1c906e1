//! Storage of evicted pages, and the seal of pages that leave DRAM.

use crate::base::page::Place;
use crate::base::stats::{Counter, Stats};
use crate::codec::Workspaces;
use crate::core::errors::die;
use crate::store::bounce;
use crate::store::pool::{CompressedPool, Handle};
use crate::store::read_ahead_pages::ReadAheadPages;
use crate::store::standby::Standby;
use crate::store::swap::area::Discarded;
use crate::store::swap::{ChildAreas, SwapAreas};
use softswap_sys::PAGE_SIZE;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub(crate) struct Stores {
    pub(crate) pool: CompressedPool,
    pub(crate) areas: SwapAreas,
    pub(crate) standby: Standby,
    pub(crate) read_ahead_pages: ReadAheadPages,
    pub(crate) bounce: bounce::BouncePools,
    pub(crate) workspaces: Arc<Workspaces>,
    pub(crate) child_areas: ChildAreas,
    /// False in a forked child that has only inherited areas and can open none.
    pub(crate) may_write: AtomicBool,
    pub(crate) stats: Stats,
}

impl Stores {
    pub(crate) fn may_write(&self) -> bool {
        self.may_write.load(Relaxed)
    }

    /// Seals a page in place for its slot. Must be called at most once per allocation of the slot,
    /// because slot and generation are the nonce.
    pub(crate) fn seal(&self, slot: u64, page: &mut [u8]) {
        if self.areas.is_inherited(slot) {
            // The parent seals pages for the same slots with the same key: a nonce would repeat.
            die(self.stats, "a forked child was about to seal a page for its parent's area");
        }
        let (area, local) = self.areas.of(slot);
        match self.areas.sealer(slot).seal(slot, area.generation(local), page) {
            Some(seal) => area.set_seal(local, seal),
            None => die(self.stats, "a page cannot be encrypted"),
        }
    }

    /// Opens a sealed page in place. Returns false if it is not what was written to the slot.
    #[must_use]
    pub(crate) fn open_sealed(&self, slot: u64, page: &mut [u8]) -> bool {
        let (area, local) = self.areas.of(slot);
        self.areas.sealer(slot).open(slot, area.generation(local), page, area.seal(local))
    }

    /// Copies a page from the standby list. Returns false if the list does not contain the page.
    #[must_use]
    pub(crate) fn take_from_standby(&self, slot: u64, page: &mut [u8; PAGE_SIZE]) -> bool {
        self.standby.take((slot, self.areas.generation(slot)), page)
    }

    pub(crate) fn free(&self, place: Place) {
        match place {
            Place::Pool { handle } => self.pool.free(Handle::from_bits(handle)),
            Place::Slot { slot, .. } => self.areas.free(slot, 1),
            Place::CompressedSlot { slot, part } => {
                let (area, slot) = self.areas.of(slot);
                area.free_part(slot, part);
            }
            _ => {}
        }
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.pool.used_bytes()
            + self.areas.metadata_bytes() as usize
            + self.bounce.extra_bytes()
            + self.standby.used_bytes()
            + self.workspaces.touched_bytes()
    }

    pub(crate) fn count_discarded(&self, discarded: Discarded) {
        match discarded {
            Discarded::Bytes(bytes) => self.stats.add(Counter::DiscardedBytes, bytes),
            Discarded::Failed => self.stats.add(Counter::DiscardErrors, 1),
            Discarded::Nothing | Discarded::Unsupported => {}
        }
    }

    pub(crate) fn report_areas(&self) {
        let failed = self.areas.iter().filter(|area| area.has_failed()).count();
        self.stats.set(Counter::AreasFailed, failed as u64);
        self.stats.set(Counter::SlotsRetired, self.areas.retired_slots());
    }

    /// Not called in faults: it reads cache lines that every CPU writes.
    pub(crate) fn report_buffers(&self) {
        let usage = self.bounce.usage();
        let figures = [
            (Counter::BounceSlots, usage.pages as u64),
            (Counter::BounceUsed, usage.used as u64),
            (Counter::BouncePeakSlots, usage.high_water as u64),
            (Counter::BounceTransient, usage.transient as u64),
            (Counter::BounceTakes, usage.takes),
            (Counter::BounceLent, usage.transient_total),
            (Counter::BounceMisses, usage.misses),
            (Counter::BounceAreasVisited, usage.areas_visited),
            (Counter::BounceContended, usage.contended),
            (Counter::BounceGrown, usage.grown),
            (Counter::BounceReleased, usage.released),
        ];
        figures.into_iter().for_each(|(counter, value)| self.stats.set(counter, value));
    }
}
