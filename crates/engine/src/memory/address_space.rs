//! Mapped pages of the window, and their protections.
//!
//! Mapping changes are rare and take one lock; a fault only reads the bitmap of mapped pages. A
//! fully mapped group of 1 GiB is one flag instead of its bits, so a sparse reservation of a
//! terabyte is cheap. Searches for touched pages skip untouched groups.
//!
//! A mapping that is expected to grow has a *growth gap*: free pages after it that other mappings
//! avoid while other free pages exist. Such mappings are placed in the upper half of the window.

use crate::base::page::PageNo;
use rangemap::{RangeMap, RangeSet};
use softswap_sys::aslr;
use softswap_sys::bitmap::words_of;
use softswap_sys::memory::{reserve_u32, reserve_u64};
use softswap_sys::window::{Protection, READ_WRITE};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pages in a chunk: covered by one page of entries and one page table.
pub(crate) const CHUNK_PAGES: u64 = 512;
/// DRAM for a touched chunk: a page of entries and a page table.
const CHUNK_METADATA_BYTES: usize = 2 * softswap_sys::PAGE_SIZE;
const TOUCHED: u32 = 1 << 31;
/// Group flag: all of its pages are mapped, regardless of their bits.
const WHOLE: u32 = 1 << 30;
/// PROT_WRITE.
const WRITE: Protection = 2;
/// Pages in a group of chunks: 1 GiB.
const GROUP_PAGES: u64 = 512 * CHUNK_PAGES;

#[derive(Default)]
pub struct AddressSpace {
    /// First page of the search, for the lower and the upper half.
    firsts: [PageNo; 2],
    pages: u64,
    mapped: &'static [AtomicU64],
    chunks: &'static [AtomicU32],
    /// TOUCHED is set if any chunk of the group was touched.
    groups: &'static [AtomicU32],
    touched_chunks: AtomicUsize,
    /// Page after the highest page ever mapped.
    high: AtomicU64,
    mapped_pages: AtomicUsize,
    layout: Mutex<Layout>,
}

#[derive(Default)]
pub struct Layout {
    taken: RangeSet<PageNo>,
    growth_gaps: RangeSet<PageNo>,
    protections: RangeMap<PageNo, Protection>,
    unmanaged: RangeSet<PageNo>,
    locked: RangeSet<PageNo>,
    /// Sealed by `mseal`, but not in the kernel, which would prevent reclaim of their pages.
    sealed: RangeSet<PageNo>,
    withheld: RangeSet<PageNo>,
    wiped: RangeSet<PageNo>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Managed,
    Unmanaged,
    /// Not mapped by the program.
    Hole,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtFork {
    /// Not mapped in the child.
    Withheld,
    /// Reads as zeroes in the child.
    Wiped,
}

impl AddressSpace {
    /// Creates an empty space of `pages` pages. Each half is filled from its first page.
    pub fn new(pages: u64) -> io::Result<AddressSpace> {
        AddressSpace::from(pages, [0, pages / 2])
    }

    /// Creates an empty space whose halves are filled from randomly chosen pages.
    pub(crate) fn scattered(pages: u64) -> io::Result<AddressSpace> {
        // At most a quarter of the window is skipped, and at most 256 GiB.
        let most = (pages / 4).min(1 << 26) as usize;
        let first = aslr::below(most) as u64;
        let growable = aslr::below(most / CHUNK_PAGES as usize) as u64 * CHUNK_PAGES;
        AddressSpace::from(pages, [first, pages / 2 + growable])
    }

    fn from(pages: u64, firsts: [PageNo; 2]) -> io::Result<AddressSpace> {
        Ok(AddressSpace {
            firsts,
            pages,
            mapped: reserve_u64((pages as usize).div_ceil(64))?,
            chunks: reserve_u32((pages / CHUNK_PAGES) as usize + 1)?,
            groups: reserve_u32((pages / GROUP_PAGES) as usize + 1)?,
            ..AddressSpace::default()
        })
    }

    /// Locks the layout. Call with signals blocked, and never while holding a claim or a context.
    pub fn lock(&self) -> MutexGuard<'_, Layout> {
        self.layout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_mapped(&self, page: PageNo) -> bool {
        // Check the group first: `split` sets the bits before it clears WHOLE.
        self.is_whole(page)
            || self.mapped[page as usize / 64].load(Ordering::SeqCst) & 1 << (page % 64) != 0
    }

    pub(crate) fn is_range_mapped(&self, range: &Range<PageNo>) -> bool {
        self.words(range).all(|(_, bits, mapped)| mapped & bits == bits)
    }

