//! Hints: the part of the table of extents to search for a page.
//!
//! The area is divided into buckets of a power of two of pages. The hint of a bucket is the extent
//! that holds its first page. Bucket sizes follow the number of extents: a hint costs at most 4
//! bytes an extent, and a bucket covers about one extent if their lengths are similar.
//!
//! During a rebuild a reader may see a mixture of old and new hints. It compares the result with
//! the entries, and searches all of them if the hints were wrong.

use softswap_sys::primitive::{AtomicU32, AtomicU64, Ordering, reserve_u32};
use std::io;

#[derive(Debug, Default)]
pub(super) struct Hints {
    shift: AtomicU64,
    first_extents: &'static [AtomicU32],
}

impl Hints {
    pub(super) fn new(limit: usize) -> io::Result<Self> {
        Ok(Self { shift: AtomicU64::new(0), first_extents: reserve_u32(limit)? })
    }

    /// Returns the first candidate and their number. `count` must not be 0.
    #[inline]
    pub(super) fn candidates(&self, page: u64, pages: u64, count: usize) -> (usize, usize) {
        let shift = self.shift.load(Ordering::Relaxed);
        let bucket = page >> shift;
        let first = self.hint(bucket).min(count - 1);
        let last_bucket = (pages - 1) >> shift;
        let last = if bucket < last_bucket { self.hint(bucket + 1) } else { count };
        let last = last.clamp(first, count - 1);
        (first, last - first + 1)
    }

    #[inline]
    fn hint(&self, bucket: u64) -> usize {
        // Out of range only if the reader sees a mixture of old and new hints.
        self.first_extents
            .get(bucket as usize)
            .map_or(0, |extent| extent.load(Ordering::Relaxed) as usize)
    }

    #[cfg(all(test, not(feature = "loom")))]
    pub(super) fn set(&self, bucket: usize, extent: u32) {
        self.first_extents[bucket].store(extent, Ordering::Relaxed);
    }

    pub(super) fn grow(
        &self,
        from: u64,
        pages: u64,
        count: usize,
        start_of: impl Fn(usize) -> u64,
    ) {
        if self.adapt(pages, count, start_of) {
            return;
        }
        let shift = self.shift.load(Ordering::Relaxed);
        for bucket in buckets(from, shift)..buckets(pages, shift) {
            self.first_extents[bucket as usize].store(count as u32 - 1, Ordering::Relaxed);
        }
    }

    pub(super) fn shrink(&self, pages: u64, count: usize, start_of: impl Fn(usize) -> u64) {
        self.adapt(pages, count, start_of);
    }

    /// Rebuilds the hints if there are too many or too few buckets. Returns true if it did.
    fn adapt(&self, pages: u64, count: usize, start_of: impl Fn(usize) -> u64) -> bool {
        let old_shift = self.shift.load(Ordering::Relaxed);
        let fit = |shift: &u64| buckets(pages, *shift) <= count as u64;
        // Buckets become smaller from four extents per bucket on.
        let too_few = buckets(pages, old_shift) * 4 <= count as u64;
        if fit(&old_shift) && (!too_few || old_shift == 0) {
            return false;
        }
        let from = if too_few { 0 } else { old_shift };
        let shift = (from..u64::BITS.into()).find(fit).unwrap_or(u64::from(u64::BITS) - 1);
        self.shift.store(shift, Ordering::Relaxed);
        let mut extent = 0;
        for bucket in 0..buckets(pages, shift) {
            let page = bucket << shift;
            while extent + 1 < count && start_of(extent + 1) <= page {
                extent += 1;
            }
            self.first_extents[bucket as usize].store(extent as u32, Ordering::Relaxed);
        }
        true
    }

    pub(super) fn bytes(&self, pages: u64) -> u64 {
        buckets(pages, self.shift.load(Ordering::Relaxed)) * size_of::<u32>() as u64
    }
}

fn buckets(pages: u64, shift: u64) -> u64 {
    match pages {
        0 => 0,
        _ => ((pages - 1) >> shift) + 1,
    }
}
