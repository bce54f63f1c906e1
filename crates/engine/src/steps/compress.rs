//! Compresses pages that are evicted into the pool. A same-filled page needs only its word.

use crate::base::page::{PageNo, Place};
use crate::base::stats::{Counter, Stats};
use crate::codec::{self, Compressor, Scratch, same_filled};
use crate::core::Core;
use crate::core::recorder::Recorder;
use crate::memory::context::Context;
use crate::policy::compression_tier::DENSE;
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;

/// Reason why a page could not be stored in DRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotInDram {
    Incompressible,
    /// The pool did not admit the page or was full. The page may be compressible.
    PoolRefused,
}

pub(crate) fn store_in_dram(
    core: &Core,
    context: &mut Context,
    page: PageNo,
    content: &[u8; PAGE_SIZE],
) -> Result<Place, NotInDram> {
    core.recorder.iter().for_each(|recorder| record(recorder, context, page, content));
    as_same_filled(core.stats, content).map_or_else(|| into_pool(core, context, page, content), Ok)
}

fn record(recorder: &Recorder, context: &mut Context, page: PageNo, content: &[u8; PAGE_SIZE]) {
    if same_filled::same_filled_word(content).is_some() {
        return recorder.record_same_filled(page);
    }
    let Context { compressed, scratch, .. } = context;
    let buffer = &mut compressed.0[..codec::MAX_COMPRESSED_BYTES];
    let compressed = [Compressor::Lz4, DENSE]
        .map(|compressor| codec::compress(compressor, content, buffer, scratch));
    recorder.record_evicted(page, compressed, PAGE_SIZE);
}

fn as_same_filled(stats: Stats, content: &[u8; PAGE_SIZE]) -> Option<Place> {
    let word = same_filled::same_filled_word(content)?;
    stats.add(Counter::PagesSameFilled, 1);
    same_filled::encode(word).map(|code| Place::SameFilled { code })
}

fn into_pool(
    core: &Core,
    context: &mut Context,
    page: PageNo,
    content: &[u8; PAGE_SIZE],
) -> Result<Place, NotInDram> {
    if !core.policies.has_codec() {
        return Err(NotInDram::PoolRefused);
    }
    if core.bypasses_pool(page) && !core.policies.admission.is_due(page) {
        core.policies.note_bypassed(page);
        core.stats.add(Counter::PoolPassed, 1);
        return Err(NotInDram::PoolRefused);
    }
    let working_memory = |scratch: &Scratch, compressor| {
        core.reserve_for_pool(scratch.bytes_to_compress(compressor))
    };
    // Reserve first: a page that the pool cannot accept need not be compressed.
    let admitted = core.stores.pool.accepts().then(|| {
        let compressor = core.policies.compressor(|| core.pool_view())?;
        let with_memory =
            |compressor| Some((working_memory(&context.scratch, compressor)?, compressor));
        // The dense codec allocates working memory at its first use.
        with_memory(compressor).or_else(|| with_memory(core.policies.without_memory(compressor)?))
    });
    let Some((_memory, compressor)) = admitted.flatten() else {
        core.stats.add(Counter::PoolRefusals, 1);
        return Err(NotInDram::PoolRefused);
    };
    let mut compressed =
        compress_page(core, context, compressor, content).map(|len| (compressor, len));
    if compressed.is_none()
        && let Some(second) = core.policies.second_compressor(compressor)
        && let Some(_memory) = working_memory(&context.scratch, second)
    {
        compressed = compress_page(core, context, second, content).map(|len| (second, len));
    }
    let Some((compressor, len)) = compressed else {
        core.stats.add(Counter::PagesIncompressible, 1);
        return Err(NotInDram::Incompressible);
    };
    core.stores.workspaces.note_stored(compressor.codec());
    let compressed = &context.compressed.0[..len];
    let Ok(handle) = core.stores.pool.store(compressed, page, compressor.codec().tag()) else {
        core.stats.add(Counter::PoolLimitHits, 1);
        return Err(NotInDram::PoolRefused);
    };
    core.stats.add(Counter::PagesPooled, 1);
    core.stats.add(Counter::PooledBytes, len as u64);
    Ok(Place::Pool { handle: handle.to_bits() })
}

/// Compresses a page into the context's buffer. Returns its size, `None` if it is incompressible.
fn compress_page(
    core: &Core,
    context: &mut Context,
    compressor: Compressor,
    content: &[u8; PAGE_SIZE],
) -> Option<usize> {
    let Context { compressed, scratch, .. } = context;
    let start_ns = now_ns();
    let len = codec::compress(
        compressor,
        content,
        &mut compressed.0[..codec::MAX_COMPRESSED_BYTES],
        scratch,
    );
    core.policies.admission.compressed(len, now_ns() - start_ns);
    core.policies.tier.note_tried(compressor, len.is_some());
    len
}
