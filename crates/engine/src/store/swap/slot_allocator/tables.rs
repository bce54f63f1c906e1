//! The allocator's tables, by purpose.

use super::cluster_bits::ClusterBits;
use crate::store::swap::cluster::WORDS;
use softswap_sys::primitive::Ordering::{Relaxed, SeqCst};
use softswap_sys::primitive::{AtomicBool, AtomicU32, AtomicU64, Mutex, reserve_u32, reserve_u64};
use std::io;

#[derive(Debug, Default)]
pub(super) struct Positions {
    /// The state, and the home free-list set.
    pub(super) position: &'static [AtomicU32],
    /// The next cluster on the same list, and the previous one.
    pub(super) next: &'static [AtomicU32],
    pub(super) prev: &'static [AtomicU32],
}

impl Positions {
    pub(super) fn new(clusters: usize) -> io::Result<Self> {
        Ok(Self {
            position: reserve_u32(clusters)?,
            next: reserve_u32(clusters)?,
            prev: reserve_u32(clusters)?,
        })
    }

    pub(super) fn load(&self, cluster: u32) -> u32 {
        self.position[cluster as usize].load(SeqCst)
    }
}

/// Slots that are never allocated again.
#[derive(Debug, Default)]
pub(super) struct Retired {
    pub(super) bits: &'static [AtomicU64],
    pub(super) slots: AtomicU64,
}

impl Retired {
    pub(super) fn new(words: usize) -> io::Result<Self> {
        Ok(Self { bits: reserve_u64(words)?, ..Self::default() })
    }

    pub(super) fn bits(&self, word: usize) -> u64 {
        self.bits[word].load(Relaxed)
    }

    pub(super) fn insert(&self, word: usize, mask: u64) -> u32 {
        (mask & !self.bits[word].fetch_or(mask, SeqCst)).count_ones()
    }
}

/// Slots whose reuse is delayed: see [`super::frozen`].
#[derive(Debug, Default)]
pub(super) struct Freezes {
    pub(super) count: AtomicU32,
    /// Held while a freeze or a thaw changes the marks.
    pub(super) changing: Mutex<()>,
    /// A bit for each slot that was in use at the start of an active freeze.
    pub(super) kept: &'static [AtomicU64],
    /// A bit for each slot in limbo: marked in `kept`, and freed since.
    pub(super) limbo: &'static [AtomicU64],
    /// Clusters that may have slots in limbo.
    pub(super) limbo_clusters: ClusterBits,
}

impl Freezes {
    pub(super) fn new(clusters: usize) -> io::Result<Self> {
        Ok(Self {
            kept: reserve_u64(clusters * WORDS)?,
            limbo: reserve_u64(clusters * WORDS)?,
            limbo_clusters: ClusterBits::new(clusters)?,
            ..Self::default()
        })
    }

    pub(super) fn limbo(&self, word: usize) -> u64 {
        self.limbo[word].load(SeqCst)
    }
}

#[derive(Debug, Default)]
pub(super) struct Surplus {
    /// Maximum number of free clusters on a processor's free-list set.
    pub(super) keep: AtomicU32,
    /// Hint that a free-list set has more free clusters than `keep`.
    pub(super) is_present: AtomicBool,
}

impl Surplus {
    pub(super) fn new() -> Self {
        Self { keep: AtomicU32::new(u32::MAX), ..Self::default() }
    }
}
