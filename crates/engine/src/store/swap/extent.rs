//! Extents: from a slot of the area to the block of the device that holds it.
//!
//! An area is one run of pages, `0..pages`, cut into extents that each lie in
//! one piece on the device. Extents are appended in ascending order without
//! gaps, so an extent ends where the next one begins and its length need not
//! be stored: an entry is two words, and making the last extent longer is one
//! store to the page count.
//!
//! A look-up asks `hints` which few entries to search: at most 4 bytes more an
//! extent, and the search is short whatever lengths the extents have. What a
//! hint says is checked against the entries, so it may be out of date.
//!
//! Look-ups take no lock, also while the area grows. An entry is complete
//! before the entry count that covers it is published, and that before the
//! page count that makes it reachable; a reader loads them the other way round.

mod hints;

use hints::Hints;
use softswap_sys::primitive::{AtomicU64, Mutex, Ordering, reserve_u64};
use std::hint::select_unpredictable;
use std::io;
use std::sync::PoisonError;

/// Limits that keep sums of pages in 64 bits, and entry numbers in 32.
const MAX_PAGES: u64 = 1 << 40;
const MAX_EXTENTS: usize = 1 << 23;
/// What an entry takes: the page it starts at, and the block.
const ENTRY_WORDS: usize = 2;
const ENTRY_BYTES: u64 = 8 * ENTRY_WORDS as u64;

/// Where a page is, and for how many pages that goes on.
///
/// ```
/// use softswap_engine::store::swap::extent::ExtentMap;
/// let map = ExtentMap::new(1).unwrap();
/// map.append(0, 1024, 5000).unwrap();
/// assert_eq!(map.lookup(10).unwrap().block, 5010);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// The device block, in pages.
    pub block: u64,
    /// Pages from there to the end of the extent, at least one.
    pub(crate) pages_left: u64,
}

/// A part of a range of pages that lies in one piece on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Its first page.
    pub(crate) page: u64,
    /// Where that page is, in pages of the device.
    pub(crate) block: u64,
    /// Its length, at least one.
    pub(crate) nr_pages: u64,
}

/// A page that no extent holds was asked for: a bug of the caller, never a
/// state of the area.
///
/// ```
/// use softswap_engine::store::swap::extent::ExtentMap;
/// let error = ExtentMap::new(1).unwrap().lookup(7).unwrap_err();
/// assert!(error.to_string().starts_with("page 7 lies outside the area of 0 pages"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("page {page} lies outside the area of {pages} pages, a bug in softswap")]
pub struct Unmapped {
    /// The page asked for.
    pub(crate) page: u64,
    /// The pages that are mapped.
    pub(crate) pages: u64,
}

/// Why an extent was not appended.
///
/// ```
/// use softswap_engine::store::swap::extent::{AppendError, ExtentMap};
/// let gap = ExtentMap::new(1).unwrap().append(512, 1024, 0);
/// assert_eq!(gap, Err(AppendError::NotAdjacent { start_page: 512, pages: 0 }));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The extent does not begin where the last one ends.
    #[error("extent begins at page {start_page}, but the area ends at page {pages}")]
    NotAdjacent {
        /// Where the extent begins.
        start_page: u64,
        /// Where it should begin.
        pages: u64,
    },
    /// It has no pages, or its numbers do not fit.
    #[error("extent has no pages, or ends beyond the largest block number")]
    BadLength,
    /// The table is full.
    #[error(
        "all {limit} extents of the area are in use; fewer, larger pieces of storage would fit"
    )]
    TooMany {
        /// Entries in the table.
        limit: usize,
    },
}

/// The extents of one area.
///
/// ```
/// use softswap_engine::store::swap::extent::ExtentMap;
/// let map = ExtentMap::new(2).unwrap();
/// map.append(0, 1024, 5000).unwrap();
/// map.append(1024, 1024, 9000).unwrap();
/// assert_eq!(map.lookup(1025).unwrap().block, 9001);
/// ```
#[derive(Debug)]
pub struct ExtentMap {
    /// Mapped pages. Stored last when appending.
    pages: AtomicU64,
    count: AtomicU64,
    /// Start page and start block of each extent, side by side: a look-up that
    /// finds nothing in the caches waits for one line of this table, not two.
    entries: &'static [AtomicU64],
    hints: Hints,
    /// Held by whoever changes the map.
    change: Mutex<()>,
}

