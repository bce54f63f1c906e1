//! zstd in C for single pages, in memory of fixed size (static contexts), so that zstd fails rather
//! than allocates. Frames have no magic number, because they never leave the process.

use crate::PAGE_SIZE;
use std::ffi::c_void;
use std::ops::RangeInclusive;
use zstd_sys::{ZSTD_CCtx, ZSTD_DCtx, ZSTD_cParameter, ZSTD_dParameter};

/// Levels that pay off for single pages. Lower levels do not compress literals and are hardly
/// better than LZ4. Higher ones take half a millisecond or more per page and save little.
pub const LEVELS: RangeInclusive<i8> = -5..=9;
pub const DEFAULT_LEVEL: i8 = 1;
/// A further level, Huffman coding with hardly any search for repetitions: three times as fast as
/// level 1, with the same ratio if nothing repeats (random digits, small numbers).
pub const LITERALS_ONLY: i8 = -100;

fn is_level(level: i8) -> bool {
    LEVELS.contains(&level) || level == LITERALS_ONLY
}

/// Memory that a [`Compressor`] needs for any level, in bytes.
pub const COMPRESSOR_BYTES: usize = 27 * PAGE_SIZE;
pub const DECOMPRESSOR_BYTES: usize = 24 * PAGE_SIZE;

struct Workspace {
    /// Owned, never freed. The C library keeps pointers into it, so no reference may exist.
    start: *mut c_void,
    len: usize,
    /// Address in the memory, or null: with an address sanitizer, zstd leaves a gap before it.
    context: *mut c_void,
}

// SAFETY: the memory and its context are accessed only through this value, on any thread; zstd does
// not tie a context to a thread.
unsafe impl Send for Workspace {}

impl Workspace {
    fn new(memory: &'static mut [u8], needed: usize) -> Workspace {
        let (start, len) = (memory.as_mut_ptr().cast::<c_void>(), memory.len());
        assert!(len >= needed, "zstd needs {needed} bytes for a context");
        assert!((start as usize).is_multiple_of(align_of::<u64>()));
        Workspace { start, len, context: std::ptr::null_mut() }
    }
}

pub struct Compressor {
    workspace: Workspace,
    /// Level of the context in the workspace; `None` before its first use.
    level: Option<i8>,
    touched_bytes: usize,
}

impl Compressor {
    /// Panics if `memory` is smaller than [`COMPRESSOR_BYTES`] or not aligned to 8 bytes.
    pub fn new(memory: &'static mut [u8]) -> Compressor {
        let needed = LEVELS.chain([LITERALS_ONLY]).map(context_bytes).max().unwrap_or(0);
        Compressor { workspace: Workspace::new(memory, needed), level: None, touched_bytes: 0 }
    }

    /// Returns the compressed length; `None` if it does not fit, or `level` is invalid.
    pub fn compress(
        &mut self,
        level: i8,
        page: &[u8; PAGE_SIZE],
        target: &mut [u8],
    ) -> Option<usize> {
        let context = self.context(level)?;
        // SAFETY: the context is in this value's memory, which `self` borrows exclusively. The C
        // function reads the page and writes at most `target.len()` bytes to `target`.
        let len = unsafe {
            zstd_sys::ZSTD_compress2(
                context,
                target.as_mut_ptr().cast(),
                target.len(),
                page.as_ptr().cast(),
                page.len(),
            )
        };
        checked(len)
    }

    pub fn touched_bytes(&self) -> usize {
        self.touched_bytes
    }

    /// Returns the number of further bytes of the memory that compression at `level` touches.
    pub fn untouched_bytes(&self, level: i8) -> usize {
        if self.level == Some(level) || !is_level(level) {
            return 0;
        }
        context_bytes(level).next_multiple_of(PAGE_SIZE).saturating_sub(self.touched_bytes)
    }

