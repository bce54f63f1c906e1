//! Memory of the engine's own: outside the managed window, never swapped.
//!
//! Everything here is reserved once and kept until the process ends, because
//! the engine itself lives that long; it is populated by the kernel page by
//! page as it is touched, so a large reservation costs address space only.
//! Whoever ends an engine before its process does collects what it reserves
//! ([`Reservations`]).
//! Raw system calls throughout: inside the preloaded runtime the C library's
//! `mmap` is the interposed one.

use crate::raw;
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

pub use crate::page::{PAGE_SIZE, Page};

/// All of the machine's DRAM, in bytes.
#[must_use]
pub fn dram_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

thread_local! {
    /// Where this thread notes what it reserves; null where nobody asks.
    static COLLECTING: Cell<*const Reservations> = const { Cell::new(std::ptr::null()) };
}

/// What was reserved on behalf of one engine, to be given back after it.
///
/// ```
/// use softswap_sys::memory::{Reservations, reserve_u64};
///
/// let reservations = Reservations::default();
/// let word = reservations.collect(|| reserve_u64(1).map(|words| words[0].as_ptr().addr()))?;
/// assert_ne!(word, 0);
/// // SAFETY: of the table only an address is left.
/// unsafe { reservations.release() };
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Reservations(Mutex<Vec<(usize, usize)>>);

impl Reservations {
    /// Runs `body`, and notes what this thread reserves in it.
    pub fn collect<R>(&self, body: impl FnOnce() -> R) -> R {
        struct Restored(*const Reservations);
        impl Drop for Restored {
            fn drop(&mut self) {
                COLLECTING.set(self.0);
            }
        }
        let _restored = Restored(COLLECTING.replace(self));
        body()
    }

    fn note(&self, base: usize, len: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((base, len));
    }

    /// Unmaps all that was noted.
    ///
    /// # Safety
    /// Nobody uses any of it any more.
    pub unsafe fn release(self) {
        for (base, len) in self.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            // SAFETY: `map_anonymous` has mapped the range, and nobody uses it any more, as
            // asked for above.
            unsafe { raw::syscall(libc::SYS_munmap, [base, len, 0, 0, 0, 0]) };
        }
    }
}

/// Reserves `len` bytes (rounded up to pages) of zeroed private memory.
pub fn reserve_bytes(len: usize) -> io::Result<&'static mut [u8]> {
    // SAFETY: zero is a valid u8, aligned anywhere.
    unsafe { reserve(len.next_multiple_of(PAGE_SIZE).max(PAGE_SIZE)) }
}

/// Reserves a table of `len` zeroed 64-bit atomics.
pub fn reserve_u64(len: usize) -> io::Result<&'static [AtomicU64]> {
    // SAFETY: all-zero bytes are a valid AtomicU64, aligned to 8 bytes.
    Ok(unsafe { reserve::<AtomicU64>(len)? })
}

/// Reserves a table of `len` zeroed 32-bit atomics.
pub fn reserve_u32(len: usize) -> io::Result<&'static [AtomicU32]> {
    // SAFETY: all-zero bytes are a valid AtomicU32, aligned to 4 bytes.
    Ok(unsafe { reserve::<AtomicU32>(len)? })
}

/// Reserves a table of `len` zeroed 16-bit atomics.
pub fn reserve_u16(len: usize) -> io::Result<&'static [AtomicU16]> {
    // SAFETY: all-zero bytes are a valid AtomicU16, aligned to 2 bytes.
    Ok(unsafe { reserve::<AtomicU16>(len)? })
}

/// Reserves `count` zeroed pages as separately ownable frames.
pub fn reserve_pages(count: usize) -> io::Result<&'static mut [Page]> {
    // SAFETY: all-zero bytes are a valid `Page`, aligned to a page.
    unsafe { reserve(count) }
}

