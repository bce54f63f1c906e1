//! A pool as an allocator for collections. Each block is a region of whole pages, so this suits a
//! few large blocks, like those of a vector or a table. Blocks grow without copies.
//!
//! ```
//! use allocator_api2::vec::Vec;
//!
//! # fn main() -> softswap::Result<()> {
//! let pool = softswap::Pool::builder().memory("16M")?.swap("/var/tmp")?.build()?;
//! let mut numbers = Vec::new_in(&pool);
//! numbers.extend(0..4_000_000_u64);
//! numbers.truncate(3_000_000);
//! numbers.shrink_to_fit();
//! assert!(numbers.iter().copied().eq(0..3_000_000));
//! assert!(pool.stats().used_peak_bytes <= 16 << 20);
//! # Ok(())
//! # }
//! ```

use crate::pool::Pool;
use allocator_api2::alloc::{AllocError, Allocator};
use softswap_engine::api::engine::{Engine, Move};
use softswap_sys::PAGE_SIZE;
use softswap_sys::window::READ_WRITE;
use std::alloc::Layout;
use std::ptr::NonNull;

fn pages_for(layout: Layout) -> Result<usize, AllocError> {
    let bytes = layout.size().max(1).checked_next_multiple_of(PAGE_SIZE).ok_or(AllocError)?;
    if layout.align() <= PAGE_SIZE { Ok(bytes) } else { Err(AllocError) }
}

fn block(start: usize, len: usize) -> Result<NonNull<[u8]>, AllocError> {
    let start = NonNull::new(start as *mut u8).ok_or(AllocError)?;
    Ok(NonNull::slice_from_raw_parts(start, len))
}

impl Pool {
    fn change(
        &self,
        ptr: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        let (old_len, new_len) = (pages_for(old)?, pages_for(new)?);
        let address = ptr.addr().get();
        let remap = |engine: &Engine| engine.remap(address, old_len, new_len, Move::Anywhere);
        let start = self.running.with(remap).map_err(|_| AllocError)?.map_err(|_| AllocError)?;
        block(start, new_len)
    }
}

// SAFETY: a block is mapped for its owner alone until it is deallocated. Its window exists as long
// as the pool, which outlives the reference and its clones. Moving the reference moves no block. In
// a forked child blocks are neither allocated nor freed.
unsafe impl Allocator for &Pool {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let len = pages_for(layout)?;
        let map = |engine: &Engine| match engine.map_growable(len, READ_WRITE)? {
            Some(start) => Ok(Some(start)),
            None => engine.map(len, READ_WRITE),
        };
        let start = self.running.with(map).ok().and_then(std::io::Result::ok).flatten();
        block(start.ok_or(AllocError)?, len)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.allocate(layout)
    }

    unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: Layout) {
        if let Ok(len) = pages_for(layout) {
            let _ = self.running.with(|engine| engine.unmap(ptr.addr().get(), len));
        }
    }

    unsafe fn grow(
        &self,
        ptr: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        self.change(ptr, old, new)
    }

    unsafe fn grow_zeroed(
        &self,
        ptr: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        let grown = self.change(ptr, old, new)?;
        let rest = new.size() - old.size();
        // SAFETY: `grown` has at least `new.size()` bytes, which only this call uses.
        unsafe { grown.cast::<u8>().add(old.size()).write_bytes(0, rest) };
        Ok(grown)
    }

    unsafe fn shrink(
        &self,
        ptr: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        self.change(ptr, old, new)
    }
}
