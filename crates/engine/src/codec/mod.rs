//! Page compression. The compressed bytes are one bare LZ4 block or one zstd frame. The pool or the
//! compressed slot stores the codec's tag, the length and the position.
//!
//! All working memory is in the caller's [`Scratch`], because the caller may be a signal handler.

pub mod same_filled;
pub mod compressed_slot;
mod key_epochs;
pub mod seal;
mod choice;

pub use choice::Choice;
pub(crate) use choice::{BadChoice, Selector};

use softswap_sys::memory::reserve_bytes;
use softswap_sys::{lz4, zstd};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use thiserror::Error;

const PAGE_BYTES: usize = 4096;

/// A page that compresses to more counts as incompressible: the DRAM saved would not pay off.
pub const MAX_COMPRESSED_BYTES: usize = 3072;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    Lz4 = 0,
    Zstd = 1,
}

impl Codec {
    /// In the order of their tags.
    pub const ALL: [Codec; 2] = [Codec::Lz4, Codec::Zstd];

    pub fn tag(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_tag(tag: u8) -> Option<Codec> {
        Codec::ALL.get(usize::from(tag)).copied()
    }

    pub(crate) fn name(self) -> &'static str {
        ["lz4", "zstd"][self as usize]
    }
}

const _: () = assert!(Codec::ALL.len() <= 4, "tags have two bits");

/// A codec and its level, which decompression does not need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressor {
    Lz4,
    /// zstd at one of [`zstd::LEVELS`], or at [`zstd::LITERALS_ONLY`].
    Zstd {
        level: i8,
    },
}

impl Compressor {
    pub fn codec(self) -> Codec {
        match self {
            Compressor::Lz4 => Codec::Lz4,
            Compressor::Zstd { .. } => Codec::Zstd,
        }
    }
}

/// Working memory of the codecs: LZ4's 16 KiB inline, and reserved address space for zstd, which is
/// counted when zstd first uses it.
pub struct Scratch {
    lz4: lz4::State,
    compressor: zstd::Compressor,
    decompressor: zstd::Decompressor,
    counted_bytes: usize,
    workspaces: Arc<Workspaces>,
}

#[derive(Debug, Default)]
pub struct Workspaces {
    touched_bytes: AtomicUsize,
    is_zstd_stored: AtomicBool,
}

impl Workspaces {
    pub(crate) fn touched_bytes(&self) -> usize {
        self.touched_bytes.load(Relaxed)
    }

    /// Any scratch may have to decompress a stored page.
    pub(crate) fn note_stored(&self, codec: Codec) {
        if codec == Codec::Zstd && !self.is_zstd_stored.load(Relaxed) {
            self.is_zstd_stored.store(true, Relaxed);
        }
    }
}

impl Scratch {
    /// Counts its additional memory in `workspaces`. Fails if no address space is left.
    pub fn new(workspaces: Arc<Workspaces>) -> io::Result<Scratch> {
        Ok(Scratch {
            lz4: lz4::State::new(),
            compressor: zstd::Compressor::new(reserve_bytes(zstd::COMPRESSOR_BYTES)?),
            decompressor: zstd::Decompressor::new(reserve_bytes(zstd::DECOMPRESSOR_BYTES)?),
            counted_bytes: 0,
            workspaces,
        })
    }

    /// Returns the additional memory that must be available before compression, in bytes.
    pub(crate) fn bytes_to_compress(&self, compressor: Compressor) -> usize {
        match compressor {
            Compressor::Lz4 => 0,
            Compressor::Zstd { level } => self.compressor.untouched_bytes(level),
        }
    }

    /// Returns the additional memory that must be available before [`Scratch::open`], in bytes.
    pub(crate) fn bytes_to_decompress(&self) -> usize {
        if !self.workspaces.is_zstd_stored.load(Relaxed) {
            return 0;
        }
        zstd::DECOMPRESSOR_BYTES - self.decompressor.touched_bytes()
    }

    /// Touches and counts [`Scratch::bytes_to_decompress`].
    pub(crate) fn open(&mut self) {
        self.decompressor.open();
        self.count();
    }

    fn count(&mut self) {
        let now = self.compressor.touched_bytes() + self.decompressor.touched_bytes();
        if now > self.counted_bytes {
            self.workspaces.touched_bytes.fetch_add(now - self.counted_bytes, Relaxed);
            self.counted_bytes = now;
        }
    }
}

/// Failure to decompress a page. No failure is transient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CodecError {
    #[error("compressed page of {compressed_bytes} bytes is corrupt")]
    Corrupt { compressed_bytes: usize },
    #[error("compressed page holds {bytes} bytes instead of {PAGE_BYTES}")]
    WrongLength { bytes: usize },
    #[error("compressed page has the unknown tag {tag}")]
    UnknownTag { tag: u8 },
}

/// Returns the compressed length. `None` if `out` is too short; its content is undefined then.
pub fn compress(
    compressor: Compressor,
    page: &[u8; PAGE_BYTES],
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Option<usize> {
    match compressor {
        Compressor::Lz4 => lz4::compress(page, out, &mut scratch.lz4),
        Compressor::Zstd { level } => {
            let len = scratch.compressor.compress(level, page, out);
            scratch.count();
            len
        }
    }
}

/// After an error the content of `page` is arbitrary.
pub fn decompress(
    codec: Codec,
    compressed: &[u8],
    page: &mut [u8; PAGE_BYTES],
    scratch: &mut Scratch,
) -> Result<(), CodecError> {
    let decompressed = match codec {
        Codec::Lz4 => lz4::decompress(compressed, page),
        Codec::Zstd => {
            let len = scratch.decompressor.decompress(compressed, page);
            scratch.count();
            len
        }
    };
    match decompressed {
        Some(PAGE_BYTES) => Ok(()),
        Some(bytes) => Err(CodecError::WrongLength { bytes }),
        None => Err(CodecError::Corrupt { compressed_bytes: compressed.len() }),
    }
}

#[cfg(test)]
mod tests;
