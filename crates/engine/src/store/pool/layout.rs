//! Units and limits of the pool, and its errors.

use thiserror::Error;

/// Bytes of a slab, the unit in which the pool takes and returns memory.
pub const SLAB_BYTES: usize = 64 << 10;
pub(crate) const MAX_OBJECT_BYTES: usize = 3072;
/// Bits of an owner, which is a page number.
pub(crate) const OWNER_BITS: u32 = 40;
/// Bytes before the content in a slot: a header word and a checksum.
pub(super) const HEADER_BYTES: usize = size_of::<u64>() + size_of::<u32>();

/// Error for a pool without a free slab or a slot of sufficient size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the compressed pool is full")]
pub struct PoolFull;

/// Error for an object that is damaged or no longer stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("checksum mismatch")]
pub struct Damaged;
