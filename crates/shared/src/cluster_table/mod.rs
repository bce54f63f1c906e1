//! Owners of the clusters of named areas, which a tree of processes shares.
//!
//! A word per cluster is 0 or the mark of its owner. A process takes a cluster by one
//! compare-and-swap, and frees clusters without used slots. A slot has the same number for all
//! processes: its position in the area. Seals, keys and generations belong to one process, so no
//! process accepts a page of another one, even if a word is overwritten.
//!
//! Each process marks its own open file of the area ([`softswap_sys::open_mark`]). A forked child
//! reads its parent's slots through the inherited open file, and thereby keeps the parent's mark.
//! So a mark is released once no process can read its clusters and no write to them is in flight. A
//! process that finds no free cluster reaps those of released marks. A process that cannot open the
//! area, because it has dropped root, uses the inherited open file and its mark.

#[cfg(all(test, feature = "loom"))]
mod model;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use crate::claims::Claims;
use crate::segment::Segment;
use softswap_sys::open_mark::MAX_MARKS;
use softswap_sys::primitive::AtomicU64;
use softswap_sys::primitive::Ordering::Relaxed;

/// Identifies the layout; changes with it.
const MAGIC: u64 = u64::from_le_bytes(*b"sswclus2");
const HEADER_WORDS: usize = 8;
/// Words of an area: device, inode, clusters, next mark to try, nonzero once writes stopped.
const AREA_WORDS: usize = 5;
const FIRST_CLUSTER_WORD: usize = HEADER_WORDS + MOST_AREAS * AREA_WORDS;

/// Maximum number of named areas of a tree.
pub const MOST_AREAS: usize = 32;
/// Mark on the open file that all processes of the tree inherit.
pub const MARK_OF_TREE: u64 = 1;

/// Tables of all named areas of a tree.
///
/// ```
/// use softswap_shared::cluster_table::{ClusterTables, SharedArea};
/// use softswap_sys::memory::reserve_u64;
/// let area = SharedArea { device: 1, inode: 2, clusters: 2 };
/// let words = reserve_u64(ClusterTables::words(&[area])).unwrap();
/// assert!(ClusterTables::open(words).is_none());
/// let tables = ClusterTables::create(words, &[area]);
/// assert!(tables.have(1, 2) && tables.table(SharedArea { clusters: 8, ..area }).is_none());
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ClusterTables {
    segment: Segment,
}

/// File or device of a named area, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedArea {
    /// Device that stores the file.
    pub device: u64,
    /// Inode of the file.
    pub inode: u64,
    /// Number of clusters.
    pub clusters: usize,
}

/// Owners of the clusters of one area.
///
/// ```
/// use softswap_shared::cluster_table::{ClusterTables, SharedArea};
/// use softswap_sys::memory::reserve_u64;
/// let area = SharedArea { device: 1, inode: 2, clusters: 4 };
/// let words = reserve_u64(ClusterTables::words(&[area])).unwrap();
/// let table = ClusterTables::create(words, &[area]).table(area).unwrap();
/// assert_eq!((table.take(7, 2), table.take(7, 3), table.take(8, 0)), (Some(2), Some(3), Some(0)));
/// assert_eq!((table.free_count(), table.held(7)), (1, 2));
/// assert_eq!((table.reap(|mark| mark == 7), table.free_count()), (2, 3));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ClusterTable {
    next_mark: &'static AtomicU64,
    stopped: &'static AtomicU64,
    clusters: Claims,
}

impl ClusterTables {
    /// Returns the number of words for the tables of these areas.
    #[must_use]
    pub fn words(areas: &[SharedArea]) -> usize {
        FIRST_CLUSTER_WORD + areas.iter().map(|area| area.clusters).sum::<usize>()
    }

    /// Creates tables in zeroed words.
    ///
    /// # Panics
    /// If there are more than [`MOST_AREAS`] areas, or too few words.
    #[must_use]
    pub fn create(words: &'static [AtomicU64], areas: &[SharedArea]) -> ClusterTables {
        assert!(areas.len() <= MOST_AREAS);
        let segment = Segment::create(words, Self::words(areas), MAGIC);
        for (at, area) in areas.iter().enumerate() {
            let values = [area.device, area.inode, area.clusters as u64, MARK_OF_TREE + 1];
            for (word, value) in words[HEADER_WORDS + at * AREA_WORDS..].iter().zip(values) {
                word.store(value, Relaxed);
            }
        }
        segment.publish();
        ClusterTables { segment }
    }

