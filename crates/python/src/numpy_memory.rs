//! NumPy's arrays in a pool (NEP 49). Small arrays stay in the C library's heap, because a region
//! consists of whole pages. So do all arrays in a forked child, which has no access to the pool.

use crate::pool::Pool;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use softswap::{Error, Region};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

const CAPSULE: &CStr = c"mem_handler";
/// Index of `PyDataMem_SetHandler` in NumPy's table, in all versions since 1.22.
const SET_HANDLER: usize = 304;

/// `PyDataMemAllocator`.
#[repr(C)]
struct Allocator {
    context: *mut c_void,
    malloc: extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: extern "C" fn(*mut c_void, *mut c_void, usize),
}

/// `PyDataMem_Handler`, version 1.
#[repr(C)]
struct NumpyHandler {
    name: [c_char; 127],
    version: u8,
    allocator: Allocator,
}

struct Context {
    pool: softswap::Pool,
    /// Smaller allocations use the C library.
    least_bytes: usize,
    regions: Mutex<HashMap<usize, Region>>,
}

impl Context {
    /// # Safety
    /// `context` belongs to a handler of this file, which exists while arrays that it allocated do.
    unsafe fn of<'a>(context: *mut c_void) -> &'a Context {
        // SAFETY: the caller promises that the context is valid; it is changed only under its lock.
        unsafe { &*context.cast::<Context>() }
    }

    /// `plain` is the C library's function for at least one byte.
    fn allocate(&self, bytes: usize, plain: impl Fn(usize) -> *mut c_void) -> *mut c_void {
        if bytes < self.least_bytes {
            return plain(bytes.max(1));
        }
        let mut region = match self.pool.map(bytes) {
            Ok(region) => region,
            Err(Error::OtherProcess) => return plain(bytes),
            Err(_) => return ptr::null_mut(),
        };
        let start = region.as_mut_ptr();
        self.lock().insert(start.addr(), region);
        start.cast()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Region>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `None` if the address is not in the pool.
    fn bytes_at(&self, pointer: *mut c_void) -> Option<usize> {
        self.lock().get(&pointer.addr()).map(|region| region.len())
    }
}

extern "C" fn malloc(context: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the function accepts any size.
    let plain = |bytes| unsafe { libc::malloc(bytes) };
    // SAFETY: NumPy passes the context of the handler that this function belongs to.
    unsafe { Context::of(context) }.allocate(bytes, plain)
}

extern "C" fn calloc(context: *mut c_void, count: usize, each: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(each) else {
        return ptr::null_mut();
    };
    // Regions are zero already.
    // SAFETY: the function accepts any size.
    let plain = |bytes| unsafe { libc::calloc(1, bytes) };
    // SAFETY: NumPy passes the context of the handler that this function belongs to.
    unsafe { Context::of(context) }.allocate(bytes, plain)
}

extern "C" fn realloc(context: *mut c_void, old: *mut c_void, bytes: usize) -> *mut c_void {
    if old.is_null() {
        return malloc(context, bytes);
    }
    // SAFETY: NumPy passes the context of the handler that this function belongs to.
    let of_handler = unsafe { Context::of(context) };
    let in_pool = of_handler.bytes_at(old);
    if in_pool.is_none() && bytes < of_handler.least_bytes {
        // SAFETY: memory that is not in the pool belongs to the C library.
        return unsafe { libc::realloc(old, bytes.max(1)) };
    }
    // SAFETY: memory that is not in the pool belongs to the C library.
    let old_bytes = in_pool.unwrap_or_else(|| unsafe { libc::malloc_usable_size(old) });
    let new = malloc(context, bytes);
    if !new.is_null() {
        // SAFETY: `old` and `new` have at least this length. They do not overlap, because `old` is
        // not freed yet.
        unsafe { ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), old_bytes.min(bytes)) };
        free(context, old, old_bytes);
    }
    new
}

extern "C" fn free(context: *mut c_void, pointer: *mut c_void, _bytes: usize) {
    // SAFETY: NumPy passes the context of the handler that this function belongs to.
    let region = unsafe { Context::of(context) }.lock().remove(&pointer.addr());
    if region.is_none() {
        // SAFETY: memory that is not in the pool belongs to the C library, and NumPy frees it once.
        unsafe { libc::free(pointer) };
    }
}

/// A handler for NumPy that allocates in one pool.
#[pyclass(frozen, module = "softswap._softswap")]
pub(crate) struct Handler {
    capsule: Py<PyAny>,
}

#[pymethods]
impl Handler {
    #[new]
    fn new(py: Python<'_>, pool: &Pool, least_bytes: usize) -> PyResult<Handler> {
        // A region cannot be empty.
        let least_bytes = least_bytes.max(1);
        let pool = pool.pool.clone();
        let context = Context { pool, least_bytes, regions: Mutex::default() };
        let context = Box::into_raw(Box::new(context)).cast();
        let allocator = Allocator { context, malloc, calloc, realloc, free };
        let mut name = [0; 127];
        for (to, from) in name.iter_mut().zip(*b"softswap") {
            *to = from as c_char;
        }
        let handler = Box::into_raw(Box::new(NumpyHandler { name, version: 1, allocator }));
        // SAFETY: the capsule owns the handler, and its destructor frees it.
        let capsule = unsafe {
            let capsule = ffi::PyCapsule_New(handler.cast(), CAPSULE.as_ptr(), Some(drop_handler));
            Bound::from_owned_ptr_or_err(py, capsule)?.unbind()
        };
        Ok(Handler { capsule })
    }

    /// Makes NumPy use this handler in the current Python context; returns the previous handler.
    fn put_in_force(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        set(py, &self.capsule)
    }
}

/// Restores a handler that [`Handler::put_in_force`] returned.
#[pyfunction]
pub(crate) fn restore(py: Python<'_>, before: Py<PyAny>) -> PyResult<()> {
    set(py, &before).map(drop)
}

/// Nothing refers to the capsule any more.
extern "C" fn drop_handler(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this once, for a capsule of `Handler::new`, whose content is not used
    // any more.
    unsafe {
        let handler = ffi::PyCapsule_GetPointer(capsule, CAPSULE.as_ptr()).cast::<NumpyHandler>();
        let handler = Box::from_raw(handler);
        drop(Box::from_raw(handler.allocator.context.cast::<Context>()));
    }
}

fn set(py: Python<'_>, capsule: &Py<PyAny>) -> PyResult<Py<PyAny>> {
    let core = py.import("numpy._core._multiarray_umath");
    let core = core.or_else(|_| py.import("numpy.core._multiarray_umath"))?;
    let table = core.getattr("_ARRAY_API")?.cast_into::<PyCapsule>()?;
    if !capsule.bind(py).is_instance_of::<PyCapsule>() {
        return Err(PyRuntimeError::new_err("the argument is not a NumPy memory handler"));
    }
    // SAFETY: the capsule, which has no name, holds NumPy's table of functions, whose entry
    // `SET_HANDLER` has the type `Set`. The function keeps a reference to the new handler, and
    // returns its reference to the previous one.
    unsafe {
        let table = ffi::PyCapsule_GetPointer(table.as_ptr(), ptr::null()).cast::<*mut c_void>();
        let function = *table.add(SET_HANDLER);
        type Set = extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;
        let set_handler = std::mem::transmute::<*mut c_void, Set>(function);
        Ok(Bound::from_owned_ptr_or_err(py, set_handler(capsule.as_ptr()))?.unbind())
    }
}
