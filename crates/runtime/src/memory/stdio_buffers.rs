//! Buffers of the C library's streams (`FILE`).
//!
//! A stream passes its buffer to the kernel in each call. If the buffer is in the window, each call
//! is trapped, which costs more than the call itself. So the first [`BUFFERS`] buffers are in the
//! engine's heap. The fixed number limits unmanaged memory and avoids the lock of that heap.

use crate::base::real::Real;
use softswap_sys::PAGE_SIZE;
use softswap_sys::alloc::{HEAP, HeapHandle};
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of buffers outside the window, with one bit each in [`TAKEN`].
const BUFFERS: usize = u64::BITS as usize;

static TAKEN: AtomicU64 = AtomicU64::new(0);
/// In the engine's heap, so that `free` recognizes them without a search. 0: none yet.
static BASE: AtomicUsize = AtomicUsize::new(0);
static ALLOCATOR_START: AtomicUsize = AtomicUsize::new(0);
static ALLOCATOR_END: AtomicUsize = AtomicUsize::new(0);

/// DRAM is used on first touch. Without the C library's function all buffers are ordinary.
pub(crate) fn set_up() {
    static ALLOCATOR: Real = Real::new(c"_IO_file_doallocate");
    let Some(code) = extent_of(ALLOCATOR.get()) else { return };
    let layout = Layout::from_size_align(BUFFERS * PAGE_SIZE, PAGE_SIZE).ok();
    // SAFETY: the layout is not empty.
    let base = layout.map_or(std::ptr::null_mut(), |layout| unsafe { HeapHandle.alloc(layout) });
    if !base.is_null() {
        ALLOCATOR_START.store(code.start, Ordering::Relaxed);
        ALLOCATOR_END.store(code.end, Ordering::Relaxed);
        BASE.store(base as usize, Ordering::Relaxed);
    }
}

fn extent_of(function: *mut c_void) -> Option<Range<usize>> {
    const RTLD_DL_SYMENT: i32 = 1;
    let mut symbol: *mut libc::Elf64_Sym = std::ptr::null_mut();
    // SAFETY: all-zero is a valid Dl_info to write over.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr1 only writes `info` and `symbol`; the address is in a library that stays
    // loaded.
    let found =
        unsafe { libc::dladdr1(function, &raw mut info, (&raw mut symbol).cast(), RTLD_DL_SYMENT) };
    if found == 0 || symbol.is_null() || info.dli_saddr != function {
        return None;
    }
    // SAFETY: `symbol` points into the symbol table of a library that stays loaded.
    let len = unsafe { (*symbol).st_size };
    (len > 0).then(|| function as usize..function as usize + len as usize)
}

#[inline]
pub(crate) fn allocate(size: usize, caller: usize) -> Option<*mut c_void> {
    // The size alone excludes nearly every allocation.
    if !(PAGE_SIZE / 4..=PAGE_SIZE).contains(&size) {
        return None;
    }
    let code = ALLOCATOR_START.load(Ordering::Relaxed)..ALLOCATOR_END.load(Ordering::Relaxed);
    if code.contains(&caller) { take() } else { None }
}

#[cold]
fn take() -> Option<*mut c_void> {
    let mut taken = TAKEN.load(Ordering::Relaxed);
    while taken != u64::MAX {
        let index = taken.trailing_ones() as usize;
        let change =
            TAKEN.compare_exchange(taken, taken | 1 << index, Ordering::Acquire, Ordering::Relaxed);
        match change {
            Ok(_) => {
                HEAP.count_outside(PAGE_SIZE);
                let address = BASE.load(Ordering::Relaxed) + index * PAGE_SIZE;
                return Some(address as *mut c_void);
            }
            Err(now) => taken = now,
        }
    }
    None
}

pub(crate) fn owns(address: usize) -> bool {
    let base = BASE.load(Ordering::Relaxed);
    base != 0 && (base..base + BUFFERS * PAGE_SIZE).contains(&address)
}

pub(crate) fn release(address: usize) {
    let index = (address - BASE.load(Ordering::Relaxed)) / PAGE_SIZE;
    HEAP.take_back(PAGE_SIZE);
    TAKEN.fetch_and(!(1 << index), Ordering::Release);
}
