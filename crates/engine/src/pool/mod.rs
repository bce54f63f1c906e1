//! Compressed pages in DRAM: where page-out puts what the codec has packed,
//! and the first place beyond the page table that page-in looks into.
//!
//! The pool is one reservation cut into slabs of 64 KiB. A slab in use holds
//! objects of one size class and goes back to the system as a whole when its
//! last object leaves, so what counts against the budget is whole slabs. When
//! the pool is full, writeback empties it slab by slab, the one longest in use
//! first: that way every page written frees memory soon, and none of it is
//! spread over slabs that stay.
//!
//! # Locks
//! Each slab has a lock, under which its objects are read and written; the
//! directory's lock guards the lists that say which slabs are free, have room,
//! and in which order they came into use. The directory is locked before a
//! slab, never after. The common store and free lock one slab only: a store
//! tries the slab that its class used last, and a free needs the directory
//! only when the slab becomes empty or was full.

mod class;
mod list;
mod slab;
#[cfg(test)]
mod tests;

use class::{CLASS, CLASSES, class_for};
use list::{Link, List, NONE};
use slab::{LENGTH_BITS, STAMP_BITS, Slab};
use softswap_sys::memory::reserve_bytes;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// Bytes of a slab, the unit in which the pool takes and returns memory.
pub const SLAB_BYTES: usize = 64 << 10;
/// The largest object the pool takes.
pub const MAX_OBJECT_BYTES: usize = 3072;
/// An owner is a page number of at most this many bits.
pub const OWNER_BITS: u32 = 40;
/// A pool has at most 2^24 slabs: 1 TiB.
const SLAB_BITS: u32 = 24;
const SLOT_BITS: u32 = 10;
const HEADER_BYTES: usize = size_of::<u64>();

const _: () = assert!(SLAB_BITS + SLOT_BITS + STAMP_BITS + LENGTH_BITS == 58);
const _: () = assert!(CLASS[0].slots <= 1 << SLOT_BITS && CLASSES <= u8::MAX as usize);
const _: () = assert!(MAX_OBJECT_BYTES < 1 << LENGTH_BITS);

/// The pool has no slab left and no slot that the object fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the compressed pool is full")]
pub struct PoolFull;

/// Where one object is, in 58 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Handle(u64);

impl Handle {
    fn new(slab: u32, slot: u16, stamp: u16, packed_bytes: usize) -> Handle {
        let bits = u64::from(slab) << SLOT_BITS | u64::from(slot);
        let bits = bits << STAMP_BITS | u64::from(stamp);
        Handle(bits << LENGTH_BITS | packed_bytes as u64)
    }

    /// The handle as a page-table entry keeps it.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The handle that [`Handle::to_bits`] gave. Bits that no store returned
    /// give a handle that the pool does not recognise.
    #[must_use]
    pub fn from_bits(bits: u64) -> Handle {
        Handle(bits)
    }

    /// The object's length.
    #[must_use]
    pub fn packed_bytes(self) -> usize {
        (self.0 & ((1 << LENGTH_BITS) - 1)) as usize
    }

    fn stamp(self) -> u16 {
        (self.0 >> LENGTH_BITS) as u16 & ((1 << STAMP_BITS) - 1)
    }

    fn slot(self) -> u16 {
        (self.0 >> (LENGTH_BITS + STAMP_BITS)) as u16 & ((1 << SLOT_BITS) - 1)
    }

    fn slab(self) -> u32 {
        (self.0 >> (LENGTH_BITS + STAMP_BITS + SLOT_BITS)) as u32
    }
}

/// Slabs that come into use together are neighbours: their locks must not
/// share a cache line.
#[repr(align(64))]
struct LockedSlab(Mutex<Slab>);

const _: () = assert!(size_of::<LockedSlab>() == 64);

/// The compressed pool.
pub struct Pool {
    slabs: Box<[LockedSlab]>,
    directory: Mutex<Directory>,
    /// The slab that each class stored into last: a hint, checked under the
    /// slab's lock.
    current: [AtomicU32; CLASSES],
    used_slabs: AtomicUsize,
    stored_bytes: AtomicUsize,
    objects: AtomicUsize,
}

