//! Whose the clusters of named areas are, where a tree of processes shares them.
//!
//! `softswap run` claims each named area once, for the whole tree, and makes this table in
//! shared memory: a word for each cluster, 0 or the *mark* of who has it. A process takes a
//! cluster by one compare-and-swap, so none is ever had twice, whoever is killed in the midst of
//! whatever; it gives back clusters in which nothing is left. A slot's number is its place in the
//! area for everybody; seals, keys and generations are each process's own, so that no page of
//! one is ever taken for another's.
//!
//! Each process opens the area for itself, and its mark is a lock on that open file
//! ([`softswap_sys::open_mark`]). A forked child inherits its parent's open file, by which it reads
//! the parent's slots, and with it what keeps them: its own pages go to clusters under a mark of
//! its own. Exec closes both. So the kernel says whether anybody is left who can read a
//! cluster or is still writing to it, also after `kill -9`, and clusters of marks that are gone
//! are *reaped* by whoever finds none free. Who cannot open the area (it has dropped root) goes
//! by an open file that it has inherited, under the mark of that.
//!
//! Any process of the tree may write anything here. What is read once is checked, and kept by who
//! has read it; a word can only make a cluster look free or taken. Who then meets another's page
//! there finds its seal broken.

use super::cluster::{CLUSTER_SLOTS, MAX_AREAS};
use crate::base::primitive::AtomicU64;
use crate::base::primitive::Ordering::{AcqRel, Acquire, Relaxed, Release};
use softswap_sys::open_mark::MOST_MARKS;

/// What a table begins with: another layout has another one.
const MAGIC: u64 = u64::from_le_bytes(*b"sswclus1");
const HEADER_WORDS: usize = 8;
/// Device, inode, clusters, and the mark that is tried next.
const AREA_WORDS: usize = 4;
const FIRST_CLUSTER_WORD: usize = HEADER_WORDS + MAX_AREAS * AREA_WORDS;

/// The mark of the open file that all of the tree inherit.
pub const MARK_OF_TREE: u64 = 1;

/// The tables of all named areas of a tree.
///
/// ```
/// use softswap_engine::store::swap::{ClusterTables, TableOf};
/// use softswap_sys::memory::reserve_u64;
/// let area = TableOf { identity: (1, 2), pages: 1024 };
/// let words = reserve_u64(ClusterTables::words(&[area])).unwrap();
/// assert!(ClusterTables::open(words).is_none(), "nobody has made any");
/// let tables = ClusterTables::create(words, &[area]);
/// assert!(tables.have(1, 2) && tables.table(TableOf { pages: 4096, ..area }).is_none());
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ClusterTables {
    words: &'static [AtomicU64],
}

/// One named area: which file or device it is, and how large.
///
/// ```
/// use softswap_engine::store::swap::TableOf;
/// let area = TableOf { identity: (1, 2), pages: 1024 };
/// assert_ne!(area, TableOf { identity: (1, 3), ..area });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableOf {
    /// Device and inode of the file.
    pub identity: (u64, u64),
    /// Its pages, the header's included.
    pub pages: u64,
}

impl TableOf {
    fn clusters(self) -> usize {
        self.pages.div_ceil(CLUSTER_SLOTS as u64) as usize
    }
}

/// Whose the clusters of one area are.
///
/// ```
/// use softswap_engine::store::swap::{ClusterTables, TableOf};
/// use softswap_sys::memory::reserve_u64;
/// let area = TableOf { identity: (1, 2), pages: 4 * 512 };
/// let words = reserve_u64(ClusterTables::words(&[area])).unwrap();
/// let table = ClusterTables::create(words, &[area]).table(area).unwrap();
/// assert_eq!((table.take(7, 2), table.take(7, 3), table.take(8, 0)), (Some(2), Some(3), Some(0)));
/// assert_eq!((table.free(), table.held(7)), (1, 2));
/// assert_eq!((table.reap(|mark| mark == 7), table.free()), (2, 3));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ClusterTable {
    next_mark: &'static AtomicU64,
    clusters: &'static [AtomicU64],
}

