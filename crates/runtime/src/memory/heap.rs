//! `malloc` and related functions. They use mimalloc, whose arenas are in the window because it
//! maps them by the interposed `mmap`. Large blocks that grow are in [`growing`].
//!
//! Three kinds of memory are in the engine's own heap, which is never evicted: allocations before
//! the engine starts; memory that the C library and the loader keep for themselves
//! ([`libc_memory`]); and the buffers of [`stdio_buffers`].

use crate::base::{instance, large_blocks};
use crate::memory::{growing, libc_memory, stdio_buffers};
use libmimalloc_sys as mi;
use softswap_sys::alloc::HEAP;
use softswap_sys::raw::set_errno;
use std::ffi::c_void;

/// Alignment of every block, as in the C library. mimalloc aligns smaller blocks to fewer bytes.
const NATURAL: usize = 16;

/// Returns true if an allocation by the code at `caller` must be outside the window.
#[inline]
fn belongs_outside_window(caller: usize, size: usize) -> bool {
    libc_memory::keeps(caller, size) || !instance::is_loaded() || libc_memory::is_outside()
}

fn checked(pointer: *mut c_void) -> *mut c_void {
    if pointer.is_null() {
        set_errno(libc::ENOMEM);
    }
    pointer
}

/// Defines a function that passes its caller's address as an additional argument to `$body`.
macro_rules! with_caller {
    ($name:ident, $register:literal, $body:path) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                concat!("mov ", $register, ", [rsp]"),
                "jmp {body}",
                body = sym $body,
            )
        }
    };
}

with_caller!(malloc, "rsi", malloc_from);
with_caller!(calloc, "rdx", calloc_from);
with_caller!(realloc, "rdx", realloc_from);
with_caller!(memalign, "rdx", memalign_from);
with_caller!(aligned_alloc, "rdx", memalign_from);
with_caller!(posix_memalign, "rcx", posix_memalign_from);

extern "C" fn malloc_from(size: usize, caller: usize) -> *mut c_void {
    if let Some(buffer) = stdio_buffers::allocate(size, caller) {
        return buffer;
    }
    if belongs_outside_window(caller, size) {
        return checked(HEAP.allocate(size, NATURAL, false).cast());
    }
    // SAFETY: mi_malloc takes any size.
    recorded(checked(unsafe { mi::mi_malloc(size.max(NATURAL)) }), size, caller)
}

#[inline]
fn recorded(block: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    large_blocks::record(block as usize, size, caller);
    if size >= large_blocks::MIN_BYTES {
        large_blocks::publish(size);
    }
    block
}

extern "C" fn calloc_from(count: usize, size: usize, caller: usize) -> *mut c_void {
    let Some(total) = count.checked_mul(size) else { return checked(std::ptr::null_mut()) };
    if belongs_outside_window(caller, total) {
        return checked(HEAP.allocate(total, NATURAL, true).cast());
    }
    // SAFETY: mi_zalloc takes any size.
    recorded(checked(unsafe { mi::mi_zalloc(total.max(NATURAL)) }), total, caller)
}

extern "C" fn memalign_from(align: usize, size: usize, caller: usize) -> *mut c_void {
    // As in the C library, an alignment that is not a power of two is rounded up.
    let Some(align) = align.checked_next_power_of_two() else {
        set_errno(libc::EINVAL);
        return std::ptr::null_mut();
    };
    checked(aligned(align, size, caller))
}

fn aligned(align: usize, size: usize, caller: usize) -> *mut c_void {
    if belongs_outside_window(caller, size) {
        return HEAP.allocate(size, align.max(NATURAL), false).cast();
    }
    // SAFETY: the alignment is a power of two.
    recorded(unsafe { mi::mi_malloc_aligned(size, align) }, size, caller)
}

extern "C" fn posix_memalign_from(
    out: *mut *mut c_void,
    align: usize,
    size: usize,
    caller: usize,
) -> i32 {
    if !align.is_power_of_two() || align < size_of::<usize>() {
        return libc::EINVAL;
    }
    let pointer = aligned(align, size, caller);
    if pointer.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's pointer is valid for a pointer.
    unsafe { out.write(pointer) };
    0
}

extern "C" fn realloc_from(old: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    if old.is_null() {
        return malloc_from(size, caller);
    }
    if size == 0 {
        // The C library frees the block, too; null with size 0 is not a failure.
        // SAFETY: `old` is the caller's live block.
        unsafe { release(old) };
        return std::ptr::null_mut();
    }
    if HEAP.owns(old as usize) {
        // SAFETY: `old` is the caller's live block.
        return unsafe { move_to(malloc_from(size, caller), old, size) };
    }
    large_blocks::forget(old as usize);
    // SAFETY: `old` is the caller's live block.
    recorded(unsafe { resize(old, size, caller) }, size, caller)
}

