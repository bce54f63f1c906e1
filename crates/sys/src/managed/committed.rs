//! Committed memory of a process without an engine: a bit for each page of the window that was made
//! writable. Pages made read-only stay committed, because their content stays.

use crate::bitmap::words_of;
use crate::memory::{PAGE_SIZE, reserve_u64};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

const BITS: usize = u64::BITS as usize;

#[derive(Debug)]
pub struct Committed {
    base: usize,
    words: &'static [AtomicU64],
    pages: AtomicUsize,
}

impl Committed {
    pub fn new(base: usize, len: usize) -> io::Result<Committed> {
        let words = reserve_u64((len / PAGE_SIZE).div_ceil(BITS))?;
        Ok(Committed { base, words, pages: AtomicUsize::new(0) })
    }

    pub fn bytes(&self) -> usize {
        self.pages.load(Relaxed) * PAGE_SIZE
    }

    pub fn missing_bytes(&self, range: &Range<usize>) -> usize {
        let pages = self.pages_of(range);
        let missing = words_of(pages).map(|(index, bits)| !self.words[index].load(Relaxed) & bits);
        missing.map(|bits| bits.count_ones() as usize).sum::<usize>() * PAGE_SIZE
    }

    pub fn add(&self, range: &Range<usize>) {
        for (index, bits) in words_of(self.pages_of(range)) {
            let before = self.words[index].fetch_or(bits, Relaxed);
            self.pages.fetch_add((bits & !before).count_ones() as usize, Relaxed);
        }
    }

    pub fn remove(&self, range: &Range<usize>) {
        for (index, bits) in words_of(self.pages_of(range)) {
            // Words without committed pages are not written, so that their memory is not populated.
            if self.words[index].load(Relaxed) & bits != 0 {
                let before = self.words[index].fetch_and(!bits, Relaxed);
                self.pages.fetch_sub((bits & before).count_ones() as usize, Relaxed);
            }
        }
    }

    fn pages_of(&self, range: &Range<usize>) -> Range<usize> {
        let end = self.base + self.words.len() * BITS * PAGE_SIZE;
        let clip = |address: usize| address.clamp(self.base, end) - self.base;
        clip(range.start) / PAGE_SIZE..clip(range.end).div_ceil(PAGE_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: usize = 17 << 40;

    fn range(pages: Range<usize>) -> Range<usize> {
        BASE + pages.start * PAGE_SIZE..BASE + pages.end * PAGE_SIZE
    }

    #[test]
    fn duplicate_ranges_count_once() {
        let committed = Committed::new(BASE, 1 << 30).unwrap();
        committed.add(&range(10..200));
        committed.add(&range(0..64));
        assert_eq!(committed.bytes(), 200 * PAGE_SIZE);
        assert_eq!(committed.missing_bytes(&range(100..300)), 100 * PAGE_SIZE);
        committed.remove(&range(5..6));
        committed.remove(&range(5..70));
        assert_eq!(committed.bytes(), 135 * PAGE_SIZE);
        committed.remove(&range(0..1 << 18));
        assert_eq!(committed.bytes(), 0);
    }

    #[test]
    fn memory_outside_window_is_not_counted() {
        let committed = Committed::new(BASE, 1 << 30).unwrap();
        committed.add(&(0..BASE));
        committed.add(&(BASE + (1 << 30)..usize::MAX));
        assert_eq!(committed.bytes(), 0);
        committed.add(&(BASE - 4096..BASE + 4096));
        assert_eq!(committed.bytes(), PAGE_SIZE);
    }
}