/// Which slab is where. A slab is free, or in use and on the age list, and
/// then possibly also among those of its class with room.
struct Directory {
    free: List,
    with_room: [List; CLASSES],
    /// Longest in use first.
    by_age: List,
    /// A slab is never both free and with room, so these share links.
    links: Box<[Link]>,
    age_links: Box<[Link]>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under a lock is a bug of ours; refusing every page after it
    // would turn one lost page into all of them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LockedSlab {
    fn lock(&self) -> MutexGuard<'_, Slab> {
        lock(&self.0)
    }
}

impl Pool {
    /// Reserves address space for `limit_bytes` (rounded down to slabs, at
    /// most 1 TiB) and makes the tables; DRAM is used as objects come.
    pub fn new(limit_bytes: usize) -> io::Result<Pool> {
        let count = (limit_bytes / SLAB_BYTES).min(1 << SLAB_BITS);
        let memory: &'static mut [u8] =
            if count == 0 { &mut [] } else { reserve_bytes(count * SLAB_BYTES)? };
        let (chunks, _) = memory.as_chunks_mut::<SLAB_BYTES>();
        let mut directory = Directory {
            free: List::EMPTY,
            with_room: [List::EMPTY; CLASSES],
            by_age: List::EMPTY,
            links: vec![Link::UNLINKED; count].into(),
            age_links: vec![Link::UNLINKED; count].into(),
        };
        for slab in 0..count as u32 {
            directory.free.push_last(&mut directory.links, slab);
        }
        Ok(Pool {
            slabs: chunks
                .iter_mut()
                .map(|bytes| LockedSlab(Mutex::new(Slab::new(bytes))))
                .collect(),
            directory: Mutex::new(directory),
            current: [const { AtomicU32::new(NONE) }; CLASSES],
            used_slabs: AtomicUsize::new(0),
            stored_bytes: AtomicUsize::new(0),
            objects: AtomicUsize::new(0),
        })
    }

    /// Stores what page `owner` was packed to.
    ///
    /// # Panics
    /// When `owner` has more than [`OWNER_BITS`] bits: cut short, it would
    /// name another page.
    pub fn store(&self, packed: &[u8], owner: u64) -> Result<Handle, PoolFull> {
        assert!(owner >> OWNER_BITS == 0, "page number {owner:#x} is out of range");
        if packed.is_empty() || packed.len() > MAX_OBJECT_BYTES {
            debug_assert!(false, "{} bytes are not the pool's to store", packed.len());
            return Err(PoolFull);
        }
        let class = class_for(packed.len());
        let (slab, mut guard) =
            self.current_slab(class).or_else(|| self.next_slab(class)).ok_or(PoolFull)?;
        let handle = guard.put(slab, packed, owner);
        self.stored_bytes.fetch_add(packed.len(), Relaxed);
        self.objects.fetch_add(1, Relaxed);
        Ok(handle)
    }

    /// Hands the object to `read`, under its slab's lock; nothing at all if
    /// the handle is stale, which no packed page is. `read` must not use the
    /// pool.
    pub fn load<R>(&self, handle: Handle, read: impl FnOnce(&[u8]) -> R) -> R {
        let guard = self.slabs.get(handle.slab() as usize).map(LockedSlab::lock);
        let object = guard.as_ref().and_then(|slab| slab.get(handle));
        debug_assert!(object.is_some(), "load of a stale {handle:?}");
        read(object.unwrap_or(&[]))
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
        self.stored_bytes.fetch_sub(handle.packed_bytes(), Relaxed);
        self.objects.fetch_sub(1, Relaxed);
        let moves = guard.is_empty() || (guard.has_room() && !guard.listed);
        drop(guard);
        if moves {
            self.settle(handle.slab());
        }
    }

    /// Candidates for writeback: owners and handles of live objects of the
    /// slab longest in use. They stay stored; the caller frees each one that
    /// it has written. The slab takes no more objects, and once it has been
    /// gone through it is the youngest, whatever the caller did. Zero when
    /// nothing is stored.
    pub fn oldest(&self, out: &mut [(u64, Handle)]) -> usize {
        if out.is_empty() {
            return 0;
        }
        // Passes over slabs that are about to be released, and comes back to
        // the first one if that was left in its middle.
        for _ in 0..=self.slabs.len() {
            let mut directory = lock(&self.directory);
            let Some(slab) = directory.by_age.first() else {
                return 0;
            };
            let mut guard = self.slabs[slab as usize].lock();
            directory.unlist(slab, &mut guard);
            guard.closed = true;
            let count = guard.list_live(slab, out);
            if guard.written_back_to == 0 {
                directory.make_youngest(slab);
            }
            if count > 0 {
                return count;
            }
        }
        0
    }

