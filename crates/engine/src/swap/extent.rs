//! Extents: from a slot of the area to the block of the device that holds it.
//!
//! An area is one run of pages, `0..pages`, cut into extents that each lie in
//! one piece on the device. Extents are appended in ascending order without
//! gaps, so an extent ends where the next one begins and its length need not
//! be stored: an entry is two words, and making the last extent longer is one
//! store to the page count.
//!
//! Look-ups take no lock, also while the area grows. An entry is complete
//! before the entry count that covers it is published, and that before the
//! page count that makes it reachable; a reader loads them the other way round.

use softswap_sys::memory::reserve_u64;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Limits that keep page times extent count, and sums of pages, in 64 bits.
const MAX_PAGES: u64 = 1 << 40;
const MAX_EXTENTS: usize = 1 << 23;
const _: () = assert!(MAX_PAGES.checked_mul(MAX_EXTENTS as u64).is_some());

/// Where a page is, and for how many pages that goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// The device block, in pages.
    pub block: u64,
    /// Pages from there to the end of the extent, at least one.
    pub pages_left: u64,
}

/// A page that no extent holds was asked for: a bug of the caller, never a
/// state of the area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("page {page} lies outside the area of {pages} pages, a bug in softswap")]
pub struct Unmapped {
    /// The page asked for.
    pub page: u64,
    /// The pages that are mapped.
    pub pages: u64,
}

