//! Accesses inaccessible pages without `/proc/self/mem`, by `mremap`: under the program's own
//! filter, or after dropping privileges. Each page that is moved in becomes a mapping.

use super::reservation::READ_WRITE;
use crate::memory::{PAGE_SIZE, RESERVE, advise, map, protect, unmap};
use crate::raw;
use std::io;

pub(super) fn stop(what: &str) -> ! {
    raw::write_stderr_fmt(format_args!(
        "softswap: internal error: {what}; the program is stopped to protect its data; \
         please report this\n"
    ));
    std::process::abort()
}

/// # Safety
/// No Rust reference points to the memory at `from`, nor to the memory that the move displaces.
unsafe fn mremap(from: usize, len: usize, flags: i32, to: usize) -> io::Result<usize> {
    // SAFETY: the caller promises that no Rust reference points to either range.
    raw::check(unsafe { raw::syscall(libc::SYS_mremap, [from, len, len, flags as usize, to, 0]) })
}

/// Replaces the pages at `at`, in the window, by inaccessible pages with this content.
pub(super) fn replace(at: usize, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: without MAP_FIXED the mapping overlaps nothing.
    let new_pages = unsafe { map(0, bytes.len(), READ_WRITE, RESERVE)? };
    // SAFETY: the new memory has the length of `bytes`, and nothing else refers to it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), new_pages as *mut u8, bytes.len()) };
    for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTDUMP, libc::MADV_DONTFORK] {
        // SAFETY: the advice changes no content.
        let _ = unsafe { advise(new_pages, bytes.len(), advice) };
    }
    // SAFETY: nothing refers to the new memory, nor to the pages in the window.
    let moved = unsafe {
        protect(new_pages, bytes.len(), libc::PROT_NONE).and_then(|()| {
            mremap(new_pages, bytes.len(), libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, at)
        })
    };
    if moved.is_err() {
        // SAFETY: the memory was mapped for this call, and nothing else refers to it.
        unsafe { unmap(new_pages, bytes.len()) };
    }
    moved.map(drop)
}

/// Moves the content of inaccessible pages to `to`. After an error they are unchanged.
pub(super) fn lift(at: usize, to: &mut [u8]) -> io::Result<()> {
    for done in (0..to.len()).step_by(PAGE_SIZE) {
        if let Err(error) = lift_page(at + done, &mut to[done..done + PAGE_SIZE]) {
            if done > 0 && replace(at, &to[..done]).is_err() {
                stop("pages cannot be restored");
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Moves the content of one present page to `to`. The address stays mapped, but empty.
pub(super) fn lift_page(at: usize, to: &mut [u8]) -> io::Result<()> {
    let to = &mut to[..PAGE_SIZE];
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    // SAFETY: no Rust reference points to a page of the window; the kernel chooses the new address.
    let moved = unsafe { mremap(at, PAGE_SIZE, flags, 0)? };
    // SAFETY: the page was moved there just now, and nothing else refers to it.
    if unsafe { protect(moved, PAGE_SIZE, libc::PROT_READ) }.is_err() {
        stop("a page cannot be read");
    }
    // SAFETY: `to` has PAGE_SIZE bytes. `moved` is a readable page that does not overlap `to`; it
    // is unmapped after the copy.
    unsafe {
        std::ptr::copy_nonoverlapping(moved as *const u8, to.as_mut_ptr(), PAGE_SIZE);
        unmap(moved, PAGE_SIZE);
    }
    Ok(())
}
