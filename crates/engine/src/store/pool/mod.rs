//! Compressed pages in DRAM: where page-out puts what the codec has packed,
//! and the first place beyond the page table that page-in looks into.
//!
//! The pool is one reservation cut into slabs of 64 KiB. A slab in use holds
//! objects of one size class and goes back to the system as a whole when its
//! last object leaves, so what counts against the budget is whole slabs. When
//! the pool is full, write-back empties it slab by slab, the one longest in use
//! first: that way every page written frees memory soon, and none of it is
//! spread over slabs that stay.
//!
//! Slabs that are being emptied by the program's own touches stay half full for
//! long: [`compaction`] moves what is left in the sparsest of a class into the
//! gaps of the others.
//!
//! # Locks
//! Each slab has a lock, under which its objects are read and written; the
//! directory's lock guards the lists that say which slabs are free, have room,
//! and in which order they came into use. The directory is locked before a
//! slab, never after. The common store and free lock one slab only: a store
//! tries the slab that its class used last on this processor ([`current`]), and a
//! free needs the directory
//! only when the slab falls into a lower group, becomes empty, or was full.

mod layout;
mod class;
mod list;
mod handle;
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
pub use handle::{Handle, TAGS};
pub use layout::SLAB_BYTES;
pub(crate) use layout::{Damaged, MAX_OBJECT_BYTES, OWNER_BITS, PoolFull};
use slab::Slab;
use slabs::{LOCKED_SLAB_BYTES, Slabs, lock};
use softswap_sys::raw::current_cpu;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// A pool that was full takes pages again when it uses less than this share of
/// its limit, in percent: else every page freed would let one in, and pages
/// would go to disk and to the pool in no order.
const ACCEPT_PERCENT: usize = 90;
/// Slabs that may be passed over for having been used since the last look.
const MOST_SPARED: usize = 64;

const _: () = assert!(CLASS[0].slots <= 1 << handle::SLOT_BITS && CLASSES <= u8::MAX as usize);
const _: () = assert!(MAX_OBJECT_BYTES < 1 << handle::LENGTH_BITS);

/// The compressed pool.
///
/// ```
/// use softswap_engine::store::pool::Pool;
/// let pool = Pool::new(1 << 20).unwrap();
/// let page = 42;
/// let handle = pool.store(b"a compressed page", page, 1).unwrap();
/// assert_eq!(pool.load(handle, |packed| packed.len()), Ok(17));
/// pool.free(handle);
/// assert_eq!(pool.stored_bytes(), 0);
/// ```
pub struct Pool {
    slabs: Slabs,
    directory: Mutex<Directory>,
    current: Current,
    limit_slabs: AtomicUsize,
    used_slabs: AtomicUsize,
    stored_bytes: AtomicUsize,
    /// Objects, and slabs, by the slab's class.
    objects: [AtomicUsize; CLASSES],
    slabs_of: [AtomicUsize; CLASSES],
    /// A store found no place, and not enough has gone since.
    was_full: AtomicBool,
}