/// Why an extent was not appended.
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
#[derive(Debug)]
pub struct ExtentMap {
    /// Mapped pages. Stored last when appending.
    pages: AtomicU64,
    count: AtomicU64,
    start_pages: &'static [AtomicU64],
    start_blocks: &'static [AtomicU64],
    /// Held by whoever changes the map.
    change: Mutex<()>,
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
            start_pages: reserve_u64(limit)?,
            start_blocks: reserve_u64(limit)?,
            change: Mutex::new(()),
        })
    }

    /// Mapped pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages.load(Ordering::Acquire)
    }

    /// Extents they lie in.
    #[must_use]
    pub fn count(&self) -> usize {
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
        let count = self.count.load(Ordering::Relaxed) as usize;
        if start_page != pages {
            return Err(AppendError::NotAdjacent { start_page, pages });
        }
        let ends = [pages.checked_add(nr_pages), start_block.checked_add(nr_pages)];
        let fits = ends.iter().all(|end| end.is_some_and(|end| end <= MAX_PAGES));
        if nr_pages == 0 || !fits {
            return Err(AppendError::BadLength);
        }
        if !self.continues_last(count, pages, start_block) {
            let limit = self.start_pages.len();
            if count == limit {
                return Err(AppendError::TooMany { limit });
            }
            self.start_pages[count].store(start_page, Ordering::Relaxed);
            self.start_blocks[count].store(start_block, Ordering::Relaxed);
            self.count.store(count as u64 + 1, Ordering::Release);
        }
        self.pages.store(pages + nr_pages, Ordering::Release);
        Ok(())
    }

    fn continues_last(&self, count: usize, pages: u64, start_block: u64) -> bool {
        count > 0 && {
            let (start, block) = self.entry(count - 1);
            block + (pages - start) == start_block
        }
    }

    /// Unmaps everything from `page` on.
    ///
    /// The caller sees to it that nobody looks up a removed page meanwhile;
    /// look-ups of other pages are not disturbed.
    pub fn remove_tail(&self, page: u64) {
        let _held = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        if page >= self.pages.load(Ordering::Relaxed) {
            return;
        }
        self.pages.store(page, Ordering::Release);
        let count = self.count.load(Ordering::Relaxed) as usize;
        let kept =
            self.start_pages[..count].partition_point(|start| start.load(Ordering::Relaxed) < page);
        // A reader that still sees the old count meets starts at or beyond
        // `page` in the entries given up, now and after they are used again,
        // so that it never takes one of them for a page that was kept.
        self.count.store(kept as u64, Ordering::Release);
    }

    /// The block that holds `page`.
    ///
    /// # Errors
    /// When no extent holds it.
    #[inline]
    pub fn lookup(&self, page: u64) -> Result<Mapping, Unmapped> {
        let pages = self.pages.load(Ordering::Acquire);
        if page >= pages {
            return Err(Unmapped { page, pages });
        }
        let count = self.count.load(Ordering::Acquire) as usize;
        let index = self.find(page, pages, count);
        let (start, block) = self.entry(index);
        let end = match self.start_pages[..count].get(index + 1) {
            // An extent that was appended after `pages` was read starts there
            // or later, and this reader may not look beyond it.
            Some(next) => next.load(Ordering::Relaxed).min(pages),
            None => pages,
        };
        Ok(Mapping { block: block + (page - start), pages_left: end - page })
    }

    /// The last of `count` entries that starts at or before `page`.
    ///
    /// Growing by steps makes extents of similar length, so the first guess is
    /// in proportion. From there the distance doubles until the page is
    /// bracketed: a bad guess costs a binary search, not a walk.
    #[inline]
    fn find(&self, page: u64, pages: u64, count: usize) -> usize {
        if count <= 1 {
            return 0;
        }
        let starts = &self.start_pages[..count];
        let before = |index: usize| starts[index].load(Ordering::Relaxed) <= page;
        let guess = (page * count as u64 / pages) as usize;
        let guess = guess.min(count - 1);
        let (mut low, mut high);
        let mut step = 1;
        if before(guess) {
            (low, high) = (guess, guess + 1);
            while high < count && before(high) {
                low = high;
                high += step;
                step *= 2;
            }
            high = high.min(count);
        } else {
            // Entry 0 starts at page 0, so the search ends there at the latest.
            (low, high) = (guess - 1, guess);
            while !before(low) {
                high = low;
                low = low.saturating_sub(step);
                step *= 2;
            }
        }
        while high - low > 1 {
            let middle = low.midpoint(high);
            if before(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    fn entry(&self, index: usize) -> (u64, u64) {
        let start = self.start_pages[index].load(Ordering::Relaxed);
        (start, self.start_blocks[index].load(Ordering::Relaxed))
    }

    /// DRAM that the entries in use take.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        self.count() as u64 * 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn neighbours_on_both_sides_become_one_extent() {
        let map = ExtentMap::new(8).unwrap();
        map.append(0, 10, 100).unwrap();
        map.append(10, 5, 110).unwrap();
        assert_eq!(map.count(), 1);
        map.append(15, 5, 200).unwrap();
        assert_eq!((map.count(), map.pages()), (2, 20));
        assert_eq!(map.lookup(12), Ok(Mapping { block: 112, pages_left: 3 }));
        assert_eq!(map.lookup(15), Ok(Mapping { block: 200, pages_left: 5 }));
    }

    #[test]
    fn a_page_outside_the_area_is_an_error_of_its_own_kind() {
        let map = ExtentMap::new(8).unwrap();
        assert_eq!(map.lookup(0), Err(Unmapped { page: 0, pages: 0 }));
        map.append(0, 10, 0).unwrap();
        assert_eq!(map.lookup(10), Err(Unmapped { page: 10, pages: 10 }));
    }

    #[test]
    fn bad_extents_are_refused_and_change_nothing() {
        let map = ExtentMap::new(1).unwrap();
        map.append(0, 10, 50).unwrap();
        assert_eq!(
            map.append(11, 1, 0),
            Err(AppendError::NotAdjacent { start_page: 11, pages: 10 })
        );
        assert_eq!(map.append(9, 1, 0), Err(AppendError::NotAdjacent { start_page: 9, pages: 10 }));
        assert_eq!(map.append(10, 0, 0), Err(AppendError::BadLength));
        assert_eq!(map.append(10, 5, u64::MAX - 1), Err(AppendError::BadLength));
        assert_eq!(map.append(10, 1, 0), Err(AppendError::TooMany { limit: 1 }));
        assert_eq!((map.pages(), map.count()), (10, 1));
        map.append(10, 1, 60).unwrap();
    }

    /// What the map must be equivalent to: a block for every page.
    fn check(map: &ExtentMap, model: &[u64]) {
        assert_eq!(map.pages(), model.len() as u64);
        for (page, &block) in model.iter().enumerate() {
            let mapping = map.lookup(page as u64).unwrap();
            let run = model[page..]
                .iter()
                .enumerate()
                .take_while(|&(distance, &there)| there == block + distance as u64)
                .count();
            assert_eq!(mapping, Mapping { block, pages_left: run as u64 }, "page {page}");
        }
        let breaks = model.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
        assert_eq!(map.count(), if model.is_empty() { 0 } else { breaks + 1 });
    }

    #[derive(Debug, Clone)]
    enum Change {
        Append { nr_pages: u64, skip: u64 },
        RemoveTail { keep_percent: u64 },
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            // Lengths over several magnitudes mislead the proportional guess.
            8 => (prop_oneof![1..4_u64, 1..200_u64], 0..3_u64)
                .prop_map(|(nr_pages, skip)| Change::Append { nr_pages, skip }),
            1 => (0..=100_u64).prop_map(|keep_percent| Change::RemoveTail { keep_percent }),
        ]
    }

    proptest! {
        #[test]
        fn any_history_maps_like_a_list_of_blocks(
            changes in prop::collection::vec(change(), 1..40),
            first_block in 0..1000_u64,
        ) {
            let map = ExtentMap::new(64).unwrap();
            let mut model: Vec<u64> = Vec::new();
            for change in changes {
                match change {
                    Change::Append { nr_pages, skip } => {
                        let block = model.last().map_or(first_block, |last| last + 1) + skip;
                        map.append(model.len() as u64, nr_pages, block).unwrap();
                        model.extend(block..block + nr_pages);
                    }
                    Change::RemoveTail { keep_percent } => {
                        model.truncate(model.len() * keep_percent as usize / 100);
                        map.remove_tail(model.len() as u64);
                    }
                }
            }
            check(&map, &model);
        }
    }

    /// Block of a page in the stress test: extents of `LENGTH` pages, and from
    /// each to the next a gap of one block, except after every third.
    fn stress_block(page: u64) -> u64 {
        const LENGTH: u64 = 5;
        let extent = page / LENGTH;
        page + extent - extent / 3
    }

    #[test]
    fn lookups_are_right_while_the_area_grows() {
        let map = ExtentMap::new(1 << 14).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for reader in 0..3_u64 {
                let (map, done) = (&map, &done);
                scope.spawn(move || {
                    let mut chance = reader + 1;
                    while !done.load(Ordering::Acquire) {
                        let pages = map.pages();
                        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        // Half of the time close to the end, where it moves.
                        let back = (chance >> 33)
                            % pages.clamp(1, if chance < 1 << 63 { 8 } else { u64::MAX });
                        let Some(page) = pages.checked_sub(1 + back) else {
                            continue;
                        };
                        let mapping = map.lookup(page).unwrap();
                        assert_eq!(mapping.block, stress_block(page));
                        let last = page + mapping.pages_left - 1;
                        assert!(mapping.pages_left > 0);
                        assert_eq!(stress_block(last) - mapping.block, last - page);
                    }
                });
            }
            for extent in 0..20_000 {
                map.append(extent * 5, 5, stress_block(extent * 5)).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        // Every third one continued the one before it.
        assert_eq!(map.count(), 20_000 - 20_000 / 3);
    }
}
