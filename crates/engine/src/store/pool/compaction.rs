//! Compaction: moves the objects of a class's sparsest slab into gaps of its other slabs, and
//! returns the slab to the system.
//!
//! The caller moves the objects, because the entry of each page must name the new location.

use super::class::{CLASS, CLASSES, class_to_take};
use super::handle::{PoolFull, SLAB_BYTES};
use super::{CompressedPool, Handle};
use softswap_sys::raw::current_cpu;
use std::sync::atomic::Ordering::Relaxed;

/// Percentage of gaps above which compaction starts, without half a slab per current slab.
const LOOSE_PERCENT: usize = 2;

impl CompressedPool {
    /// Selects a slab to empty, if gaps are a large share of the pool and the class has enough of
    /// them. The slab accepts no objects until [`CompressedPool::reopen`].
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
        // Compare with the gaps of the other slabs.
        let own_gaps = CLASS[class].slots - guard.live();
        if guard.class() != Some(class) || gaps < own_gaps + guard.live() {
            return None;
        }
        guard.closed = true;
        guard.listed_to = 0;
        directory.list(slab, &mut guard);
        Some(slab)
    }

    fn gaps(&self, class: usize) -> usize {
        let slots = self.slabs_of[class].load(Relaxed) * CLASS[class].slots;
        slots.saturating_sub(self.objects[class].load(Relaxed))
    }

    /// Lists live objects from where the last call ended. Returns true if there may be more.
    pub(super) fn list(&self, slab: u32, out: &mut [(u64, Handle)]) -> (usize, bool) {
        let mut guard = self.slabs[slab as usize].lock();
        let count = guard.list_live(slab, out);
        (count, guard.listed_to != 0)
    }

    /// Passes owner and handle of each live object of a slab to `visit`, which may use the pool.
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

    /// Stores an object in a gap of a used slab. Panics as [`CompressedPool::store`].
    pub fn store_in_gap(&self, compressed: &[u8], owner: u64, tag: u8) -> Result<Handle, PoolFull> {
        let class = class_to_take(compressed)?;
        let lane = self.lane(class, current_cpu());
        let found = self.current_slab(class, lane).or_else(|| {
            let mut directory = self.directory();
            // An object that is stored in a larger slot may find a gap only in such slabs.
            self.lanes_slab(&mut directory, class, lane)
                .or_else(|| self.any_slab(&mut directory, class))
        });
        let (slab, guard) = found.ok_or(PoolFull)?;
        Ok(self.put(slab, guard, compressed, owner, tag))
    }

    /// Ends the compaction of a slab. If objects are left, it accepts objects again.
    pub fn reopen(&self, slab: u32) {
        let mut directory = self.directory();
        let mut guard = self.slabs[slab as usize].lock();
        if guard.class().is_some() && !guard.is_empty() {
            guard.closed = false;
            directory.list(slab, &mut guard);
        }
    }
}
