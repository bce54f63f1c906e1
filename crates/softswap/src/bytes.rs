//! Mapped bytes of a pool as a slice.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of a window that this value owns.
///
/// References into a window are sound because paging does not change what they see, like the
/// kernel's swapping: an evicted page is faulted in with the same bytes, at the same address,
/// before the touch continues.
pub(crate) struct Bytes {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the value owns its bytes, and page faults are served in every thread.
unsafe impl Send for Bytes {}
// SAFETY: through shared references the bytes are only read.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// # Safety
    /// While the value exists, nothing else uses the `len` bytes from `start`, which is not null.
    /// All bytes are readable and writable, and faults on absent pages are served.
    pub(crate) unsafe fn new(start: usize, len: usize) -> Bytes {
        // SAFETY: the caller promises that `start` is not null.
        Bytes { start: unsafe { NonNull::new_unchecked(start as *mut u8) }, len }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are readable, and are written only through this value, which is
        // borrowed shared.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are writable and owned by this value, which is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}
