//! Tests that codecs and seals do not allocate, because they run in fault handlers that may have
//! interrupted `malloc`.

use softswap_engine::codec::seal::Sealer;
use softswap_sys::memory::{PAGE_SIZE, reserve_bytes};
use softswap_sys::{lz4, zstd};
use std::cell::Cell;
use std::ffi::{c_int, c_void};

thread_local! {
    // The variable has no destructor and no lazy initialization, because `malloc` itself uses it.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

unsafe extern "C" {
    fn __libc_malloc(len: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, len: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, len: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, len: usize) -> *mut c_void;
}

fn count_call() {
    CALLS.set(CALLS.get() + 1);
}

// SAFETY: calls the C library's `malloc`, and so behaves like that function.
#[unsafe(no_mangle)]
extern "C" fn malloc(len: usize) -> *mut c_void {
    count_call();
    // SAFETY: the C library's function accepts any length.
    unsafe { __libc_malloc(len) }
}

// SAFETY: calls the C library's function, and so behaves like that function.
#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, len: usize) -> *mut c_void {
    count_call();
    // SAFETY: the C library's function accepts any lengths.
    unsafe { __libc_calloc(count, len) }
}

/// # Safety
/// `old` is null, or came from one of these functions and was not freed.
// SAFETY: calls the C library's function, and so behaves like that function.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, len: usize) -> *mut c_void {
    count_call();
    // SAFETY: `old` is null or memory of the C library, as the caller promises.
    unsafe { __libc_realloc(old, len) }
}

/// # Safety
/// `at` is writable, and `alignment` is a power of two.
// SAFETY: calls the C library's function, and so behaves like that function.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(at: *mut *mut c_void, alignment: usize, len: usize) -> c_int {
    count_call();
    // SAFETY: the alignment is a power of two, as the caller promises.
    let allocated = unsafe { __libc_memalign(alignment, len) };
    // SAFETY: `at` is writable, as the caller promises.
    unsafe { at.write(allocated) };
    0
}

fn allocations(run: impl FnOnce()) -> u64 {
    let before = CALLS.get();
    run();
    CALLS.get() - before
}

fn pages() -> [[u8; PAGE_SIZE]; 4] {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let noise: [u8; PAGE_SIZE] = std::array::from_fn(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    let mixed = std::array::from_fn(|at| if at % 5 == 0 { noise[at] } else { (at / 100) as u8 });
    [[0; PAGE_SIZE], std::array::from_fn(|at| (at / 7 % 11) as u8), mixed, noise]
}

#[test]
fn codecs_do_not_allocate() {
    let count = allocations(|| drop(std::hint::black_box(Box::new(5))));
    assert!(count > 0, "allocations must be counted");
    let pages = pages();
    let mut state = lz4::State::new();
    let mut compressor = zstd::Compressor::new(reserve_bytes(zstd::COMPRESSOR_BYTES).unwrap());
    let mut decompressor =
        zstd::Decompressor::new(reserve_bytes(zstd::DECOMPRESSOR_BYTES).unwrap());
    let (mut compressed, mut back) = ([0; 3072], [0; PAGE_SIZE]);
    let count = allocations(|| {
        for page in &pages {
            if let Some(len) = lz4::compress(page, &mut compressed, &mut state) {
                assert_eq!(lz4::decompress(&compressed[..len], &mut back), Some(PAGE_SIZE));
            }
            // Cover each change of level, which reinitializes the context.
            for level in zstd::LEVELS.chain(zstd::LEVELS.rev()) {
                if let Some(len) = compressor.compress(level, page, &mut compressed) {
                    let decompressed = decompressor.decompress(&compressed[..len], &mut back);
                    assert_eq!(decompressed, Some(PAGE_SIZE));
                    compressed[len / 2] ^= 0x55;
                    let _ = decompressor.decompress(&compressed[..len], &mut back);
                }
            }
            assert_eq!(decompressor.decompress(page, &mut back), None);
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn sealing_does_not_allocate() {
    for sealer in [Sealer::checking(), Sealer::encrypting().unwrap()] {
        let count = allocations(|| {
            let mut page = [7; PAGE_SIZE];
            let seal = sealer.seal(1, 1, &mut page).unwrap();
            let mut copy = page;
            assert!(sealer.open(1, 1, &mut copy, seal));
            page[100] ^= 1;
            assert!(!sealer.open(1, 1, &mut page, seal));
        });
        assert_eq!(count, 0);
    }
}
