//! Extents: map a slot of the area to a block of the device.
//!
//! Extents are appended in ascending order without gaps. An extent ends where the next one begins,
//! so an entry is two words, and extending the last extent is one store to the page count.
//!
//! A look-up gets a few candidate entries from `hints`, which may be stale and are checked.
//!
//! Look-ups take no lock, even while the area grows. A writer completes an entry, then publishes
//! the entry count that covers it, then the page count that makes it reachable; a reader loads them
//! in reverse order.

mod hints;

use hints::Hints;
use softswap_sys::primitive::{AtomicU64, Mutex, Ordering, reserve_u64};
use std::hint::select_unpredictable;
use std::io;
use std::sync::PoisonError;

/// Maximum number of pages, so that sums fit into 64 bits.
const MAX_PAGES: u64 = 1 << 40;
/// Maximum number of extents, so that entry numbers fit into 32 bits.
const MAX_EXTENTS: usize = 1 << 23;
/// Words of an entry: its first page and its first block.
const ENTRY_WORDS: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// The device block, in pages.
    pub block: u64,
    /// Pages from there to the end of the extent, at least one.
    pub(crate) pages_left: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) page: u64,
    pub(crate) block: u64,
    pub(crate) nr_pages: u64,
}

/// Error for a page outside all extents: a bug of the caller, never a state of the area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("page {page} is outside the area of {pages} pages: a bug in softswap; please report it")]
pub struct Unmapped {
    pub(crate) page: u64,
    pub(crate) pages: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    #[error("extent begins at page {start_page}, but the area ends at page {pages}")]
    NotAdjacent { start_page: u64, pages: u64 },
    #[error("extent has no pages, or ends beyond the largest block number")]
    BadLength,
    #[error("the area has more than {limit} extents; use a file with fewer, larger extents")]
    TooMany { limit: usize },
}

#[derive(Debug, Default)]
pub struct ExtentMap {
    /// Mapped pages. Stored last when appending.
    pages: AtomicU64,
    count: AtomicU64,
    /// First page and first block of each extent, adjacent: a look-up loads one cache line.
    entries: &'static [AtomicU64],
    hints: Hints,
    change: Mutex<()>,
}

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
    /// Fails if the address space for `limit` extents cannot be reserved.
    pub fn new(limit: usize) -> io::Result<Self> {
        let limit = limit.min(MAX_EXTENTS);
        Ok(Self {
            entries: reserve_u64(limit * ENTRY_WORDS)?,
            hints: Hints::new(limit)?,
            ..ExtentMap::default()
        })
    }

    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Ordering::Acquire)
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire) as usize
    }

    /// Extends the last extent if the pages are contiguous with it on the device. Fails, without a
    /// change, if they leave a gap, the length is impossible, or the table is full.
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
        let continues_last =
            count > 0 && self.extent(count - 1, pages, count).block_of(pages) == start_block;
        if !continues_last {
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

    /// Unmaps all pages from `page` on. No thread may look up one of them during the call.
    pub(crate) fn remove_tail(&self, page: u64) {
        let _held = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        if page >= self.pages.load(Ordering::Relaxed) {
            return;
        }
        self.pages.store(page, Ordering::Release);
        let count = self.count.load(Ordering::Relaxed) as usize;
        let kept = page.checked_sub(1).map_or(0, |last| self.search(last, 0, count) + 1);
        // For a reader with the old count, each removed entry starts at or beyond `page`, even
        // after it is reused. So the reader never takes one of them for a page that was kept.
        self.count.store(kept as u64, Ordering::Release);
        self.hints.shrink(page, kept, |index| self.start(index));
    }

    #[inline]
    pub fn lookup(&self, page: u64) -> Result<Mapping, Unmapped> {
        let extent = self.find(page)?;
        Ok(Mapping { block: extent.block_of(page), pages_left: extent.end - page })
    }

    /// Iterates over the contiguous pieces. A page outside all extents ends it with an error.
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
            let (first, candidates) = self.hints.candidates(page, pages, count);
            let extent = self.extent(self.search(page, first, candidates), pages, count);
            if extent.holds(page) {
                return Ok(extent);
            }
        }
        self.find_without_hints(page, pages, count)
    }

    /// Searches all entries, for a reader that read hints during their rebuild.
    #[cold]
    fn find_without_hints(&self, page: u64, pages: u64, count: usize) -> Result<Extent, Unmapped> {
        // If no entry holds the page, another thread has removed it.
        let found = (count > 0).then(|| self.extent(self.search(page, 0, count), pages, count));
        found.filter(|extent| extent.holds(page)).ok_or(Unmapped { page, pages: self.pages() })
    }

    /// Returns the last of the candidates that starts at or before `page`, or `first` if none does.
    /// A branch would be unpredictable, so the choice is a conditional move.
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
        // An extent appended after `pages` was read is invisible to this reader.
        let end = if index + 1 < count { self.start(index + 1).min(pages) } else { pages };
        Extent { index, start, end, block }
    }

    pub fn metadata_bytes(&self) -> u64 {
        let (pages, count) = (self.pages(), self.count());
        count as u64 * 8 * ENTRY_WORDS as u64 + self.hints.bytes(pages)
    }
}

#[derive(Debug)]
pub(crate) struct Pieces<'m> {
    map: &'m ExtentMap,
    page: u64,
    end: u64,
    after: Option<usize>,
}

impl Pieces<'_> {
    /// Returns the extent of the next page. Searches for it if the map has changed.
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
