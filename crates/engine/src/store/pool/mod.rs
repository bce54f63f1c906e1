//! Compressed pages in DRAM: page-out stores compressed pages here, and page-in looks here first.
//!
//! The pool is divided into slabs of 64 KiB. A used slab holds objects of one size class, and is
//! returned to the system when its last object is freed. If the pool is full, write-back empties
//! the slab that has been in use longest, so every few pages written free a slab.
//!
//! [`compaction`] moves the objects of a class's sparsest slab into gaps of other slabs.
//!
//! # Locks
//!
//! Each slab has a lock for its objects. The directory's lock protects the lists of slabs. It is
//! taken before a slab's lock, never after it. The common store and free lock one slab only: a
//! store first tries the slab that this processor used last ([`current`]), and a free needs the
//! directory only if the slab changes its list.

mod handle;
mod class;
mod list;
mod slab;
mod slabs;
mod current;
mod directory;
mod compaction;
#[cfg(test)]
mod map_tests;
#[cfg(test)]
mod tests;

use class::{CLASS, CLASSES, class_to_take};
use current::{Current, Lane, SLABS_PER_LANE};
use directory::Directory;
pub(crate) use handle::{Damaged, MAX_OBJECT_BYTES, OWNER_BITS, PoolFull};
pub use handle::{Handle, SLAB_BYTES, TAGS};
use slab::Slab;
use slabs::{LOCKED_SLAB_BYTES, Slabs, lock};
use softswap_sys::raw::current_cpu;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// Use in percent below which a pool that was full accepts pages again. Without this gap every
/// freed page would admit another, at random.
const ACCEPT_PERCENT: usize = 90;
/// Maximum number of slabs that one search for the oldest slab skips because they were used.
const MAX_SPARED: usize = 64;

const _: () = assert!(CLASS[0].slots <= 1 << handle::SLOT_BITS && CLASSES <= u8::MAX as usize);
const _: () = assert!(MAX_OBJECT_BYTES < 1 << handle::LENGTH_BITS);

type LockedSlab<'p> = (u32, MutexGuard<'p, Slab>);

pub struct CompressedPool {
    slabs: Slabs,
    directory: Mutex<Directory>,
    current: Current,
    limit_slabs: AtomicUsize,
    used_slabs: AtomicUsize,
    stored_bytes: AtomicUsize,
    objects: [AtomicUsize; CLASSES],
    slabs_of: [AtomicUsize; CLASSES],
    /// Until use falls below [`ACCEPT_PERCENT`] of the limit.
    was_full: AtomicBool,
}

