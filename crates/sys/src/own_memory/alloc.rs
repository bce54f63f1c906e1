//! The engine's own heap, separate from the program's `malloc`, which uses the managed window. It
//! also serves external allocations: the program's earliest ones, before the engine starts, and
//! internal ones of the C library and the dynamic loader.

use crate::futex::Lock;
use crate::{memory, signals};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Address space of the heap in bytes; populated on use.
const RESERVED_BYTES: usize = 4 << 30;
const MIN_RESERVED_BYTES: usize = RESERVED_BYTES / 64;
/// Divisor of the limit on address space, of which the window needs most.
const LIMIT_SHARE: usize = 64;
/// dlmalloc requests at least this many bytes at a time.
const GRANULE: usize = 64 << 10;

static START: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

struct Arena;

/// Returns the heap's address, reserving it on first use; 0 if it cannot be reserved.
fn start() -> usize {
    let known = START.load(Ordering::Acquire);
    if known != 0 {
        return known;
    }
    let fair = (memory::address_space_limit() / LIMIT_SHARE) & !(GRANULE - 1);
    for len in [RESERVED_BYTES.min(fair.max(MIN_RESERVED_BYTES)), MIN_RESERVED_BYTES] {
        if let Ok(base) = memory::map_new(len) {
            NEXT.store(base, Ordering::Relaxed);
            END.store(base + len, Ordering::Relaxed);
            memory::exclude_from_dumps(base, len);
            START.store(base, Ordering::Release);
            return base;
        }
    }
    0
}

/// The thread inside [`while_blocked`]; 0 for none.
static BLOCKED: AtomicUsize = AtomicUsize::new(0);

fn own_thread() -> usize {
    // SAFETY: `pthread_self` has no preconditions.
    unsafe { libc::pthread_self() as usize }
}

/// Blocks signals once for a `body` that allocates often and keeps them blocked, in one thread.
pub fn while_blocked<R>(body: impl FnOnce() -> R) -> R {
    signals::with_all_blocked(|| {
        BLOCKED.store(own_thread(), Ordering::Relaxed);
        let result = body();
        BLOCKED.store(0, Ordering::Relaxed);
        result
    })
}

/// Step in bytes of the dumped part, where debuggers look for the loader's list of libraries.
const DUMPED_BYTES: usize = 4 << 20;
static DUMPED: AtomicUsize = AtomicUsize::new(0);

/// Includes the heap up to `end` in core files, under the heap's lock.
fn dump_up_to(end: usize) {
    let from = DUMPED.load(Ordering::Relaxed).max(START.load(Ordering::Relaxed));
    if end > from {
        let to = (end + DUMPED_BYTES).min(END.load(Ordering::Relaxed));
        DUMPED.store(to, Ordering::Relaxed);
        // SAFETY: no content changes, only which pages of the heap core files contain.
        let _ = unsafe { memory::advise(from, to - from, libc::MADV_DODUMP) };
    }
}

// SAFETY: `alloc` returns disjoint ranges of one private mapping that is never unmapped. Nothing is
// freed, so the other methods refuse.
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

pub struct Heap {
    locked: Lock,
    /// Bytes in use by the C library, the dynamic loader and the program.
    external_bytes: AtomicUsize,
    peak_external_bytes: AtomicUsize,
    inner: UnsafeCell<dlmalloc::Dlmalloc<Arena>>,
}

// SAFETY: `inner` is accessed only under `locked`, by one thread; the other fields are atomic.
unsafe impl Sync for Heap {}

pub static HEAP: Heap = Heap {
    locked: Lock::new(),
    external_bytes: AtomicUsize::new(0),
    peak_external_bytes: AtomicUsize::new(0),
    inner: UnsafeCell::new(dlmalloc::Dlmalloc::new_with_allocator(Arena)),
};

impl Heap {
    fn with<R>(&self, body: impl FnOnce(&mut dlmalloc::Dlmalloc<Arena>) -> R) -> R {
        // A handler that allocated while its own thread held the lock would deadlock.
        let blocked = BLOCKED.load(Ordering::Relaxed);
        let are_blocked = blocked != 0 && blocked == own_thread();
        let locked = || {
            self.lock();
            // SAFETY: the lock is held and signals are blocked: no other reference to the allocator
            // exists until `body` returns.
            let result = body(unsafe { &mut *self.inner.get() });
            self.unlock();
            result
        };
        if are_blocked { locked() } else { signals::with_all_blocked(locked) }
    }

    /// Locks the heap for a fork: the child has no other thread that could unlock it.
    pub fn lock(&self) {
        self.locked.lock();
    }

    pub fn unlock(&self) {
        self.locked.unlock();
    }

    pub fn owns(&self, address: usize) -> bool {
        let start = START.load(Ordering::Acquire);
        start != 0 && (start..END.load(Ordering::Relaxed)).contains(&address)
    }