/// # Safety
/// See [`move_to`].
unsafe fn resize(old: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    if let Some(len) = growing::usable_size(old as usize) {
        // SAFETY: `old` is the caller's live block.
        return unsafe { resize_growing(old, len, size) };
    }
    if growing::is_worthwhile(size) && !belongs_outside_window(caller, size) {
        // SAFETY: `old` is the caller's live block.
        if let Some(new) = unsafe { make_growing(old, size) } {
            return new;
        }
    }
    // If the loader resizes a block of the program, the block stays in the program's heap.
    // SAFETY: `old` is a live mimalloc block.
    checked(unsafe { mi::mi_realloc(old, size.max(NATURAL)) })
}

/// If `new` is null, leaves `old` unchanged. Returns `new`.
///
/// # Safety
/// `old` is a live block without other users; `new` is a different block.
unsafe fn move_to(new: *mut c_void, old: *mut c_void, size: usize) -> *mut c_void {
    if !new.is_null() {
        // SAFETY: both blocks are live, distinct, and at least `len` bytes long.
        unsafe {
            let len = usable_size(old).min(size);
            std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), len);
            release(old);
        }
    }
    new
}

/// Returns `None` if the mimalloc block has `size` bytes already, or on failure.
///
/// # Safety
/// See [`move_to`].
unsafe fn make_growing(old: *mut c_void, size: usize) -> Option<*mut c_void> {
    // SAFETY: `old` is a live mimalloc block.
    if size <= unsafe { mi::mi_usable_size(old) } {
        return None;
    }
    let new = growing::allocate(size)?;
    // SAFETY: `old` is a live block that the program passes to `realloc`; `new` has no other user.
    Some(unsafe { move_to(new as *mut c_void, old, size) })
}

/// # Safety
/// See [`move_to`].
unsafe fn resize_growing(old: *mut c_void, len: usize, size: usize) -> *mut c_void {
    if size >= growing::MIN_KEPT_BYTES
        && let Some(new) = growing::resize(old as usize, len, size)
    {
        return new as *mut c_void;
    }
    // SAFETY: mi_malloc takes any size; `old` is a live block that the program passes to `realloc`.
    unsafe { move_to(checked(mi::mi_malloc(size.max(NATURAL))), old, size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(pointer: *mut c_void) {
    // SAFETY: `pointer` is null, or a live block that the program frees.
    unsafe { release(pointer) };
}

/// Frees a block. Unlike the symbol `free`, this is never the program's own function.
#[inline(always)]
unsafe fn release(pointer: *mut c_void) {
    if HEAP.owns(pointer as usize) {
        // SAFETY: `pointer` is a block of this heap, which the caller frees.
        unsafe { release_outside(pointer) };
        return;
    }
    large_blocks::forget(pointer as usize);
    if let Some(len) = growing::usable_size(pointer as usize) {
        growing::release(pointer as usize, len);
    } else {
        // SAFETY: `pointer` is null or a live mimalloc block.
        unsafe { mi::mi_free(pointer) };
    }
}

/// # Safety
/// `pointer` is a live block that the caller does not use afterwards.
#[cold]
unsafe fn release_outside(pointer: *mut c_void) {
    if stdio_buffers::owns(pointer as usize) {
        stdio_buffers::release(pointer as usize);
    } else {
        // SAFETY: `pointer` is from `HEAP.allocate`, and the caller frees it.
        unsafe { HEAP.release(pointer.cast()) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(old: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        Some(total) => realloc_from(old, total, 0),
        None => checked(std::ptr::null_mut()),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    checked(aligned(softswap_sys::PAGE_SIZE, size, 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let page = softswap_sys::PAGE_SIZE;
    match size.max(1).checked_next_multiple_of(page) {
        Some(size) => checked(aligned(page, size, 0)),
        None => checked(std::ptr::null_mut()),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(pointer: *mut c_void) -> usize {
    // SAFETY: `pointer` is null, or a live block of the program.
    unsafe { usable_size(pointer) }
}

unsafe fn usable_size(pointer: *mut c_void) -> usize {
    if pointer.is_null() {
        0
    } else if HEAP.owns(pointer as usize) {
        if stdio_buffers::owns(pointer as usize) {
            return softswap_sys::PAGE_SIZE;
        }
        // SAFETY: `pointer` is a live block of the heap.
        unsafe { HEAP.usable_size(pointer.cast()) }
    } else if let Some(len) = growing::usable_size(pointer as usize) {
        len
    } else {
        // SAFETY: `pointer` is a live mimalloc block.
        unsafe { mi::mi_usable_size(pointer) }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_pad: usize) -> i32 {
    // SAFETY: no preconditions.
    unsafe { mi::mi_collect(true) };
    1
}
