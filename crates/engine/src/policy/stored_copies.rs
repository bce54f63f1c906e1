//! Copies of resident pages: their number, and the chunks where they are worth keeping.

use crate::base::likelihood::{self, CERTAIN, is_probe, likelihood};
use crate::base::page::{PageNo, Place, StoredCopy};
use crate::memory::address_space::CHUNK_PAGES;
use softswap_sys::memory::reserve_u32;
use softswap_sys::window::Writes;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Likelihood of writes above which copies are not kept. One clean eviction pays for four faults.
const TOO_LIKELY: u32 = CERTAIN * 4 / 5;
/// One in this many pages is tried anyway, because the use of chunks changes.
const PROBE_EVERY: u32 = 16;
#[derive(Default)]
pub struct StoredCopies {
    /// Two per chunk, for pages without and with early refaults: likelihood of writes, and a count.
    chunks: &'static [AtomicU32],
    pub count: AtomicUsize,
    pub pooled: AtomicUsize,
    pub pooled_bytes: AtomicUsize,
    /// Likelihood that the pool accepts a page that has a copy, and above it a count.
    compressed: AtomicU32,
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

    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    pub fn pooled(&self) -> usize {
        self.pooled.load(Relaxed)
    }

    /// Limits copies in the pool to an eighth of the budget and half of the pool's limit.
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

    /// Returns true for a probe, too.
    pub(crate) fn is_rarely_written(&self, page: PageNo, refaults_early: bool) -> bool {
        let chunk = self.chunk(page, refaults_early);
        likelihood(chunk) < TOO_LIKELY || is_probe(chunk, PROBE_EVERY)
    }

    /// Most pages have their copy on the disk because the pool refused them, and another attempt
    /// costs more than the rest of a clean eviction.
    pub fn should_offer_to_pool(&self) -> bool {
        likelihood(&self.compressed) >= CERTAIN / 8 || is_probe(&self.compressed, PROBE_EVERY)
    }

    pub fn note_compressed(&self, was_compressed: bool) {
        likelihood::note(&self.compressed, was_compressed);
    }

    pub fn note(&self, page: PageNo, refaults_early: bool, was_written: bool) {
        likelihood::note(self.chunk(page, refaults_early), was_written);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepCopy {
    No,
    /// The page is write-protected.
    Yes,
}

impl KeepCopy {
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
