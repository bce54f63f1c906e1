//! Programs whose `malloc` is not the runtime's: the executable, or a library preloaded before this
//! one, defines its own.
//!
//! The blocks of such an allocator may be evicted. But the C library and the loader use it for
//! memory that they read with all signals blocked, or in a child. Therefore their pointers to it
//! are replaced:
//!
//! - The loader frees everything that it allocates, so it always gets memory of the engine's heap.
//! - Blocks of the C library may be freed by the program (`strdup`, `getline`), whose `free` knows
//!   only its own blocks. They come from the program's allocator, except for blocks made in
//!   [`libc_memory::outside_the_window`], which the C library frees itself.
//!
//! The replaced functions free blocks of both allocators.

use crate::memory::{libc_malloc_patch, libc_memory};
use softswap_sys::alloc::HEAP;
use softswap_sys::linked;
use softswap_sys::raw::set_errno;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

const NAMES: [&CStr; 4] = [c"malloc", c"calloc", c"realloc", c"free"];

/// Addresses of the program's functions with these [`NAMES`]; 0 if `malloc` is the runtime's.
static PROGRAM_FUNCTIONS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// Alignment of every block, as in the C library.
const NATURAL: usize = 16;

type Block = *mut c_void;

macro_rules! program_function {
    ($index:literal as fn($($ty:ty),*) $(-> $ret:ty)?, $($argument:expr),*) => {{
        let function = PROGRAM_FUNCTIONS[$index].load(Ordering::Relaxed);
        // SAFETY: the program's function of that name has the C library's prototype; the caller
        // passes its own arguments on.
        unsafe {
            std::mem::transmute::<usize, unsafe extern "C" fn($($ty),*) $(-> $ret)?>(function)(
                $($argument),*
            )
        }
    }};
}

fn own_block(size: usize, zeroed: bool) -> Block {
    let block = HEAP.allocate(size, NATURAL, zeroed);
    if block.is_null() {
        set_errno(libc::ENOMEM);
    }
    block.cast()
}

fn zeroes(count: usize, size: usize) -> Block {
    match count.checked_mul(size) {
        Some(total) => own_block(total, true),
        None => {
            set_errno(libc::ENOMEM);
            std::ptr::null_mut()
        }
    }
}

extern "C" fn malloc_of_loader(size: usize) -> Block {
    own_block(size, false)
}

extern "C" fn calloc_of_loader(count: usize, size: usize) -> Block {
    zeroes(count, size)
}

extern "C" fn realloc_of_loader(old: Block, size: usize) -> Block {
    if old.is_null() { own_block(size, false) } else { realloc_either(old, size) }
}

extern "C" fn malloc_of_library(size: usize) -> Block {
    if libc_memory::is_outside() {
        own_block(size, false)
    } else {
        program_function!(0 as fn(usize) -> Block, size)
    }
}

extern "C" fn calloc_of_library(count: usize, size: usize) -> Block {
    if libc_memory::is_outside() {
        zeroes(count, size)
    } else {
        program_function!(1 as fn(usize, usize) -> Block, count, size)
    }
}

extern "C" fn realloc_of_library(old: Block, size: usize) -> Block {
    if old.is_null() { malloc_of_library(size) } else { realloc_either(old, size) }
}

fn realloc_either(old: Block, size: usize) -> Block {
    if !HEAP.owns(old as usize) {
        return program_function!(2 as fn(Block, usize) -> Block, old, size);
    }
    if size == 0 {
        free_either(old);
        return std::ptr::null_mut();
    }
    let new = own_block(size, false);
    if !new.is_null() {
        // SAFETY: both are live blocks of the heap, at least `len` bytes long; the caller frees
        // `old`.
        unsafe {
            let len = HEAP.usable_size(old.cast()).min(size);
            std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), len);
            HEAP.release(old.cast());
        }
    }
    new
}

extern "C" fn free_either(block: Block) {
    if HEAP.owns(block as usize) {
        // SAFETY: `block` is a block of this heap, which the caller frees.
        unsafe { HEAP.release(block.cast()) };
    } else {
        program_function!(3 as fn(Block), block);
    }
}

/// Runs code of an engine thread without the program's allocator.
pub(crate) fn without_program_malloc<R>(body: impl FnOnce() -> R) -> R {
    let is_replaced = PROGRAM_FUNCTIONS[0].load(Ordering::Relaxed) != 0;
    if is_replaced { libc_memory::outside_the_window(body) } else { body() }
}

/// Does nothing if `malloc` is the runtime's. Called before the program starts.
///
/// # Errors
/// If they cannot be patched: memory that they read with signals blocked could be evicted.
pub(crate) fn install() -> Result<(), String> {
    if libc_malloc_patch::is_runtime_malloc() {
        return Ok(());
    }
    for (name, program_function) in NAMES.iter().zip(&PROGRAM_FUNCTIONS) {
        program_function.store(linked::definition(name), Ordering::Relaxed);
    }
    patch_loader().and_then(|()| patch_libraries()).map_err(|why| {
        format!(
            "the program has a malloc of its own, or preloads one before libsoftswap.so, and \
             {why}; let it use the C library's malloc (without that preload, or built without \
             its own)"
        )
    })
}

/// The loader has each function's address in a variable: its code, or the executable's stub.
fn patch_loader() -> Result<(), String> {
    let own_functions = [
        malloc_of_loader as *const c_void,
        calloc_of_loader as *const c_void,
        realloc_of_loader as *const c_void,
        free_either as *const c_void,
    ];
    let loader = libc_memory::loader().ok_or("the dynamic loader cannot be found")?;
    let mut words = Vec::new();
    for ((program_function, own_function), name) in
        PROGRAM_FUNCTIONS.iter().zip(own_functions).zip(NAMES)
    {
        let (code, stub) = (program_function.load(Ordering::Relaxed), linked::address(name));
        let mut found = loader.words_with(code);
        if stub != code {
            found.extend(loader.words_with(stub));
        }
        let [word] = found[..] else {
            let name = name.to_string_lossy();
            return Err(format!("softswap cannot find the dynamic loader's pointer to {name}"));
        };
        words.push((word, own_function as usize));
    }
    // SAFETY: the new functions have the same types; `free_either` also frees blocks that the
    // loader allocated before.
    unsafe { loader.replace(&words) }.map_err(|why| {
        format!("the dynamic loader cannot be redirected to softswap's malloc ({why})")
    })
}

fn patch_libraries() -> Result<(), String> {
    let own_functions = [
        malloc_of_library as *const c_void,
        calloc_of_library as *const c_void,
        realloc_of_library as *const c_void,
        free_either as *const c_void,
    ];
    for library in libc_memory::libraries() {
        let words = library.words_for(&NAMES);
        let words: Vec<_> =
            words.iter().map(|(word, which)| (*word, own_functions[*which] as usize)).collect();
        // SAFETY: the new functions have the same types and accept blocks of either allocator.
        unsafe { library.replace(&words) }.map_err(|why| {
            format!("the C library cannot be redirected to softswap's malloc ({why})")
        })?;
    }
    Ok(())
}
