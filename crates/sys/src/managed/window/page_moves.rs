//! Content of inaccessible pages without `/proc/self/mem`: pages move, by `mremap`, to and from a
//! place where they can be accessed. For processes that may not open the file: under a filter of
//! the program's own, or after rights were dropped. Each page that moves in is a mapping.

use super::reservation::{READ_WRITE, RESERVE, mmap};
use crate::memory::PAGE_SIZE;
use crate::raw;
use std::io;

/// Ends the process, which would lose data otherwise.
pub(super) fn stop(what: &str) -> ! {
    raw::write_stderr_fmt(format_args!(
        "softswap: internal error: {what}; stopping the program rather than losing data\n"
    ));
    std::process::abort()
}

/// Calls `mremap` for `len` bytes.
///
/// # Safety
/// No Rust reference points to the memory at `from`, nor to the memory that the move displaces.
unsafe fn mremap(from: usize, len: usize, flags: i32, to: usize) -> io::Result<usize> {
    // SAFETY: as asked for above.
    raw::check(unsafe { raw::syscall(libc::SYS_mremap, [from, len, len, flags as usize, to, 0]) })
}

/// Puts inaccessible pages with this content in the place of those at `at`, in the window.
pub(super) fn put(at: usize, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: without MAP_FIXED the mapping overlaps nothing.
    let made = unsafe { mmap(0, bytes.len(), READ_WRITE, RESERVE)? };
    // SAFETY: the memory was mapped just now, of this length, and nothing else refers to it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), made as *mut u8, bytes.len()) };
    for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTDUMP, libc::MADV_DONTFORK] {
        // SAFETY: the call changes no content.
        unsafe {
            raw::syscall(libc::SYS_madvise, [made, bytes.len(), advice as usize, 0, 0, 0]);
        }
    }
    // SAFETY: nothing refers to the new memory, nor to what is in the window.
    let moved = unsafe {
        raw::check(raw::syscall(libc::SYS_mprotect, [made, bytes.len(), 0, 0, 0, 0]))
            .and_then(|_| mremap(made, bytes.len(), libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, at))
    };
    if moved.is_err() {
        // SAFETY: it was mapped for this call.
        unsafe { raw::syscall(libc::SYS_munmap, [made, bytes.len(), 0, 0, 0, 0]) };
    }
    moved.map(drop)
}

/// Moves the content of inaccessible pages at `at`, in the window, to `to`. On an error it is
/// where it was.
pub(super) fn lift(at: usize, to: &mut [u8]) -> io::Result<()> {
    for done in (0..to.len()).step_by(PAGE_SIZE) {
        if let Err(error) = lift_page(at + done, &mut to[done..done + PAGE_SIZE]) {
            if done > 0 && put(at, &to[..done]).is_err() {
                stop("pages cannot go back");
            }
            return Err(error);
        }
    }
    Ok(())
}

fn lift_page(at: usize, to: &mut [u8]) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    // SAFETY: the page is in the window, into which no Rust reference points, and goes to an
    // address of the kernel's choice.
    let moved = unsafe { mremap(at, PAGE_SIZE, flags, 0)? };
    let readable = [moved, PAGE_SIZE, libc::PROT_READ as usize, 0, 0, 0];
    // SAFETY: the page was moved there just now, and nothing else refers to it.
    if unsafe { raw::syscall(libc::SYS_mprotect, readable) } != 0 {
        stop("a page cannot be read");
    }
    // SAFETY: `moved` is a page that may be read, apart from `to`. It is unmapped afterwards.
    unsafe {
        std::ptr::copy_nonoverlapping(moved as *const u8, to.as_mut_ptr(), PAGE_SIZE);
        raw::syscall(libc::SYS_munmap, [moved, PAGE_SIZE, 0, 0, 0, 0]);
    }
    Ok(())
}
