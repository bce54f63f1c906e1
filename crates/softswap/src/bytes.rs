//! Mapped bytes of a pool, seen as a slice.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of a window that this value owns.
///
/// References into a window are sound because paging changes nothing that they see, as the
/// kernel's swapping does not: a page that left DRAM comes back with the same bytes, at the same
/// address, before the touch of it goes on.
pub(crate) struct Bytes {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the value owns its bytes, whichever thread it is in; touches are served in all.
unsafe impl Send for Bytes {}
// SAFETY: shared, the bytes are only read.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// # Safety
    /// As long as the value is used nobody else uses the `len` bytes from `start`, which is not
    /// null; all may be read and written, and touches of those that are out are served.
    pub(crate) unsafe fn new(start: usize, len: usize) -> Bytes {
        // SAFETY: not null, as asked for above.
        Bytes { start: unsafe { NonNull::new_unchecked(start as *mut u8) }, len }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: readable bytes that nobody writes to but by way of this value, which is
        // borrowed for reading.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: writable bytes of this value's own, which is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}
