//! Pages are sealed and opened in the handler of a fault that may have
//! interrupted `malloc`: neither Rust nor C may allocate there.

use softswap_engine::codec::seal::Sealer;
use std::cell::Cell;
use std::ffi::{c_int, c_void};

thread_local! {
    // Without a destructor and made at compile time: looking at it is no allocation.
    static COUNTING: Cell<bool> = const { Cell::new(false) };
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

fn note() {
    if COUNTING.get() {
        COUNT.set(COUNT.get() + 1);
    }
}

unsafe extern "C" {
    fn __libc_malloc(len: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, len: usize) -> *mut c_void;
    fn __libc_realloc(at: *mut c_void, len: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, len: usize) -> *mut c_void;
}

// SAFETY: each of these four does what the C library's function of that name
// does, by calling it. They replace those functions in this test alone.
#[unsafe(no_mangle)]
extern "C" fn malloc(len: usize) -> *mut c_void {
    note();
    // SAFETY: takes any length.
    unsafe { __libc_malloc(len) }
}

// SAFETY: as `malloc`.
#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, len: usize) -> *mut c_void {
    note();
    // SAFETY: takes any lengths.
    unsafe { __libc_calloc(count, len) }
}

/// # Safety
/// As of the C function: `at` is null or was allocated and not freed.
// SAFETY: as `malloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(at: *mut c_void, len: usize) -> *mut c_void {
    note();
    // SAFETY: what holds for the caller holds here.
    unsafe { __libc_realloc(at, len) }
}

/// # Safety
/// As of the C function: `at` can be written to, and `alignment` is a power of
/// two.
// SAFETY: as `malloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(at: *mut *mut c_void, alignment: usize, len: usize) -> c_int {
    note();
    // SAFETY: the caller vouches for the alignment.
    let allocated = unsafe { __libc_memalign(alignment, len) };
    // SAFETY: the caller vouches for the place.
    unsafe { at.write(allocated) };
    0
}

fn counted<T>(run: impl FnOnce() -> T) -> (usize, T) {
    COUNT.set(0);
    COUNTING.set(true);
    let result = run();
    COUNTING.set(false);
    (COUNT.get(), result)
}

#[test]
fn sealing_and_opening_allocate_nothing_even_when_they_fail() {
    let (count, _) = counted(|| std::hint::black_box(Box::new(7)));
    assert_eq!(count, 1, "an allocation is not counted");
    for sealer in [Sealer::checking(), Sealer::encrypting().unwrap()] {
        let mut page = [7; 4096];
        let (count, seal) = counted(|| sealer.seal(1, 1, &mut page).unwrap());
        assert_eq!(count, 0, "sealing");
        let mut copy = page;
        let (count, good) = counted(|| sealer.open(1, 1, &mut copy, seal));
        assert_eq!((count, good), (0, true), "opening");
        page[100] ^= 1;
        let (count, good) = counted(|| sealer.open(1, 1, &mut page, seal));
        assert_eq!((count, good), (0, false), "opening what has changed");
    }
}
