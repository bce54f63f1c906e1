//! Memory of the engine's own: outside the managed window, never swapped.
//!
//! Everything here is reserved once and kept until the process ends, because
//! the engine itself lives that long; it is populated by the kernel page by
//! page as it is touched, so a large reservation costs address space only.
//! Raw system calls throughout: inside the preloaded runtime the C library's
//! `mmap` is the interposed one.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// Bytes in a page. The engine handles 4 KiB pages only.
pub const PAGE_SIZE: usize = 4096;

/// One page of engine memory, aligned so that it can be given to O_DIRECT.
#[repr(C, align(4096))]
pub struct Page(pub [u8; PAGE_SIZE]);

/// Reserves `len` bytes (rounded up to pages) of zeroed private memory.
pub fn reserve_bytes(len: usize) -> io::Result<&'static mut [u8]> {
    let len = len.next_multiple_of(PAGE_SIZE).max(PAGE_SIZE);
    let base = map_anonymous(len)?;
    // SAFETY: the mapping is fresh, `len` bytes long, readable and writable,
    // zero is a valid u8, nothing else refers to it and it is never unmapped.
    Ok(unsafe { std::slice::from_raw_parts_mut(base, len) })
}

/// Reserves a table of `len` zeroed 64-bit atomics.
pub fn reserve_u64(len: usize) -> io::Result<&'static [AtomicU64]> {
    let base = map_anonymous((len * 8).next_multiple_of(PAGE_SIZE).max(PAGE_SIZE))?;
    // SAFETY: fresh page-aligned mapping of at least `len * 8` bytes that is
    // never unmapped; all-zero bytes are a valid AtomicU64.
    Ok(unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>(), len) })
}

/// Reserves a table of `len` zeroed 32-bit atomics.
pub fn reserve_u32(len: usize) -> io::Result<&'static [AtomicU32]> {
    let base = map_anonymous((len * 4).next_multiple_of(PAGE_SIZE).max(PAGE_SIZE))?;
    // SAFETY: as in `reserve_u64`, with 4-byte elements.
    Ok(unsafe { std::slice::from_raw_parts(base.cast::<AtomicU32>(), len) })
}

/// Reserves a table of `len` zeroed 16-bit atomics.
pub fn reserve_u16(len: usize) -> io::Result<&'static [AtomicU16]> {
    let base = map_anonymous((len * 2).next_multiple_of(PAGE_SIZE).max(PAGE_SIZE))?;
    // SAFETY: as in `reserve_u64`, with 2-byte elements.
    Ok(unsafe { std::slice::from_raw_parts(base.cast::<AtomicU16>(), len) })
}

/// Reserves `count` zeroed pages as separately ownable frames.
pub fn reserve_pages(count: usize) -> io::Result<&'static mut [Page]> {
    let base = map_anonymous((count * PAGE_SIZE).max(PAGE_SIZE))?;
    // SAFETY: as in `reserve_bytes`; the mapping is page-aligned and a page
    // of zeroes is a valid `Page`.
    Ok(unsafe { std::slice::from_raw_parts_mut(base.cast::<Page>(), count) })
}

/// How much address space this process may have (`ulimit -v`).
#[must_use]
pub fn address_space_limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    limit.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Takes DRAM for all of `bytes` at once, which costs less than a fault for each
/// page. Where the kernel cannot (before 5.14), or has none, faults do it later.
///
/// # Panics
/// When `bytes` does not start at a page boundary.
pub fn populate(bytes: &mut [u8]) {
    assert!((bytes.as_ptr() as usize).is_multiple_of(PAGE_SIZE));
    // SAFETY: the range is exclusively borrowed, and what it holds stays as it
    // is: the kernel only does what writing to it would have made it do.
    let _ = unsafe {
        rustix::mm::madvise(bytes.as_mut_ptr().cast(), bytes.len(), Advice::LinuxPopulateWrite)
    };
}

/// Returns the DRAM behind `bytes` to the system; they read as zero afterwards.
///
/// # Panics
/// When `bytes` does not start and end at page boundaries.
pub fn give_back(bytes: &mut [u8]) {
    assert!(
        (bytes.as_ptr() as usize).is_multiple_of(PAGE_SIZE)
            && bytes.len().is_multiple_of(PAGE_SIZE)
    );
    if bytes.is_empty() {
        return;
    }
    // SAFETY: the range is whole pages, exclusively borrowed, and zero bytes
    // are valid for it. LinuxDontNeed on private anonymous memory cannot
    // affect anything else.
    let result = unsafe {
        rustix::mm::madvise(bytes.as_mut_ptr().cast(), bytes.len(), Advice::LinuxDontNeed)
    };
    if result.is_err() {
        // Locked memory (mlockall) refuses; the promise is still zeroes.
        bytes.fill(0);
    }
}

fn map_anonymous(len: usize) -> io::Result<*mut u8> {
    // SAFETY: a new private anonymous mapping at an address of the kernel's
    // choice overlaps nothing.
    let base = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    };
    // SAFETY: the range was mapped just above. A huge page would populate, and
    // so charge, memory that nobody asked for. Kernels without it may refuse.
    let _ = unsafe { rustix::mm::madvise(base, len, Advice::LinuxNoHugepage) };
    Ok(base.cast())
}
