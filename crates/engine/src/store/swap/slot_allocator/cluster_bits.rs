//! Sets of clusters, as a bit for each.

use softswap_sys::primitive::Ordering::{Relaxed, SeqCst};
use softswap_sys::primitive::{AtomicU32, AtomicU64, reserve_u64};
use std::io;

#[derive(Debug, Default)]
pub(super) struct ClusterBits(&'static [AtomicU64]);

impl ClusterBits {
    pub(super) fn new(clusters: usize) -> io::Result<Self> {
        Ok(Self(reserve_u64(clusters.div_ceil(64))?))
    }

    fn word_of(&self, cluster: u32) -> (&AtomicU64, u64) {
        (&self.0[cluster as usize / 64], 1 << (cluster % 64))
    }

    pub(super) fn contains(&self, cluster: u32) -> bool {
        let (word, bit) = self.word_of(cluster);
        word.load(SeqCst) & bit != 0
    }

    /// Sets the bit of a cluster. If it was clear, returns the previous content of its word.
    pub(super) fn insert(&self, cluster: u32) -> Option<u64> {
        if self.contains(cluster) {
            return None;
        }
        let (word, bit) = self.word_of(cluster);
        Some(word.fetch_or(bit, SeqCst)).filter(|before| before & bit == 0)
    }

    pub(super) fn remove(&self, cluster: u32) {
        if self.contains(cluster) {
            let (word, bit) = self.word_of(cluster);
            word.fetch_and(!bit, SeqCst);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(index, word)| clusters_of(index, word.load(SeqCst)))
    }

    /// Removes the first `clusters` clusters, and iterates over those that were in the set.
    pub(super) fn drain(&self, clusters: usize) -> impl Iterator<Item = usize> {
        let words = self.0[..clusters.div_ceil(64)].iter().enumerate();
        words.flat_map(|(index, word)| clusters_of(index, word.swap(0, SeqCst)))
    }
}

fn clusters_of(index: usize, mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let cluster = (bits != 0).then(|| index * 64 + bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(cluster)
    })
}

/// The clusters that were ever allocated from: the parts of the tables that are in DRAM.
#[derive(Debug, Default)]
pub(super) struct Touched {
    bits: ClusterBits,
    clusters: AtomicU32,
    words: AtomicU32,
}

impl Touched {
    pub(super) fn new(clusters: usize) -> io::Result<Self> {
        Ok(Self { bits: ClusterBits::new(clusters)?, ..Self::default() })
    }

    pub(super) fn insert(&self, cluster: u32) {
        if let Some(before) = self.bits.insert(cluster) {
            self.clusters.fetch_add(1, Relaxed);
            self.words.fetch_add(u32::from(before == 0), Relaxed);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.bits.iter()
    }

    pub(super) fn clusters(&self) -> u32 {
        self.clusters.load(Relaxed)
    }

    pub(super) fn words(&self) -> u32 {
        self.words.load(Relaxed)
    }
}
