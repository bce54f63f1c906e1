//! The engine's own heap, apart from the program's.
//!
//! Inside the preloaded runtime `malloc` is the program's and lies in the
//! managed window; what the engine itself allocates must never swap. It also
//! serves the program's earliest allocations, before the engine is up, and what
//! the C library and the dynamic loader keep for themselves. That is counted.

use crate::futex::Lock;
use crate::{raw, signals};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Address space of the heap; populated as used.
const RESERVED_BYTES: usize = 4 << 30;
/// At least this much is tried, and of a limited address space at most so many a
/// part: the window has to lie in it as well.
const LEAST_RESERVED_BYTES: usize = RESERVED_BYTES / 64;
const LIMIT_SHARE: usize = 64;
/// dlmalloc asks for at least this much at a time.
const GRANULE: usize = 64 << 10;

static START: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);

struct Arena;

/// Where the heap lies, reserving it on first use; 0 when that fails.
fn start() -> usize {
    let known = START.load(Ordering::Acquire);
    if known != 0 {
        return known;
    }
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    let fair = (crate::memory::address_space_limit() / LIMIT_SHARE) & !(GRANULE - 1);
    for len in [RESERVED_BYTES.min(fair.max(LEAST_RESERVED_BYTES)), LEAST_RESERVED_BYTES] {
        // SAFETY: a new mapping overlaps nothing.
        let base = unsafe { raw::syscall(libc::SYS_mmap, [0, len, prot, flags, usize::MAX, 0]) };
        if base > 0 {
            let base = base as usize;
            NEXT.store(base, Ordering::Relaxed);
            END.store(base + len, Ordering::Relaxed);
            crate::memory::leave_out_of_dumps(base, len);
            START.store(base, Ordering::Release);
            return base;
        }
    }
    0
}

static END: AtomicUsize = AtomicUsize::new(0);

/// Core files have what is in use, since debuggers look for the loader's list of
/// libraries there, and so much behind it.
const DUMPED_BYTES: usize = 4 << 20;
static DUMPED: AtomicUsize = AtomicUsize::new(0);

/// Has core files contain the heap up to `end`. Under the heap's lock.
fn dump_up_to(end: usize) {
    let from = DUMPED.load(Ordering::Relaxed).max(START.load(Ordering::Relaxed));
    if end > from {
        let to = (end + DUMPED_BYTES).min(END.load(Ordering::Relaxed));
        DUMPED.store(to, Ordering::Relaxed);
        let args = [from, to - from, libc::MADV_DODUMP as usize, 0, 0, 0];
        // SAFETY: the heap's own pages; changes nothing but what a dump has.
        unsafe { raw::syscall(libc::SYS_madvise, args) };
    }
}

// SAFETY: `alloc` hands out disjoint ranges of one private mapping that is
// never unmapped; nothing is taken back, so the other answers are "no".
unsafe impl dlmalloc::Allocator for Arena {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let size = size.next_multiple_of(GRANULE);
        if start() == 0 || NEXT.load(Ordering::Relaxed) + size > END.load(Ordering::Relaxed) {
            return (std::ptr::null_mut(), 0, 0);
        }
        let at = NEXT.fetch_add(size, Ordering::Relaxed);
        dump_up_to(at + size);
        (at as *mut u8, size, 0)
    }
    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        std::ptr::null_mut()
    }
    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }
    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }
    fn can_release_part(&self, _: u32) -> bool {
        false
    }
    fn allocates_zeros(&self) -> bool {
        true
    }
    fn page_size(&self) -> usize {
        crate::PAGE_SIZE
    }
}

/// The heap; use as `#[global_allocator]` in the runtime.
pub struct Heap {
    locked: Lock,
    /// Bytes that others than the engine have now, and the most they ever had.
    lent: AtomicUsize,
    most_lent: AtomicUsize,
    inner: UnsafeCell<dlmalloc::Dlmalloc<Arena>>,
}

// SAFETY: `inner` is only reached under `locked`.
unsafe impl Sync for Heap {}

/// The one heap.
pub static HEAP: Heap = Heap {
    locked: Lock::new(),
    lent: AtomicUsize::new(0),
    most_lent: AtomicUsize::new(0),
    inner: UnsafeCell::new(dlmalloc::Dlmalloc::new_with_allocator(Arena)),
};

impl Heap {
    fn with<R>(&self, body: impl FnOnce(&mut dlmalloc::Dlmalloc<Arena>) -> R) -> R {
        // A handler that allocated while its own thread held the lock would wait for ever.
        signals::with_all_blocked(|| {
            self.lock();
            // SAFETY: the lock is held until after the last use.
            let result = body(unsafe { &mut *self.inner.get() });
            self.unlock();
            result
        })
    }

    /// Takes the lock, for fork: the child must not inherit it held by a
    /// thread that it does not have.
    pub fn lock(&self) {
        self.locked.lock();
    }

    /// Releases what [`Heap::lock`] took.
    pub fn unlock(&self) {
        self.locked.unlock();
    }