    /// Whole slabs in use: what the pool takes of the budget.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.used_slabs.load(Relaxed) * SLAB_BYTES
    }

    /// The objects' own bytes.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        self.stored_bytes.load(Relaxed)
    }

    /// How many objects there are.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.objects.load(Relaxed)
    }

    /// What [`Pool::used_bytes`] never exceeds.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.slabs.len() * SLAB_BYTES
    }

    /// The tables, which the pool takes beside its slabs.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        size_of::<Pool>() + self.slabs.len() * (size_of::<LockedSlab>() + 2 * size_of::<Link>())
    }

    /// The slab that `class` stored into last, if it has room.
    fn current_slab(&self, class: usize) -> Option<(u32, MutexGuard<'_, Slab>)> {
        let slab = self.current[class].load(Relaxed);
        let guard = self.slabs.get(slab as usize)?.lock();
        (guard.class() == Some(class) && guard.has_room()).then_some((slab, guard))
    }

    /// Another slab for an object of `class`: one with room, else a free one,
    /// else one of a class up to twice as large, beyond which a small object
    /// would keep out a large one.
    fn next_slab(&self, class: usize) -> Option<(u32, MutexGuard<'_, Slab>)> {
        let mut directory = lock(&self.directory);
        let found = self
            .slab_with_room(&mut directory, class)
            .or_else(|| self.open_slab(&mut directory, class));
        if let Some((slab, guard)) = found {
            self.current[class].store(slab, Relaxed);
            return Some((slab, guard));
        }
        (class + 1..CLASSES)
            .take_while(|&larger| CLASS[larger].slot_bytes <= 2 * CLASS[class].slot_bytes)
            .find_map(|larger| self.slab_with_room(&mut directory, larger))
    }

    fn slab_with_room(
        &self,
        directory: &mut Directory,
        class: usize,
    ) -> Option<(u32, MutexGuard<'_, Slab>)> {
        while let Some(slab) = directory.with_room[class].first() {
            let mut guard = self.slabs[slab as usize].lock();
            if guard.has_room() {
                return Some((slab, guard));
            }
            // Stores fill slabs without telling the directory.
            directory.unlist(slab, &mut guard);
        }
        None
    }

    fn open_slab(
        &self,
        directory: &mut Directory,
        class: usize,
    ) -> Option<(u32, MutexGuard<'_, Slab>)> {
        let slab = directory.free.first()?;
        directory.free.remove(&mut directory.links, slab);
        directory.by_age.push_last(&mut directory.age_links, slab);
        let mut guard = self.slabs[slab as usize].lock();
        guard.open(class);
        directory.list(slab, &mut guard);
        self.used_slabs.fetch_add(1, Relaxed);
        Some((slab, guard))
    }

    /// Puts a slab where it now belongs after a free. Judges by what the slab
    /// is now, because others may have stored and freed in the meantime.
    fn settle(&self, slab: u32) {
        let mut directory = lock(&self.directory);
        let mut guard = self.slabs[slab as usize].lock();
        if guard.class().is_none() {
            return;
        }
        if !guard.is_empty() {
            if guard.has_room() {
                directory.list(slab, &mut guard);
            }
            return;
        }
        directory.unlist(slab, &mut guard);
        let Directory { by_age, age_links, .. } = &mut *directory;
        by_age.remove(age_links, slab);
        // On no list now. The kernel can take long over giving back, and only
        // this slab has to wait for it.
        drop(directory);
        guard.release();
        drop(guard);
        self.used_slabs.fetch_sub(1, Relaxed);
        let mut directory = lock(&self.directory);
        let Directory { free, links, .. } = &mut *directory;
        free.push_first(links, slab);
    }
}

impl Directory {
    /// Puts a slab among those of its class with room, unless it is there.
    fn list(&mut self, slab: u32, guard: &mut Slab) {
        if let (Some(class), false) = (guard.class(), guard.listed) {
            self.with_room[class].push_last(&mut self.links, slab);
            guard.listed = true;
        }
    }

    fn unlist(&mut self, slab: u32, guard: &mut Slab) {
        if let (Some(class), true) = (guard.class(), guard.listed) {
            self.with_room[class].remove(&mut self.links, slab);
            guard.listed = false;
        }
    }

    fn make_youngest(&mut self, slab: u32) {
        self.by_age.remove(&mut self.age_links, slab);
        self.by_age.push_last(&mut self.age_links, slab);
    }
}
