//! The engine's own memory: outside the managed window, never swapped, and unmapped only by
//! [`Reservations`]. All calls are raw, because the runtime interposes the C library's `mmap`.

use crate::raw;
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread::LocalKey;

pub use crate::page::{PAGE_SIZE, Page};

pub fn dram_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

thread_local! {
    /// Collector of this thread's reservations; null outside [`Reservations::collect`].
    static COLLECTING: Cell<*const Reservations> = const { Cell::new(std::ptr::null()) };
}

pub(crate) fn with_set<T: Copy + 'static, R>(
    place: &'static LocalKey<Cell<T>>,
    value: T,
    body: impl FnOnce() -> R,
) -> R {
    struct Restored<T: Copy + 'static>(&'static LocalKey<Cell<T>>, T);
    impl<T: Copy> Drop for Restored<T> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    let _restored = Restored(place, place.replace(value));
    body()
}

/// Memory reserved on behalf of one engine, to be unmapped when the engine has stopped.
#[derive(Debug, Default)]
pub struct Reservations(Mutex<Vec<(usize, usize)>>);

impl Reservations {
    /// Runs `body` and records the memory that this thread reserves in it.
    pub fn collect<R>(&self, body: impl FnOnce() -> R) -> R {
        with_set(&COLLECTING, self, body)
    }

    fn record(&self, base: usize, len: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((base, len));
    }

    /// # Safety
    /// The memory is not in use any more.
    pub unsafe fn release(self) {
        for (base, len) in self.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            // SAFETY: `map_anonymous` mapped the range; the caller promises that it is not in use.
            unsafe { unmap(base, len) };
        }
    }
}

pub fn reserve_bytes(len: usize) -> io::Result<&'static mut [u8]> {
    // SAFETY: zero is a valid u8, of alignment 1.
    unsafe { reserve(len.next_multiple_of(PAGE_SIZE).max(PAGE_SIZE)) }
}

pub fn can_reserve(len: usize) -> bool {
    // SAFETY: without MAP_FIXED a new mapping overlaps nothing.
    match unsafe { map(0, len, libc::PROT_READ | libc::PROT_WRITE, RESERVE) } {
        Ok(base) => {
            // SAFETY: the range was mapped just above, and nothing refers to it.
            unsafe { unmap(base, len) };
            true
        }
        Err(_) => false,
    }
}

pub fn reserve_u64(len: usize) -> io::Result<&'static [AtomicU64]> {
    // SAFETY: all-zero bytes are a valid AtomicU64, aligned to 8 bytes.
    Ok(unsafe { reserve::<AtomicU64>(len)? })
}

pub fn reserve_u32(len: usize) -> io::Result<&'static [AtomicU32]> {
    // SAFETY: all-zero bytes are a valid AtomicU32, aligned to 4 bytes.
    Ok(unsafe { reserve::<AtomicU32>(len)? })
}

pub fn reserve_u16(len: usize) -> io::Result<&'static [AtomicU16]> {
    // SAFETY: all-zero bytes are a valid AtomicU16, aligned to 2 bytes.
    Ok(unsafe { reserve::<AtomicU16>(len)? })
}

pub fn reserve_pages(count: usize) -> io::Result<&'static mut [Page]> {
    // SAFETY: all-zero bytes are a valid `Page`, aligned to a page.
    unsafe { reserve(count) }
}

/// # Safety
/// Zero bytes are a valid `T`, whose alignment is at most a page.
unsafe fn reserve<T>(len: usize) -> io::Result<&'static mut [T]> {
    let bytes = (len * size_of::<T>()).next_multiple_of(PAGE_SIZE).max(PAGE_SIZE);
    let base = map_anonymous(bytes)?;
    // SAFETY: the mapping is new and aligned to a page, at least `len` values long,
    // readable, writable and zero; nothing else refers to it, and it is never unmapped.
    Ok(unsafe { std::slice::from_raw_parts_mut(base.cast::<T>(), len) })
}

pub fn address_space_limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    limit.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Populates `bytes` in one call, or, if the kernel lacks the call (before 5.14) or memory, on
/// first touch. Panics if `bytes` does not start at a page boundary.
pub fn populate(bytes: &mut [u8]) {
    assert!((bytes.as_ptr() as usize).is_multiple_of(PAGE_SIZE));
    // SAFETY: the range is borrowed exclusively, and a write fault, too, would keep its content.
    let _ = unsafe { advise(bytes.as_mut_ptr() as usize, bytes.len(), libc::MADV_POPULATE_WRITE) };
}

