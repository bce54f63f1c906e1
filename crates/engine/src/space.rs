//! Which pages of the window belong to the program, and with what protection.
//!
//! Mapping changes are rare and take one lock; a fault only reads the bitmap
//! of mapped pages. Large mappings cost one bit per page until touched, so a
//! sparse reservation of many gigabytes is cheap. Who looks for pages that hold
//! something skips what was never touched, a gigabyte at a time.
//!
//! A mapping that is expected to grow has *room*: free pages after it that other
//! mappings leave alone as long as there are others. Such mappings lie in the
//! upper half of the window, so that the room costs nobody anything.

use crate::page::PageNo;
use rangemap::{RangeMap, RangeSet};
use softswap_sys::memory::{reserve_u32, reserve_u64};
use softswap_sys::place;
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
/// Chunks in a group, which is skipped in one step if none of it was touched.
const GROUP_CHUNKS: u64 = 512;
const GROUP_PAGES: u64 = GROUP_CHUNKS * CHUNK_PAGES;
/// Room after a mapping: so many times its own pages,
const ROOM_FACTOR: u64 = 7;
/// at least the window's so many-th part (of a terabyte a gigabyte), and at most
/// that one.
const LEAST_ROOM_SHARE: u64 = 1024;
const MOST_ROOM_SHARE: u64 = 16;

/// The program's address space within the window.
pub struct Space {
    /// Where to begin to look in the lower half and in the upper one.
    firsts: [PageNo; 2],
    pages: u64,
    mapped: &'static [AtomicU64],
    chunks: &'static [AtomicU32],
    /// Whether a chunk of the group was ever touched.
    groups: &'static [AtomicU32],
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
    /// Free pages that are kept for the mapping before them to grow.
    rooms: RangeSet<PageNo>,
    protections: RangeMap<PageNo, Protection>,
    foreign: RangeSet<PageNo>,
    locked: RangeSet<PageNo>,
}

impl Space {
    /// An empty space of `pages` pages. Each half is filled from its first page on.
    pub fn new(pages: u64) -> io::Result<Space> {
        Space::from(pages, [0, pages / 2])
    }

    /// An empty space whose halves are filled from a page on that nobody knows
    /// before.
    pub fn scattered(pages: u64) -> io::Result<Space> {
        // So much is left behind it that what fits, fits there.
        let most = (pages / 4) as usize;
        let first = place::below(most) as u64;
        let roomy = place::below(most / CHUNK_PAGES as usize) as u64 * CHUNK_PAGES;
        Space::from(pages, [first, pages / 2 + roomy])
    }

