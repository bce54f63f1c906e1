//! Compaction: what is left in a class's sparsest slab goes into the gaps of
//! its others, and the slab back to the system.
//!
//! The pool finds the slab and the gaps; moving an object is the caller's,
//! because its page's entry has to name the new place.

use super::class::{CLASS, CLASSES, class_to_take};
use super::layout::{PoolFull, SLAB_BYTES};
use super::{Handle, Pool};
use softswap_sys::raw::current_cpu;
use std::sync::atomic::Ordering::Relaxed;

/// Compaction begins when more than this share of the pool is gaps, in percent,
/// beside the slabs that each class may have begun.
const LOOSE_PERCENT: usize = 2;

impl Pool {
    /// A slab to be emptied into the gaps of others, if that is worth while: its
    /// class has whole slabs' worth of gaps, and gaps are a good share of the
    /// pool. It takes no more objects until [`Pool::reopen`].
    #[must_use]
    pub fn sparsest(&self) -> Option<u32> {
        let (class, gaps) = (0..CLASSES)
            .map(|class| (class, self.gaps(class)))
            .max_by_key(|&(class, gaps)| gaps * CLASS[class].slot_bytes)?;
        let used_bytes = self.used_bytes();
        let loose_bytes: usize = (0..CLASSES)
            .map(|class| {
                let slabs = self.slabs_of[class].load(Relaxed);
                let begun = self.current.lanes(slabs, used_bytes / SLAB_BYTES);
                self.gaps(class).saturating_sub(begun * CLASS[class].slots / 2)
            })
            .zip(CLASS)
            .map(|(gaps, class)| gaps * class.slot_bytes)
            .sum();
        if loose_bytes * 100 <= used_bytes * LOOSE_PERCENT {
            return None;
        }
        let mut directory = self.directory();
        let slab = directory.sparsest(class)?;
        let mut guard = self.slabs[slab as usize].lock();
        // What others have free, without this one.
        let own_gaps = CLASS[class].slots - guard.live();
        if guard.class() != Some(class) || gaps < own_gaps + guard.live() {
            return None;
        }
        guard.closed = true;
        guard.listed_to = 0;
        directory.list(slab, &mut guard);
        Some(slab)
    }

    /// Slots of a class that nothing is in.
    fn gaps(&self, class: usize) -> usize {
        let slots = self.slabs_of[class].load(Relaxed) * CLASS[class].slots;
        slots.saturating_sub(self.objects[class].load(Relaxed))
    }

    /// Owners and handles of a slab's live objects, going on where the last call
    /// ended; whether there may be more.
    pub(super) fn list(&self, slab: u32, out: &mut [(u64, Handle)]) -> (usize, bool) {
        let mut guard = self.slabs[slab as usize].lock();
        let count = guard.list_live(slab, out);
        (count, guard.listed_to != 0)
    }

    /// Hands owner and handle of each of a slab's live objects to `visit`, which
    /// may use the pool.
    pub fn each_object(&self, slab: u32, mut visit: impl FnMut(u64, Handle)) {
        let mut listed = [(0, Handle::default()); 32];
        loop {
            let (count, more) = self.list(slab, &mut listed);
            listed[..count].iter().for_each(|&(owner, handle)| visit(owner, handle));
            if !more {
                return;
            }
        }
    }

    /// Stores an object where there is a gap for it; no slab is taken into use.
    ///
    /// # Errors
    /// When there is none.
    ///
    /// # Panics
    /// As [`Pool::store`].
    pub fn store_in_gap(&self, packed: &[u8], owner: u64, tag: u8) -> Result<Handle, PoolFull> {
        let class = class_to_take(packed)?;
        let lane = self.lane(class, current_cpu());
        let found = self.current_slab(class, lane).or_else(|| {
            let mut directory = self.directory();
            // What lies in a slot too large for it may find only such ones.
            self.lanes_slab(&mut directory, class, lane)
                .or_else(|| self.any_slab(&mut directory, class))
        });
        let (slab, guard) = found.ok_or(PoolFull)?;
        Ok(self.put(slab, guard, packed, owner, tag))
    }

    /// Ends what [`Pool::sparsest`] began. A slab in which something is left
    /// takes objects again.
    pub fn reopen(&self, slab: u32) {
        let mut directory = self.directory();
        let mut guard = self.slabs[slab as usize].lock();
        if guard.class().is_some() && !guard.is_empty() {
            guard.closed = false;
            directory.list(slab, &mut guard);
        }
    }
}