    /// Whether `address` was allocated here.
    #[must_use]
    pub fn owns(&self, address: usize) -> bool {
        let start = START.load(Ordering::Acquire);
        start != 0 && (start..END.load(Ordering::Relaxed)).contains(&address)
    }

    /// Allocates for a caller that will free without telling the size, as C
    /// does; null when exhausted. `align` is a power of two; `zeroed` memory
    /// reads as zero.
    pub fn allocate(&self, size: usize, align: usize, zeroed: bool) -> *mut u8 {
        let offset = align.max(size_of::<Header>());
        let Some(total) = size.checked_add(offset) else { return std::ptr::null_mut() };
        let block = self.block(total, offset, zeroed);
        if block.is_null() {
            return block;
        }
        self.lend(total);
        // SAFETY: the block has `offset` bytes before the pointer handed out,
        // enough for a header, aligned as the header's size.
        unsafe {
            let pointer = block.add(offset);
            pointer.cast::<Header>().sub(1).write(Header { offset, size });
            pointer
        }
    }

    fn block(&self, size: usize, align: usize, zeroed: bool) -> *mut u8 {
        self.with(|heap| {
            // SAFETY: any size and a power-of-two alignment are allowed.
            unsafe { if zeroed { heap.calloc(size, align) } else { heap.malloc(size, align) } }
        })
    }

    /// Frees what [`Heap::allocate`] gave.
    ///
    /// # Safety
    /// `pointer` came from [`Heap::allocate`] and is not used afterwards.
    pub unsafe fn release(&self, pointer: *mut u8) {
        // SAFETY: the header lies before every such pointer and tells where
        // and how long the block is.
        unsafe {
            let Header { offset, size } = pointer.cast::<Header>().sub(1).read();
            self.with(|heap| heap.free(pointer.sub(offset), size + offset, offset));
            self.take_back(size + offset);
        }
    }

    /// Counts `bytes` that others than the engine have from now on.
    pub fn lend(&self, bytes: usize) {
        let lent = self.lent.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most_lent.fetch_max(lent, Ordering::Relaxed);
    }

    /// Ends what [`Heap::lend`] began.
    pub fn take_back(&self, bytes: usize) {
        self.lent.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that others than the engine have.
    #[must_use]
    pub fn lent_bytes(&self) -> usize {
        self.lent.load(Ordering::Relaxed)
    }

    /// DRAM that was taken for others than the engine. What they give back stays
    /// the heap's.
    #[must_use]
    pub fn taken_bytes(&self) -> usize {
        self.most_lent.load(Ordering::Relaxed)
    }

    /// Bytes usable at `pointer`.
    ///
    /// # Safety
    /// `pointer` came from [`Heap::allocate`] and is live.
    #[must_use]
    pub unsafe fn usable(&self, pointer: *mut u8) -> usize {
        // SAFETY: as in `release`.
        unsafe { (*pointer.cast::<Header>().sub(1)).size }
    }
}

/// Precedes what C code gets.
#[repr(C)]
struct Header {
    offset: usize,
    size: usize,
}

// SAFETY: dlmalloc's blocks are live, disjoint and aligned as asked.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.block(layout.size(), layout.align(), false)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.block(layout.size(), layout.align(), true)
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, size and alignment as allocated.
        self.with(|heap| unsafe { heap.free(pointer, layout.size(), layout.align()) });
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        self.with(|heap| unsafe { heap.realloc(pointer, layout.size(), layout.align(), size) })
    }
}

/// [`HEAP`] as a `#[global_allocator]`, which needs a value of its own.
pub struct HeapHandle;

// SAFETY: hands every call on to the heap.
unsafe impl GlobalAlloc for HeapHandle {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { HEAP.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { HEAP.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { HEAP.dealloc(pointer, layout) };
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { HEAP.realloc(pointer, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_grow_keep_their_content_and_come_back() {
        let mut blocks: Vec<(*mut u8, usize, u8)> = Vec::new();
        for round in 0..2000usize {
            let size = (round * 37) % 5000 + 1;
            let layout = Layout::from_size_align(size, 1 << (round % 7)).unwrap();
            // SAFETY: sizes and layouts are tracked beside each block.
            unsafe {
                let block = HEAP.alloc(layout);
                assert!(!block.is_null() && HEAP.owns(block as usize));
                block.write_bytes(round as u8, size);
                let grown = HEAP.realloc(block, layout, size + 100);
                assert_eq!(*grown.add(size - 1), round as u8);
                HEAP.dealloc(grown, Layout::from_size_align(size + 100, layout.align()).unwrap());
                let kept = HEAP.allocate(size, layout.align(), true);
                assert!((kept as usize).is_multiple_of(layout.align()));
                assert!((0..size).all(|i| *kept.add(i) == 0));
                assert!(HEAP.usable(kept) >= size);
                kept.write_bytes(round as u8, size);
                blocks.push((kept, size, round as u8));
            }
        }
        for (block, size, value) in blocks {
            // SAFETY: allocated above, released once.
            unsafe {
                assert!((0..size).all(|i| *block.add(i) == value));
                HEAP.release(block);
            }
        }
    }
}