    fn from(pages: u64, firsts: [PageNo; 2]) -> io::Result<Space> {
        Ok(Space {
            firsts,
            pages,
            mapped: reserve_u64((pages as usize).div_ceil(64))?,
            chunks: reserve_u32((pages / CHUNK_PAGES) as usize + 1)?,
            groups: reserve_u32((pages / GROUP_PAGES) as usize + 1)?,
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
        if chunk.load(Ordering::SeqCst) & TOUCHED != 0 {
            return;
        }
        // The group first: who sees the chunk touched finds it.
        self.groups[(page / GROUP_PAGES) as usize].store(TOUCHED, Ordering::SeqCst);
        if chunk.fetch_or(TOUCHED, Ordering::SeqCst) & TOUCHED == 0 {
            self.touched_chunks.fetch_add(1, Ordering::Relaxed);
        }
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

    /// The first page of `pages` whose chunk has resident pages, or their end.
    #[must_use]
    pub fn next_resident(&self, pages: Range<PageNo>) -> PageNo {
        self.next(pages, |chunk| chunk & !TOUCHED != 0)
    }

    /// The first page of `pages` whose chunk was ever touched, or their end.
    #[must_use]
    pub fn next_touched(&self, pages: Range<PageNo>) -> PageNo {
        self.next(pages, |chunk| chunk & TOUCHED != 0)
    }

    fn next(&self, pages: Range<PageNo>, is_wanted: impl Fn(u32) -> bool) -> PageNo {
        let Range { start: mut page, end } = pages;
        while page < end {
            if self.groups[(page / GROUP_PAGES) as usize].load(Ordering::SeqCst) == 0 {
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

    /// Finds `count` free pages, aligned to `align` pages, lowest first from where
    /// to begin. Others'
    /// room is taken where there is nothing else.
    #[must_use]
    pub fn find(&self, layout: &Layout, count: u64, align: u64) -> Option<Range<PageNo>> {
        let window = 0..self.pages;
        layout
            .find_beside_rooms(&(self.firsts[0]..self.pages), count, align)
            .or_else(|| layout.find_beside_rooms(&window, count, align))
            .or_else(|| layout.taken.gaps(&window).find_map(|gap| fit(&gap, count, align)))
    }

    /// Where mappings lie that have room to grow.
    #[must_use]
    pub fn roomy(&self) -> Range<PageNo> {
        self.pages / 2..self.pages
    }

    /// Finds `count` free pages with room to grow after them. Returns them, which
    /// begin with a chunk, and the room.
    #[must_use]
    pub fn find_roomy(
        &self,
        layout: &Layout,
        count: u64,
    ) -> Option<(Range<PageNo>, Range<PageNo>)> {
        let within = self.roomy();
        let least = self.pages / LEAST_ROOM_SHARE;
        let room = count.saturating_mul(ROOM_FACTOR).clamp(least, self.pages / MOST_ROOM_SHARE);
        let whole = count.checked_add(room)?.checked_next_multiple_of(CHUNK_PAGES)?;
        let found = layout
            .find_beside_rooms(&(self.firsts[1]..within.end), whole, CHUNK_PAGES)
            .or_else(|| layout.find_beside_rooms(&within, whole, CHUNK_PAGES));
        if let Some(found) = found {
            return Some((found.start..found.start + count, found.start + count..found.end));
        }
        // The largest room, or what else is free, is shared.
        let largest = layout.taken.gaps(&within).max_by_key(|gap| gap.end - gap.start)?;
        let half = largest.start.midpoint(largest.end)..largest.end;
        let found = fit(&half, count, CHUNK_PAGES)?;
        Some((found.clone(), found.end..half.end))
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
        layout.reserve(range);
    }

    /// Faults in `range` are refused from now on; the range stays taken.
    pub fn close(&self, range: &Range<PageNo>) {
        self.set_mapped(range, false);
    }

    /// Makes `range` free for other mappings.
    pub fn remove(&self, layout: &mut Layout, range: Range<PageNo>) {
        layout.forget(&range);
        layout.taken.remove(range.clone());
        layout.give_rooms_back(range);
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
        self.rooms.remove(range.clone());
        self.taken.insert(range);
    }

    /// Keeps the free pages `room` for the mapping before them.
    pub fn set_room(&mut self, room: Range<PageNo>) {
        if !room.is_empty() {
            self.rooms.insert(room);
        }
    }

    fn find_beside_rooms(
        &self,
        within: &Range<PageNo>,
        count: u64,
        align: u64,
    ) -> Option<Range<PageNo>> {
        self.taken
            .gaps(within)
            .find_map(|gap| self.rooms.gaps(&gap).find_map(|free| fit(&free, count, align)))
    }

    /// `range` is free from now on. Room whose mapping was there is free, too, or
    /// belongs to what is left of the mapping.
    fn give_rooms_back(&mut self, range: Range<PageNo>) {
        let touching = self.rooms.overlapping(range.start..range.end + 1);
        let left: Vec<_> = touching.filter(|room| room.start > range.start).cloned().collect();
        let end = left.last().map_or(0, |room| room.end);
        left.into_iter().for_each(|room| self.rooms.remove(room));
        let shrunk = range.start.checked_sub(1).is_some_and(|before| self.taken.contains(&before));
        if shrunk && end >= range.end {
            self.rooms.insert(range.start..end);
        }
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
        self.reserve(range.clone());
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

/// `count` pages of a gap, from the first on that is aligned to `align` pages.
fn fit(gap: &Range<PageNo>, count: u64, align: u64) -> Option<Range<PageNo>> {
    let start = gap.start.next_multiple_of(align);
    (start.checked_add(count)? <= gap.end).then(|| start..start + count)
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

    /// What may follow a step: rooms are free, and each belongs to a mapping.
    fn check_rooms(layout: &Layout) -> Result<(), TestCaseError> {
        for room in layout.rooms.iter() {
            prop_assert!(!layout.taken.overlaps(room), "{room:?} is not free");
            prop_assert!(room.start > 0 && layout.taken.contains(&(room.start - 1)), "{room:?}");
        }
        Ok(())
    }

    fn longest_free(model: &[bool]) -> usize {
        model.split(|taken| *taken).map(<[bool]>::len).max().unwrap_or(0)
    }

    #[derive(Debug, Clone)]
    enum Step {
        Map(u64, u64),
        MapRoomy(u64),
        Grow(u64, u64),
        MapAt(u64, u64),
        Unmap(u64, u64),
    }

    fn steps() -> impl Strategy<Value = Step> {
        let range = || (0..PAGES, 1..300u64);
        prop_oneof![
            range().prop_map(|(align, count)| Step::Map(1 + align % 7, count)),
            (1..300u64).prop_map(Step::MapRoomy),
            range().prop_map(|(at, count)| Step::Grow(at, count)),
            range().prop_map(|(at, count)| Step::MapAt(at, count)),
            range().prop_map(|(at, count)| Step::Unmap(at, 8 * count)),
        ]
    }

    /// What a step maps, with its room, if there is a place for it.
    fn place_of(
        step: &Step,
        space: &Space,
        layout: &Layout,
        model: &[bool],
    ) -> Option<(Range<PageNo>, Range<PageNo>)> {
        match *step {
            Step::Map(align, count) => {
                let found = space.find(layout, count, align)?;
                let beside = layout.find_beside_rooms(&(0..PAGES), count, align).is_some();
                assert!(found.start % align == 0 && !(beside && layout.rooms.overlaps(&found)));
                Some((found, 0..0))
            }
            Step::MapRoomy(count) => {
                let (found, room) = space.find_roomy(layout, count)?;
                assert!(found.start % CHUNK_PAGES == 0 && found.start >= PAGES / 2);
                assert!(found.end == room.start && !layout.taken.overlaps(&room));
                Some((found, room))
            }
            Step::Grow(at, count) => {
                let end = (at..PAGES).find(|page| !model[*page as usize])?;
                let more = end..end + count;
                (end > 0 && space.is_free(layout, &more)).then_some((more, 0..0))
            }
            Step::MapAt(at, count) => Some((at..(at + count).min(PAGES), 0..0)),
            Step::Unmap(..) => None,
        }
    }

    proptest! {
        #[test]
        fn the_space_agrees_with_a_list_of_pages(steps in prop::collection::vec(steps(), 1..80)) {
            let space = Space::new(PAGES).unwrap();
            let mut model = vec![false; PAGES as usize];
            let mut layout = space.lock();
            for step in steps {
                if let Step::Unmap(at, count) = step {
                    let range = at..(at + count).min(PAGES);
                    model[range.start as usize..range.end as usize].fill(false);
                    space.close(&range);
                    space.remove(&mut layout, range);
                } else if let Some((range, room)) = place_of(&step, &space, &layout, &model) {
                    let slice = &mut model[range.start as usize..range.end as usize];
                    prop_assert!(matches!(step, Step::MapAt(..)) || slice.iter().all(|taken| !taken));
                    slice.fill(true);
                    space.add(&mut layout, range);
                    layout.set_room(room);
                } else if let Step::Map(1, count) = step {
                    prop_assert!(longest_free(&model) < count as usize, "{step:?} has a place");
                }
                check_rooms(&layout)?;
            }
            for page in 0..PAGES {
                prop_assert_eq!(space.is_mapped(page), model[page as usize]);
            }
            let count = model.iter().filter(|taken| **taken).count();
            prop_assert_eq!(space.mapped_bytes(), count * softswap_sys::PAGE_SIZE);
            space.remove(&mut layout, 0..PAGES);
            prop_assert!(layout.rooms.is_empty());
        }

        #[test]
        fn chunks_that_hold_something_are_found_and_no_others(
            touched in prop::collection::vec((0..3000u64, any::<bool>()), 0..12),
            from in 0..3000 * CHUNK_PAGES,
            len in 0..3000 * CHUNK_PAGES,
        ) {
            let space = Space::new(3000 * CHUNK_PAGES).unwrap();
            let mut model = vec![0; 3000];
            for (chunk, resident) in touched {
                space.touch(chunk * CHUNK_PAGES + 7);
                space.add_resident(chunk * CHUNK_PAGES + 7, resident.into());
                model[chunk as usize] = model[chunk as usize].max(1 + i32::from(resident));
            }
            let pages = from..(from + len).min(3000 * CHUNK_PAGES);
            let expected = |least: i32| {
                let mut chunks = from / CHUNK_PAGES..3000;
                let found = chunks.find(|chunk| model[*chunk as usize] >= least);
                found.map_or(pages.end, |chunk| (chunk * CHUNK_PAGES).clamp(from, pages.end))
            };
            prop_assert_eq!(space.next_touched(pages.clone()), expected(1));
            prop_assert_eq!(space.next_resident(pages.clone()), expected(2));
        }
    }

    /// Of a terabyte.
    const WINDOW: u64 = 1 << 28;
    const GIB: u64 = 1 << 18;

    fn map_roomy(space: &Space, count: u64) -> (Range<PageNo>, Range<PageNo>) {
        let mut layout = space.lock();
        let (range, room) = space.find_roomy(&layout, count).unwrap();
        space.add(&mut layout, range.clone());
        layout.set_room(room.clone());
        (range, room)
    }

    fn unmap(space: &Space, range: Range<PageNo>) {
        space.close(&range);
        space.remove(&mut space.lock(), range);
    }

    #[test]
    fn a_place_with_room_is_used_again_when_its_mapping_is_gone() {
        let space = Space::new(WINDOW).unwrap();
        let (first, room) = map_roomy(&space, 300);
        let (second, _) = map_roomy(&space, GIB);
        assert!(room.end - room.start >= GIB && second.start >= room.end);
        assert_eq!(map_roomy(&space, 10).0.start, second.end + 7 * GIB);
        unmap(&space, first.clone());
        assert_eq!(map_roomy(&space, 20).0, first.start..first.start + 20);
    }

    #[test]
    fn what_a_mapping_gives_up_at_its_end_is_its_room() {
        let space = Space::new(WINDOW).unwrap();
        let (range, room) = map_roomy(&space, 600);
        unmap(&space, range.start + 100..range.end);
        let (next, _) = map_roomy(&space, 100);
        assert_eq!(next.start, room.end);
        unmap(&space, range.start..range.start + 100);
        assert_eq!(map_roomy(&space, 100).0.start, range.start);
    }

    #[test]
    fn when_all_is_given_away_rooms_are_shared() {
        let space = Space::new(WINDOW).unwrap();
        let mut rooms: Vec<_> = (0..2000).map(|_| map_roomy(&space, 512).1).collect();
        assert!(rooms.split_off(512).iter().all(|room| room.end - room.start > GIB / 10));
        let layout = space.lock();
        assert!(space.find(&layout, WINDOW / 2, 1).unwrap().start == 0, "nothing below is room");
        assert!(space.find(&layout, WINDOW / 2 + 1, 1).is_none());
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