/// An entry, and the page at which the next one takes over.
#[derive(Clone, Copy)]
struct Extent {
    index: usize,
    start: u64,
    end: u64,
    block: u64,
}

impl Extent {
    fn holds(&self, page: u64) -> bool {
        self.start <= page && page < self.end
    }

    fn block_of(&self, page: u64) -> u64 {
        self.block + (page - self.start)
    }
}

impl ExtentMap {
    /// An empty map with room for `limit` extents.
    ///
    /// # Errors
    /// When the address space for it cannot be reserved.
    pub fn new(limit: usize) -> io::Result<Self> {
        let limit = limit.min(MAX_EXTENTS);
        Ok(Self {
            pages: AtomicU64::new(0),
            count: AtomicU64::new(0),
            entries: reserve_u64(limit * ENTRY_WORDS)?,
            hints: Hints::new(limit)?,
            change: Mutex::new(()),
        })
    }

    /// Mapped pages.
    #[must_use]
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Ordering::Acquire)
    }

    /// Extents they lie in.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire) as usize
    }

    /// Appends `nr_pages` at `start_block`; they become part of the last
    /// extent if they continue it on the device.
    ///
    /// # Errors
    /// When the extent leaves a gap, has an impossible length, or the table
    /// is full. The map is then unchanged.
    pub fn append(
        &self,
        start_page: u64,
        nr_pages: u64,
        start_block: u64,
    ) -> Result<(), AppendError> {
        let _held = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = self.pages.load(Ordering::Relaxed);
        let mut count = self.count.load(Ordering::Relaxed) as usize;
        if start_page != pages {
            return Err(AppendError::NotAdjacent { start_page, pages });
        }
        let ends = [pages.checked_add(nr_pages), start_block.checked_add(nr_pages)];
        let fits = ends.iter().all(|end| end.is_some_and(|end| end <= MAX_PAGES));
        if nr_pages == 0 || !fits {
            return Err(AppendError::BadLength);
        }
        if !self.continues_last(count, pages, start_block) {
            let limit = self.entries.len() / ENTRY_WORDS;
            if count == limit {
                return Err(AppendError::TooMany { limit });
            }
            self.entries[ENTRY_WORDS * count].store(start_page, Ordering::Relaxed);
            self.entries[ENTRY_WORDS * count + 1].store(start_block, Ordering::Relaxed);
            count += 1;
            self.count.store(count as u64, Ordering::Release);
        }
        self.hints.grow(pages, pages + nr_pages, count, |index| self.start(index));
        self.pages.store(pages + nr_pages, Ordering::Release);
        Ok(())
    }

    fn continues_last(&self, count: usize, pages: u64, start_block: u64) -> bool {
        count > 0 && self.extent(count - 1, pages, count).block_of(pages) == start_block
    }

    /// Unmaps everything from `page` on.
    ///
    /// The caller sees to it that nobody looks up a removed page meanwhile;
    /// look-ups of other pages are not disturbed.
    pub(crate) fn remove_tail(&self, page: u64) {
        let _held = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        if page >= self.pages.load(Ordering::Relaxed) {
            return;
        }
        self.pages.store(page, Ordering::Release);
        let count = self.count.load(Ordering::Relaxed) as usize;
        let kept = page.checked_sub(1).map_or(0, |last| self.search(last, 0, count) + 1);
        // A reader that still sees the old count meets starts at or beyond
        // `page` in the entries given up, now and after they are used again,
        // so that it never takes one of them for a page that was kept.
        self.count.store(kept as u64, Ordering::Release);
        self.hints.shrink(page, kept, |index| self.start(index));
    }

    /// The block that holds `page`.
    ///
    /// # Errors
    /// When no extent holds it.
    #[inline]
    pub fn lookup(&self, page: u64) -> Result<Mapping, Unmapped> {
        let extent = self.find(page)?;
        Ok(Mapping { block: extent.block_of(page), pages_left: extent.end - page })
    }

    /// The pieces in which `nr_pages` from `first_page` on lie, in order.
    ///
    /// From the second on each is found where the one before it ended, without
    /// a search. A page that no extent holds ends the walk with an error.
    pub(crate) fn pieces(&self, first_page: u64, nr_pages: u64) -> Pieces<'_> {
        let end = first_page.saturating_add(nr_pages);
        Pieces { map: self, page: first_page, end, after: None }
    }

    #[inline]
    fn find(&self, page: u64) -> Result<Extent, Unmapped> {
        let pages = self.pages.load(Ordering::Acquire);
        if page >= pages {
            return Err(Unmapped { page, pages });
        }
        let count = self.count.load(Ordering::Acquire) as usize;
        if count > 0 {
            let (first, candidates) = self.hints.around(page, pages, count);
            let extent = self.extent(self.search(page, first, candidates), pages, count);
            if extent.holds(page) {
                return Ok(extent);
            }
        }
        self.find_without_hints(page, pages, count)
    }

    /// For a reader whom the hints misled, because they were being made anew.
    #[cold]
    fn find_without_hints(&self, page: u64, pages: u64, count: usize) -> Result<Extent, Unmapped> {
        // Without an entry that holds it, the page has been removed meanwhile.
        let found = (count > 0).then(|| self.extent(self.search(page, 0, count), pages, count));
        found.filter(|extent| extent.holds(page)).ok_or(Unmapped { page, pages: self.pages() })
    }

    /// The last of the `candidates` entries from `first` on that starts at or
    /// before `page`, or `first` if none does.
    ///
    /// It is chance which half the page is in, so the processor is to compute
    /// it: guessing wrong would cost more than all the rest.
    #[inline]
    fn search(&self, page: u64, first: usize, candidates: usize) -> usize {
        let (mut low, mut left) = (first, candidates);
        while left > 1 {
            let half = left / 2;
            let middle = low + half;
            low = select_unpredictable(self.start(middle) <= page, middle, low);
            left -= half;
        }
        low
    }

    #[inline]
    fn start(&self, index: usize) -> u64 {
        self.entries[ENTRY_WORDS * index].load(Ordering::Relaxed)
    }

    #[inline]
    fn extent(&self, index: usize, pages: u64, count: usize) -> Extent {
        let start = self.start(index);
        let block = self.entries[ENTRY_WORDS * index + 1].load(Ordering::Relaxed);
        // An extent that was appended after `pages` was read starts there or
        // later, and this reader may not look beyond it.
        let end = if index + 1 < count { self.start(index + 1).min(pages) } else { pages };
        Extent { index, start, end, block }
    }

    /// DRAM that the entries and hints in use take.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        let (pages, count) = (self.pages(), self.count());
        count as u64 * ENTRY_BYTES + self.hints.bytes(pages)
    }
}

