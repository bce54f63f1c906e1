//! Redirects the C library's own allocator, so that each block is freed by its allocator.
//!
//! Symbol interposition does not ensure this. A library opened with `RTLD_DEEPBIND` finds the C
//! library first, as does `dlsym` on its handle, and the functions have several names
//! (`__libc_free`, `cfree`). So the code of each function is patched to jump to the runtime's,
//! unless the executable has its own allocator: the two are separate without softswap, too.

use crate::memory::heap;
use softswap_sys::code;
use softswap_sys::linked::{self, Linked};
use std::ffi::{CStr, c_void};
use std::io;

/// Other names have the same addresses. `reallocarray` calls `realloc`.
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

/// Compares addresses: the symbol `malloc` resolves to the program's function in this library, too.
pub(crate) fn is_runtime_malloc() -> bool {
    let found = linked::definition(c"malloc");
    let own = Linked::containing(is_runtime_malloc as *const () as usize);
    own.is_some_and(|own| own.code_around(found).is_some())
}

/// Redirects the C library's allocator. Called before the program starts.
///
/// # Errors
/// If the system does not allow code of a library to be changed.
pub(crate) fn install() -> io::Result<()> {
    if !is_runtime_malloc() {
        return Ok(());
    }
    patch(&pairs())
}

/// Makes functions of the C library jump to these replacements. Called before the program starts.
///
/// # Errors
/// If the system does not allow code of a library to be changed.
pub(crate) fn patch(pairs: &[(&CStr, *const c_void)]) -> io::Result<()> {
    // SAFETY: a valid C string; the library is already loaded and stays loaded.
    let library =
        unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return Ok(());
    }
    let jumps: Vec<(usize, usize)> = pairs
        .iter()
        .map(|(name, own_functions)| {
            // SAFETY: the handle is live, and the name is a valid C string.
            let program_function = unsafe { libc::dlsym(library, name.as_ptr()) };
            (program_function as usize, *own_functions as usize)
        })
        // Compilers align functions to 16 bytes.
        .filter(|(program_function, own_functions)| {
            *program_function != 0
                && program_function != own_functions
                && program_function.is_multiple_of(16)
        })
        .collect();
    // SAFETY: functions of the same names. They do not run meanwhile: the process has one thread,
    // which runs this.
    unsafe { code::patch(&jumps) }
}
