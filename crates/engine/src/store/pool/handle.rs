//! Units and limits of the pool, its errors, and handles of objects.

use thiserror::Error;

/// Bytes of a slab, the unit in which the pool takes and returns memory.
pub const SLAB_BYTES: usize = 64 << 10;
pub(crate) const MAX_OBJECT_BYTES: usize = 3072;
/// Bits of an owner, which is a page number.
pub(crate) const OWNER_BITS: u32 = 40;
/// Bytes before the content in a slot: a header word and a checksum.
pub(super) const HEADER_BYTES: usize = size_of::<u64>() + size_of::<u32>();

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the compressed pool is full")]
pub struct PoolFull;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("checksum mismatch")]
pub struct Damaged;

/// A pool has at most 2^24 slabs: 1 TiB.
pub(super) const SLAB_BITS: u32 = 24;
pub(super) const SLOT_BITS: u32 = 10;
pub(super) const STAMP_BITS: u32 = 10;
pub(super) const LENGTH_BITS: u32 = 12;
/// Exclusive upper bound of tags, in which the caller records how an object was compressed.
pub const TAGS: u8 = 1 << TAG_BITS;
pub(super) const TAG_BITS: u32 = 2;

const _: () = assert!(SLAB_BITS + SLOT_BITS + STAMP_BITS + LENGTH_BITS + TAG_BITS == 58);

/// Location of one object, in 58 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Handle(u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Object {
    pub(super) slot: u16,
    pub(super) stamp: u16,
    pub(super) len: usize,
    pub(super) tag: u8,
}

impl Handle {
    pub(super) fn new(slab: u32, object: Object) -> Handle {
        let bits = u64::from(slab) << SLOT_BITS | u64::from(object.slot);
        let bits = bits << STAMP_BITS | u64::from(object.stamp);
        let bits = bits << LENGTH_BITS | object.len as u64;
        Handle(bits << TAG_BITS | u64::from(object.tag))
    }

    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The pool rejects a handle from bits that [`Handle::to_bits`] did not return.
    pub fn from_bits(bits: u64) -> Handle {
        Handle(bits)
    }

    /// Number of upper bits that identify the object. The pool can find the other bits.
    pub(crate) const OBJECT_BITS: u32 = SLAB_BITS + SLOT_BITS;

    pub fn compressed_bytes(self) -> usize {
        self.object().len
    }

    pub fn tag(self) -> u8 {
        self.object().tag
    }

    pub(super) fn object(self) -> Object {
        let field = |shift: u32, bits: u32| self.0 >> shift & ((1 << bits) - 1);
        Object {
            tag: field(0, TAG_BITS) as u8,
            len: field(TAG_BITS, LENGTH_BITS) as usize,
            stamp: field(TAG_BITS + LENGTH_BITS, STAMP_BITS) as u16,
            slot: field(TAG_BITS + LENGTH_BITS + STAMP_BITS, SLOT_BITS) as u16,
        }
    }

    pub(crate) fn slab(self) -> u32 {
        (self.0 >> (TAG_BITS + LENGTH_BITS + STAMP_BITS + SLOT_BITS)) as u32
    }
}
