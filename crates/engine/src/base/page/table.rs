//! The table of entries, and claims: the right to change one entry.

use super::entry::{AGE_MASK, AGE_SHIFT, BUSY, Entry, PIN_ONE, PINS, PageNo, Place, WAITERS};
use softswap_sys::primitive::{self, AtomicU64, Ordering};
use std::ops::Range;

/// Spins before sleeping: a transition of a page in DRAM takes a few microseconds.
const SPINS: u32 = if cfg!(feature = "loom") { 1 } else { 200 };

#[derive(Debug, Clone, Copy)]
pub struct PageTable<'t> {
    words: &'t [AtomicU64],
}

/// The right to change one page's place. A drop without [`Claim::publish`] keeps the place.
#[derive(Debug)]
#[must_use]
pub struct Claim<'t> {
    word: &'t AtomicU64,
    before: Entry,
}

impl<'t> PageTable<'t> {
    /// Returns a table over `words`. All-zero words mean [`Place::Vacant`].
    pub fn new(words: &'t [AtomicU64]) -> PageTable<'t> {
        PageTable { words }
    }

    pub fn load(&self, page: PageNo) -> Entry {
        Entry(self.words[page as usize].load(Ordering::Acquire))
    }

    /// Stores the entries of pages that are not yet visible to other threads.
    pub(crate) fn begin(&self, pages: Range<PageNo>, place: Place) {
        let entry = Entry::new(place).0;
        for word in &self.words[pages.start as usize..pages.end as usize] {
            word.store(entry, Ordering::Release);
        }
    }

    /// Claims the page if its entry equals `seen`. Fails if `seen` is busy.
    pub(crate) fn try_claim(&self, page: PageNo, seen: Entry) -> Option<Claim<'t>> {
        let word = &self.words[page as usize];
        if seen.is_busy() {
            return None;
        }
        word.compare_exchange(seen.0, seen.0 | BUSY, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
            .map(|_| Claim { word, before: seen })
    }

    /// Claims the page in any place. Waits for another claimer.
    pub fn claim(&self, page: PageNo) -> Claim<'t> {
        loop {
            let seen = self.wait(page);
            if let Some(claim) = self.try_claim(page, seen) {
                return claim;
            }
        }
    }

    /// Claims the page if it is at `place`, to which it does not return during the call. Waits for
    /// another claimer only as long as the page is at `place`.
    pub(crate) fn claim_at(&self, page: PageNo, place: Place) -> Option<Claim<'t>> {
        loop {
            let seen = self.wait_while(page, |seen| seen.is_busy() && seen.place() == place);
            if seen.place() != place {
                return None;
            }
            if let Some(claim) = self.try_claim(page, seen) {
                return Some(claim);
            }
        }
    }

    pub(crate) fn wait(&self, page: PageNo) -> Entry {
        self.wait_while(page, Entry::is_busy)
    }

    /// Waits while `is_awaited` returns true for the page's entry, which must be busy then.
    fn wait_while(&self, page: PageNo, is_awaited: impl Fn(Entry) -> bool) -> Entry {
        let word = &self.words[page as usize];
        let mut spins = 0;
        loop {
            let seen = word.load(Ordering::Acquire);
            if !is_awaited(Entry(seen)) {
                return Entry(seen);
            }
            if spins < SPINS {
                spins += 1;
                primitive::relax();
                continue;
            }
            let marked = seen | WAITERS;
            if seen == marked
                || word.compare_exchange(seen, marked, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                primitive::wait(word, marked);
            }
        }
    }

    /// Returns false if the page is not resident, is protected, or has the maximum number of pins.
    pub(crate) fn try_pin(&self, page: PageNo) -> bool {
        let word = &self.words[page as usize];
        loop {
            let seen = self.wait(page);
            if !seen.is_resident() || seen.is_protected() || seen.0 & PINS == PINS {
                return false;
            }
            let pinned = seen.0 + PIN_ONE;
            if word.compare_exchange(seen.0, pinned, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return true;
            }
        }
    }

    /// Removes one pin. Does nothing if the page has none, because the program may have unmapped
    /// the page during its own system call.
    pub(crate) fn unpin(&self, page: PageNo) {
        let word = &self.words[page as usize];
        let mut seen = word.load(Ordering::Relaxed);
        while Entry(seen).pins() > 0 {
            match word.compare_exchange(seen, seen - PIN_ONE, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Lowers the age by one, unless the entry has changed. Returns true if the age was 0.
    pub(crate) fn age_down(&self, page: PageNo, seen: Entry) -> bool {
        if seen.0 & AGE_MASK == 0 {
            return true;
        }
        let aged = seen.0 - (1 << AGE_SHIFT);
        // A lost race means that the page is in use.
        let _ = self.words[page as usize].compare_exchange(
            seen.0,
            aged,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        false
    }
}

impl PageTable<'_> {
    pub(crate) fn deactivate(&self, page: PageNo) {
        let seen = self.load(page);
        if seen.is_resident() && !seen.is_busy() {
            let _ = self.words[page as usize].compare_exchange(
                seen.0,
                seen.0 & !AGE_MASK,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }
}

impl Claim<'_> {
    pub fn before(&self) -> Entry {
        self.before
    }

    pub fn publish(self, place: Place) {
        let old = self.word.swap(Entry::new(place).0, Ordering::AcqRel);
        end(self.word, old);
        std::mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // Clear these two flags only: an unpin may have changed the entry since it was claimed.
        let old = self.word.fetch_and(!(BUSY | WAITERS), Ordering::AcqRel);
        end(self.word, old);
    }
}

fn end(word: &AtomicU64, old: u64) {
    debug_assert!(old & BUSY != 0, "an entry was released that was not claimed");
    if old & WAITERS != 0 {
        primitive::wake(word);
    }
}