/// Reserves room for `len` values, all of whose bytes are zero, for good.
///
/// # Safety
/// Such bytes are a valid `T`, which asks for no more than a page's alignment.
unsafe fn reserve<T>(len: usize) -> io::Result<&'static mut [T]> {
    let bytes = (len * size_of::<T>()).next_multiple_of(PAGE_SIZE).max(PAGE_SIZE);
    let base = map_anonymous(bytes)?;
    // SAFETY: the mapping is new and aligned to a page, at least `len` values long,
    // readable, writable and zero; nothing else refers to it, and it is never unmapped.
    Ok(unsafe { std::slice::from_raw_parts_mut(base.cast::<T>(), len) })
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
    let _ = unsafe { advise(bytes, libc::MADV_POPULATE_WRITE) };
}

/// # Safety
/// What the advice leaves in `bytes` is valid for whoever owns them.
unsafe fn advise(bytes: &mut [u8], advice: i32) -> io::Result<usize> {
    let args = [bytes.as_mut_ptr() as usize, bytes.len(), advice as usize, 0, 0, 0];
    // By the engine's instruction: filters of the program's own may forbid it this.
    // SAFETY: `bytes` are borrowed exclusively, and whatever they hold afterwards is
    // valid for their owner, as asked for above.
    raw::check(unsafe { raw::syscall(libc::SYS_madvise, args) })
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
    let result = unsafe { advise(bytes, libc::MADV_DONTNEED) };
    if result.is_err() {
        // Locked memory (mlockall) refuses; the promise is still zeroes.
        bytes.fill(0);
    }
}

/// Tables and buffers of so many bytes are of no use in a core file, which would be as
/// long as what is reserved for them.
const LARGE_BYTES: usize = 4 << 20;

/// Leaves whole pages of the engine's out of core files.
pub(crate) fn leave_out_of_dumps(start: usize, len: usize) {
    // SAFETY: no content changes, only what a core file has; where nothing is mapped the
    // kernel refuses.
    unsafe { raw::syscall(libc::SYS_madvise, [start, len, libc::MADV_DONTDUMP as usize, 0, 0, 0]) };
}

/// Reservations of this size and more are placed away from libraries.
const APART_BYTES: usize = 16 << 20;
/// Address space that stays free below the libraries: compilers at run time want memory for their
/// code there.
const FREE_BELOW_CODE: usize = 64 << 30;
/// Address space for reservations of the engine's, below that.
const APART_SPAN: usize = 2 << 40;

/// A hint for a reservation, or 0.
fn place_apart(len: usize) -> usize {
    const ALIGN: usize = 2 << 20;
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    if len < APART_BYTES {
        return 0;
    }
    let taken = TAKEN.fetch_add(len.next_multiple_of(ALIGN), Relaxed);
    let below = place_apart as *const () as usize & !(ALIGN - 1);
    let end = below.checked_sub(FREE_BELOW_CODE + taken).filter(|_| taken + len <= APART_SPAN);
    end.and_then(|end| end.checked_sub(len)).map_or(0, |start| start & !(ALIGN - 1))
}

/// Maps `len` bytes of private memory, readable, writable and zero, that are taken from
/// DRAM as they are touched.
pub(crate) fn map_new(len: usize) -> io::Result<usize> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    let args = [place_apart(len), len, prot, flags, usize::MAX, 0];
    // SAFETY: without MAP_FIXED the address is a hint, so a new mapping overlaps nothing.
    raw::check(unsafe { raw::syscall(libc::SYS_mmap, args) })
}

fn map_anonymous(len: usize) -> io::Result<*mut u8> {
    let base = map_new(len)?;
    // A huge page would populate, and so charge, memory that nobody asked for.
    // SAFETY: the range was mapped just above, and no content changes. A kernel that
    // does not know the advice refuses it.
    unsafe {
        raw::syscall(libc::SYS_madvise, [base, len, libc::MADV_NOHUGEPAGE as usize, 0, 0, 0])
    };
    if len >= LARGE_BYTES {
        leave_out_of_dumps(base, len);
    }
    // SAFETY: null, or what a `collect` further up this thread's stack has borrowed.
    if let Some(reservations) = unsafe { COLLECTING.get().as_ref() } {
        reservations.note(base, len);
    }
    Ok(base as *mut u8)
}
