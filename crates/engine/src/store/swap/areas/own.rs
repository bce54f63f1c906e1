//! The process's own areas and inherited ones.
//!
//! A forked child reads its parent's areas through private copies of the tables, and allocates none
//! of their slots. It writes to areas that it adds. Each of these has a different key, because
//! slots and generations repeat in the areas of different processes.

use super::super::area::{AreaError, SwapArea};
use super::{Backing, Entry, MAX_AREAS, SwapAreas, index_of};
use crate::codec::seal::Sealer;
use crate::store::io::poll::Polling;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};

impl SwapAreas {
    /// Marks all areas as the parent's, in a child. Returns false if it cannot read all pages.
    pub(crate) fn inherit(&self) -> bool {
        self.first_own.store(self.count(), Release);
        *self.lock_freezes() = 0;
        self.sealers().for_each(Sealer::become_child);
        // Every area must inherit, even after one failed.
        self.iter().filter(|area| !area.inherit()).count() == 0
    }

    /// Prepares the present keys for a child before a fork, if any slot is used.
    pub(crate) fn hand_down_keys(&self) {
        if self.own_used_slots() > 0 {
            self.sealers().for_each(Sealer::hand_down);
        }
    }

    pub(crate) fn have_space(&self) -> bool {
        self.count() < MAX_AREAS
    }

    pub(crate) fn add(
        &self,
        backing: Backing,
        cpus: usize,
        polling: Polling,
        sealer: Sealer,
    ) -> Result<(), AreaError> {
        let count = self.count();
        let Some(place) = self.list.get(count) else {
            return Err(AreaError::Count { areas: count + 1, most: MAX_AREAS });
        };
        let area = backing.into_area(cpus, |_| polling)?;
        // A thaw ends one freeze in each area, so freeze the new area as often as the others.
        let freezes = self.lock_freezes();
        (0..*freezes).for_each(|_| area.freeze());
        if place.set(Entry { area, sealer: Arc::new(sealer) }).is_ok() {
            self.count.store(count + 1, Release);
        }
        Ok(())
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Acquire)
    }

    pub(super) fn first_own(&self) -> usize {
        self.first_own.load(Acquire)
    }

    pub(crate) fn has_inherited(&self) -> bool {
        self.first_own() > 0
    }

    pub(crate) fn has_own(&self) -> bool {
        self.first_own() < self.count()
    }

    /// Returns true if a slot is in an inherited area: it is never written or reused.
    pub(crate) fn is_inherited(&self, slot: u64) -> bool {
        index_of(slot) < self.first_own()
    }

    pub(crate) fn own(&self) -> impl Iterator<Item = &SwapArea> {
        self.iter().skip(self.first_own())
    }

    /// Counts the slots of own areas, including those freed during a freeze.
    pub(crate) fn own_used_slots(&self) -> u64 {
        self.own().map(SwapArea::used_slots).sum()
    }

    pub(crate) fn freeze(&self) {
        let mut freezes = self.lock_freezes();
        *freezes += 1;
        self.own().for_each(SwapArea::freeze);
    }

    pub(crate) fn thaw(&self) {
        let mut freezes = self.lock_freezes();
        *freezes = freezes.saturating_sub(1);
        self.own().for_each(SwapArea::thaw);
    }

    fn lock_freezes(&self) -> MutexGuard<'_, u32> {
        self.freezes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sealer(&self, slot: u64) -> &Sealer {
        &self.entry(index_of(slot)).sealer
    }

    /// Iterates over the sealers, each once: areas that were opened together share one.
    pub(crate) fn sealers(&self) -> impl Iterator<Item = &Sealer> {
        let mut before = std::ptr::null();
        let entries = self.list.iter().map_while(OnceLock::get);
        let sealers = entries.map(|entry| &*entry.sealer);
        sealers.filter(move |sealer| {
            let sealer = std::ptr::from_ref(*sealer);
            std::mem::replace(&mut before, sealer) != sealer
        })
    }
}
