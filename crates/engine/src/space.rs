//! Which pages of the window belong to the program, and with what protection.
//!
//! Mapping changes are rare and take one lock; a fault only reads the bitmap
//! of mapped pages. Large mappings cost one bit per page until touched, so a
//! sparse reservation of many gigabytes is cheap.

use crate::page::PageNo;
use rangemap::{RangeMap, RangeSet};
use softswap_sys::memory::{reserve_u32, reserve_u64};
use softswap_sys::window::{Protection, READ_WRITE};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pages in a chunk: as many as one page of entries (and one page table) covers.
pub const CHUNK_PAGES: u64 = 512;
/// A chunk that was ever touched costs a page of entries and a page table.
const CHUNK_METADATA_BYTES: usize = 2 * softswap_sys::PAGE_SIZE;
const TOUCHED: u32 = 1 << 31;

/// The program's address space within the window.
pub struct Space {
    pages: u64,
    mapped: &'static [AtomicU64],
    chunks: &'static [AtomicU32],
    touched_chunks: AtomicUsize,
    /// One past the highest page ever mapped.
    high: AtomicU64,
    mapped_pages: AtomicUsize,
    layout: Mutex<Layout>,
}

/// What the lock protects: who owns which range.
#[derive(Default)]
pub struct Layout {
    taken: RangeSet<PageNo>,
    protections: RangeMap<PageNo, Protection>,
    foreign: RangeSet<PageNo>,
    locked: RangeSet<PageNo>,
}

impl Space {
    /// An empty space of `pages` pages.
    pub fn new(pages: u64) -> io::Result<Space> {
        Ok(Space {
            pages,
            mapped: reserve_u64((pages as usize).div_ceil(64))?,
            chunks: reserve_u32((pages / CHUNK_PAGES) as usize + 1)?,
            touched_chunks: AtomicUsize::new(0),
            high: AtomicU64::new(0),
            mapped_pages: AtomicUsize::new(0),
            layout: Mutex::new(Layout::default()),
        })
    }

    /// Locks the layout. Program context only, with signals blocked.
    pub fn lock(&self) -> MutexGuard<'_, Layout> {
        self.layout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a page belongs to the program.
    #[must_use]
    pub fn is_mapped(&self, page: PageNo) -> bool {
        self.mapped[page as usize / 64].load(Ordering::SeqCst) & 1 << (page % 64) != 0
    }

    /// Whether every page of a range belongs to the program.
    #[must_use]
    pub fn is_range_mapped(&self, range: &Range<PageNo>) -> bool {
        words_of(range).all(|(word, bits)| self.mapped[word].load(Ordering::SeqCst) & bits == bits)
    }

    /// Whether some page of a range does.
    #[must_use]
    pub fn is_any_mapped(&self, range: &Range<PageNo>) -> bool {
        words_of(range).any(|(word, bits)| self.mapped[word].load(Ordering::SeqCst) & bits != 0)
    }

    /// One past the highest page ever mapped.
    #[must_use]
    pub fn high(&self) -> PageNo {
        self.high.load(Ordering::Acquire)
    }