impl ClusterTables {
    /// Words that the tables of these areas take.
    #[must_use]
    pub fn words(areas: &[TableOf]) -> usize {
        FIRST_CLUSTER_WORD + areas.iter().map(|area| area.clusters()).sum::<usize>()
    }

    /// New tables over words of zero, for up to [`MAX_AREAS`] areas.
    ///
    /// # Panics
    /// When there are more areas, or fewer words than they need.
    #[must_use]
    pub fn create(words: &'static [AtomicU64], areas: &[TableOf]) -> ClusterTables {
        assert!(areas.len() <= MAX_AREAS && words.len() >= Self::words(areas));
        for (at, area) in areas.iter().enumerate() {
            let (device, inode) = area.identity;
            let values = [device, inode, area.clusters() as u64, MARK_OF_TREE + 1];
            for (word, value) in words[HEADER_WORDS + at * AREA_WORDS..].iter().zip(values) {
                word.store(value, Relaxed);
            }
        }
        words[0].store(MAGIC, Release);
        ClusterTables { words }
    }

    /// The tables that another process made; `None` where these words are none.
    #[must_use]
    pub fn open(words: &'static [AtomicU64]) -> Option<ClusterTables> {
        let is_table = words.len() >= FIRST_CLUSTER_WORD && words.first()?.load(Acquire) == MAGIC;
        is_table.then_some(ClusterTables { words })
    }

    /// Whether there is a table of this file.
    #[must_use]
    pub fn have(&self, device: u64, inode: u64) -> bool {
        let mut heads = self.words[HEADER_WORDS..FIRST_CLUSTER_WORD].chunks_exact(AREA_WORDS);
        heads.any(|head| {
            let [its_device, its_inode, clusters] = [0, 1, 2].map(|at| word(head, at));
            clusters > 0 && (its_device, its_inode) == (device, inode)
        })
    }

    /// The table of an area; `None` where there is none, or it is of another size.
    #[must_use]
    pub fn table(&self, area: TableOf) -> Option<ClusterTable> {
        let mut first = FIRST_CLUSTER_WORD;
        for at in 0..MAX_AREAS {
            let head = &self.words[HEADER_WORDS + at * AREA_WORDS..][..AREA_WORDS];
            let [device, inode, clusters] = [0, 1, 2].map(|at| word(head, at));
            let clusters = usize::try_from(clusters).ok()?;
            let end = first.checked_add(clusters).filter(|end| *end <= self.words.len())?;
            if (device, inode) == area.identity && clusters == area.clusters() && clusters > 0 {
                return Some(ClusterTable {
                    next_mark: &head[3],
                    clusters: &self.words[first..end],
                });
            }
            first = end;
        }
        None
    }
}

fn word(words: &[AtomicU64], at: usize) -> u64 {
    words[at].load(Relaxed)
}

impl ClusterTable {
    /// A mark that `put` takes: that nobody else has. `None` where it fails, or none of many is
    /// to be had.
    pub(crate) fn mark(&self, put: impl Fn(u64) -> Option<bool>) -> Option<u64> {
        /// More than there are processes that begin at once.
        const TRIES: usize = 4096;
        for _ in 0..TRIES {
            let next = self.next_mark.fetch_add(1, Relaxed) % MOST_MARKS;
            let mark = next.max(MARK_OF_TREE + 1);
            if put(mark)? {
                return Some(mark);
            }
        }
        None
    }

    /// Takes the first free cluster from `from` on, or before it.
    #[must_use]
    pub fn take(&self, mark: u64, from: u32) -> Option<u32> {
        let count = self.clusters.len();
        let from = if count == 0 { 0 } else { from as usize % count };
        let taken = (from..count).chain(0..from).find(|cluster| {
            let word = &self.clusters[*cluster];
            word.load(Relaxed) == 0 && word.compare_exchange(0, mark, AcqRel, Relaxed).is_ok()
        });
        taken.map(|cluster| cluster as u32)
    }

    /// Gives a cluster back; false where it was not this one's.
    pub fn give(&self, mark: u64, cluster: u32) -> bool {
        let word = self.clusters.get(cluster as usize);
        word.is_some_and(|word| word.compare_exchange(mark, 0, AcqRel, Relaxed).is_ok())
    }

