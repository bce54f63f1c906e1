//! Areas of a process's own, and those that it has inherited.
//!
//! A forked child reads the areas that its parent had, by tables that are its private
//! copy, and hands out none of their slots. What it writes goes to areas that it adds.
//! Each is sealed under a key of its own: slots and generations begin anew in it.

use super::super::area::{Area, AreaError};
use super::{Areas, Backing, Entry, MAX_AREAS, index_of};
use crate::codec::seal::Sealer;
use crate::store::io::poll::Polling;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};

impl Areas {
    /// In a forked child: from now on the areas that exist are the parent's. Returns false if the
    /// child cannot read all that its parent has stored there.
    pub(crate) fn inherit(&self) -> bool {
        self.first_own.store(self.count(), Release);
        *self.lock_freezes() = 0;
        self.sealers().for_each(Sealer::become_child);
        // Every area takes the step, also after one that failed.
        self.iter().filter(|area| !area.inherit()).count() == 0
    }

    /// Before a fork: lets the child have the keys of what is stored now, if it reads any of it.
    pub(crate) fn hand_down_keys(&self) {
        if self.own_used_slots() > 0 {
            self.sealers().for_each(Sealer::hand_down);
        }
    }

    /// In the parent after a fork: what is written from now on is sealed with keys that the child
    /// does not have.
    pub(crate) fn change_keys(&self) {
        self.sealers().for_each(Sealer::end_epoch);
    }

    /// Whether another one can be added.
    #[must_use]
    pub(crate) fn have_room(&self) -> bool {
        self.count() < MAX_AREAS
    }

    /// Adds an area, sealed with a key of its own.
    ///
    /// # Errors
    /// When it cannot be made.
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
        // Each freeze ends in all areas.
        let freezes = self.lock_freezes();
        (0..*freezes).for_each(|_| area.freeze());
        if place.set(Entry { area, sealer: Arc::new(sealer) }).is_ok() {
            self.count.store(count + 1, Release);
        }
        Ok(())
    }

    /// How many there are, inherited ones included.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Acquire)
    }

    /// How many are inherited: they come first.
    #[must_use]
    pub(super) fn first_own(&self) -> usize {
        self.first_own.load(Acquire)
    }

    /// Whether slots of a parent's areas are among what this process reads.
    #[must_use]
    pub(crate) fn has_inherited(&self) -> bool {
        self.first_own() > 0
    }

    /// Whether the process has an area of its own.
    #[must_use]
    pub(crate) fn has_own(&self) -> bool {
        self.first_own() < self.count()
    }

    /// Whether a slot is a parent's: never written, and never handed out again.
    #[must_use]
    pub(crate) fn is_inherited(&self, slot: u64) -> bool {
        index_of(slot) < self.first_own()
    }

    /// Those that slots are handed out from.
    pub(super) fn own(&self) -> impl Iterator<Item = &Area> {
        self.iter().skip(self.first_own())
    }

    /// Slots taken in the process's own areas, those freed in a freeze included.
    #[must_use]
    pub(crate) fn own_used_slots(&self) -> u64 {
        self.own().map(Area::used_slots).sum()
    }

    /// From now on the slots in use keep their content when they are freed, until
    /// [`Areas::thaw`].
    pub(crate) fn freeze(&self) {
        let mut freezes = self.lock_freezes();
        *freezes += 1;
        self.own().for_each(Area::freeze);
    }

    /// Ends one freeze.
    pub(crate) fn thaw(&self) {
        let mut freezes = self.lock_freezes();
        *freezes = freezes.saturating_sub(1);
        self.own().for_each(Area::thaw);
    }

    fn lock_freezes(&self) -> MutexGuard<'_, u32> {
        self.freezes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What seals the pages of a slot's area.
    pub(crate) fn sealer(&self, slot: u64) -> &Sealer {
        &self.entry(index_of(slot)).sealer
    }

    /// Each once: areas that were opened together share one.
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
