//! Copies of resident pages: their number, and the chunks where they are worth keeping.

use crate::base::likelihood::{self, CERTAIN, is_probe, likelihood};
use crate::base::page::{PageNo, Place, StoredCopy};
use crate::memory::address_space::CHUNK_PAGES;
use softswap_sys::memory::reserve_u32;
use softswap_sys::window::Writes;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Likelihood of writes above which copies are not kept. A store costs more than a write fault, so
/// one clean eviction in five pays for the faults.
const TOO_LIKELY: u32 = CERTAIN * 4 / 5;
/// One in this many pages is tried anyway, because the use of chunks changes.
const PROBE_EVERY: u32 = 16;
/// Copies of resident pages, and the likelihood that a copy stays valid.
#[derive(Default)]
pub struct StoredCopies {
    /// Per chunk: the likelihood that its pages are written, and above it a count of copies not
    /// kept. The first entry is for pages without early refaults, the second for those with.
    chunks: &'static [AtomicU32],
    /// Number of copies in the swap area.
    pub count: AtomicUsize,
    pub pooled: AtomicUsize,
    pub pooled_bytes: AtomicUsize,
    /// Likelihood that the pool accepts a page that has a copy, and above it a count of pages not
    /// offered.
    compressed: AtomicU32,
    /// Position at which the search for copies to free continues.
    pub(crate) next: AtomicU64,
}

impl StoredCopies {
    pub(crate) fn new(pages: usize) -> io::Result<StoredCopies> {
        Ok(StoredCopies {
            chunks: reserve_u32(2 * (pages / CHUNK_PAGES as usize + 1))?,
            compressed: AtomicU32::new(CERTAIN),
            ..StoredCopies::default()
        })
    }

    /// Returns the number of resident pages with a copy in the swap area.
    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Returns the number of resident pages with a copy in the pool.
    pub fn pooled(&self) -> usize {
        self.pooled.load(Relaxed)
    }

    /// Returns true if the pool may keep another copy of `compressed_bytes`. All copies use at most
    /// an eighth of the budget, which resident pages lose, and half of the pool's limit.
    pub fn has_share(
        &self,
        compressed_bytes: usize,
        budget_bytes: usize,
        limit_bytes: usize,
    ) -> bool {
        let most_bytes = (budget_bytes / 8).min(limit_bytes / 2);
        self.pooled_bytes.load(Relaxed) + compressed_bytes <= most_bytes
    }

    pub(crate) fn chunk(&self, page: PageNo, refaults_early: bool) -> &AtomicU32 {
        &self.chunks[2 * (page / CHUNK_PAGES) as usize + usize::from(refaults_early)]
    }

    /// Returns true if pages of this kind in the chunk are rarely written, or if it is time for a
    /// probe.
    pub(crate) fn is_rarely_written(&self, page: PageNo, refaults_early: bool) -> bool {
        let chunk = self.chunk(page, refaults_early);
        likelihood(chunk) < TOO_LIKELY || is_probe(chunk, PROBE_EVERY)
    }

    /// Returns true if a clean page should be offered to the pool. Most pages have their copy on
    /// the disk because the pool refused them, and another attempt costs more than the rest of a
    /// clean eviction.
    pub fn should_offer_to_pool(&self) -> bool {
        // Below this likelihood, clean pages are not offered to the pool.
        likelihood(&self.compressed) >= CERTAIN / 8 || is_probe(&self.compressed, PROBE_EVERY)
    }

    /// Records the pool's decision on a clean page.
    pub fn note_compressed(&self, was_compressed: bool) {
        likelihood::note(&self.compressed, was_compressed);
    }

    /// Records that a copy was invalidated by a write, or was used.
    pub fn note(&self, page: PageNo, refaults_early: bool, was_written: bool) {
        likelihood::note(self.chunk(page, refaults_early), was_written);
    }
}

/// Decision to keep the stored copy of a page after a swap-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepCopy {
    /// The copy is freed, and the page is writable.
    No,
    /// The copy is kept, and the page is write-protected.
    Yes,
}

impl KeepCopy {
    /// Returns the copy that a page keeps after it is faulted in from `place`.
    pub fn copy_of(self, place: Place) -> Option<StoredCopy> {
        match self {
            KeepCopy::No => None,
            KeepCopy::Yes => place.to_copy(),
        }
    }

    pub(crate) fn writes(self) -> Writes {
        if self == KeepCopy::No { Writes::Allowed } else { Writes::Caught }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept_of(copies: &StoredCopies, count: usize) -> usize {
        (0..count).filter(|_| copies.is_rarely_written(3, false)).count()
    }

    #[test]
    fn copies_in_written_chunks_are_rarely_kept() {
        let copies = StoredCopies::new(4096).unwrap();
        assert_eq!(kept_of(&copies, 100), 100);
        (0..100).for_each(|_| copies.note(3, false, true));
        assert_eq!(kept_of(&copies, 160), 10, "one in 16 is tried");
        assert!(copies.is_rarely_written(CHUNK_PAGES, false), "chunks are independent");
        assert!(copies.is_rarely_written(3, true), "early refaults are counted separately");
        (0..10).for_each(|_| copies.note(3, false, false));
        assert_eq!(kept_of(&copies, 100), 100);
    }

    #[test]
    fn quarter_of_unchanged_pages_keeps_copies() {
        let copies = StoredCopies::new(4096).unwrap();
        (0..1000).for_each(|at| copies.note(3, false, at % 4 != 0));
        assert!(kept_of(&copies, 100) == 100);
        (0..1000).for_each(|at| copies.note(3, false, at % 20 != 0));
        assert!(kept_of(&copies, 100) < 20);
    }

    #[test]
    fn rejected_pages_are_rarely_offered() {
        let copies = StoredCopies::new(4096).unwrap();
        let offered =
            |copies: &StoredCopies| (0..160).filter(|_| copies.should_offer_to_pool()).count();
        assert_eq!(offered(&copies), 160);
        (0..100).for_each(|_| copies.note_compressed(false));
        assert_eq!(offered(&copies), 10);
        (0..3).for_each(|_| copies.note_compressed(true));
        assert_eq!(offered(&copies), 160);
    }
}