    /// Frees what they have whose marks are gone, as `is_gone` says; how many clusters. Any number
    /// of processes may do so at once. Allocates nothing.
    pub fn reap(&self, mut is_gone: impl FnMut(u64) -> bool) -> usize {
        /// Answers that are remembered: what is taken together lies together.
        const SEEN: usize = 16;
        let mut seen = [(0, false); SEEN];
        let mut freed = 0;
        for word in self.clusters {
            let mark = word.load(Acquire);
            if mark == 0 {
                continue;
            }
            let answer = &mut seen[mark as usize % SEEN];
            if answer.0 != mark {
                *answer = (mark, mark >= MOST_MARKS || is_gone(mark));
            }
            let is_freed = answer.1 && word.compare_exchange(mark, 0, AcqRel, Relaxed).is_ok();
            freed += usize::from(is_freed);
        }
        freed
    }

    /// Clusters that nobody has.
    #[must_use]
    pub fn free(&self) -> usize {
        self.held(0)
    }

    /// Clusters under a mark.
    #[must_use]
    pub fn held(&self, mark: u64) -> usize {
        self.clusters.iter().filter(|word| word.load(Relaxed) == mark).count()
    }

    /// All clusters of the area.
    #[must_use]
    pub fn count(&self) -> usize {
        self.clusters.len()
    }
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "cluster_table_tests.rs"]
mod tests;

#[cfg(all(test, feature = "loom"))]
mod model {
    use super::*;
    use crate::base::primitive::reserve_u64;
    use loom::thread;

    fn check(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    /// Of two clusters. Loom follows each word, so there are no more than these.
    fn table() -> ClusterTable {
        let words = reserve_u64(3).unwrap();
        words[0].store(MARK_OF_TREE + 1, Relaxed);
        ClusterTable { next_mark: &words[0], clusters: &words[1..] }
    }

    #[test]
    fn no_cluster_is_had_twice() {
        check(|| {
            let table = table();
            let other = thread::spawn(move || [table.take(7, 0), table.take(7, 0)]);
            let own = table.take(8, 0);
            let mut had: Vec<_> =
                other.join().unwrap().into_iter().chain([own]).flatten().collect();
            had.sort_unstable();
            assert_eq!(had, [0, 1]);
            assert_eq!(table.held(7) + table.held(8), 2);
        });
    }

    #[test]
    fn what_is_given_back_is_had_by_one_other() {
        check(|| {
            let table = table();
            assert_eq!((table.take(7, 0), table.take(7, 1)), (Some(0), Some(1)));
            let giver = thread::spawn(move || table.give(7, 1));
            let taker = thread::spawn(move || table.take(8, 0));
            let own = table.take(9, 0);
            let other = taker.join().unwrap();
            assert!(giver.join().unwrap());
            assert!(own.is_none() || other.is_none());
            assert_eq!(table.held(8) + table.held(9) + table.free(), 1);
        });
    }

    #[test]
    fn reapers_free_what_the_dead_had_once_and_never_what_comes_after() {
        check(|| {
            let table = table();
            assert_eq!((table.take(7, 0), table.take(9, 0)), (Some(0), Some(1)));
            let reap = move || table.reap(|mark| mark == 7);
            let reaper = thread::spawn(reap);
            let other = thread::spawn(reap);
            let own = table.take(8, 0);
            assert_eq!(reaper.join().unwrap() + other.join().unwrap(), 1);
            assert_eq!((table.held(8), table.held(9)), (usize::from(own.is_some()), 1));
        });
    }

    #[test]
    fn no_two_have_the_same_mark() {
        check(|| {
            let table = table();
            let words = reserve_u64(8).unwrap();
            let put = move |mark: u64| {
                let word = &words[mark as usize];
                Some(word.compare_exchange(0, 1, AcqRel, Relaxed).is_ok())
            };
            let other = thread::spawn(move || table.mark(put));
            let own = table.mark(put).unwrap();
            assert_ne!(other.join().unwrap().unwrap(), own);
        });
    }
}
