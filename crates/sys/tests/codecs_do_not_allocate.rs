//! The codecs run in signal handlers that may have interrupted `malloc`: once
//! their memory is there, they never ask for more.

use softswap_sys::memory::{PAGE_SIZE, reserve_bytes};
use softswap_sys::{lz4, zstd};
use std::cell::Cell;
use std::ffi::c_void;

thread_local! {
    // Without destructor and lazy initialisation: `malloc` itself looks at it.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

unsafe extern "C" {
    fn __libc_malloc(len: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, len: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, len: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, len: usize) -> *mut c_void;
}

fn note() {
    CALLS.set(CALLS.get() + 1);
}

/// In place of the C library's, for everything in this executable.
#[unsafe(no_mangle)]
extern "C" fn malloc(len: usize) -> *mut c_void {
    note();
    // SAFETY: the C library's own function takes any length.
    unsafe { __libc_malloc(len) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, len: usize) -> *mut c_void {
    note();
    // SAFETY: the C library's own function takes any lengths.
    unsafe { __libc_calloc(count, len) }
}

/// # Safety
/// `old` is null, or came from one of these functions and was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, len: usize) -> *mut c_void {
    note();
    // SAFETY: `old` is null or came from one of these functions, whose memory is the C
    // library's, as C asks of whoever calls.
    unsafe { __libc_realloc(old, len) }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(align: usize, len: usize) -> *mut c_void {
    note();
    // SAFETY: the C library's own function takes any length, and refuses an alignment
    // that is none.
    unsafe { __libc_memalign(align, len) }
}

/// How often this thread allocates in `run`.
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
fn neither_codec_allocates() {
    assert!(allocations(|| drop(std::hint::black_box(Box::new(5)))) > 0, "they are counted");
    let pages = pages();
    let mut state = lz4::State::new();
    let mut compressor = zstd::Compressor::new(reserve_bytes(zstd::COMPRESSOR_BYTES).unwrap());
    let mut decompressor =
        zstd::Decompressor::new(reserve_bytes(zstd::DECOMPRESSOR_BYTES).unwrap());
    let (mut packed, mut back) = ([0; 3072], [0; PAGE_SIZE]);
    let count = allocations(|| {
        for page in &pages {
            if let Some(len) = lz4::compress(page, &mut packed, &mut state) {
                assert_eq!(lz4::decompress(&packed[..len], &mut back), Some(PAGE_SIZE));
            }
            // Each change of level makes the context anew.
            for level in zstd::LEVELS.chain(zstd::LEVELS.rev()) {
                if let Some(len) = compressor.compress(level, page, &mut packed) {
                    let unpacked = decompressor.decompress(&packed[..len], &mut back);
                    assert_eq!(unpacked, Some(PAGE_SIZE));
                    packed[len / 2] ^= 0x55;
                    let _ = decompressor.decompress(&packed[..len], &mut back);
                }
            }
            assert_eq!(decompressor.decompress(page, &mut back), None);
        }
    });
    assert_eq!(count, 0);
}
