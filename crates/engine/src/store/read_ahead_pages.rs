//! Cache of pages that were read ahead but not installed.
//!
//! The first page of a readahead window stays absent: its fault shows that the stream has reached
//! the window. The sealed bytes of its slot are cached here. An entry is named by slot and
//! generation, so it is never stale.

use crate::store::standby::Tenant;
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory::{Page, reserve_pages};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Pages of the budget for each cached page.
const BUDGET_SHARE: usize = 256;
/// Maximum number of cached pages: two for each of many streams.
const MAX_ENTRIES: usize = 64;

fn entries_in(budget_pages: usize) -> usize {
    (budget_pages / BUDGET_SHARE).clamp(1, MAX_ENTRIES)
}

struct Entry {
    tenant: Option<Tenant>,
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

    /// Adapts to a larger budget. Never shrinks, because it is small. Returns the additional bytes.
    pub(crate) fn grow(&self, budget_pages: usize) -> usize {
        let entries = entries_in(budget_pages).min(self.entries.len());
        entries.saturating_sub(self.used.fetch_max(entries, Relaxed)) * PAGE_SIZE
    }

    fn with_entries(used: usize, most: usize) -> io::Result<ReadAheadPages> {
        let pages = reserve_pages(most)?.iter_mut();
        let entry = |page| Mutex::new(Entry { tenant: None, page });
        Ok(ReadAheadPages { entries: pages.map(entry).collect(), used: AtomicUsize::new(used) })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.used.load(Relaxed) * PAGE_SIZE
    }

    /// Neighbouring slots have different entries. Callers only try the lock.
    fn entry(&self, slot: u64) -> &Mutex<Entry> {
        // Window lengths are powers of two, so the low bits alone would collide.
        let spread = slot ^ slot >> 4 ^ slot >> 8 ^ slot >> 12;
        &self.entries[spread as usize % self.used.load(Relaxed)]
    }

    /// Caches sealed bytes of a claimed page. Does nothing if the entry is locked.
    pub(crate) fn cache(&self, tenant: Tenant, bytes: &[u8]) {
        if let Ok(mut entry) = self.entry(tenant.0).try_lock() {
            entry.page.0.copy_from_slice(bytes);
            entry.tenant = Some(tenant);
        }
    }

    /// Removes cached bytes. Returns false if there are none, or the entry is locked.
    #[must_use]
    pub(crate) fn take(&self, tenant: Tenant, bytes: &mut [u8]) -> bool {
        let Ok(mut entry) = self.entry(tenant.0).try_lock() else { return false };
        if entry.tenant != Some(tenant) {
            return false;
        }
        bytes.copy_from_slice(&entry.page.0);
        entry.tenant = None;
        true
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_page_is_taken_once_for_its_tenant() {
        let cached = ReadAheadPages::with_entries(4, 4).unwrap();
        let mut bytes = [0; PAGE_SIZE];
        assert!(!cached.take((7, 1), &mut bytes));
        cached.cache((7, 1), &[3; PAGE_SIZE]);
        assert!(!cached.take((8, 1), &mut bytes));
        assert!(!cached.take((7, 2), &mut bytes), "the slot was reused");
        assert!(cached.take((7, 1), &mut bytes) && bytes == [3; PAGE_SIZE]);
        assert!(!cached.take((7, 1), &mut bytes));
    }

    #[test]
    fn newer_page_replaces_older() {
        let cached = ReadAheadPages::with_entries(1, 1).unwrap();
        let mut bytes = [0; PAGE_SIZE];
        cached.cache((1, 1), &[1; PAGE_SIZE]);
        cached.cache((2, 1), &[2; PAGE_SIZE]);
        assert!(!cached.take((1, 1), &mut bytes));
        assert!(cached.take((2, 1), &mut bytes) && bytes == [2; PAGE_SIZE]);
    }
}
