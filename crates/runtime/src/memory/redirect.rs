//! The C library's own allocator is never reached: whoever frees meets the
//! allocator that gave.
//!
//! Symbols are no way to make sure of that. A library opened with `RTLD_DEEPBIND`
//! finds the C library before us, so does `dlsym` on its handle, and there are more
//! names than one (`__libc_free`, `cfree`). So each of its functions begins with a
//! jump to ours, by whatever name it is called. Where the executable has an
//! allocator of its own, the C library's is left alone: without softswap, too, it is
//! another one.

use crate::memory::heap;
use softswap_sys::code;
use softswap_sys::linked::{self, Linked};
use std::ffi::{CStr, c_void};
use std::io;

/// The functions of the C library, and ours. Other names have the same addresses.
/// (`reallocarray` goes on to `realloc`.)
fn pairs() -> [(&'static CStr, *const c_void); 11] {
    [
        (c"malloc", heap::malloc as *const c_void),
        (c"free", heap::free as *const c_void),
        (c"calloc", heap::calloc as *const c_void),
        (c"realloc", heap::realloc as *const c_void),
        (c"memalign", heap::memalign as *const c_void),
        (c"aligned_alloc", heap::aligned_alloc as *const c_void),
        (c"posix_memalign", heap::posix_memalign as *const c_void),
        (c"valloc", heap::valloc as *const c_void),
        (c"pvalloc", heap::pvalloc as *const c_void),
        (c"malloc_usable_size", heap::malloc_usable_size as *const c_void),
        (c"malloc_trim", heap::malloc_trim as *const c_void),
    ]
}

/// Whether `malloc` is ours for the program: an executable may have its own. Told by
/// where it lies, because that name is the program's here, too.
pub(crate) fn is_ours() -> bool {
    let found = linked::definition(c"malloc");
    let own = Linked::around(is_ours as *const () as usize);
    own.is_some_and(|own| own.code_around(found).is_some())
}

/// Leads the C library's allocator to ours. Before the program begins.
///
/// # Errors
/// When the system does not let a library's code be changed.
pub(crate) fn install() -> io::Result<()> {
    if !is_ours() {
        return Ok(());
    }
    // SAFETY: a valid C string; the library is there already and stays.
    let library =
        unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return Ok(());
    }
    let jumps: Vec<(usize, usize)> = pairs()
        .into_iter()
        .map(|(name, ours)| {
            // SAFETY: a live handle and a valid C string.
            let theirs = unsafe { libc::dlsym(library, name.as_ptr()) };
            (theirs as usize, ours as usize)
        })
        // Compilers let functions begin at such addresses.
        .filter(|(theirs, ours)| *theirs != 0 && theirs != ours && theirs.is_multiple_of(16))
        .collect();
    // SAFETY: functions of the C library's and ours of the same names. They are not
    // run meanwhile, because up to now all symbols lead to ours.
    unsafe { code::redirect(&jumps) }
}