    /// Bytes mapped now.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.mapped_pages.load(Ordering::Relaxed) * softswap_sys::PAGE_SIZE
    }

    /// DRAM that entries and page tables have taken so far, in bytes.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        self.touched_chunks.load(Ordering::Relaxed) * CHUNK_METADATA_BYTES
    }

    /// Notes that a page of this chunk is about to get an entry. Before
    /// asking [`Space::is_mapped`], so that an unmap sees one or the other.
    pub fn touch(&self, page: PageNo) {
        let chunk = &self.chunks[(page / CHUNK_PAGES) as usize];
        if chunk.load(Ordering::SeqCst) & TOUCHED == 0
            && chunk.fetch_or(TOUCHED, Ordering::SeqCst) & TOUCHED == 0
        {
            self.touched_chunks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether any page of this page's chunk ever had an entry.
    #[must_use]
    pub fn is_touched(&self, page: PageNo) -> bool {
        self.chunks[(page / CHUNK_PAGES) as usize].load(Ordering::SeqCst) & TOUCHED != 0
    }

    /// Counts pages of one chunk that became resident.
    pub fn add_resident(&self, page: PageNo, count: u32) {
        self.chunks[(page / CHUNK_PAGES) as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// Counts a page that is no longer resident.
    pub fn sub_resident(&self, page: PageNo) {
        self.chunks[(page / CHUNK_PAGES) as usize].fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a chunk has resident pages.
    #[must_use]
    pub fn has_resident(&self, page: PageNo) -> bool {
        self.chunks[(page / CHUNK_PAGES) as usize].load(Ordering::Relaxed) & !TOUCHED != 0
    }

    fn set_mapped(&self, range: &Range<PageNo>, on: bool) {
        let mut changed = 0;
        for (index, bits) in words_of(range) {
            let word = &self.mapped[index];
            changed += if on {
                bits & !word.fetch_or(bits, Ordering::SeqCst)
            } else {
                bits & word.fetch_and(!bits, Ordering::SeqCst)
            }
            .count_ones() as usize;
        }
        if on {
            self.high.fetch_max(range.end, Ordering::AcqRel);
            self.mapped_pages.fetch_add(changed, Ordering::Relaxed);
        } else {
            self.mapped_pages.fetch_sub(changed, Ordering::Relaxed);
        }
    }

    /// Finds `count` free pages, aligned to `align` pages, lowest first.
    #[must_use]
    pub fn find(&self, layout: &Layout, count: u64, align: u64) -> Option<Range<PageNo>> {
        layout.taken.gaps(&(0..self.pages)).find_map(|gap| {
            let start = gap.start.next_multiple_of(align);
            (start.checked_add(count)? <= gap.end).then(|| start..start + count)
        })
    }

    /// Whether all of `range` lies in the window and is free.
    #[must_use]
    pub fn is_free(&self, layout: &Layout, range: &Range<PageNo>) -> bool {
        range.end <= self.pages && !layout.taken.overlaps(range)
    }

    /// Gives `range` to the program with read and write permission.
    pub fn add(&self, layout: &mut Layout, range: Range<PageNo>) {
        layout.protections.remove(range.clone());
        self.set_mapped(&range, true);
        layout.taken.insert(range);
    }

    /// Faults in `range` are refused from now on; the range stays taken.
    pub fn close(&self, range: &Range<PageNo>) {
        self.set_mapped(range, false);
    }

    /// Makes `range` free for other mappings.
    pub fn remove(&self, layout: &mut Layout, range: Range<PageNo>) {
        layout.forget(&range);
        layout.taken.remove(range);
    }
}

impl Layout {
    /// Forgets what was special about a range.
    pub fn forget(&mut self, range: &Range<PageNo>) {
        self.protections.remove(range.clone());
        self.foreign.remove(range.clone());
        self.locked.remove(range.clone());
    }

    /// Remembers the protection of a range.
    pub fn set_protection(&mut self, range: Range<PageNo>, protection: Protection) {
        if protection == READ_WRITE {
            self.protections.remove(range);
        } else {
            self.protections.insert(range, protection);
        }
    }

    /// Whether some page of the range is not readable and writable.
    #[must_use]
    pub fn has_protection(&self, range: &Range<PageNo>) -> bool {
        self.protections.overlaps(range)
    }

    /// The protection of one page.
    #[must_use]
    pub fn protection(&self, page: PageNo) -> Protection {
        self.protections.get(&page).copied().unwrap_or(READ_WRITE)
    }

    /// Keeps a range from other mappings.
    pub fn reserve(&mut self, range: Range<PageNo>) {
        self.taken.insert(range);
    }

    /// Adds a range to those that are locked into memory, if then at most
    /// `most` pages are. Returns the parts that are new.
    pub fn lock_range(&mut self, range: Range<PageNo>, most: u64) -> Option<Vec<Range<PageNo>>> {
        let new: Vec<_> = self.locked.gaps(&range).collect();
        let pages = |ranges: &mut dyn Iterator<Item = &Range<PageNo>>| -> u64 {
            ranges.map(|range| range.end - range.start).sum()
        };
        if pages(&mut self.locked.iter()) + pages(&mut new.iter()) > most {
            return None;
        }
        self.locked.insert(range);
        Some(new)
    }

    /// Removes a range from those that are locked. Returns the parts that were.
    pub fn unlock_range(&mut self, range: &Range<PageNo>) -> Vec<Range<PageNo>> {
        let were = self.locked.overlapping(range.clone()).map(|l| clip(l, range)).collect();
        self.locked.remove(range.clone());
        were
    }

    /// Marks a range as holding a mapping that is not managed.
    pub fn set_foreign(&mut self, range: Range<PageNo>) {
        self.taken.insert(range.clone());
        self.foreign.insert(range);
    }

    /// The parts of `range` that hold mappings that are not managed.
    #[must_use]
    pub fn foreign_in(&self, range: &Range<PageNo>) -> Vec<Range<PageNo>> {
        self.foreign.overlapping(range.clone()).map(|f| clip(f, range)).collect()
    }

    /// Whether all of `range` is taken.
    #[must_use]
    pub fn is_taken(&self, range: &Range<PageNo>) -> bool {
        self.taken.gaps(range).next().is_none()
    }
}

/// The words of the bitmap that a range covers, each with the bits it covers.
fn words_of(range: &Range<PageNo>) -> impl Iterator<Item = (usize, u64)> + use<> {
    let (mut page, end) = (range.start, range.end);
    std::iter::from_fn(move || {
        if page >= end {
            return None;
        }
        let stop = end.min((page / 64 + 1) * 64);
        let bits = u64::MAX >> (64 - (stop - page)) << (page % 64);
        let word = page as usize / 64;
        page = stop;
        Some((word, bits))
    })
}

fn clip(range: &Range<PageNo>, to: &Range<PageNo>) -> Range<PageNo> {
    range.start.max(to.start)..range.end.min(to.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: u64 = 4096;

    proptest! {
        #[test]
        fn the_space_agrees_with_a_list_of_pages(
            steps in prop::collection::vec((any::<bool>(), 0..PAGES, 1..300u64), 1..60)
        ) {
            let space = Space::new(PAGES).unwrap();
            let mut model = vec![false; PAGES as usize];
            let mut layout = space.lock();
            for (map, at, count) in steps {
                if map {
                    let Some(range) = space.find(&layout, count, 1 + at % 7) else { continue };
                    prop_assert_eq!(range.start % (1 + at % 7), 0);
                    let slice = &mut model[range.start as usize..range.end as usize];
                    prop_assert!(slice.iter().all(|taken| !taken));
                    slice.fill(true);
                    space.add(&mut layout, range);
                } else {
                    let range = at..(at + count).min(PAGES);
                    model[range.start as usize..range.end as usize].fill(false);
                    space.close(&range);
                    space.remove(&mut layout, range);
                }
            }
            for page in 0..PAGES {
                prop_assert_eq!(space.is_mapped(page), model[page as usize]);
            }
            let count = model.iter().filter(|taken| **taken).count();
            prop_assert_eq!(space.mapped_bytes(), count * softswap_sys::PAGE_SIZE);
        }
    }

    #[test]
    fn protections_are_forgotten_with_the_mapping() {
        let space = Space::new(PAGES).unwrap();
        let mut layout = space.lock();
        space.add(&mut layout, 0..10);
        layout.set_protection(2..4, 0);
        assert_eq!(layout.protection(3), 0);
        assert_eq!(layout.protection(4), READ_WRITE);
        assert!(layout.has_protection(&(0..3)));
        space.remove(&mut layout, 0..10);
        space.add(&mut layout, 0..10);
        assert!(!layout.has_protection(&(0..10)));
    }
}
