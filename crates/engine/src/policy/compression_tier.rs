//! The codec in `auto` mode: LZ4 while the pool has plenty of free space, zstd afterwards.
//!
//! When the pool may soon be full, zstd saves write-backs and later reads. Huffman coding may
//! compress pages that LZ4 cannot, such as text of few distinct letters in random order.
//!
//! zram's recompression in Linux also compresses fast first and more densely when memory is short.

use crate::base::likelihood::{self, CERTAIN, is_probe, likelihood};
use crate::codec::Compressor;
use softswap_sys::zstd::LITERALS_ONLY;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

pub(crate) const DENSE: Compressor = Compressor::Zstd { level: 1 };
/// Codec for pages that LZ4 cannot compress. They have no repetitions for zstd to search.
pub const SECOND: Compressor = Compressor::Zstd { level: LITERALS_ONLY };
/// Memory that zstd needs at level 1 in each context that compresses and decompresses.
const CONTEXT_BYTES: usize = 176 << 10;
/// Likelihood below which a codec is tried only on one page in [`PROBE_EVERY`].
const WORTH_TRYING: u32 = CERTAIN / 8;
const PROBE_EVERY: u32 = 32;

#[derive(Debug)]
pub struct CompressionTier {
    may_be_dense: AtomicBool,
    /// `None` if the dense codec is disabled.
    contexts: Option<usize>,
    by_lz4: AtomicU32,
    by_dense: AtomicU32,
    /// Likelihood that it compresses a page that LZ4 cannot.
    by_second: AtomicU32,
}

impl CompressionTier {
    pub(crate) fn new(budget_bytes: usize, contexts: usize, on: bool) -> CompressionTier {
        let tier = CompressionTier {
            may_be_dense: AtomicBool::new(false),
            contexts: on.then_some(contexts),
            by_lz4: AtomicU32::new(CERTAIN),
            by_dense: AtomicU32::new(CERTAIN),
            by_second: AtomicU32::new(CERTAIN),
        };
        tier.resize(budget_bytes);
        tier
    }

    pub(crate) fn resize(&self, budget_bytes: usize) {
        // The compressors of all contexts together may use an eighth of the budget.
        let fits = |contexts| contexts * CONTEXT_BYTES <= budget_bytes / 8;
        self.may_be_dense.store(self.contexts.is_some_and(fits), Relaxed);
    }

    fn may_be_dense(&self) -> bool {
        self.may_be_dense.load(Relaxed)
    }

    /// Returns the codec to try first. `is_filling` returns true if the pool may soon be full.
    pub(crate) fn first_try(&self, is_filling: impl FnOnce() -> bool) -> Compressor {
        let is_likely = |codec| likelihood(codec) >= WORTH_TRYING;
        if !self.may_be_dense() {
            Compressor::Lz4
        } else if !is_likely(&self.by_lz4) && is_likely(&self.by_second) {
            if is_probe(&self.by_lz4, PROBE_EVERY) { Compressor::Lz4 } else { SECOND }
        } else if is_filling()
            && (is_likely(&self.by_dense) || is_probe(&self.by_dense, PROBE_EVERY))
        {
            DENSE
        } else {
            // If no codec succeeds, LZ4 fails fastest.
            Compressor::Lz4
        }
    }

    pub(crate) fn second_try(&self) -> Option<Compressor> {
        let is_worth = || {
            likelihood(&self.by_second) >= WORTH_TRYING || is_probe(&self.by_second, PROBE_EVERY)
        };
        (self.may_be_dense() && is_worth()).then_some(SECOND)
    }

    pub fn note_tried(&self, compressor: Compressor, has_compressed: bool) {
        match compressor {
            Compressor::Lz4 => likelihood::note(&self.by_lz4, has_compressed),
            SECOND => likelihood::note(&self.by_second, has_compressed),
            DENSE => likelihood::note(&self.by_dense, has_compressed),
            Compressor::Zstd { .. } => {}
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn tier() -> CompressionTier {
        CompressionTier::new(256 << 20, 13, true)
    }

    #[test]
    fn small_budget_excludes_dense_codec() {
        let tier = CompressionTier::new(8 << 20, 13, true);
        assert_eq!(tier.second_try(), None);
        tier.resize(256 << 20);
        assert_eq!(tier.second_try(), Some(SECOND));
        let off = CompressionTier::new(256 << 20, 13, false);
        assert_eq!(off.second_try(), None);
    }

    #[test]
    fn dense_codec_is_retried_while_it_succeeds() {
        let tier = tier();
        assert_eq!(tier.second_try(), Some(SECOND));
        (0..200).for_each(|_| tier.note_tried(SECOND, false));
        let tried = (0..320).filter(|_| tier.second_try().is_some()).count();
        assert_eq!(tried, 320 / PROBE_EVERY as usize);
        (0..10).for_each(|_| tier.note_tried(SECOND, true));
        assert_eq!(tier.second_try(), Some(SECOND));
    }

    #[test]
    fn lz4_is_skipped_if_it_never_succeeds() {
        let tier = tier();
        assert_eq!(tier.first_try(|| false), Compressor::Lz4);
        (0..200).for_each(|_| tier.note_tried(Compressor::Lz4, false));
        let by_lz4 = (0..320).filter(|_| tier.first_try(|| false) == Compressor::Lz4).count();
        assert_eq!(by_lz4, 320 / PROBE_EVERY as usize);
        (0..200).for_each(|_| tier.note_tried(SECOND, false));
        assert_eq!(tier.first_try(|| false), Compressor::Lz4);
    }

    #[test]
    fn filling_pool_retries_lz4() {
        let tier = tier();
        (0..200).for_each(|_| tier.note_tried(Compressor::Lz4, false));
        for _ in 0..PROBE_EVERY * 200 {
            if tier.first_try(|| true) == Compressor::Lz4 {
                tier.note_tried(Compressor::Lz4, true);
            }
        }
        assert_eq!(tier.first_try(|| false), Compressor::Lz4);
    }

    #[test]
    fn filling_pool_uses_dense_codec() {
        let tier = tier();
        let tried = |compressor| (0..320).filter(|_| tier.first_try(|| true) == compressor).count();
        let probes = 320 / PROBE_EVERY as usize;
        assert_eq!(tried(DENSE), 320);
        (0..200).for_each(|_| tier.note_tried(DENSE, false));
        assert_eq!((tried(DENSE), tried(Compressor::Lz4)), (probes, 320 - probes));
        (0..10).for_each(|_| tier.note_tried(DENSE, true));
        assert_eq!(tried(DENSE), 320);
        let off = CompressionTier::new(256 << 20, 13, false);
        assert_eq!(off.first_try(|| true), Compressor::Lz4);
    }
}
