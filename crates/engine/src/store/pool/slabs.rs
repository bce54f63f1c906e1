//! The table of slabs. It grows by parts, each twice as large as the one before. Existing slabs
//! never move, so growth does not disturb holders of slab locks.

use super::handle;
use super::handle::SLAB_BYTES;
use super::slab::Slab;
use softswap_sys::memory::reserve_bytes;
use std::io;
use std::ops::Index;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const MAX_SLABS: usize = 1 << handle::SLAB_BITS;
/// Maximum number of added parts: they double, so these cover all numbers.
const MAX_PARTS: usize = handle::SLAB_BITS as usize;
const MIN_PART: usize = 16;

/// Aligned: slabs that come into use together are neighbours; their locks must not share a line.
#[repr(align(64))]
pub(super) struct LockedSlab(Mutex<Slab>);

pub(super) const LOCKED_SLAB_BYTES: usize = 64;
const _: () = assert!(size_of::<LockedSlab>() == LOCKED_SLAB_BYTES);

impl LockedSlab {
    pub(super) fn lock(&self) -> MutexGuard<'_, Slab> {
        lock(&self.0)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under a lock is a bug in the engine. Failing on every later lock would turn one lost
    // page into many.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Slabs {
    first: Box<[LockedSlab]>,
    parts: [OnceLock<Box<[LockedSlab]>>; MAX_PARTS],
    made: AtomicUsize,
    /// Slabs of the first added part, a power of two.
    unit: usize,
}

impl Slabs {
    pub(super) fn new(count: usize) -> io::Result<Slabs> {
        let first = make(count.min(MAX_SLABS))?;
        Ok(Slabs {
            unit: first.len().next_power_of_two().max(MIN_PART),
            first,
            parts: [const { OnceLock::new() }; MAX_PARTS],
            made: AtomicUsize::new(0),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.first.len() + self.before(self.made.load(Relaxed))
    }

    fn before(&self, part: usize) -> usize {
        self.unit * ((1 << part) - 1)
    }

    /// Adds parts until there are `count` slabs. Must be called by one thread at a time.
    pub(super) fn grow(&self, count: usize) -> io::Result<()> {
        while self.len() < count.min(MAX_SLABS) {
            let part = self.made.load(Relaxed);
            let slabs = make((self.unit << part).min(MAX_SLABS - self.len()))?;
            let _ = self.parts[part].set(slabs);
            self.made.store(part + 1, Relaxed);
        }
        Ok(())
    }

    #[inline]
    pub(super) fn get(&self, slab: usize) -> Option<&LockedSlab> {
        self.first.get(slab).or_else(|| self.added(slab - self.first.len()))
    }

    #[cold]
    fn added(&self, at: usize) -> Option<&LockedSlab> {
        let part = (at / self.unit + 1).ilog2() as usize;
        self.parts.get(part)?.get()?.get(at - self.before(part))
    }
}

impl Index<usize> for Slabs {
    type Output = LockedSlab;

    fn index(&self, slab: usize) -> &LockedSlab {
        self.get(slab).unwrap_or_else(|| panic!("slab {slab} of {}", self.len()))
    }
}

fn make(count: usize) -> io::Result<Box<[LockedSlab]>> {
    let memory: &'static mut [u8] =
        if count == 0 { &mut [] } else { reserve_bytes(count * SLAB_BYTES)? };
    let (chunks, _) = memory.as_chunks_mut::<SLAB_BYTES>();
    Ok(chunks.iter_mut().map(|bytes| LockedSlab(Mutex::new(Slab::new(bytes)))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_table_keeps_addresses() {
        for first in [0, 1, 16, 17, 100] {
            let slabs = Slabs::new(first).unwrap();
            let places = |slabs: &Slabs| -> Vec<usize> {
                (0..slabs.len()).map(|at| std::ptr::from_ref(&slabs[at]).addr()).collect()
            };
            let before = places(&slabs);
            assert_eq!(before.len(), first);
            for count in [first, first + 1, first + 40, 1000] {
                slabs.grow(count).unwrap();
                assert!((count..=2 * count + 2 * MIN_PART).contains(&slabs.len()));
                assert!(slabs.get(slabs.len()).is_none());
            }
            let mut after = places(&slabs);
            assert_eq!(after[..first], before);
            after.sort_unstable();
            after.dedup();
            assert_eq!(after.len(), slabs.len(), "all slabs are distinct");
        }
    }
}
