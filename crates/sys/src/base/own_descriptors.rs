//! Numbers of the engine's own descriptors. The runtime checks them before the program closes
//! descriptors: without the userfaultfd, swapped-out pages would be inaccessible.

use crate::raw;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

const NONE: i32 = -1;
/// Flag of a descriptor that a forked child must close.
const WITHHELD: i32 = 1 << 30;
/// Table size: rings for every context and area, files, userfaultfd, pipes to children.
pub const MAX: usize = 8192;
static KEPT: [AtomicI32; MAX] = [const { AtomicI32::new(NONE) }; MAX];
/// Number of entries to search: all others were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// The lowest number that was ever kept. Most numbers to check are below it and need no search.
static LOWEST: AtomicI32 = AtomicI32::new(i32::MAX);

fn number_of(entry: i32) -> i32 {
    if entry < 0 { entry } else { entry & !WITHHELD }
}

/// Ignores the number if the table is full. One engine cannot fill it; many pools can, whose
/// program closes descriptors without a check.
pub fn keep(fd: i32) {
    LOWEST.fetch_min(fd, Ordering::AcqRel);
    for (index, slot) in KEPT.iter().enumerate() {
        // Raised before the entry is set, so that every reader searches the entry.
        USED.fetch_max(index + 1, Ordering::AcqRel);
        if number_of(slot.load(Ordering::Relaxed)) == fd
            || slot.compare_exchange(NONE, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            return;
        }
    }
}

pub(crate) fn withhold(fd: i32) {
    for slot in used() {
        let _ = slot.compare_exchange(fd, fd | WITHHELD, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Closes what acts on the parent's memory, in a forked child before the program continues.
pub fn close_withheld() {
    for slot in used() {
        let entry = slot.load(Ordering::Relaxed);
        if entry >= 0 && entry & WITHHELD != 0 {
            // SAFETY: the call takes no pointers. The descriptor is the engine's, and this process
            // does not use it any more.
            unsafe { raw::syscall(libc::SYS_close, [number_of(entry) as usize, 0, 0, 0, 0, 0]) };
            slot.store(NONE, Ordering::Release);
        }
    }
}

pub(crate) fn lowest() -> i32 {
    LOWEST.load(Ordering::Acquire)
}

fn used() -> &'static [AtomicI32] {
    &KEPT[..USED.load(Ordering::Acquire)]
}

pub fn forget(fd: i32) {
    for slot in used() {
        for entry in [fd, fd | WITHHELD] {
            let _ = slot.compare_exchange(entry, NONE, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

pub fn contains(fd: i32) -> bool {
    fd >= LOWEST.load(Ordering::Acquire)
        && used().iter().any(|slot| number_of(slot.load(Ordering::Relaxed)) == fd)
}

fn from(fd: u32) -> impl Iterator<Item = u32> {
    let kept = used().iter().map(|slot| number_of(slot.load(Ordering::Relaxed)));
    kept.filter_map(|kept| u32::try_from(kept).ok()).filter(move |kept| *kept >= fd)
}

pub fn next_from(fd: u32) -> Option<u32> {
    from(fd).min()
}

pub fn last_from(fd: u32) -> Option<u32> {
    from(fd).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_descriptors_are_listed_until_removed() {
        for fd in [100_900, 100_100, 100_500] {
            keep(fd);
        }
        withhold(100_500);
        assert!(contains(100_500) && !contains(100_501) && !contains(NONE));
        assert_eq!(next_from(100_101), Some(100_500));
        assert_eq!((last_from(100_900), last_from(100_901)), (Some(100_900), None));
        forget(100_500);
        assert_eq!(next_from(100_101), Some(100_900));
        assert!(!contains(100_500));
        forget(100_100);
        forget(100_900);
    }
}