pub(crate) const RESERVE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// # Safety
/// With MAP_FIXED the range must not hold memory that Rust code refers to.
pub(crate) unsafe fn map(start: usize, len: usize, prot: i32, flags: i32) -> io::Result<usize> {
    let args = [start, len, prot as usize, flags as usize, usize::MAX, 0];
    // SAFETY: the call takes no pointers. The caller promises that no Rust code refers to a mapping
    // that it displaces.
    raw::check(unsafe { raw::syscall(libc::SYS_mmap, args) })
}

/// # Safety
/// No Rust code refers to the range.
pub(crate) unsafe fn unmap(start: usize, len: usize) {
    // SAFETY: the caller promises that no Rust code refers to the range.
    unsafe { raw::syscall(libc::SYS_munmap, [start, len, 0, 0, 0, 0]) };
}

/// # Safety
/// Rust code that refers to the range needs no access that `prot` lacks.
pub(crate) unsafe fn protect(start: usize, len: usize, prot: i32) -> io::Result<()> {
    // SAFETY: mprotect changes no content. The caller promises that no reference needs an access
    // that `prot` lacks.
    raw::check(unsafe { raw::syscall(libc::SYS_mprotect, [start, len, prot as usize, 0, 0, 0]) })
        .map(drop)
}

/// # Safety
/// The content of the range after the advice is valid for Rust code that refers to it.
pub(crate) unsafe fn advise(start: usize, len: usize, advice: i32) -> io::Result<()> {
    // SAFETY: the caller promises that the content afterwards is valid for all references.
    raw::check(unsafe { raw::syscall(libc::SYS_madvise, [start, len, advice as usize, 0, 0, 0]) })
        .map(drop)
}

/// Zeroes `bytes` and frees their DRAM. Panics unless they start and end at page boundaries.
pub fn release_dram(bytes: &mut [u8]) {
    assert!(
        (bytes.as_ptr() as usize).is_multiple_of(PAGE_SIZE)
            && bytes.len().is_multiple_of(PAGE_SIZE)
    );
    if bytes.is_empty() {
        return;
    }
    // SAFETY: the range consists of whole pages, is borrowed exclusively, and zero bytes are valid
    // for it. MADV_DONTNEED on private anonymous memory affects nothing else.
    let result = unsafe { advise(bytes.as_mut_ptr() as usize, bytes.len(), libc::MADV_DONTNEED) };
    if result.is_err() {
        // The kernel refuses for locked memory (mlockall), but the bytes must become zero.
        bytes.fill(0);
    }
}

/// Reservations of at least this size are excluded from core files, to keep those small.
const LARGE_BYTES: usize = 4 << 20;

pub(crate) fn exclude_from_dumps(start: usize, len: usize) {
    // SAFETY: no content changes, only what a core file contains. Unmapped memory is refused.
    let _ = unsafe { advise(start, len, libc::MADV_DONTDUMP) };
}

/// Reservations of at least this size are placed far from libraries.
const APART_BYTES: usize = 16 << 20;
/// Address space to keep free below the libraries, in bytes: run-time compilers place code there.
const FREE_BELOW_CODE: usize = 64 << 30;
/// Address space for such reservations, below [`FREE_BELOW_CODE`], in bytes.
const APART_SPAN: usize = 2 << 40;

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

pub(crate) fn map_new(len: usize) -> io::Result<usize> {
    // SAFETY: without MAP_FIXED the address is a hint, so a new mapping overlaps nothing.
    unsafe { map(place_apart(len), len, libc::PROT_READ | libc::PROT_WRITE, RESERVE) }
}

fn map_anonymous(len: usize) -> io::Result<*mut u8> {
    let base = map_new(len)?;
    // A huge page would populate, and so charge, memory that was never touched.
    // SAFETY: the range was mapped just above, and the advice, if known, changes no content.
    let _ = unsafe { advise(base, len, libc::MADV_NOHUGEPAGE) };
    if len >= LARGE_BYTES {
        exclude_from_dumps(base, len);
    }
    // SAFETY: the pointer is null, or refers to a value that a caller's `collect` borrows.
    if let Some(reservations) = unsafe { COLLECTING.get().as_ref() } {
        reservations.record(base, len);
    }
    Ok(base as *mut u8)
}
