//! What the pool keeps, and in which units; why it takes or gives nothing.

use thiserror::Error;

/// Bytes of a slab, the unit in which the pool takes and returns memory.
pub const SLAB_BYTES: usize = 64 << 10;
/// The largest object the pool takes.
pub(crate) const MAX_OBJECT_BYTES: usize = 3072;
/// An owner is a page number of at most this many bits.
pub(crate) const OWNER_BITS: u32 = 40;
/// What a slot begins with: a header word and a checksum.
pub(super) const HEADER_BYTES: usize = size_of::<u64>() + size_of::<u32>();

/// The pool has no slab left and no slot that the object fits.
///
/// ```
/// use softswap_engine::store::pool::Pool;
/// let error = Pool::new(0).unwrap().store(b"packed", 42, 1).unwrap_err();
/// assert_eq!(error.to_string(), "the compressed pool is full");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the compressed pool is full")]
pub struct PoolFull;

/// An object is not what was stored, or not there at all.
///
/// ```
/// use softswap_engine::store::pool::Pool;
/// let pool = Pool::new(1 << 20).unwrap();
/// let handle = pool.store(b"packed", 42, 1).unwrap();
/// pool.free(handle);
/// assert!(pool.load(handle, |_| ()).is_err()); // It is not there any more.
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("checksum mismatch")]
pub struct Damaged;