impl Pool {
    /// Reserves address space for `capacity_bytes` (rounded down to slabs, at
    /// most 1 TiB), the limit at first, and makes the tables; DRAM is used slab
    /// by slab.
    pub fn new(capacity_bytes: usize) -> io::Result<Pool> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Pool::with_current(capacity_bytes, Current::new(cpus, SLABS_PER_LANE))
    }

    /// As on one processor, wherever it is: what it does depends on what it is told alone.
    pub fn for_one_thread(capacity_bytes: usize) -> io::Result<Pool> {
        Pool::with_current(capacity_bytes, Current::new(1, SLABS_PER_LANE))
    }

    fn with_current(capacity_bytes: usize, current: Current) -> io::Result<Pool> {
        let slabs = Slabs::new(capacity_bytes / SLAB_BYTES)?;
        let count = slabs.len();
        Ok(Pool {
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

    /// Stores what page `owner` was packed to. The tag is the caller's and
    /// comes back with the handle.
    ///
    /// # Errors
    /// When there is no place for it.
    ///
    /// # Panics
    /// When `owner` has more than [`OWNER_BITS`] bits, or `tag` is not below
    /// [`TAGS`]: cut short, they would say something else.
    pub fn store(&self, packed: &[u8], owner: u64, tag: u8) -> Result<Handle, PoolFull> {
        self.store_from(current_cpu(), packed, owner, tag)
    }

    /// [`Pool::store`] as if called on that processor.
    fn store_from(
        &self,
        cpu: usize,
        packed: &[u8],
        owner: u64,
        tag: u8,
    ) -> Result<Handle, PoolFull> {
        let class = class_to_take(packed)?;
        let lane = self.lane(class, cpu);
        let found = self.current_slab(class, lane).or_else(|| self.next_slab(class, lane));
        let Some((slab, guard)) = found else {
            self.was_full.store(true, Relaxed);
            return Err(PoolFull);
        };
        Ok(self.put(slab, guard, packed, owner, tag))
    }

    fn put(
        &self,
        slab: u32,
        mut guard: MutexGuard<'_, Slab>,
        packed: &[u8],
        owner: u64,
        tag: u8,
    ) -> Handle {
        assert!(owner >> OWNER_BITS == 0 && tag < TAGS, "{owner:#x} or {tag} is out of range");
        let handle = guard.put(slab, packed, owner, tag);
        self.stored_bytes.fetch_add(packed.len(), Relaxed);
        self.count(&guard).fetch_add(1, Relaxed);
        handle
    }

    /// Whether the pool wants pages: once full, not before a tenth of it is free
    /// again.
    #[must_use]
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

    /// Hands the object to `read`, under its slab's lock. `read` must not use
    /// the pool.
    ///
    /// # Errors
    /// When the checksum does not match or the handle is stale, which no packed
    /// page's is.
    pub fn load<R>(&self, handle: Handle, read: impl FnOnce(&[u8]) -> R) -> Result<R, Damaged> {
        let slab = self.slabs.get(handle.slab() as usize).ok_or(Damaged)?;
        let mut guard = slab.lock();
        guard.note_use();
        guard.get(handle).map(read).ok_or(Damaged)
    }

    /// As [`Pool::load`], for upkeep: that it looks at an object does not make
    /// its slab one that is used.
    ///
    /// # Errors
    /// As [`Pool::load`].
    pub fn peek<R>(&self, handle: Handle, read: impl FnOnce(&[u8]) -> R) -> Result<R, Damaged> {
        let slab = self.slabs.get(handle.slab() as usize).ok_or(Damaged)?;
        slab.lock().get(handle).map(read).ok_or(Damaged)
    }

    /// The handle of a live object, of which only the upper bits were kept. Its
    /// page goes back to it: the slab is used.
    #[must_use]
    pub fn handle_of(&self, object: u64) -> Option<Handle> {
        let (slab, slot) = (object >> handle::SLOT_BITS, object & ((1 << handle::SLOT_BITS) - 1));
        let mut guard = self.slabs.get(slab as usize)?.lock();
        guard.note_use();
        guard.handle(slab as u32, slot as u16)
    }

    /// Who owns the object that a random number stands for; `None` where it stands for a
    /// place in which there is none. An object is about as likely as it is large.
    #[must_use]
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
        self.stored_bytes.fetch_sub(handle.packed_bytes(), Relaxed);
        self.count(&guard).fetch_sub(1, Relaxed);
        let moves = guard.is_empty()
            || (guard.has_room() && guard.listed.is_none_or(|group| guard.group() < group));
        drop(guard);
        if moves {
            self.settle(handle.slab());
        }
    }

    /// Flips a bit of an object, for tests of what happens then.
    pub(crate) fn damage(&self, handle: Handle, bit: usize) {
        if let Some(slab) = self.slabs.get(handle.slab() as usize) {
            slab.lock().damage(handle, bit);
        }
    }

    /// The count of objects that a slab in use is part of.
    fn count(&self, slab: &Slab) -> &AtomicUsize {
        &self.objects[slab.class().unwrap_or(0)]
    }

    /// What is to be written back: owners and handles of live objects of the
    /// slab longest in use; one that was used since the last look gets a second
    /// chance. They stay stored; the caller frees each one that it has written.
    /// The slab takes no more objects, and once it has been gone through it is
    /// the youngest, whatever the caller did. Zero when nothing is stored.
    pub fn oldest(&self, out: &mut [(u64, Handle)]) -> usize {
        if out.is_empty() {
            return 0;
        }
        let mut spared = 0;
        // Passes over slabs that are about to be released, and comes back to
        // the first one if that was left in its middle.
        for _ in 0..=self.slabs.len() + MOST_SPARED {
            let mut directory = self.directory();
            let Some(slab) = directory.oldest() else {
                return 0;
            };
            let mut guard = self.slabs[slab as usize].lock();
            let is_used = std::mem::take(&mut guard.referenced) && guard.listed_to == 0;
            if is_used && !guard.closed && spared < MOST_SPARED {
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

    /// Takes back that [`Pool::oldest`] gave an object: it is the next again. A
    /// slab is free only when its last object has gone.
    pub(crate) fn return_oldest(&self, handle: Handle) {
        let Some(slab) = self.slabs.get(handle.slab() as usize) else { return };
        let mut directory = self.directory();
        if slab.lock().list_again_from(handle) {
            directory.make_oldest(handle.slab());
        }
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
        self.objects.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// What [`Pool::used_bytes`] does not exceed by stores.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.limit_slabs.load(Relaxed) * SLAB_BYTES
    }

    /// Sets the limit, at most what was reserved. What is over it stays until it
    /// is written back or asked for.
    pub fn set_limit_bytes(&self, limit_bytes: usize) {
        self.limit_slabs.store((limit_bytes / SLAB_BYTES).min(self.slabs.len()), Relaxed);
    }

    /// Makes room for a limit of `capacity_bytes`; how many bytes more the tables take.
    ///
    /// # Errors
    /// When there is no address space for it.
    pub(crate) fn grow(&self, capacity_bytes: usize) -> io::Result<usize> {
        let mut directory = self.directory();
        let before = self.metadata_bytes();
        self.slabs.grow(capacity_bytes / SLAB_BYTES)?;
        directory.grow(self.slabs.len());
        Ok(self.metadata_bytes() - before)
    }

    /// The tables, which the pool takes beside its slabs.
    #[must_use]
    pub(crate) fn metadata_bytes(&self) -> usize {
        size_of::<Pool>()
            + self.current.metadata_bytes()
            + self.slabs.len() * (LOCKED_SLAB_BYTES + 2 * size_of::<list::Link>())
    }

    /// Which current slab of a class a processor uses.
    fn lane(&self, class: usize, cpu: usize) -> Lane {
        let (slabs, all) = (&self.slabs_of[class], &self.used_slabs);
        self.current.lane(cpu, slabs.load(Relaxed), all.load(Relaxed))
    }

    /// The slab that the lane stored into last, if it has room.
    fn current_slab(&self, class: usize, lane: Lane) -> Option<(u32, MutexGuard<'_, Slab>)> {
        let slab = self.current.get(class, lane);
        let guard = self.slabs.get(slab as usize)?.lock();
        (guard.class() == Some(class) && guard.has_room()).then_some((slab, guard))
    }

    /// Another slab for an object of `class`: one with room that no other lane
    /// stores into, else a free one, else any with room, else one of a class up
    /// to twice as large, beyond which a small object would keep out a large one.
    fn next_slab(&self, class: usize, lane: Lane) -> Option<(u32, MutexGuard<'_, Slab>)> {
        let mut directory = self.directory();
        let found = self
            .lanes_slab(&mut directory, class, lane)
            .or_else(|| self.nearby_slab(&mut directory, class));
        if found.is_none()
            && let Some((slab, mut guard)) = self.open_slab(&mut directory, class)
        {
            self.current.set(class, lane, slab);
            // The kernel takes its time, and only this slab has to wait for it.
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

    /// A slab with room that no other lane of the class stores into.
    fn lanes_slab(
        &self,
        directory: &mut Directory,
        class: usize,
        lane: Lane,
    ) -> Option<(u32, MutexGuard<'_, Slab>)> {
        self.slab_with_room(directory, class, |slab| self.current.is_others(class, lane, slab))
    }

    /// A slab with room of `class`, whoever stores into it, else of one up to
    /// twice as large.
    fn any_slab(
        &self,
        directory: &mut Directory,
        class: usize,
    ) -> Option<(u32, MutexGuard<'_, Slab>)> {
        self.slab_with_room(directory, class, |_| false)
            .or_else(|| self.larger_slot(directory, class, 2 * CLASS[class].slot_bytes))
    }

    /// A slab with room of a larger class, for an object of a class that has
    /// none yet, while the pool is so small that slabs just begun would be most
    /// of it. Later every size deserves its own: what lies in slots too large
    /// for it is lost for as long as it stays.
    fn nearby_slab(
        &self,
        directory: &mut Directory,
        class: usize,
    ) -> Option<(u32, MutexGuard<'_, Slab>)> {
        let is_small = self.used_slabs.load(Relaxed) < 2 * CLASSES;
        if !is_small || self.slabs_of[class].load(Relaxed) > 0 {
            return None;
        }
        self.larger_slot(directory, class, CLASS[class].slot_bytes * 3 / 2)
    }

    /// A slab with room of a larger class, with slots of at most so many bytes.
    fn larger_slot(
        &self,
        directory: &mut Directory,
        class: usize,
        most_bytes: usize,
    ) -> Option<(u32, MutexGuard<'_, Slab>)> {
        (class + 1..CLASSES)
            .take_while(|&larger| CLASS[larger].slot_bytes <= most_bytes)
            .find_map(|larger| self.slab_with_room(directory, larger, |_| false))
    }

    fn slab_with_room(
        &self,
        directory: &mut Directory,
        class: usize,
        is_passed_over: impl Fn(u32) -> bool,
    ) -> Option<(u32, MutexGuard<'_, Slab>)> {
        loop {
            let slab = directory.with_room(class).find(|&slab| !is_passed_over(slab))?;
            let mut guard = self.slabs[slab as usize].lock();
            // Stores fill slabs without telling the directory.
            directory.list(slab, &mut guard);
            if guard.has_room() {
                return Some((slab, guard));
            }
        }
    }

    fn open_slab(
        &self,
        directory: &mut Directory,
        class: usize,
    ) -> Option<(u32, MutexGuard<'_, Slab>)> {
        // Slabs are taken into use under the directory's lock only.
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

    /// Puts a slab where it now belongs after a free. Judges by what the slab
    /// is now, because others may have stored and freed in the meantime.
    fn settle(&self, slab: u32) {
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
        // On no list now. The kernel can take long over giving back, and only
        // this slab has to wait for it.
        drop(directory);
        guard.release();
        drop(guard);
        self.used_slabs.fetch_sub(1, Relaxed);
        self.slabs_of[class].fetch_sub(1, Relaxed);
        self.directory().give_back(slab);
    }

    fn directory(&self) -> MutexGuard<'_, Directory> {
        lock(&self.directory)
    }
}