/// A walk over the pieces of a range; see [`ExtentMap::pieces`].
#[derive(Debug)]
pub(crate) struct Pieces<'m> {
    map: &'m ExtentMap,
    page: u64,
    end: u64,
    /// The entry of the last piece.
    after: Option<usize>,
}

impl Pieces<'_> {
    /// The extent of the next page: the successor of the last one, unless the
    /// map has changed there.
    fn successor(&self) -> Result<Extent, Unmapped> {
        let (page, pages) = (self.page, self.map.pages());
        let count = self.map.count();
        if let Some(index) = self.after
            && index + 1 < count
        {
            let extent = self.map.extent(index + 1, pages, count);
            if extent.holds(page) {
                return Ok(extent);
            }
        }
        self.map.find(page)
    }
}

impl Iterator for Pieces<'_> {
    type Item = Result<Piece, Unmapped>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page >= self.end {
            return None;
        }
        let extent = match self.successor() {
            Ok(extent) => extent,
            Err(unmapped) => {
                self.page = self.end;
                return Some(Err(unmapped));
            }
        };
        let page = self.page;
        self.page = extent.end.min(self.end);
        self.after = Some(extent.index);
        let nr_pages = self.page - page;
        Some(Ok(Piece { page, block: extent.block_of(page), nr_pages }))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;

#[cfg(all(test, feature = "loom"))]
mod model;
