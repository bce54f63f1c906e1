//! Prefetching of pages that are touched together.
//!
//! Objects often span pages: a tree node, a row, a block with its header. Therefore each chunk
//! learns, for each small offset, the likelihood that the page there is read from the disk within a
//! few faults (offset prefetching in processors, P. Michaud, 2016). Pages that are likely enough
//! are read with the faulting one, in hardly more time.

use crate::base::page::PageNo;
use crate::memory::address_space::CHUNK_PAGES;
use softswap_sys::memory::reserve_u64;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Offsets considered, in pages.
const OFFSETS: [i64; 8] = [-4, -3, -2, -1, 1, 2, 3, 4];
/// Number of faults within which a page counts as touched together with another.
const RECENT: usize = 8;
/// The likelihoods of a chunk fit into one word.
const LIKELY_BITS: u32 = u64::BITS / OFFSETS.len() as u32;
const CERTAIN: u64 = (1 << LIKELY_BITS) - 1;
/// An additional page costs about a tenth of a separate read, and memory that may be wasted.
const LIKELY: u64 = CERTAIN / 4;
/// One fault moves a likelihood by 1/8 of the remaining difference.
const WEIGHT_SHIFT: u32 = 3;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Offsets(u8);

impl Offsets {
    /// Returns the offsets for whose pages `is_wanted` holds.
    pub(crate) fn of(page: PageNo, is_wanted: impl Fn(PageNo) -> bool) -> Offsets {
        let bit = |at: usize| {
            let there = page.checked_add_signed(OFFSETS[at]);
            u8::from(there.is_some_and(&is_wanted)) << at
        };
        Offsets((0..OFFSETS.len()).fold(0, |bits, at| bits | bit(at)))
    }

    pub(crate) fn pages(self, page: PageNo) -> impl Iterator<Item = PageNo> {
        let is_in = move |at: &usize| self.0 >> at & 1 == 1;
        let at = (0..OFFSETS.len()).filter(is_in);
        at.filter_map(move |at| page.checked_add_signed(OFFSETS[at]))
    }

    pub(crate) fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub(crate) fn and(self, others: Offsets) -> Offsets {
        Offsets(self.0 & others.0)
    }

    pub(crate) fn without(self, others: Offsets) -> Offsets {
        Offsets(self.0 & !others.0)
    }
}

/// Learnt likelihoods. Concurrent updates may be lost.
#[derive(Debug)]
pub(crate) struct OffsetPrefetch {
    /// Per chunk: for each of the [`OFFSETS`], the likelihood.
    chunks: &'static [AtomicU64],
    /// Recent faults from the disk (see `parted`).
    recent: [AtomicU64; RECENT],
    next: AtomicUsize,
    turns: AtomicU32,
}

impl OffsetPrefetch {
    pub(crate) fn new(pages: usize) -> io::Result<OffsetPrefetch> {
        Ok(OffsetPrefetch {
            chunks: reserve_u64(pages / CHUNK_PAGES as usize + 1)?,
            recent: [const { AtomicU64::new(0) }; RECENT],
            next: AtomicUsize::new(0),
            turns: AtomicU32::new(0),
        })
    }

    fn chunk(&self, page: PageNo) -> &AtomicU64 {
        &self.chunks[(page / CHUNK_PAGES) as usize]
    }

    pub(crate) fn likely(&self, page: PageNo, others: Offsets) -> Offsets {
        let chunk = self.chunk(page).load(Relaxed);
        let bit = |at: usize| u8::from(likelihood(chunk, at) >= LIKELY) << at;
        let likely = Offsets((0..OFFSETS.len()).fold(0, |bits, at| bits | bit(at))).and(others);
        if likely.is_empty() || self.is_probe() { Offsets::default() } else { likely }
    }

    /// True for one fault in 16, because pages that are read together no longer fault. Spread by a
    /// hash, so that periodic accesses are not sampled at one phase.
    fn is_probe(&self) -> bool {
        const GOLDEN: u32 = 0x9E37_79B9;
        let turn = self.turns.fetch_add(1, Relaxed);
        turn.wrapping_mul(GOLDEN) < u32::MAX / 16
    }

    /// Records a fault. `watched`: pages that are on the disk and not read with this one.
    pub(crate) fn note(&self, page: PageNo, watched: Offsets) {
        for entry in &self.recent {
            let bits = entry.load(Relaxed);
            let (before, watched, _) = parted(bits);
            let follows = Offsets::of(before, |near| near == page).and(watched);
            if !follows.is_empty() {
                entry.store(bits | u64::from(follows.0), Relaxed);
            }
        }
        if watched.is_empty() {
            return;
        }
        let place = self.next.fetch_add(1, Relaxed) % RECENT;
        let entry = page << 16 | u64::from(watched.0) << 8;
        self.learn(self.recent[place].swap(entry, Relaxed));
    }