    /// Allocates for callers that free without the size, as C does. `align` is a power of two.
    pub fn allocate(&self, size: usize, align: usize, zeroed: bool) -> *mut u8 {
        let offset = align.max(size_of::<Header>());
        let Some(total) = size.checked_add(offset) else { return std::ptr::null_mut() };
        let block = self.block(total, offset, zeroed);
        if block.is_null() {
            return block;
        }
        self.count_outside(total);
        // SAFETY: the block is `offset + size` bytes long. Its first `offset` bytes end at the
        // returned pointer, have space for a header, and are a multiple of its alignment.
        unsafe {
            let pointer = block.add(offset);
            pointer.cast::<Header>().sub(1).write(Header { offset, size });
            pointer
        }
    }

    fn block(&self, size: usize, align: usize, zeroed: bool) -> *mut u8 {
        self.with(|heap| {
            // SAFETY: dlmalloc accepts any size, and any alignment that is a power of two.
            unsafe { if zeroed { heap.calloc(size, align) } else { heap.malloc(size, align) } }
        })
    }

    /// # Safety
    /// `pointer` came from [`Heap::allocate`] and is not used afterwards.
    pub unsafe fn release(&self, pointer: *mut u8) {
        // SAFETY: `allocate` wrote a header before every pointer that it returned, with the block's
        // start and length. The caller promises that the block is not used any more.
        unsafe {
            let Header { offset, size } = pointer.cast::<Header>().sub(1).read();
            self.with(|heap| heap.free(pointer.sub(offset), size + offset, offset));
            self.take_back(size + offset);
        }
    }

    pub fn count_outside(&self, bytes: usize) {
        let external_bytes = self.external_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak_external_bytes.fetch_max(external_bytes, Ordering::Relaxed);
    }

    pub fn take_back(&self, bytes: usize) {
        self.external_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub fn outside_bytes_in_use(&self) -> usize {
        self.external_bytes.load(Ordering::Relaxed)
    }

    /// Returns the peak of [`Heap::outside_bytes_in_use`]: the heap keeps the DRAM of freed blocks.
    pub fn taken_bytes(&self) -> usize {
        self.peak_external_bytes.load(Ordering::Relaxed)
    }

    /// # Safety
    /// `pointer` came from [`Heap::allocate`] and was not released.
    pub unsafe fn usable_size(&self, pointer: *mut u8) -> usize {
        // SAFETY: `allocate` wrote a header before each pointer, which stays until the release.
        unsafe { (*pointer.cast::<Header>().sub(1)).size }
    }
}

#[repr(C)]
struct Header {
    offset: usize,
    size: usize,
}

/// [`HEAP`] as a `#[global_allocator]`, which must be a separate static.
pub struct HeapHandle;

// SAFETY: dlmalloc's blocks are disjoint, have the requested length and alignment, and stay valid
// until they are freed; no method unwinds.
unsafe impl GlobalAlloc for HeapHandle {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP.block(layout.size(), layout.align(), false)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        HEAP.block(layout.size(), layout.align(), true)
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller promises an unused `pointer`, of this heap, with this layout.
        HEAP.with(|heap| unsafe { heap.free(pointer, layout.size(), layout.align()) });
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the trait's caller promises that `pointer` came from this heap with this layout,
        // and that `size` is not zero.
        HEAP.with(|heap| unsafe { heap.realloc(pointer, layout.size(), layout.align(), size) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_grow_and_are_reused() {
        let mut blocks: Vec<(*mut u8, usize, u8)> = Vec::new();
        for round in 0..2000usize {
            let size = (round * 37) % 5000 + 1;
            let layout = Layout::from_size_align(size, 1 << (round % 7)).unwrap();
            // SAFETY: each block is used within its size, and freed with its layout.
            unsafe {
                let block = HeapHandle.alloc(layout);
                assert!(!block.is_null() && HEAP.owns(block as usize));
                block.write_bytes(round as u8, size);
                let grown = HeapHandle.realloc(block, layout, size + 100);
                assert_eq!(*grown.add(size - 1), round as u8);
                HeapHandle
                    .dealloc(grown, Layout::from_size_align(size + 100, layout.align()).unwrap());
                let kept = HEAP.allocate(size, layout.align(), true);
                assert!((kept as usize).is_multiple_of(layout.align()));
                assert!((0..size).all(|i| *kept.add(i) == 0));
                assert!(HEAP.usable_size(kept) >= size);
                kept.write_bytes(round as u8, size);
                blocks.push((kept, size, round as u8));
            }
        }
        for (block, size, value) in blocks {
            // SAFETY: each block is read within its size, and released once.
            unsafe {
                assert!((0..size).all(|i| *block.add(i) == value));
                HEAP.release(block);
            }
        }
    }
}
