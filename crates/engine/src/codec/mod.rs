//! The codecs: page-out packs a page that is not same-filled, page-in unpacks
//! it into the frame to install. Packed bytes are one bare LZ4 block or one
//! zstd frame; which of the two, how long they are and where they live is the
//! business of whoever keeps them, with the codec's tag.
//!
//! All working memory is the caller's [`Scratch`], because both walks may run
//! inside a signal handler.

pub mod same_filled;
pub mod packed_slot;
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

/// A page that packs to more than this counts as incompressible: the DRAM it
/// would free no longer pays for packing and unpacking it.
pub const MAX_PACKED_BYTES: usize = 3072;

/// What unpacks a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// Fast both ways.
    Lz4 = 0,
    /// Smaller, and slower both ways.
    Zstd = 1,
}

impl Codec {
    /// All codecs, in the order of their tags.
    pub const ALL: [Codec; 2] = [Codec::Lz4, Codec::Zstd];

    /// What a page's keeper remembers the codec by: two bits.
    #[must_use]
    pub fn tag(self) -> u8 {
        self as u8
    }

    /// The codec of a tag; `None` for one that was never given.
    #[must_use]
    pub(crate) fn from_tag(tag: u8) -> Option<Codec> {
        Codec::ALL.get(usize::from(tag)).copied()
    }

    /// The codec's name.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        ["lz4", "zstd"][self as usize]
    }
}

const _: () = assert!(Codec::ALL.len() <= 4, "tags have two bits");

/// What packs a page: a codec, and how hard it tries. The level is not needed
/// to unpack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packer {
    /// LZ4.
    Lz4,
    /// zstd at one of [`zstd::LEVELS`], or at [`zstd::LITERALS_ONLY`].
    Zstd {
        /// The level.
        level: i8,
    },
}

impl Packer {
    /// What unpacks it.
    #[must_use]
    pub fn codec(self) -> Codec {
        match self {
            Packer::Lz4 => Codec::Lz4,
            Packer::Zstd { .. } => Codec::Zstd,
        }
    }
}

/// What the codecs work in. One serves any number of pages in turn. LZ4's
/// 16 KiB are inline; zstd's memory is address space until zstd is used, and
/// then counted.
///
/// ```
/// use softswap_engine::codec::{Codec, Packer, Scratch, compress, decompress};
/// let mut scratch = Scratch::new(Default::default()).unwrap();
/// let (page, mut packed, mut unpacked) = ([7; 4096], [0; 4096], [0; 4096]);
/// let len = compress(Packer::Lz4, &page, &mut packed, &mut scratch).unwrap();
/// decompress(Codec::Lz4, &packed[..len], &mut unpacked, &mut scratch).unwrap();
/// assert_eq!(unpacked, page);
/// ```
pub struct Scratch {
    lz4: lz4::State,
    compressor: zstd::Compressor,
    decompressor: zstd::Decompressor,
    counted_bytes: usize,
    workspaces: Arc<Workspaces>,
}

/// What the scratches of an engine have taken together.
#[derive(Debug, Default)]
pub struct Workspaces {
    touched_bytes: AtomicUsize,
    is_zstd_stored: AtomicBool,
}

impl Workspaces {
    /// What has been taken beside the scratches themselves, in bytes.
    #[must_use]
    pub(crate) fn touched_bytes(&self) -> usize {
        self.touched_bytes.load(Relaxed)
    }

    /// Notes that what this codec packed is kept: any scratch may have to unpack it.
    pub(crate) fn note_stored(&self, codec: Codec) {
        if codec == Codec::Zstd && !self.is_zstd_stored.load(Relaxed) {
            self.is_zstd_stored.store(true, Relaxed);
        }
    }
}

impl Scratch {
    /// A scratch that counts what it takes beside itself among the `workspaces`.
    ///
    /// # Errors
    /// When there is no address space left.
    pub fn new(workspaces: Arc<Workspaces>) -> io::Result<Scratch> {
        Ok(Scratch {
            lz4: lz4::State::new(),
            compressor: zstd::Compressor::new(reserve_bytes(zstd::COMPRESSOR_BYTES)?),
            decompressor: zstd::Decompressor::new(reserve_bytes(zstd::DECOMPRESSOR_BYTES)?),
            counted_bytes: 0,
            workspaces,
        })
    }

    /// What packing a page so takes beside what has been taken, in bytes: to be had before.
    #[must_use]
    pub(crate) fn bytes_to_pack(&self, packer: Packer) -> usize {
        match packer {
            Packer::Lz4 => 0,
            Packer::Zstd { level } => self.compressor.untouched_bytes(level),
        }
    }

    /// What unpacking whatever is kept takes beside what has been taken, in bytes: to be
    /// had before [`Scratch::open`].
    #[must_use]
    pub(crate) fn bytes_to_unpack(&self) -> usize {
        if !self.workspaces.is_zstd_stored.load(Relaxed) {
            return 0;
        }
        zstd::DECOMPRESSOR_BYTES - self.decompressor.touched_bytes()
    }

    /// Takes [`Scratch::bytes_to_unpack`], and counts it.
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

/// Why packed bytes are not a page. None is worth a retry.
///
/// ```
/// use softswap_engine::codec::{Codec, CodecError, Scratch, decompress};
/// let mut scratch = Scratch::new(Default::default()).unwrap();
/// let error = decompress(Codec::Zstd, b"no frame", &mut [0; 4096], &mut scratch);
/// assert_eq!(error, Err(CodecError::Corrupt { packed_bytes: 8 }));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CodecError {
    /// Not of this codec, damaged, or more than a page.
    #[error("packed page of {packed_bytes} bytes is corrupt")]
    Corrupt {
        /// Its length as given.
        packed_bytes: usize,
    },
    /// Well-formed, and something smaller than a page.
    #[error("packed page holds {bytes} bytes instead of {PAGE_BYTES}")]
    WrongLength {
        /// How many bytes it unpacks to.
        bytes: usize,
    },
    /// A tag that no codec has.
    #[error("packed page has the unknown tag {tag}")]
    UnknownTag {
        /// The tag.
        tag: u8,
    },
}

/// Packs `page` to the start of `out` and returns the packed length; `None`
/// when `out` is too short for it, and then `out` holds nothing of use.
pub fn compress(
    packer: Packer,
    page: &[u8; PAGE_BYTES],
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Option<usize> {
    match packer {
        Packer::Lz4 => lz4::compress(page, out, &mut scratch.lz4),
        Packer::Zstd { level } => {
            let len = scratch.compressor.compress(level, page, out);
            scratch.count();
            len
        }
    }
}

/// Unpacks into `page`. After an error the content of `page` is arbitrary.
pub fn decompress(
    codec: Codec,
    packed: &[u8],
    page: &mut [u8; PAGE_BYTES],
    scratch: &mut Scratch,
) -> Result<(), CodecError> {
    let unpacked = match codec {
        Codec::Lz4 => lz4::decompress(packed, page),
        Codec::Zstd => {
            let len = scratch.decompressor.decompress(packed, page);
            scratch.count();
            len
        }
    };
    match unpacked {
        Some(PAGE_BYTES) => Ok(()),
        Some(bytes) => Err(CodecError::WrongLength { bytes }),
        None => Err(CodecError::Corrupt { packed_bytes: packed.len() }),
    }
}

#[cfg(test)]
mod tests;