    fn learn(&self, entry: u64) {
        let (page, watched, followed) = parted(entry);
        let chunk = self.chunk(page);
        let mut bits = chunk.load(Relaxed);
        for at in (0..OFFSETS.len()).filter(|at| watched.0 >> at & 1 == 1) {
            let likely = likelihood(bits, at);
            let moved = match followed.0 >> at & 1 == 1 {
                true => likely + (CERTAIN - likely).div_ceil(1 << WEIGHT_SHIFT),
                false => likely - likely.div_ceil(1 << WEIGHT_SHIFT),
            };
            let shift = at as u32 * LIKELY_BITS;
            bits = bits & !(CERTAIN << shift) | moved << shift;
        }
        chunk.store(bits, Relaxed);
    }
}

/// Returns the page, the watched offsets, and those that followed.
fn parted(entry: u64) -> (PageNo, Offsets, Offsets) {
    (entry >> 16, Offsets((entry >> 8) as u8), Offsets(entry as u8))
}

fn likelihood(chunk: u64, at: usize) -> u64 {
    chunk >> (at as u32 * LIKELY_BITS) & CERTAIN
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefetch() -> OffsetPrefetch {
        OffsetPrefetch::new(1 << 20).unwrap()
    }

    fn all() -> Offsets {
        Offsets::of(100, |_| true)
    }

    fn offsets(of: &[i64]) -> Offsets {
        Offsets::of(100, |near| of.contains(&(near as i64 - 100)))
    }

    fn note(prefetch: &OffsetPrefetch, pages: &[PageNo]) {
        pages.iter().for_each(|page| prefetch.note(*page, all()));
    }

    fn likely(prefetch: &OffsetPrefetch, page: PageNo) -> Offsets {
        let turns = (0..3).map(|_| prefetch.likely(page, all()));
        turns.into_iter().find(|likely| !likely.is_empty()).unwrap_or_default()
    }

    #[test]
    fn frequent_offset_is_prefetched() {
        let prefetch = prefetch();
        assert!(likely(&prefetch, 100).is_empty());
        for row in 0..10 {
            let page = 1024 + 40 * row;
            note(&prefetch, &[page, page - 1, page + 2]);
        }
        assert_eq!(likely(&prefetch, 1030), offsets(&[-1, 2, 3]));
        assert!(likely(&prefetch, 100).is_empty(), "chunks are independent");
    }

    #[test]
    fn stale_offset_is_dropped() {
        let prefetch = prefetch();
        for row in 0..20 {
            note(&prefetch, &[1024 + 20 * row, 1025 + 20 * row]);
        }
        assert_eq!(likely(&prefetch, 1100), offsets(&[1]));
        let turns = (0..2000).find(|row| {
            let page = 1024 + 9 * (row % 50);
            let along = prefetch.likely(page, all());
            prefetch.note(page, all().without(along));
            likely(&prefetch, page).is_empty()
        });
        assert!(turns.is_some_and(|turns| turns < 500), "after {turns:?} faults");
    }

    #[test]
    fn prefetch_is_skipped_periodically() {
        let prefetch = prefetch();
        (0..20).for_each(|row| note(&prefetch, &[1024 + 20 * row, 1025 + 20 * row]));
        let probes = (0..160).filter(|_| prefetch.likely(1024, all()).is_empty()).count();
        assert!((8..=12).contains(&probes), "{probes} of 160");
        let even = (0..160).filter(|turn| prefetch.likely(1024, all()).is_empty() && turn % 2 == 0);
        assert!((3..=7).contains(&even.count()), "probes do not follow the program's period");
        assert!(prefetch.likely(1024, Offsets::default()).is_empty());
    }

    #[test]
    fn unwatched_offsets_are_not_evaluated() {
        let prefetch = prefetch();
        (0..50).for_each(|row| prefetch.note(1024 + row, Offsets::default()));
        assert!(likely(&prefetch, 1024).is_empty());
        assert_eq!(all().without(offsets(&[2])).count(), OFFSETS.len() - 1);
    }

    proptest! {
        #[test]
        fn random_touches_have_no_offset(pages in prop::collection::vec(0..512u64, 200..400)) {
            let prefetch = prefetch();
            let mut named = 0;
            for page in &pages {
                prefetch.note(*page, all());
                named += likely(&prefetch, *page).count();
            }
            prop_assert!(named < pages.len() / 2, "{} of {}", named, pages.len());
        }

        #[test]
        fn offsets_map_to_their_pages(page in 0..1_u64 << 40, bits: u8) {
            let wanted = |near: PageNo| bits >> (near % 8) & 1 == 1;
            let offsets = Offsets::of(page, wanted);
            let near = |other: &PageNo| *other != page && wanted(*other);
            let mut expected: Vec<_> =
                (page.saturating_sub(4)..=page + 4).filter(near).collect();
            let mut found: Vec<_> = offsets.pages(page).collect();
            found.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(offsets.count(), offsets.pages(page).count());
        }
    }
}