    pub(crate) fn is_any_mapped(&self, range: &Range<PageNo>) -> bool {
        self.words(range).any(|(_, bits, mapped)| mapped & bits != 0)
    }

    fn is_whole(&self, page: PageNo) -> bool {
        self.groups[(page / GROUP_PAGES) as usize].load(Ordering::SeqCst) & WHOLE != 0
    }

    /// Yields for each bitmap word of a range: index, the range's bits, mapped bits. A group with
    /// WHOLE set yields only its first word.
    fn words(&self, range: &Range<PageNo>) -> impl Iterator<Item = (usize, u64, u64)> + use<'_> {
        let (mut page, end) = (range.start, range.end);
        std::iter::from_fn(move || {
            if page >= end {
                return None;
            }
            let is_whole = self.is_whole(page);
            let (word, bits) = words_of(page as usize..end as usize).next()?;
            let mapped = if is_whole { u64::MAX } else { self.mapped[word].load(Ordering::SeqCst) };
            page = if is_whole {
                (page / GROUP_PAGES + 1) * GROUP_PAGES
            } else {
                (page / 64 + 1) * 64
            };
            Some((word, bits, mapped))
        })
    }

    /// Returns the first page of the range whose mapped state equals `mapped`, or the range's end.
    fn next_with_state(&self, range: &Range<PageNo>, mapped: bool) -> PageNo {
        let wanted = self.words(range).find_map(|(index, bits, word)| {
            let found = bits & if mapped { word } else { !word };
            (found != 0).then(|| index as PageNo * 64 + PageNo::from(found.trailing_zeros()))
        });
        wanted.unwrap_or(range.end)
    }

