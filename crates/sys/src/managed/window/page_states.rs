//! Presence of each page of a window, and the protection that the program requested. The kernel
//! knows neither. A byte for each chunk holds the common protection of its pages, so protecting a
//! large range before its use costs one byte for 2 MiB.

use super::reservation::{Protection, READ_WRITE, frame_states};
use crate::memory::PAGE_SIZE;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

pub(super) const DISCARD_PAGES: usize = 64;
const CHUNK_PAGES: usize = 512;

/// Page bits: the protection that the program requested, XOR [`READ_WRITE`].
const WANTED: u8 = 7;
/// Page bit: present, with the program's protection.
const PRESENT: u8 = 8;
/// Page bit: writes are caught.
const CAUGHT: u8 = 16;
/// Chunk bit: the pages have protections of their own.
const IS_MIXED: u8 = 8;
/// Chunk bit: one of the pages has been present.
const IS_USED: u8 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageState {
    pub(super) wanted: Protection,
    pub(super) is_present: bool,
    pub(super) is_caught: bool,
}

impl PageState {
    pub(super) const UNTOUCHED: PageState =
        PageState { wanted: READ_WRITE, is_present: false, is_caught: false };

    pub(super) fn in_force(self) -> Protection {
        match self {
            PageState { is_present: false, .. } => libc::PROT_NONE,
            PageState { is_caught: true, wanted, .. } => wanted & !libc::PROT_WRITE,
            PageState { wanted, .. } => wanted,
        }
    }

    pub(super) fn absent(self) -> PageState {
        PageState { is_present: false, is_caught: false, ..self }
    }
}

/// The states of a window's pages. One thread at a time changes them; any thread reads them.
#[derive(Debug)]
pub(super) struct PageStates {
    pages: &'static [AtomicU8],
    chunks: &'static [AtomicU8],
}

impl PageStates {
    pub(super) fn new(len: usize) -> io::Result<PageStates> {
        let pages = len / PAGE_SIZE;
        Ok(PageStates {
            pages: frame_states(pages)?,
            chunks: frame_states(pages.div_ceil(CHUNK_PAGES))?,
        })
    }

    pub(super) fn get(&self, page: usize) -> PageState {
        let chunk = self.chunks[page / CHUNK_PAGES].load(Ordering::Acquire);
        let own = self.pages[page].load(Ordering::Acquire);
        let wanted = if chunk & IS_MIXED == 0 { chunk } else { own } & WANTED;
        PageState {
            wanted: i32::from(wanted) ^ READ_WRITE,
            is_present: own & PRESENT != 0,
            is_caught: own & CAUGHT != 0,
        }
    }

    pub(super) fn set(&self, page: usize, state: PageState) {
        let present = if state.is_present { PRESENT } else { 0 };
        let caught = if state.is_caught { CAUGHT } else { 0 };
        if state.is_present {
            self.chunks[page / CHUNK_PAGES].fetch_or(IS_USED, Ordering::Release);
        }
        let own = self.pages[page].load(Ordering::Relaxed);
        self.pages[page].store(own & WANTED | present | caught, Ordering::Release);
    }

    pub(super) fn set_wanted(&self, pages: Range<usize>, wanted: Protection) {
        let bits = (wanted ^ READ_WRITE) as u8 & WANTED;
        for (chunk, part) in by_chunk(&pages) {
            let common = &self.chunks[chunk];
            let before = common.load(Ordering::Relaxed);
            let is_whole = part.len() == CHUNK_PAGES;
            if !is_whole && before & IS_MIXED == 0 && before & WANTED == bits {
                continue;
            }
            if is_whole {
                common.store(before & IS_USED | bits, Ordering::Release);
                continue;
            }
            if before & IS_MIXED == 0 {
                let all = chunk * CHUNK_PAGES..((chunk + 1) * CHUNK_PAGES).min(self.pages.len());
                self.set_own(all, before & WANTED);
            }
            self.set_own(part, bits);
            common.store(before | IS_MIXED, Ordering::Release);
        }
    }

    fn set_own(&self, pages: Range<usize>, bits: u8) {
        for page in &self.pages[pages] {
            let own = page.load(Ordering::Relaxed);
            page.store(own & !WANTED | bits, Ordering::Release);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Returns the parts of `pages` in which a page may be present.
    pub(super) fn used(&self, pages: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let is_used = |chunk: usize| self.chunks[chunk].load(Ordering::Relaxed) & IS_USED != 0;
        by_chunk(pages).filter(move |(chunk, _)| is_used(*chunk)).map(|(_, part)| part)
    }
}

fn by_chunk(pages: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
    let Range { start, end } = *pages;
    (start / CHUNK_PAGES..end.div_ceil(CHUNK_PAGES)).map(move |chunk| {
        let first = chunk * CHUNK_PAGES;
        (chunk, start.max(first)..end.min(first + CHUNK_PAGES))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_keeps_its_protection_and_its_presence() {
        let states = PageStates::new(4 * CHUNK_PAGES * PAGE_SIZE).unwrap();
        let wanted = |page| states.get(page).wanted;
        assert_eq!(wanted(0), READ_WRITE);
        states.set_wanted(100..2000, libc::PROT_NONE);
        let read = libc::PROT_READ;
        states.set_wanted(600..601, read);
        let seen = [99, 100, 599, 600, 601, 1999, 2000].map(wanted);
        assert_eq!(seen, [READ_WRITE, 0, 0, read, 0, 0, READ_WRITE]);

        let state = states.get(600);
        assert_eq!((state.in_force(), state.is_present), (0, false));
        assert_eq!(states.used(&(0..2048)).count(), 0);
        states.set(600, PageState { is_present: true, is_caught: true, ..state });
        assert!(states.used(&(0..2048)).eq(std::iter::once(512..1024)));
        assert_eq!(states.get(600).in_force(), read);
        states.set_wanted(512..1024, READ_WRITE);
        assert_eq!(states.get(600).in_force(), read, "writes are caught");
        states.set(600, states.get(600).absent());
        assert_eq!(states.get(600).in_force(), libc::PROT_NONE);
        assert_eq!((wanted(600), wanted(511)), (READ_WRITE, libc::PROT_NONE));
    }
}
