//! What is known about copies of resident pages: how many there are, and in which chunks
//! they are worth keeping.

use crate::base::likelihood::{self, CERTAIN, is_probe, likelihood};
use crate::base::page::{PageNo, Place, StoredCopy};
use crate::memory::address_space::CHUNK_PAGES;
use softswap_sys::memory::reserve_u32;
use softswap_sys::window::Writes;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Above this, copies are not kept: storing a page costs more than a fault, so
/// that one of five that stays unchanged pays for the others.
pub(crate) const TOO_LIKELY: u32 = CERTAIN * 4 / 5;
/// One in so many pages is tried all the same: chunks change their use.
const PROBE_EVERY: u32 = 16;
/// Below this, unchanged pages are not offered to the pool.
const WORTH_PACKING: u32 = CERTAIN / 8;
/// Copies in the pool take at most one in so many bytes of the budget: it is
/// taken from resident pages.
const BUDGET_SHARE: usize = 8;
/// And one in so many of what the pool may take.
const LIMIT_SHARE: usize = 2;
/// What is known about copies of resident pages.
pub struct StoredCopies {
    /// Per chunk: how likely its pages are to be written, above that a count of
    /// the pages whose copies were not kept. First for those that do not come back
    /// soon, then for those that do.
    chunks: &'static [AtomicU32],
    /// Copies in the swap area.
    pub count: AtomicUsize,
    /// Copies in the pool.
    pub pooled: AtomicUsize,
    /// Bytes of the copies in the pool.
    pub pooled_bytes: AtomicUsize,
    /// How likely the pool takes a page that has a copy, above that a count of
    /// those that it was not offered.
    packed: AtomicU32,
    /// Where the search for copies to give up goes on.
    pub(crate) next: AtomicU64,
}

impl StoredCopies {
    /// For a window of so many pages.
    ///
    /// # Errors
    /// When there is no address space for the table.
    pub(crate) fn new(pages: usize) -> io::Result<StoredCopies> {
        Ok(StoredCopies {
            chunks: reserve_u32(2 * (pages / CHUNK_PAGES as usize + 1))?,
            count: AtomicUsize::new(0),
            pooled: AtomicUsize::new(0),
            pooled_bytes: AtomicUsize::new(0),
            packed: AtomicU32::new(CERTAIN),
            next: AtomicU64::new(0),
        })
    }

    /// Resident pages that have one in the swap area.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Resident pages that have one in the pool.
    #[must_use]
    pub fn pooled(&self) -> usize {
        self.pooled.load(Relaxed)
    }

    /// Whether the pool may keep a copy of so many bytes more, by what all of them take of a
    /// budget and of the pool's limit.
    #[must_use]
    pub fn has_share(&self, packed_bytes: usize, budget_bytes: usize, limit_bytes: usize) -> bool {
        let most_bytes = (budget_bytes / BUDGET_SHARE).min(limit_bytes / LIMIT_SHARE);
        self.pooled_bytes.load(Relaxed) + packed_bytes <= most_bytes
    }

    pub(crate) fn chunk(&self, page: PageNo, comes_soon: bool) -> &AtomicU32 {
        &self.chunks[2 * (page / CHUNK_PAGES) as usize + usize::from(comes_soon)]
    }

    /// Whether the chunk's pages of that kind are mostly left as they are, or it is
    /// time to see whether they still are not.
    pub(crate) fn is_promising(&self, page: PageNo, comes_soon: bool, too_likely: u32) -> bool {
        let chunk = self.chunk(page, comes_soon);
        likelihood(chunk) < too_likely || is_probe(chunk, PROBE_EVERY)
    }

    /// Whether an unchanged page is to be offered to the pool. What has a copy
    /// mostly has it because the pool did not take it, and finding that out again
    /// costs more than all else about a page that leaves unchanged.
    #[must_use]
    pub fn may_be_packed(&self) -> bool {
        likelihood(&self.packed) >= WORTH_PACKING || is_probe(&self.packed, PROBE_EVERY)
    }

    /// Notes whether the pool took an unchanged page.
    pub fn note_packed(&self, was_packed: bool) {
        likelihood::note(&self.packed, was_packed);
    }

    /// Notes what became of a copy.
    pub fn note(&self, page: PageNo, comes_soon: bool, was_written: bool) {
        likelihood::note(self.chunk(page, comes_soon), was_written);
    }
}

/// What stays of what is stored of a page when that comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stays {
    /// Nothing: the page may be written.
    Nothing,
    /// Its copy, and that nobody writes the page unnoticed.
    Copy,
}

impl Stays {
    /// The copy that a page has from then on which comes in from `place`.
    #[must_use]
    pub fn copy_of(self, place: Place) -> Option<StoredCopy> {
        match self {
            Stays::Nothing => None,
            Stays::Copy => place.to_copy(),
        }
    }

    /// What happens to writes.
    #[must_use]
    pub(crate) fn writes(self) -> Writes {
        if self == Stays::Nothing { Writes::Allowed } else { Writes::Caught }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept_of(copies: &StoredCopies, count: usize) -> usize {
        (0..count).filter(|_| copies.is_promising(3, false, TOO_LIKELY)).count()
    }

    #[test]
    fn copies_of_a_chunk_whose_pages_are_written_are_kept_seldom_until_they_are_not() {
        let copies = StoredCopies::new(4096).unwrap();
        assert_eq!(kept_of(&copies, 100), 100);
        (0..100).for_each(|_| copies.note(3, false, true));
        assert_eq!(kept_of(&copies, 160), 10, "one in 16 is tried");
        assert!(
            copies.is_promising(CHUNK_PAGES, false, TOO_LIKELY),
            "another chunk's pages are its own"
        );
        assert!(copies.is_promising(3, true, TOO_LIKELY), "and so are those that come back soon");
        (0..10).for_each(|_| copies.note(3, false, false));
        assert_eq!(kept_of(&copies, 100), 100);
    }

    #[test]
    fn one_unchanged_page_in_four_is_enough() {
        let copies = StoredCopies::new(4096).unwrap();
        (0..1000).for_each(|at| copies.note(3, false, at % 4 != 0));
        assert!(kept_of(&copies, 100) == 100);
        (0..1000).for_each(|at| copies.note(3, false, at % 20 != 0));
        assert!(kept_of(&copies, 100) < 20);
    }

    #[test]
    fn what_the_pool_never_takes_is_offered_seldom_until_it_does() {
        let copies = StoredCopies::new(4096).unwrap();
        let offered = |copies: &StoredCopies| (0..160).filter(|_| copies.may_be_packed()).count();
        assert_eq!(offered(&copies), 160);
        (0..100).for_each(|_| copies.note_packed(false));
        assert_eq!(offered(&copies), 10);
        (0..3).for_each(|_| copies.note_packed(true));
        assert_eq!(offered(&copies), 160);
    }
}