impl CompressedPool {
    /// Reserves `capacity_bytes`, at most 1 TiB, also the first limit. DRAM is used slab by slab.
    pub fn new(capacity_bytes: usize) -> io::Result<CompressedPool> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        CompressedPool::with_current(capacity_bytes, Current::new(cpus, SLABS_PER_LANE))
    }

    /// Ignores the current processor, so its behaviour is reproducible.
    pub fn for_one_thread(capacity_bytes: usize) -> io::Result<CompressedPool> {
        CompressedPool::with_current(capacity_bytes, Current::new(1, SLABS_PER_LANE))
    }

    fn with_current(capacity_bytes: usize, current: Current) -> io::Result<CompressedPool> {
        let slabs = Slabs::new(capacity_bytes / SLAB_BYTES)?;
        let count = slabs.len();
        Ok(CompressedPool {
            slabs,
            directory: Mutex::new(Directory::new(count)),
            current,
            limit_slabs: AtomicUsize::new(count),
            used_slabs: AtomicUsize::new(0),
            stored_bytes: AtomicUsize::new(0),
            objects: [const { AtomicUsize::new(0) }; CLASSES],
            slabs_of: [const { AtomicUsize::new(0) }; CLASSES],
            was_full: AtomicBool::new(false),
        })
    }

    /// Stores page `owner`. The handle returns the caller's `tag`. Fails if no slot is free. Panics
    /// if `owner` has more than [`OWNER_BITS`] bits, or `tag` is not below [`TAGS`].
    pub fn store(&self, compressed: &[u8], owner: u64, tag: u8) -> Result<Handle, PoolFull> {
        self.store_from(current_cpu(), compressed, owner, tag)
    }

    fn store_from(
        &self,
        cpu: usize,
        compressed: &[u8],
        owner: u64,
        tag: u8,
    ) -> Result<Handle, PoolFull> {
        let class = class_to_take(compressed)?;
        let lane = self.lane(class, cpu);
        let found = self.current_slab(class, lane).or_else(|| self.next_slab(class, lane));
        let Some((slab, guard)) = found else {
            self.was_full.store(true, Relaxed);
            return Err(PoolFull);
        };
        Ok(self.put(slab, guard, compressed, owner, tag))
    }

    fn put(
        &self,
        slab: u32,
        mut guard: MutexGuard<'_, Slab>,
        compressed: &[u8],
        owner: u64,
        tag: u8,
    ) -> Handle {
        assert!(owner >> OWNER_BITS == 0 && tag < TAGS, "{owner:#x} or {tag} is out of range");
        let handle = guard.put(slab, compressed, owner, tag);
        self.stored_bytes.fetch_add(compressed.len(), Relaxed);
        self.count(&guard).fetch_add(1, Relaxed);
        handle
    }

    /// Returns false from a full pool until use falls below [`ACCEPT_PERCENT`] of the limit.
    pub fn accepts(&self) -> bool {
        if !self.was_full.load(Relaxed) {
            return true;
        }
        let accepts = self.used_bytes() * 100 < self.limit_bytes() * ACCEPT_PERCENT;
        if accepts {
            self.was_full.store(false, Relaxed);
        }
        accepts
    }

    /// Passes the object to `read`, which must not use the pool, under its slab's lock. Fails if
    /// the checksum is wrong, or the handle is stale.
    pub fn load<R>(&self, handle: Handle, read: impl FnOnce(&[u8]) -> R) -> Result<R, Damaged> {
        let slab = self.slabs.get(handle.slab() as usize).ok_or(Damaged)?;
        let mut guard = slab.lock();
        guard.note_use();
        guard.get(handle).map(read).ok_or(Damaged)
    }

    /// As [`CompressedPool::load`], but does not mark the slab as used. For upkeep.
    pub fn peek<R>(&self, handle: Handle, read: impl FnOnce(&[u8]) -> R) -> Result<R, Damaged> {
        let slab = self.slabs.get(handle.slab() as usize).ok_or(Damaged)?;
        slab.lock().get(handle).map(read).ok_or(Damaged)
    }

    /// Returns the handle of a live object from its upper bits. Marks the slab as used.
    pub fn handle_of(&self, object: u64) -> Option<Handle> {
        let (slab, slot) = (object >> handle::SLOT_BITS, object & ((1 << handle::SLOT_BITS) - 1));
        let mut guard = self.slabs.get(slab as usize)?.lock();
        guard.note_use();
        guard.handle(slab as u32, slot as u16)
    }

    /// Returns a random owner, weighted by size; `None` if the selected slot is empty.
    pub fn owner_at_random(&self, random: u64) -> Option<u64> {
        let slab = ((random >> 32) as usize * self.slabs.len()) >> 32;
        self.slabs.get(slab)?.lock().owner_at_random(random as u32)
    }

    /// Frees the object; a stale handle has no effect.
    pub fn free(&self, handle: Handle) {
        let Some(slab) = self.slabs.get(handle.slab() as usize) else {
            debug_assert!(false, "free of a {handle:?} beyond the pool");
            return;
        };
        let mut guard = slab.lock();
        if !guard.remove(handle) {
            debug_assert!(false, "free of a stale {handle:?}");
            return;
        }
        // Under the lock, so that the counts never fall below zero.
        self.stored_bytes.fetch_sub(handle.compressed_bytes(), Relaxed);
        self.count(&guard).fetch_sub(1, Relaxed);
        let changes_list = guard.is_empty()
            || (guard.has_free_slot() && guard.listed.is_none_or(|group| guard.group() < group));
        drop(guard);
        if changes_list {
            self.relist(handle.slab());
        }
    }

    pub(crate) fn damage(&self, handle: Handle, bit: usize) {
        if let Some(slab) = self.slabs.get(handle.slab() as usize) {
            slab.lock().damage(handle, bit);
        }
    }

    fn count(&self, slab: &Slab) -> &AtomicUsize {
        &self.objects[slab.class().unwrap_or(0)]
    }

    /// Lists live objects of the slab in use longest, for write-back. A slab used since its last
    /// check gets a second chance. The slab accepts no more objects, and becomes the youngest when
    /// all are listed. The caller frees each written object. Returns 0 if nothing is stored.
    pub fn oldest(&self, out: &mut [(u64, Handle)]) -> usize {
        if out.is_empty() {
            return 0;
        }
        let mut spared = 0;
        // Skip slabs that are about to be released, and continue a partly listed one.
        for _ in 0..=self.slabs.len() + MAX_SPARED {
            let mut directory = self.directory();
            let Some(slab) = directory.oldest() else {
                return 0;
            };
            let mut guard = self.slabs[slab as usize].lock();
            let is_used = std::mem::take(&mut guard.referenced) && guard.listed_to == 0;
            if is_used && !guard.closed && spared < MAX_SPARED {
                spared += 1;
                directory.make_youngest(slab);
                continue;
            }
            guard.closed = true;
            directory.list(slab, &mut guard);
            let count = guard.list_live(slab, out);
            if guard.listed_to == 0 {
                directory.make_youngest(slab);
            }
            if count > 0 {
                return count;
            }
        }
        0
    }

    /// Makes an object the next of [`CompressedPool::oldest`] again: its closed slab must become
    /// empty.
    pub(crate) fn return_oldest(&self, handle: Handle) {
        let Some(slab) = self.slabs.get(handle.slab() as usize) else { return };
        let mut directory = self.directory();
        if slab.lock().list_again_from(handle) {
            directory.make_oldest(handle.slab());
        }
    }

    pub fn used_bytes(&self) -> usize {
        self.used_slabs.load(Relaxed) * SLAB_BYTES
    }

    pub fn stored_bytes(&self) -> usize {
        self.stored_bytes.load(Relaxed)
    }

    pub fn objects(&self) -> usize {
        self.objects.iter().map(|count| count.load(Relaxed)).sum()
    }

    pub fn limit_bytes(&self) -> usize {
        self.limit_slabs.load(Relaxed) * SLAB_BYTES
    }

    /// Slabs above the limit stay until their objects are written back or freed.
    pub fn set_limit_bytes(&self, limit_bytes: usize) {
        self.limit_slabs.store((limit_bytes / SLAB_BYTES).min(self.slabs.len()), Relaxed);
    }

    /// Reserves space for a limit of `capacity_bytes`. Returns the additional bytes of the tables.
    pub(crate) fn grow(&self, capacity_bytes: usize) -> io::Result<usize> {
        let mut directory = self.directory();
        let before = self.metadata_bytes();
        self.slabs.grow(capacity_bytes / SLAB_BYTES)?;
        directory.grow(self.slabs.len());
        Ok(self.metadata_bytes() - before)
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        size_of::<CompressedPool>()
            + self.current.metadata_bytes()
            + self.slabs.len() * (LOCKED_SLAB_BYTES + 2 * size_of::<list::Link>())
    }

    fn lane(&self, class: usize, cpu: usize) -> Lane {
        let (slabs, all) = (&self.slabs_of[class], &self.used_slabs);
        self.current.lane(cpu, slabs.load(Relaxed), all.load(Relaxed))
    }

    fn current_slab(&self, class: usize, lane: Lane) -> Option<LockedSlab<'_>> {
        let slab = self.current.get(class, lane);
        let guard = self.slabs.get(slab as usize)?.lock();
        (guard.class() == Some(class) && guard.has_free_slot()).then_some((slab, guard))
    }

    /// Returns a slab with a free slot that no other lane uses, a free slab, or any slab with slots
    /// up to twice as large. In a larger slot a small object would displace a large one.
    fn next_slab(&self, class: usize, lane: Lane) -> Option<LockedSlab<'_>> {
        let mut directory = self.directory();
        let found = self
            .lanes_slab(&mut directory, class, lane)
            .or_else(|| self.nearby_slab(&mut directory, class));
        if found.is_none()
            && let Some((slab, mut guard)) = self.open_slab(&mut directory, class)
        {
            self.current.set(class, lane, slab);
            // Populating is slow, so only the slab's lock is held.
            drop(directory);
            guard.populate();
            return Some((slab, guard));
        }
        let (slab, guard) = found.or_else(|| self.any_slab(&mut directory, class))?;
        if guard.class() == Some(class) {
            self.current.set(class, lane, slab);
        }
        Some((slab, guard))
    }

    fn lanes_slab(
        &self,
        directory: &mut Directory,
        class: usize,
        lane: Lane,
    ) -> Option<LockedSlab<'_>> {
        self.slab_with_free_slot(directory, class, |slab| {
            self.current.is_current_elsewhere(class, lane, slab)
        })
    }

    fn any_slab(&self, directory: &mut Directory, class: usize) -> Option<LockedSlab<'_>> {
        self.slab_with_free_slot(directory, class, |_| false)
            .or_else(|| self.larger_slot(directory, class, 2 * CLASS[class].slot_bytes))
    }

    /// Returns a slab of a slightly larger class for the first object of `class`, if newly opened
    /// slabs would be most of the pool. In a larger pool each class gets its own slabs, because a
    /// slot that is too large wastes space until it is freed.
    fn nearby_slab(&self, directory: &mut Directory, class: usize) -> Option<LockedSlab<'_>> {
        let is_small = self.used_slabs.load(Relaxed) < 2 * CLASSES;
        if !is_small || self.slabs_of[class].load(Relaxed) > 0 {
            return None;
        }
        self.larger_slot(directory, class, CLASS[class].slot_bytes * 3 / 2)
    }

    fn larger_slot(
        &self,
        directory: &mut Directory,
        class: usize,
        most_bytes: usize,
    ) -> Option<LockedSlab<'_>> {
        (class + 1..CLASSES)
            .take_while(|&larger| CLASS[larger].slot_bytes <= most_bytes)
            .find_map(|larger| self.slab_with_free_slot(directory, larger, |_| false))
    }

    fn slab_with_free_slot(
        &self,
        directory: &mut Directory,
        class: usize,
        is_skipped_slab: impl Fn(u32) -> bool,
    ) -> Option<LockedSlab<'_>> {
        loop {
            let slab = directory.with_free_slots(class).find(|&slab| !is_skipped_slab(slab))?;
            let mut guard = self.slabs[slab as usize].lock();
            // Stores fill slabs without updating the directory.
            directory.list(slab, &mut guard);
            if guard.has_free_slot() {
                return Some((slab, guard));
            }
        }
    }

    fn open_slab(&self, directory: &mut Directory, class: usize) -> Option<LockedSlab<'_>> {
        // `used_slabs` grows only under the directory's lock.
        if self.used_slabs.load(Relaxed) >= self.limit_slabs.load(Relaxed) {
            return None;
        }
        let slab = directory.take_free()?;
        let mut guard = self.slabs[slab as usize].lock();
        guard.open(class);
        directory.list(slab, &mut guard);
        self.used_slabs.fetch_add(1, Relaxed);
        self.slabs_of[class].fetch_add(1, Relaxed);
        Some((slab, guard))
    }

    /// Checks the slab's present state, because other threads store and free concurrently.
    fn relist(&self, slab: u32) {
        let mut directory = self.directory();
        let mut guard = self.slabs[slab as usize].lock();
        let Some(class) = guard.class() else {
            return;
        };
        if !guard.is_empty() {
            directory.list(slab, &mut guard);
            return;
        }
        directory.retire(slab, &mut guard);
        // The slab is on no list now. Returning memory is slow, so only the slab's lock is held.
        drop(directory);
        guard.release();
        drop(guard);
        self.used_slabs.fetch_sub(1, Relaxed);
        self.slabs_of[class].fetch_sub(1, Relaxed);
        self.directory().release_slab(slab);
    }

    fn directory(&self) -> MutexGuard<'_, Directory> {
        lock(&self.directory)
    }
}
