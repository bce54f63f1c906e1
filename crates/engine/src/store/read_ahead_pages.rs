//! Cache of pages that were read ahead but not installed.
//!
//! The first page of a readahead window stays absent: its fault shows that the stream has reached
//! the window. The stored bytes of its slot are cached here, so that this fault does not read the
//! disk. Cached bytes are still sealed. A slot that was reused has another seal, so stale bytes
//! fail the check.

use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::{Page, reserve_pages};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Pages of the budget for each cached page.
const BUDGET_SHARE: usize = 256;
/// Maximum number of cached pages: two for each of many streams.
const MAX_ENTRIES: usize = 64;

/// Returns the number of pages that may be cached for a budget in pages.
fn entries_in(budget_pages: usize) -> usize {
    (budget_pages / BUDGET_SHARE).clamp(1, MAX_ENTRIES)
}

struct Entry {
    /// `u64::MAX` if the entry is empty.
    slot: u64,
    page: &'static mut Page,
}

pub(crate) struct ReadAheadPages {
    entries: Box<[Mutex<Entry>]>,
    /// Entries in use, from the first.
    used: AtomicUsize,
}

impl ReadAheadPages {
    pub(crate) fn new(budget_pages: usize) -> io::Result<ReadAheadPages> {
        ReadAheadPages::with_entries(entries_in(budget_pages), MAX_ENTRIES)
    }

    /// Adapts to a larger budget, in pages. Returns the additional bytes of DRAM. The cache never
    /// shrinks, because it is small.
    pub(crate) fn grow(&self, budget_pages: usize) -> usize {
        let entries = entries_in(budget_pages).min(self.entries.len());
        entries.saturating_sub(self.used.fetch_max(entries, Relaxed)) * PAGE_SIZE
    }

    fn with_entries(used: usize, most: usize) -> io::Result<ReadAheadPages> {
        let pages = reserve_pages(most)?.iter_mut();
        let entry = |page| Mutex::new(Entry { slot: u64::MAX, page });
        Ok(ReadAheadPages { entries: pages.map(entry).collect(), used: AtomicUsize::new(used) })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.used.load(Relaxed) * PAGE_SIZE
    }

    /// Returns the entry of a slot; neighbouring slots have different entries. Callers only try the
    /// lock: on contention the page is read again.
    fn entry(&self, slot: u64) -> &Mutex<Entry> {
        // Window lengths are powers of two, so the low bits alone would collide.
        let spread = slot ^ slot >> 4 ^ slot >> 8 ^ slot >> 12;
        &self.entries[spread as usize % self.used.load(Relaxed)]
    }

    /// Caches the sealed bytes of a slot in its entry, in place of the previous slot's. Does
    /// nothing if the entry is locked.
    pub(crate) fn cache(&self, slot: u64, bytes: &[u8]) {
        if let Ok(mut entry) = self.entry(slot).try_lock() {
            entry.page.0.copy_from_slice(bytes);
            entry.slot = slot;
        }
    }

    /// Removes the cached bytes of a slot and copies them to `bytes`. The slot may have been reused
    /// since. Returns false if nothing is cached for the slot, or its entry is locked.
    #[must_use]
    pub(crate) fn take(&self, slot: u64, bytes: &mut [u8]) -> bool {
        let Ok(mut entry) = self.entry(slot).try_lock() else { return false };
        if entry.slot != slot {
            return false;
        }
        bytes.copy_from_slice(&entry.page.0);
        entry.slot = u64::MAX;
        true
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_page_is_taken_once_for_its_slot() {
        let cached = ReadAheadPages::with_entries(4, 4).unwrap();
        let mut bytes = [0; PAGE_SIZE];
        assert!(!cached.take(7, &mut bytes));
        cached.cache(7, &[3; PAGE_SIZE]);
        assert!(!cached.take(8, &mut bytes));
        assert!(cached.take(7, &mut bytes) && bytes == [3; PAGE_SIZE]);
        assert!(!cached.take(7, &mut bytes));
    }

    #[test]
    fn newer_page_replaces_older() {
        let cached = ReadAheadPages::with_entries(1, 1).unwrap();
        let mut bytes = [0; PAGE_SIZE];
        cached.cache(1, &[1; PAGE_SIZE]);
        cached.cache(2, &[2; PAGE_SIZE]);
        assert!(!cached.take(1, &mut bytes));
        assert!(cached.take(2, &mut bytes) && bytes == [2; PAGE_SIZE]);
    }
}
