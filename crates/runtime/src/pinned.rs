//! Memory kept in place while the C library does something during which
//! nothing can be brought in: any number of ranges, for a while.

use softswap_engine::engine::Engine;
use softswap_sys::PAGE_SIZE;
use softswap_sys::signals;

/// Ranges that stay resident until this is dropped.
pub(crate) struct Pinned<'e> {
    engine: &'e Engine,
    ranges: Vec<(usize, usize)>,
}

impl<'e> Pinned<'e> {
    pub(crate) fn new(engine: &'e Engine) -> Pinned<'e> {
        Pinned { engine, ranges: Vec::new() }
    }

    /// Brings in and keeps `len` bytes, as far as they are managed. What
    /// cannot be brought in is left: whoever touches it learns why.
    pub(crate) fn add(&mut self, address: usize, len: usize) {
        if !self.engine.contains(address) || self.is_last(address, len) {
            return;
        }
        let pinned = signals::with_all_blocked(|| self.engine.pin(address, len, usize::MAX));
        if let Ok(pinned @ 1..) = pinned {
            self.ranges.push((address, pinned));
        }
    }

    /// Whether the range lies in the pages pinned last: strings made one after
    /// another share theirs.
    fn is_last(&self, address: usize, len: usize) -> bool {
        self.ranges.last().is_some_and(|(start, pinned)| {
            let first = start & !(PAGE_SIZE - 1);
            let end = (start + pinned).next_multiple_of(PAGE_SIZE);
            first <= address && address + len <= end
        })
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        for (address, len) in &self.ranges {
            self.engine.unpin(*address, *len);
        }
    }
}