    fn context(&mut self, level: i8) -> Option<*mut ZSTD_CCtx> {
        if self.level == Some(level) {
            return Some(self.workspace.context.cast());
        }
        if !is_level(level) {
            return None;
        }
        self.level = None;
        let bytes = context_bytes(level);
        self.touched_bytes += self.untouched_bytes(level);
        // SAFETY: the memory belongs to this value, is aligned, and is long enough for any level,
        // as `Workspace::new` has checked. An earlier context there is not used any more.
        let context = unsafe { zstd_sys::ZSTD_initStaticCCtx(self.workspace.start, bytes) };
        self.workspace.context = context.cast();
        let literals = if level == LITERALS_ONLY { COMPRESS_LITERALS } else { LITERALS_BY_LEVEL };
        let parameters = [
            (ZSTD_cParameter::ZSTD_c_compressionLevel, i32::from(level)),
            (ZSTD_cParameter::ZSTD_c_experimentalParam2, MAGICLESS),
            (ZSTD_cParameter::ZSTD_c_experimentalParam5, literals),
        ];
        let is_ready = !context.is_null()
            && parameters.into_iter().all(|(parameter, value)| {
                // SAFETY: the context was created just above, and is not null.
                checked(unsafe { zstd_sys::ZSTD_CCtx_setParameter(context, parameter, value) })
                    .is_some()
            });
        self.level = is_ready.then_some(level);
        is_ready.then_some(context)
    }
}

pub struct Decompressor {
    workspace: Workspace,
    is_ready: bool,
}

impl Decompressor {
    /// Panics if `memory` is smaller than [`DECOMPRESSOR_BYTES`] or not aligned to 8 bytes.
    pub fn new(memory: &'static mut [u8]) -> Decompressor {
        // SAFETY: the function takes no arguments, and only adds up sizes.
        let needed = unsafe { zstd_sys::ZSTD_estimateDCtxSize() };
        Decompressor { workspace: Workspace::new(memory, needed), is_ready: false }
    }

    /// Returns the number of bytes; `None` if the input is malformed or its content does not fit.
    pub fn decompress(&mut self, compressed: &[u8], target: &mut [u8]) -> Option<usize> {
        let context = self.context()?;
        // SAFETY: the context is in this value's memory, which `self` borrows exclusively. The C
        // function accepts any input, reads `compressed.len()` bytes and writes at most
        // `target.len()`.
        let len = unsafe {
            zstd_sys::ZSTD_decompressDCtx(
                context,
                target.as_mut_ptr().cast(),
                target.len(),
                compressed.as_ptr().cast(),
                compressed.len(),
            )
        };
        checked(len)
    }

    pub fn touched_bytes(&self) -> usize {
        if self.is_ready { self.workspace.len } else { 0 }
    }

    /// Creates the context, which touches the memory, unless it exists.
    pub fn open(&mut self) {
        let _ = self.context();
    }

    fn context(&mut self) -> Option<*mut ZSTD_DCtx> {
        if self.is_ready {
            return Some(self.workspace.context.cast());
        }
        let Workspace { start, len, .. } = self.workspace;
        // SAFETY: the memory is this value's; `Workspace::new` has checked alignment and length.
        let context = unsafe { zstd_sys::ZSTD_initStaticDCtx(start, len) };
        self.workspace.context = context.cast();
        let magicless = ZSTD_dParameter::ZSTD_d_experimentalParam1;
        self.is_ready = !context.is_null()
            // SAFETY: the context was created just above, and is not null.
            && checked(unsafe { zstd_sys::ZSTD_DCtx_setParameter(context, magicless, MAGICLESS) })
                .is_some();
        self.is_ready.then_some(context)
    }
}

/// `ZSTD_c_format` and `ZSTD_d_format`, which the binding names as experimental parameters only.
const MAGICLESS: i32 = zstd_sys::ZSTD_format_e::ZSTD_f_zstd1_magicless as i32;

/// Value of `ZSTD_c_literalCompressionMode`: literals are compressed at every level.
const COMPRESS_LITERALS: i32 = zstd_sys::ZSTD_ParamSwitch_e::ZSTD_ps_enable as i32;
/// Value with the level's default: levels below 0 do not compress literals.
const LITERALS_BY_LEVEL: i32 = zstd_sys::ZSTD_ParamSwitch_e::ZSTD_ps_auto as i32;

fn context_bytes(level: i8) -> usize {
    // SAFETY: both functions only compute with their arguments.
    unsafe {
        let parameters = zstd_sys::ZSTD_getCParams(i32::from(level), PAGE_SIZE as u64, 0);
        zstd_sys::ZSTD_estimateCCtxSize_usingCParams(parameters)
    }
}