    /// Opens tables that another process has created. Returns `None` if the words contain none.
    #[must_use]
    pub fn open(words: &'static [AtomicU64]) -> Option<ClusterTables> {
        let len = words.len().max(FIRST_CLUSTER_WORD);
        Segment::open(words, len, MAGIC).map(|segment| ClusterTables { segment })
    }

    /// Returns true if this file has a table.
    #[must_use]
    pub fn have(&self, device: u64, inode: u64) -> bool {
        let mut areas = self.areas();
        areas.any(|(area, ..)| area.clusters > 0 && (area.device, area.inode) == (device, inode))
    }

    /// Returns the table of an area; `None` if there is none, or its size differs.
    #[must_use]
    pub fn table(&self, area: SharedArea) -> Option<ClusterTable> {
        let mut first = FIRST_CLUSTER_WORD;
        for (other, next_mark, stopped) in self.areas() {
            let words = self.segment.words().get(first..first.checked_add(other.clusters)?)?;
            if other == area && area.clusters > 0 {
                return Some(ClusterTable { next_mark, stopped, clusters: Claims(words) });
            }
            first += other.clusters;
        }
        None
    }

    fn areas(&self) -> impl Iterator<Item = (SharedArea, &'static AtomicU64, &'static AtomicU64)> {
        let heads = self.segment.words()[HEADER_WORDS..FIRST_CLUSTER_WORD].chunks_exact(AREA_WORDS);
        heads.map(|head| {
            let [device, inode, clusters] = [0, 1, 2].map(|at: usize| head[at].load(Relaxed));
            let clusters = usize::try_from(clusters).unwrap_or(usize::MAX);
            (SharedArea { device, inode, clusters }, &head[3], &head[4])
        })
    }
}

impl ClusterTable {
    /// Puts a mark that no other open file has, and returns it. `put` returns false if another open
    /// file has the mark, and `None` on failure. Returns `None` on failure, or after many attempts.
    pub fn mark(&self, put: impl Fn(u64) -> Option<bool>) -> Option<u64> {
        /// Exceeds the number of processes that start at the same time.
        const TRIES: usize = 4096;
        for _ in 0..TRIES {
            let next = self.next_mark.fetch_add(1, Relaxed) % MAX_MARKS;
            let mark = next.max(MARK_OF_TREE + 1);
            if put(mark)? {
                return Some(mark);
            }
        }
        None
    }

    /// Stops all writes to the area, for all processes of the tree.
    pub fn stop(&self) {
        self.stopped.store(1, Relaxed);
    }

    /// Returns true if nothing may be written to the area any more.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed) != 0
    }

    /// Takes the first free cluster, starting at `from` and wrapping around.
    #[must_use]
    pub fn take(&self, mark: u64, from: u32) -> Option<u32> {
        let from = (from as usize).checked_rem(self.count())?;
        self.clusters.take(mark, from).next().map(|cluster| cluster as u32)
    }

    /// Frees a cluster. Returns false if this mark does not own it.
    pub fn free(&self, mark: u64, cluster: u32) -> bool {
        (cluster as usize) < self.count() && self.clusters.free(mark, cluster as usize)
    }

    /// Frees the clusters of marks that `is_released`; returns their number. Does not allocate.
    pub fn reap(&self, mut is_released: impl FnMut(u64) -> bool) -> usize {
        self.clusters.reap(|mark| mark >= MAX_MARKS || is_released(mark))
    }

    /// Returns the number of free clusters.
    #[must_use]
    pub fn free_count(&self) -> usize {
        self.held(0)
    }

    /// Returns the number of clusters of a mark.
    #[must_use]
    pub fn held(&self, mark: u64) -> usize {
        self.clusters.count(mark)
    }

    /// Returns the number of clusters of the area.
    #[must_use]
    pub fn count(&self) -> usize {
        self.clusters.len()
    }
}
