//! Ranges kept resident while the C library runs code in which no page can be faulted in.

use softswap_engine::api::engine::Engine;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw;

pub(crate) struct ResidentRanges<'e> {
    engine: &'e Engine,
    ranges: Vec<(usize, usize)>,
}

impl<'e> ResidentRanges<'e> {
    pub(crate) fn new(engine: &'e Engine) -> ResidentRanges<'e> {
        ResidentRanges { engine, ranges: Vec::new() }
    }

    /// Faults in and pins `len` bytes, up to the first page that is unmanaged or unmapped, or
    /// cannot be faulted in.
    ///
    /// Uses `madvise`, which the guard handles on the engine's stack: the current stack may itself
    /// be managed. Uses MADV_POPULATE_WRITE, because a page that was only read may stay
    /// write-protected and is then not pinned. A write would fail if the page is read-only.
    pub(crate) fn add(&mut self, address: usize, len: usize) {
        if !self.engine.contains(address) || self.is_last(address, len) {
            return;
        }
        let mut done = 0;
        'pages: while done < len
            && self.engine.is_mapped((address + done) & !(PAGE_SIZE - 1), PAGE_SIZE)
        {
            let at = address + done;
            while !self.engine.pin_resident(at) {
                let page = at & !(PAGE_SIZE - 1);
                if raw::request_pages(page, PAGE_SIZE, libc::MADV_POPULATE_WRITE) != 0 {
                    break 'pages;
                }
            }
            done += PAGE_SIZE - at % PAGE_SIZE;
        }
        if done > 0 {
            self.ranges.push((address, done.min(len)));
        }
    }

    /// Pins the frames of the functions that the caller calls next, if its stack is managed. The
    /// kernel fails (EFAULT) if it reads an absent page in a call that the filter does not trap.
    pub(crate) fn add_next_frames(&mut self) {
        const PAGES: usize = 3;
        let local = 0_u8;
        let here = &raw const local as usize;
        for page in 0..PAGES {
            self.add(here - page * PAGE_SIZE, 1);
        }
    }

    fn is_last(&self, address: usize, len: usize) -> bool {
        self.ranges.last().is_some_and(|(start, pinned)| {
            let first = start & !(PAGE_SIZE - 1);
            let end = (start + pinned).next_multiple_of(PAGE_SIZE);
            first <= address && address + len <= end
        })
    }
}

impl Drop for ResidentRanges<'_> {
    fn drop(&mut self) {
        for (address, len) in &self.ranges {
            self.engine.unpin(*address, *len);
        }
    }
}