fn checked(code: usize) -> Option<usize> {
    // SAFETY: the function only examines the number.
    (unsafe { zstd_sys::ZSTD_isError(code) } == 0).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::reserve_bytes;

    fn pair() -> (Compressor, Decompressor) {
        let memory = |len| reserve_bytes(len).unwrap();
        (Compressor::new(memory(COMPRESSOR_BYTES)), Decompressor::new(memory(DECOMPRESSOR_BYTES)))
    }

    fn page() -> [u8; PAGE_SIZE] {
        std::array::from_fn(|at| (at / 7 % 11 + at / 900) as u8)
    }

    #[test]
    fn every_level_round_trips() {
        let (mut compressor, mut decompressor) = pair();
        // Up and down, so that every context follows a larger and a smaller one.
        for level in LEVELS.chain([LITERALS_ONLY]).chain(LEVELS.rev()) {
            let (mut compressed, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
            let len = compressor.compress(level, &page(), &mut compressed).unwrap();
            assert!(len < 2000, "level {level}: {len}");
            assert_eq!(decompressor.decompress(&compressed[..len], &mut back), Some(PAGE_SIZE));
            assert_eq!(back, page(), "level {level}");
        }
        for level in [*LEVELS.start() - 1, *LEVELS.end() + 1, LITERALS_ONLY - 1, i8::MIN, i8::MAX] {
            assert_eq!(compressor.compress(level, &page(), &mut [0; PAGE_SIZE]), None);
        }
    }

    #[test]
    fn literal_coding_compresses_skewed_bytes() {
        let (mut compressor, mut decompressor) = pair();
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let digits: [u8; PAGE_SIZE] = std::array::from_fn(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            b"0123456789abcdef"[state as usize % 16]
        });
        let (mut compressed, mut back) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        assert_eq!(compressor.compress(-5, &digits, &mut compressed[..3000]), None);
        let len = compressor.compress(LITERALS_ONLY, &digits, &mut compressed).unwrap();
        assert!(len < 2300, "{len}");
        assert_eq!(decompressor.decompress(&compressed[..len], &mut back), Some(PAGE_SIZE));
        assert_eq!(back, digits);
    }

    #[test]
    fn small_output_is_rejected_without_overrun() {
        let (mut compressor, mut decompressor) = pair();
        let mut compressed = [0; PAGE_SIZE];
        let len = compressor.compress(1, &page(), &mut compressed).unwrap();
        let mut target = [0xA5; 2 * PAGE_SIZE];
        assert_eq!(decompressor.decompress(b"no frame", &mut target), None);
        for target_len in [0, 1, 100, PAGE_SIZE - 1] {
            let decompressed =
                decompressor.decompress(&compressed[..len], &mut target[..target_len]);
            assert_eq!(decompressed, None);
            assert!(target[target_len..].iter().all(|&byte| byte == 0xA5));
        }
    }

    #[test]
    fn memory_is_touched_only_when_used() {
        let (mut compressor, mut decompressor) = pair();
        assert_eq!((compressor.touched_bytes(), decompressor.touched_bytes()), (0, 0));
        let mut compressed = [0; PAGE_SIZE];
        let len = compressor.compress(1, &page(), &mut compressed).unwrap();
        let before = compressor.touched_bytes();
        assert!(before > 0 && decompressor.touched_bytes() == 0);
        assert_eq!(compressor.untouched_bytes(1), 0);
        let added = compressor.untouched_bytes(9);
        compressor.compress(9, &page(), &mut compressed[len..]).unwrap();
        assert_eq!(compressor.touched_bytes(), before + added);
        assert!(added > 0 && compressor.touched_bytes() <= COMPRESSOR_BYTES);
        assert_eq!(LEVELS.map(|level| compressor.untouched_bytes(level)).max(), Some(0));
        decompressor.open();
        assert_eq!(decompressor.touched_bytes(), DECOMPRESSOR_BYTES);
        decompressor.decompress(&compressed[..len], &mut [0; PAGE_SIZE]).unwrap();
        assert_eq!(decompressor.touched_bytes(), DECOMPRESSOR_BYTES);
    }
}