    pub(crate) fn segments(
        &self,
        layout: &Layout,
        range: &Range<PageNo>,
    ) -> Vec<(Range<PageNo>, Kind)> {
        let mut segments = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let rest = at..range.end;
            let unmanaged = layout.unmanaged_in(&rest).into_iter().next();
            let (end, kind) = match unmanaged {
                Some(unmanaged) if unmanaged.start == at => (unmanaged.end, Kind::Unmanaged),
                _ if self.is_mapped(at) => (self.next_with_state(&rest, false), Kind::Managed),
                unmanaged => {
                    let end = unmanaged.map_or(range.end, |unmanaged| unmanaged.start);
                    (self.next_with_state(&(at..end), true), Kind::Hole)
                }
            };
            segments.push((at..end, kind));
            at = end;
        }
        segments
    }

    pub fn high(&self) -> PageNo {
        self.high.load(Ordering::Acquire)
    }

    pub(crate) fn mapped_bytes(&self) -> usize {
        self.mapped_pages.load(Ordering::Relaxed) * softswap_sys::PAGE_SIZE
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.touched_chunks.load(Ordering::Relaxed) * CHUNK_METADATA_BYTES
    }

    /// Marks the page's chunk as touched, before the page gets an entry. Call before
    /// [`AddressSpace::is_mapped`], so that either a concurrent unmap sees the mark, or this thread
    /// sees that the page is unmapped.
    pub fn touch(&self, page: PageNo) {
        let chunk = &self.chunks[(page / CHUNK_PAGES) as usize];
        if chunk.load(Ordering::SeqCst) & TOUCHED != 0 {
            return;
        }
        // Mark the group first, so that a touched chunk is always in a touched group.
        self.groups[(page / GROUP_PAGES) as usize].fetch_or(TOUCHED, Ordering::SeqCst);
        if chunk.fetch_or(TOUCHED, Ordering::SeqCst) & TOUCHED == 0 {
            self.touched_chunks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds pages of one chunk that became resident.
    pub fn add_resident(&self, page: PageNo, count: u32) {
        self.chunks[(page / CHUNK_PAGES) as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub fn sub_resident(&self, page: PageNo) {
        self.chunks[(page / CHUNK_PAGES) as usize].fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn has_resident(&self, page: PageNo) -> bool {
        self.chunks[(page / CHUNK_PAGES) as usize].load(Ordering::Relaxed) & !TOUCHED != 0
    }

    /// Returns the first page of `pages` whose chunk has resident pages, or their end.
    pub(crate) fn next_resident(&self, pages: Range<PageNo>) -> PageNo {
        self.next(pages, |chunk| chunk & !TOUCHED != 0)
    }

    pub(crate) fn next_touched(&self, pages: Range<PageNo>) -> PageNo {
        self.next(pages, |chunk| chunk & TOUCHED != 0)
    }

    fn next(&self, pages: Range<PageNo>, is_wanted: impl Fn(u32) -> bool) -> PageNo {
        let Range { start: mut page, end } = pages;
        while page < end {
            if self.groups[(page / GROUP_PAGES) as usize].load(Ordering::SeqCst) & TOUCHED == 0 {
                page = (page / GROUP_PAGES + 1) * GROUP_PAGES;
            } else if !is_wanted(self.chunks[(page / CHUNK_PAGES) as usize].load(Ordering::SeqCst))
            {
                page = (page / CHUNK_PAGES + 1) * CHUNK_PAGES;
            } else {
                return page;
            }
        }
        end
    }

    /// The caller holds the layout lock.
    fn set_mapped(&self, range: &Range<PageNo>, on: bool) {
        let mut changed = 0;
        let mut page = range.start;
        while page < range.end {
            let first = page / GROUP_PAGES * GROUP_PAGES;
            let piece = page..range.end.min(first + GROUP_PAGES);
            page = piece.end;
            changed += if piece.end - piece.start == GROUP_PAGES {
                self.set_group(first, on)
            } else if on && self.is_whole(first) {
                0
            } else {
                self.split(first);
                self.set_bits(&piece, on)
            };
        }
        if on {
            self.high.fetch_max(range.end, Ordering::AcqRel);
            self.mapped_pages.fetch_add(changed, Ordering::Relaxed);
        } else {
            self.mapped_pages.fetch_sub(changed, Ordering::Relaxed);
        }
    }

    /// Returns the number of pages that change.
    fn set_group(&self, first: PageNo, on: bool) -> usize {
        let group = &self.groups[(first / GROUP_PAGES) as usize];
        let was_whole = self.is_whole(first);
        match (on, was_whole) {
            (true, true) => 0,
            (true, false) => {
                let words = words_of(first as usize..(first + GROUP_PAGES) as usize);
                let mapped = words.map(|(index, _)| self.mapped[index].load(Ordering::SeqCst));
                let before: usize = mapped.map(|word| word.count_ones() as usize).sum();
                group.fetch_or(WHOLE, Ordering::SeqCst);
                GROUP_PAGES as usize - before
            }
            (false, _) => {
                // If the group is whole, no reader uses the bits.
                let before = self.set_bits(&(first..first + GROUP_PAGES), false);
                group.fetch_and(!WHOLE, Ordering::SeqCst);
                if was_whole { GROUP_PAGES as usize } else { before }
            }
        }
    }

    /// Replaces the WHOLE flag of a group by its bits.
    fn split(&self, first: PageNo) {
        if self.is_whole(first) {
            self.set_bits(&(first..first + GROUP_PAGES), true);
            self.groups[(first / GROUP_PAGES) as usize].fetch_and(!WHOLE, Ordering::SeqCst);
        }
    }

    /// Sets or clears bits and returns the number that changed. Unchanged words are not written.
    fn set_bits(&self, range: &Range<PageNo>, on: bool) -> usize {
        let mut changed = 0;
        for (index, bits) in words_of(range.start as usize..range.end as usize) {
            let word = &self.mapped[index];
            let before = word.load(Ordering::SeqCst);
            changed += match on {
                true if before & bits != bits => bits & !word.fetch_or(bits, Ordering::SeqCst),
                false if before & bits != 0 => bits & word.fetch_and(!bits, Ordering::SeqCst),
                _ => 0,
            }
            .count_ones() as usize;
        }
        changed
    }

    /// Finds `count` free pages aligned to `align` pages: the lowest at or after the search start,
    /// then anywhere in the window, then in growth gaps of other mappings.
    pub(crate) fn find(&self, layout: &Layout, count: u64, align: u64) -> Option<Range<PageNo>> {
        let window = 0..self.pages;
        layout
            .find_outside_growth_gaps(&(self.firsts[0]..self.pages), count, align)
            .or_else(|| layout.find_outside_growth_gaps(&window, count, align))
            .or_else(|| layout.taken.gaps(&window).find_map(|gap| fit(&gap, count, align)))
    }

    pub(crate) fn growable(&self) -> Range<PageNo> {
        self.pages / 2..self.pages
    }

    /// Finds `count` free pages that start at a chunk, and a growth gap after them.
    pub(crate) fn find_growable(
        &self,
        layout: &Layout,
        count: u64,
    ) -> Option<(Range<PageNo>, Range<PageNo>)> {
        let within = self.growable();
        // Seven times the size, from 1/1024 of the window (1 GiB of 1 TiB) to 1/16 of it.
        let least = self.pages / 1024;
        let gap = count.saturating_mul(7).clamp(least, self.pages / 16);
        let whole = count.checked_add(gap)?.checked_next_multiple_of(CHUNK_PAGES)?;
        let found = layout
            .find_outside_growth_gaps(&(self.firsts[1]..within.end), whole, CHUNK_PAGES)
            .or_else(|| layout.find_outside_growth_gaps(&within, whole, CHUNK_PAGES));
        if let Some(found) = found {
            return Some((found.start..found.start + count, found.start + count..found.end));
        }
        // Otherwise split the largest free gap.
        let largest = layout.taken.gaps(&within).max_by_key(|gap| gap.end - gap.start)?;
        let half = largest.start.midpoint(largest.end)..largest.end;
        let found = fit(&half, count, CHUNK_PAGES)?;
        Some((found.clone(), found.end..half.end))
    }

    pub(crate) fn is_free(&self, layout: &Layout, range: &Range<PageNo>) -> bool {
        range.end <= self.pages && !layout.taken.overlaps(range)
    }

    /// Maps `range` with read and write permission.
    pub fn add(&self, layout: &mut Layout, range: Range<PageNo>) {
        layout.protections.remove(range.clone());
        self.set_mapped(&range, true);
        layout.reserve(range);
    }

    /// Refuses faults in `range`, which stays allocated.
    pub(crate) fn close(&self, range: &Range<PageNo>) {
        self.set_mapped(range, false);
    }

    pub(crate) fn remove(&self, layout: &mut Layout, range: Range<PageNo>) {
        layout.forget(&range);
        layout.taken.remove(range.clone());
        layout.release_growth_gaps(range);
    }
}

impl Layout {
    /// Removes all attributes of a range except its protection, which the kernel may still have.
    pub(crate) fn forget(&mut self, range: &Range<PageNo>) {
        self.unmanaged.remove(range.clone());
        self.locked.remove(range.clone());
        self.sealed.remove(range.clone());
        self.withheld.remove(range.clone());
        self.wiped.remove(range.clone());
    }

    fn set_at_fork(&mut self, what: AtFork) -> &mut RangeSet<PageNo> {
        match what {
            AtFork::Withheld => &mut self.withheld,
            AtFork::Wiped => &mut self.wiped,
        }
    }

    pub(crate) fn at_fork(&mut self, range: Range<PageNo>, what: AtFork, on: bool) {
        let set = self.set_at_fork(what);
        if on { set.insert(range) } else { set.remove(range) }
    }

    pub(crate) fn kept_from_children(&mut self, what: AtFork) -> Vec<Range<PageNo>> {
        self.set_at_fork(what).iter().cloned().collect()
    }

    /// Pages of `to` beyond the length of `from` get the treatment of its last page.
    pub(crate) fn copy_fork_treatment(&mut self, from: &Range<PageNo>, to: &Range<PageNo>) {
        for what in [AtFork::Withheld, AtFork::Wiped] {
            let set = self.set_at_fork(what);
            let parts: Vec<_> =
                set.overlapping(from.clone()).map(|part| clip(part, from)).collect();
            for part in parts {
                let start = to.start + (part.start - from.start);
                let end = to.start + (part.end - from.start);
                let end = if part.end == from.end { to.end } else { end.min(to.end) };
                if start < end {
                    set.insert(start..end);
                }
            }
        }
    }

    /// Returns true if a range has one protection, lock and seal state: it can move as one mapping.
    pub(crate) fn is_uniform(&self, range: &Range<PageNo>) -> bool {
        let protection = self.protection(range.start);
        let protected = if protection == READ_WRITE {
            !self.has_protection(range)
        } else {
            let special = self.protections.overlapping(range.clone());
            self.protections.gaps(range).next().is_none() && { special }
                .all(|(_, other)| *other == protection)
        };
        let is_uniform =
            |set: &RangeSet<PageNo>| !set.overlaps(range) || set.gaps(range).next().is_none();
        protected && is_uniform(&self.locked) && is_uniform(&self.sealed)
    }

    pub(crate) fn lacks_permission(&self, range: &Range<PageNo>, wanted: Protection) -> bool {
        self.protections.overlapping(range.clone()).any(|(_, has)| has & wanted != wanted)
    }

    pub(crate) fn seal(&mut self, range: Range<PageNo>) {
        self.sealed.insert(range);
    }

    pub(crate) fn first_sealed(&self, range: &Range<PageNo>) -> Option<PageNo> {
        self.sealed.overlapping(range.clone()).next().map(|sealed| sealed.start.max(range.start))
    }

    /// Returns the first page of a range whose content may not be dropped: a sealed page that the
    /// program may not write.
    pub(crate) fn first_kept(&self, range: &Range<PageNo>) -> Option<PageNo> {
        self.sealed.overlapping(range.clone()).find_map(|sealed| {
            let sealed = clip(sealed, range);
            let mut parts = self.protections.overlapping(sealed.clone());
            let closed = parts.find(|(_, protection)| **protection & WRITE == 0);
            closed.map(|(part, _)| part.start.max(sealed.start))
        })
    }

    pub(crate) fn has_locked(&self, range: &Range<PageNo>) -> bool {
        self.locked.overlaps(range)
    }

    pub(crate) fn locked(&self) -> Vec<Range<PageNo>> {
        self.locked.iter().cloned().collect()
    }

    pub(crate) fn set_protection(&mut self, range: Range<PageNo>, protection: Protection) {
        if protection == READ_WRITE {
            self.protections.remove(range);
        } else {
            self.protections.insert(range, protection);
        }
    }

    /// Returns true if any page of the range has a protection other than read and write.
    pub(crate) fn has_protection(&self, range: &Range<PageNo>) -> bool {
        self.protections.overlaps(range)
    }

    pub(crate) fn protection(&self, page: PageNo) -> Protection {
        self.protections.get(&page).copied().unwrap_or(READ_WRITE)
    }

    pub(crate) fn reserve(&mut self, range: Range<PageNo>) {
        self.growth_gaps.remove(range.clone());
        self.taken.insert(range);
    }

    pub(crate) fn set_growth_gap(&mut self, gap: Range<PageNo>) {
        if !gap.is_empty() {
            self.growth_gaps.insert(gap);
        }
    }

    fn find_outside_growth_gaps(
        &self,
        within: &Range<PageNo>,
        count: u64,
        align: u64,
    ) -> Option<Range<PageNo>> {
        self.taken
            .gaps(within)
            .find_map(|gap| self.growth_gaps.gaps(&gap).find_map(|free| fit(&free, count, align)))
    }

    /// Updates the growth gaps after `range` became free: the gap after it becomes free, or belongs
    /// to the remaining mapping before it.
    fn release_growth_gaps(&mut self, range: Range<PageNo>) {
        let touching = self.growth_gaps.overlapping(range.start..range.end + 1);
        let left: Vec<_> = touching.filter(|gap| gap.start > range.start).cloned().collect();
        let end = left.last().map_or(0, |gap| gap.end);
        left.into_iter().for_each(|gap| self.growth_gaps.remove(gap));
        let shrunk = range.start.checked_sub(1).is_some_and(|before| self.taken.contains(&before));
        if shrunk && end >= range.end {
            self.growth_gaps.insert(range.start..end);
        }
    }

    /// Returns the newly locked parts; `None` if more than `max_pages` pages would be locked.
    pub(crate) fn lock_range(
        &mut self,
        range: Range<PageNo>,
        max_pages: u64,
    ) -> Option<Vec<Range<PageNo>>> {
        let new: Vec<_> = self.locked.gaps(&range).collect();
        let pages = |ranges: &mut dyn Iterator<Item = &Range<PageNo>>| -> u64 {
            ranges.map(|range| range.end - range.start).sum()
        };
        if pages(&mut self.locked.iter()) + pages(&mut new.iter()) > max_pages {
            return None;
        }
        self.locked.insert(range);
        Some(new)
    }

    pub(crate) fn unlock_range(&mut self, range: &Range<PageNo>) -> Vec<Range<PageNo>> {
        let were = self.locked.overlapping(range.clone()).map(|l| clip(l, range)).collect();
        self.locked.remove(range.clone());
        were
    }

    pub(crate) fn set_unmanaged(&mut self, range: Range<PageNo>) {
        self.reserve(range.clone());
        self.unmanaged.insert(range);
    }

    pub(crate) fn unmanaged_in(&self, range: &Range<PageNo>) -> Vec<Range<PageNo>> {
        self.unmanaged.overlapping(range.clone()).map(|f| clip(f, range)).collect()
    }
}

fn fit(gap: &Range<PageNo>, count: u64, align: u64) -> Option<Range<PageNo>> {
    let start = gap.start.next_multiple_of(align);
    (start.checked_add(count)? <= gap.end).then(|| start..start + count)
}

fn clip(range: &Range<PageNo>, to: &Range<PageNo>) -> Range<PageNo> {
    range.start.max(to.start)..range.end.min(to.end)
}

#[cfg(test)]
#[path = "address_space_tests.rs"]
mod tests;
