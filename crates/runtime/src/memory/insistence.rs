//! Programs that insist on a place for their memory.
//!
//! Linux takes an address without MAP_FIXED as a hint. One outside of the window is not kept:
//! memory can only be managed in the window, and to a program it is as if something lay there.
//! Some insist (ZGC places its heap by hints, V8 and Go only prefer): such a program reserves
//! address space without access, gives back untouched what lies elsewhere and asks for the next
//! address. Who has given back [`INSISTENT`] reservations in a row, more than those do that then
//! take anything, gets those that follow where Linux puts them, from the kernel and unmanaged.

use crate::base::issue_call::issue;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// So many hints in a row are not kept. Go's runtime gives up after 128 of them,
/// Java's other collectors after fewer.
const INSISTENT: usize = 160;
/// How many were given back in a row, and where the last lies that was not, or 0.
static GIVEN_BACK: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicUsize = AtomicUsize::new(0);

/// A reservation was put elsewhere than its hint said.
pub(crate) fn not_kept(address: usize) {
    if LAST.swap(address, Relaxed) != 0 && GIVEN_BACK.load(Relaxed) < INSISTENT {
        // The one before was good enough.
        GIVEN_BACK.store(0, Relaxed);
    }
}

/// A mapping is given back, which may be such a reservation, still closed.
pub(crate) fn given_back(address: usize, is_untouched: impl FnOnce() -> bool) {
    if LAST.load(Relaxed) != address || LAST.swap(0, Relaxed) != address {
        return;
    }
    if is_untouched() {
        GIVEN_BACK.fetch_add(1, Relaxed);
    }
}

/// Whether such a hint is to be kept by the kernel now.
pub(crate) fn is_kept(hint: usize, len: usize) -> bool {
    GIVEN_BACK.load(Relaxed) >= INSISTENT && is_free(hint, len)
}

/// Whether the kernel would map there.
fn is_free(address: usize, len: usize) -> bool {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let none = libc::PROT_NONE as usize;
    let there = issue(libc::SYS_mmap, [address, len, none, flags as usize, usize::MAX, 0]);
    if there > 0 {
        issue(libc::SYS_munmap, [there as usize, len, 0, 0, 0, 0]);
    }
    there == address as isize
}
