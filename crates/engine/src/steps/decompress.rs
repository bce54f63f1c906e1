//! Decompression into the context's page, by the codec that compressed the data.

use crate::base::stats::Counter;
use crate::codec::compressed_slot::{self};
use crate::codec::{self, Codec, CodecError};
use crate::core::Stores;
use crate::core::errors::DecompressError;
use crate::memory::context::Context;
use crate::store::pool::Handle;

pub(crate) fn pooled(
    stores: &Stores,
    context: &mut Context,
    handle: Handle,
) -> Result<(), DecompressError> {
    let object = |compressed: &[u8]| decompress(context, handle.tag(), compressed);
    let decompressed = stores.pool.load(handle, object).map_err(DecompressError::from).flatten();
    counted(stores, decompressed)
}

pub(crate) fn part(
    stores: &Stores,
    context: &mut Context,
    copy: &[u8],
    part: u8,
) -> Result<(), DecompressError> {
    let found = compressed_slot::part(copy, part).map_err(DecompressError::from);
    counted(stores, found.and_then(|(tag, compressed)| decompress(context, tag, compressed)))
}

fn decompress(context: &mut Context, tag: u8, compressed: &[u8]) -> Result<(), DecompressError> {
    let codec = Codec::from_tag(tag).ok_or(CodecError::UnknownTag { tag })?;
    let Context { page, scratch, .. } = context;
    Ok(codec::decompress(codec, compressed, &mut page.0, scratch)?)
}

fn counted(
    stores: &Stores,
    decompressed: Result<(), DecompressError>,
) -> Result<(), DecompressError> {
    if decompressed.is_err() {
        stores.stats.add(Counter::DecompressErrors, 1);
    }
    decompressed
}
