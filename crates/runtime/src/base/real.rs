//! Lookup of the C library's versions of interposed functions.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of an interposed function in symbol search order, looked up on first use.
pub(crate) struct Real {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Real {
        Real { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    pub(crate) fn find(&self) -> Option<*mut c_void> {
        // SAFETY: the name is a C string.
        let find = || unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = self.version().map_or_else(find, |version| {
            // SAFETY: both are C strings.
            unsafe { libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version.as_ptr()) }
        });
        (!found.is_null()).then_some(found)
    }

    /// Before glibc 2.36, RTLD_NEXT finds a function's oldest form, so name the present one.
    fn version(&self) -> Option<&'static CStr> {
        match self.name.to_bytes() {
            b"timer_create" => Some(c"GLIBC_2.3.3"),
            b"pthread_attr_setaffinity_np" => Some(c"GLIBC_2.3.4"),
            b"lio_listio" | b"lio_listio64" => Some(c"GLIBC_2.4"),
            b"posix_spawn" | b"posix_spawnp" => Some(c"GLIBC_2.15"),
            _ => None,
        }
    }

    /// Unlike [`Self::find`], also finds libraries opened with RTLD_LOCAL.
    pub(crate) fn find_in(&self, libraries: &[&CStr]) -> Option<*mut c_void> {
        libraries.iter().find_map(|library| {
            // SAFETY: both names are C strings; RTLD_NOLOAD loads nothing. The handle is not
            // closed, so the library stays loaded.
            unsafe {
                let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                let found = if handle.is_null() {
                    std::ptr::null_mut()
                } else {
                    libc::dlsym(handle, self.name.as_ptr())
                };
                (!found.is_null()).then_some(found)
            }
        })
    }

    /// Aborts if the C library lacks the function.
    pub(crate) fn get(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let Some(found) = self.find() else {
            softswap_sys::raw::write_stderr(b"softswap: the C library lacks ");
            softswap_sys::raw::write_stderr(self.name.to_bytes());
            softswap_sys::raw::write_stderr(b"; only glibc programs are supported\n");
            std::process::abort();
        };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// After `real!(name: fn(..) -> ..)`, `name()` returns the C library's function of that name.
macro_rules! real {
    ($name:ident: fn($($arg:ty),*) -> $ret:ty) => {
        fn $name() -> unsafe extern "C" fn($($arg),*) -> $ret {
            static REAL: crate::base::real::Real = crate::base::real::Real::new(
                match std::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => panic!("not a C string"),
                },
            );
            // SAFETY: the symbol is the C library's function of that name, with the declared
            // prototype.
            unsafe { std::mem::transmute::<*mut std::ffi::c_void, _>(REAL.get()) }
        }
    };
}
pub(crate) use real;
