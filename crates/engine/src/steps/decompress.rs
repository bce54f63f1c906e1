//! Decompression into the context's page, by the codec that compressed the data.

use crate::base::stats::Counter;
use crate::codec::compressed_slot::{self};
use crate::codec::{self, Codec, CodecError};
use crate::core::Stores;
use crate::core::errors::UnpackError;
use crate::memory::context::Context;
use crate::store::pool::Handle;

/// Decompresses a pool object. Damage is counted.
pub(crate) fn pooled(
    stores: &Stores,
    context: &mut Context,
    handle: Handle,
) -> Result<(), UnpackError> {
    let object = |packed: &[u8]| decompress(context, handle.tag(), packed);
    let unpacked = stores.pool.load(handle, object).map_err(UnpackError::from).flatten();
    counted(stores, unpacked)
}

/// Decompresses one part of a packed slot. A missing or damaged part is counted.
pub(crate) fn part(
    stores: &Stores,
    context: &mut Context,
    copy: &[u8],
    part: u8,
) -> Result<(), UnpackError> {
    let found = compressed_slot::part(copy, part).map_err(UnpackError::from);
    counted(stores, found.and_then(|(tag, packed)| decompress(context, tag, packed)))
}

fn decompress(context: &mut Context, tag: u8, packed: &[u8]) -> Result<(), UnpackError> {
    let codec = Codec::from_tag(tag).ok_or(CodecError::UnknownTag { tag })?;
    let Context { page, scratch, .. } = context;
    Ok(codec::decompress(codec, packed, &mut page.0, scratch)?)
}

fn counted(stores: &Stores, unpacked: Result<(), UnpackError>) -> Result<(), UnpackError> {
    if unpacked.is_err() {
        stores.stats.add(Counter::UnpackErrors, 1);
    }
    unpacked
}
