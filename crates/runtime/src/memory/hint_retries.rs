//! Programs that require their memory at given addresses outside the window.
//!
//! Linux takes an address without MAP_FIXED as a hint. Memory can only be managed in the window, so
//! a hint outside of it is treated as if the range were taken. The exceptions:
//!
//! - **Repeated attempts**: ZGC requires the address in the hint; V8 and Go only prefer it. Such a
//!   program reserves address space without access, unmaps an untouched reservation at another
//!   address, and tries the next hint. After [`IGNORED_HINTS`] such reservations in a row the
//!   kernel maps the next ones at their hints, unmanaged.
//! - **Tag bits**: a reservation at a power of two from [`LOWEST_TAG`] up. The program keeps flags
//!   of its pointers in that bit (ZGC's views), so no other address can serve.
//! - **Code**: LuaJIT maps memory for its code near its library, by hints. A small mapping near
//!   executable code is mapped at its hint, unmanaged, up to [`NEAR_CODE_BYTES`] altogether.
//!
//! With MAP_FIXED_NOREPLACE the kernel would map at the address, unmanaged. JDK 25 tries to reserve
//! its heap in this way below 4 GiB, and finally accepts any address. So a large reservation fails
//! with EEXIST, up to [`REFUSALS`] times in a row.

use crate::base::issue_call::{Arguments, issue};
use softswap_sys::PAGE_SIZE;
use softswap_sys::process_image;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// More consecutive reservations than Go (128) or Java's collectors except ZGC try.
const IGNORED_HINTS: usize = 160;
static UNMAPPED_IN_ROW: AtomicUsize = AtomicUsize::new(0);
/// Address of the last reservation, if it is still mapped, or 0.
static LAST: AtomicUsize = AtomicUsize::new(0);

/// Lowest power of two that is treated as a tag bit. Lower ones are ordinary addresses: GHC and
/// SBCL place their heaps at round addresses.
const LOWEST_TAG: usize = 1 << 40;

const MAX_CODE_BYTES: usize = 4 << 20;
/// The reach of a call or a jump on x86_64.
const REACH_BYTES: usize = 2 << 30;
/// Limits what an allocator gets unmanaged if it continues a mapping near code by hints.
const NEAR_CODE_BYTES: usize = 64 << 20;
static NEAR_CODE: AtomicUsize = AtomicUsize::new(0);

const MIN_HEAP_BYTES: usize = 16 << 20;
/// JDK 25 tries 64 addresses for a heap; ZGC stops after 128.
const REFUSALS: usize = 100;
/// Number of consecutive refusals of reservations of [`REFUSED_LEN`] bytes.
static REFUSED: AtomicUsize = AtomicUsize::new(0);
static REFUSED_LEN: AtomicUsize = AtomicUsize::new(0);

/// Notes a reservation at `address`, which is not its hint.
pub(crate) fn note_other_address(address: usize) {
    if LAST.swap(address, Relaxed) != 0 && UNMAPPED_IN_ROW.load(Relaxed) < IGNORED_HINTS {
        // The program has kept the previous reservation.
        UNMAPPED_IN_ROW.store(0, Relaxed);
    }
}

/// Counts the unmapping if it is the last reservation and `is_untouched` returns true.
pub(crate) fn note_unmapped(address: usize, is_untouched: impl FnOnce() -> bool) {
    if LAST.load(Relaxed) != address || LAST.swap(0, Relaxed) != address {
        return;
    }
    if is_untouched() {
        UNMAPPED_IN_ROW.fetch_add(1, Relaxed);
    }
}

/// Returns true if the kernel should map this reservation at its hint, and the range is free.
pub(crate) fn allows_hint(hint: usize, len: usize) -> bool {
    let is_tag = hint.is_power_of_two() && hint >= LOWEST_TAG;
    (is_tag || UNMAPPED_IN_ROW.load(Relaxed) >= IGNORED_HINTS) && is_free(hint, len)
}

/// Returns `None` for other mappings, if the range is taken, or beyond [`NEAR_CODE_BYTES`].
pub(crate) fn map_near_code(arguments: Arguments) -> Option<isize> {
    let [hint, len, ..] = arguments;
    let near = |code: usize| code.abs_diff(hint) < REACH_BYTES;
    if len > MAX_CODE_BYTES || !process_image::code().into_iter().any(near) {
        return None;
    }
    let add = |taken: usize| taken.checked_add(len).filter(|taken| *taken <= NEAR_CODE_BYTES);
    NEAR_CODE.fetch_update(Relaxed, Relaxed, add).ok()?;
    let mut there = arguments;
    there[0] = hint & !(PAGE_SIZE - 1);
    there[3] |= libc::MAP_FIXED_NOREPLACE as usize;
    let there = issue(libc::SYS_mmap, there);
    if there < 0 {
        NEAR_CODE.fetch_sub(len, Relaxed);
        return None;
    }
    Some(there)
}

/// Returns true if a reservation with MAP_FIXED_NOREPLACE must fail though the range is free.
pub(crate) fn is_refused(address: usize, len: usize, flags: i32) -> bool {
    if len < MIN_HEAP_BYTES || flags & libc::MAP_NORESERVE == 0 || !is_free(address, len) {
        return false;
    }
    if REFUSED_LEN.swap(len, Relaxed) != len {
        REFUSED.store(0, Relaxed);
    }
    REFUSED.fetch_add(1, Relaxed) < REFUSALS
}

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
