//! The LZ4 block codec in C, on slices. It never allocates, and stops as soon as the target is
//! full, which makes incompressible pages cheap.

use std::ffi::{c_char, c_int, c_void};

/// Scratch memory of [`compress`]: its content does not matter between calls.
#[repr(C, align(64))]
pub struct State([u64; STATE_WORDS]);

/// `LZ4_STREAM_MINSIZE` of the library as built (`LZ4_MEMORY_USAGE` 14).
const STATE_WORDS: usize = ((1 << 14) + 32) / 8;

unsafe extern "C" {
    safe fn LZ4_sizeofState() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        source: *const c_char,
        target: *mut c_char,
        source_len: c_int,
        target_len: c_int,
        acceleration: c_int,
    ) -> c_int;
}

impl State {
    #[expect(
        clippy::large_stack_arrays,
        reason = "moved to its owner once, outside the fault path"
    )]
    pub fn new() -> State {
        let (needed_bytes, bytes) = (LZ4_sizeofState() as usize, size_of::<State>());
        assert!(
            needed_bytes <= bytes,
            "the linked LZ4 library needs a state of {needed_bytes} bytes, more than {bytes}; \
             build softswap with the LZ4 sources of the crate lz4-sys"
        );
        State([0; STATE_WORDS])
    }
}

impl Default for State {
    fn default() -> State {
        State::new()
    }
}

/// Compresses `source` into `target`. Returns the compressed length, or `None` if it does not fit.
pub fn compress(source: &[u8], target: &mut [u8], state: &mut State) -> Option<usize> {
    let (source_len, target_len) = (length(source)?, length(target)?);
    // SAFETY: both slices are valid for their lengths. The C function reads `source_len` bytes,
    // writes at most `target_len`, and initialises the state. `State::new` checked the state's
    // size, and its alignment exceeds the required 8 bytes.
    let compressed_len = unsafe {
        LZ4_compress_fast_extState(
            (&raw mut state.0).cast(),
            source.as_ptr().cast(),
            target.as_mut_ptr().cast(),
            source_len,
            target_len,
            1,
        )
    };
    usize::try_from(compressed_len).ok().filter(|&len| len > 0)
}

/// Returns the number of bytes; `None` if `compressed` is malformed or its content does not fit.
pub fn decompress(compressed: &[u8], target: &mut [u8]) -> Option<usize> {
    let (compressed_len, target_len) = (length(compressed)?, length(target)?);
    // SAFETY: both slices are valid for their lengths. This variant is safe against malicious
    // input: it reads at most `compressed_len` bytes and writes at most `target_len`.
    let len = unsafe {
        lz4_sys::LZ4_decompress_safe(
            compressed.as_ptr().cast(),
            target.as_mut_ptr().cast(),
            compressed_len,
            target_len,
        )
    };
    usize::try_from(len).ok()
}

fn length(slice: &[u8]) -> Option<c_int> {
    c_int::try_from(slice.len()).ok()
}
