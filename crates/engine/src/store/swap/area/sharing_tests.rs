use super::*;
use crate::store::io::Device;
use crate::store::io::poll::Polling;
use crate::store::io::poll::mode::Mode;
use crate::store::io::sim_device::SimDevice;
use crate::store::swap::area::{AreaConfig, FixedPages, Run};
use crate::store::swap::{CLUSTER_SLOTS, Discard};
use softswap_shared::cluster_table::{ClusterTable, ClusterTables, SharedArea};
use softswap_sys::file::SwapFile;
use softswap_sys::memory::{reserve_bytes, reserve_u64};
use softswap_sys::{PAGE_SIZE, open_mark};
use softswap_testkit::waiting::eventually;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

struct Tree {
    pages: u64,
    table: ClusterTable,
    disk: SimDevice,
}

impl Tree {
    fn new(pages: u64) -> Tree {
        let clusters = pages.div_ceil(CLUSTER_SLOTS as u64) as usize;
        let which = SharedArea { device: 1, inode: 2, clusters };
        let words = reserve_u64(ClusterTables::words(&[which])).unwrap();
        let table = ClusterTables::create(words, &[which]).table(which).unwrap();
        let disk = SimDevice::new(pages * PAGE_BYTES, 1);
        disk.grow(0, pages * PAGE_BYTES).unwrap();
        Tree { pages, table, disk }
    }

    fn of_clusters(clusters: usize) -> Tree {
        Tree::new((clusters * CLUSTER_SLOTS) as u64)
    }

    fn process_with(&self, share: TreeShare, discard: Discard) -> SwapArea {
        let pages = FixedPages {
            pages: self.pages,
            spans: vec![(0, self.pages, 0)],
            bad_pages: vec![10, 700],
        };
        let polling = Polling::for_tests(Mode::Auto);
        let config = AreaConfig { cpus: 2, discard, ..AreaConfig::default() };
        SwapArea::shared(Box::new(self.disk.clone()), &pages, share, config, polling).unwrap()
    }

    fn process(&self, mark: u64) -> SwapArea {
        self.process_with(TreeShare::new(self.table, mark, None), Discard::None)
    }
}

/// Clusters that are never empty: the first two, with the header and the bad pages.
const KEPT: usize = 2;

fn fill(area: &SwapArea) -> Vec<Run> {
    std::iter::from_fn(|| area.alloc_run(0, 64).ok()).collect()
}

fn slots_of(runs: &[Run]) -> BTreeSet<u64> {
    runs.iter().flat_map(|run| run.first..run.first + run.len as u64).collect()
}

fn free_all(area: &SwapArea, runs: &[Run]) {
    runs.iter().for_each(|run| area.free(run.first, run.len));
}

fn shrink(area: &SwapArea) -> u64 {
    area.share.as_ref().unwrap().next_check_ns.store(0, Relaxed);
    area.shrink()
}

#[test]
fn processes_share_area_without_sharing_slots() {
    let tree = Tree::new(9 * 512 + 100);
    let (one, other) = (tree.process(7), tree.process(8));
    assert_eq!(
        (one.size_bytes(), tree.table.free_count()),
        (0, 10),
        "an unused area takes no clusters"
    );
    let mut had = [BTreeSet::new(), BTreeSet::new()];
    for turn in 0.. {
        let area = [&one, &other][turn % 2];
        let Ok(run) = area.alloc_run(turn / 2 % 2, 64) else { break };
        had[turn % 2].extend(slots_of(&[run]));
    }
    had[0].extend(slots_of(&fill(&one)));
    had[1].extend(slots_of(&fill(&other)));
    let all: BTreeSet<u64> = had.iter().flatten().copied().collect();
    assert_eq!(all.len(), had[0].len() + had[1].len());
    let expected: BTreeSet<u64> =
        (1..9 * 512 + 100).filter(|slot| ![10, 700].contains(slot)).collect();
    assert_eq!(all, expected, "all but the header, bad pages and those beyond the end");
    let held = tree.table.held(7) as u64 * CLUSTER_BYTES;
    assert_eq!(one.size_bytes(), held);
    let full = one.alloc_run(0, 1).unwrap_err();
    assert_eq!(full, AreaFull::Shared { size_bytes: tree.pages * PAGE_BYTES, own_bytes: held });
}

#[test]
fn pages_of_several_processes_round_trip() {
    let tree = Tree::of_clusters(8);
    let areas = [tree.process(7), tree.process(8), tree.process(9)];
    let mut written = Vec::new();
    for turn in 0..30_u8 {
        let area = &areas[usize::from(turn) % 3];
        let run = area.alloc_run(0, 48).unwrap();
        let pages = reserve_bytes(run.len * PAGE_SIZE).unwrap();
        pages.fill(turn + 1);
        area.write_each(&mut area.open_lane(), |at| run.first + at as u64, pages).unwrap();
        written.push((area, run, turn + 1));
    }
    for (area, run, byte) in written {
        let read = reserve_bytes(run.len * PAGE_SIZE).unwrap();
        area.read(&mut area.open_lane(), run.first, read).unwrap();
        assert!(read.iter().all(|it| *it == byte), "{byte}");
    }
}

#[test]
fn freed_clusters_are_available_to_other_processes() {
    let tree = Tree::of_clusters(512);
    let (one, other) = (tree.process(7), tree.process(8));
    let runs = fill(&one);
    assert!(other.alloc_run(0, 1).is_err());
    free_all(&one, &runs);
    // Some are kept on the processors' free-list sets for a while.
    assert!(tree.table.held(7) <= 2 * MAX_CLUSTERS + 2, "{}", tree.table.held(7));
    let rest = slots_of(&fill(&other)).len();
    assert!(rest > 480 * CLUSTER_SLOTS, "{rest}");
    assert!(shrink(&one) > 0);
    let kept = (KEPT, KEPT as u64 * CLUSTER_BYTES);
    assert_eq!((tree.table.held(7), one.size_bytes()), kept, "the area is full");
    assert_eq!(tree.table.held(8) + tree.table.free_count() + KEPT, 512);
}

#[test]
fn single_process_takes_few_clusters_at_once() {
    let tree = Tree::of_clusters(1024);
    let area = tree.process(7);
    let run = area.alloc_run(0, 1).unwrap();
    assert_eq!(tree.table.held(7), MAX_CLUSTERS);
    assert!(area.has_spare());
    area.free(run.first, 1);
    assert_eq!(shrink(&area), 0, "a few are kept while there are many");
    let small = Tree::of_clusters(20);
    let (one, other) = (small.process(7), small.process(8));
    let _ = one.alloc_run(0, 1).unwrap();
    assert_eq!((small.table.held(7), small.table.free_count()), (1, 19));
    fill(&other);
    assert_eq!(small.table.free_count(), 0);
    assert!(one.alloc_run(0, 64).is_ok(), "the rest of its cluster stays available");
}

#[test]
fn forked_child_neither_allocates_nor_returns_parent_clusters() {
    let tree = Tree::of_clusters(20);
    let parent = tree.process(7);
    let runs: Vec<_> = (0..40).map(|_| parent.alloc_run(0, 64).unwrap()).collect();
    let held = tree.table.held(7);
    parent.inherit();
    free_all(&parent, &runs);
    assert_eq!((shrink(&parent), tree.table.held(7)), (0, held));
    let rest = fill(&parent);
    assert_eq!(tree.table.held(7), held, "{} runs, of clusters that it has", rest.len());
}

#[test]
fn slots_readable_by_child_keep_clusters() {
    let tree = Tree::of_clusters(128);
    let (parent, other) = (tree.process(7), tree.process(8));
    let runs: Vec<_> = (0..160).map(|_| parent.alloc_run(0, 64).unwrap()).collect();
    let before = slots_of(&runs);
    parent.freeze();
    free_all(&parent, &runs);
    shrink(&parent);
    let others = slots_of(&fill(&other));
    assert!(before.is_disjoint(&others));
    parent.thaw();
    shrink(&parent);
    assert_eq!(tree.table.held(7), KEPT);
    assert_eq!(slots_of(&fill(&other)).len() + others.len(), (128 - KEPT) * CLUSTER_SLOTS);
}

#[test]
fn clusters_of_dead_processes_are_reaped() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = SwapFile::open(dir.path()).unwrap();
    let reopened = || SwapFile::reopened(file.as_fd().as_raw_fd()).unwrap();
    let tree = Tree::of_clusters(20);
    let share = |file: SwapFile| {
        let mark = tree.table.mark(|mark| open_mark::put(&file, mark).ok()).unwrap();
        (mark, TreeShare::new(tree.table, mark, Some(Arc::new(file))))
    };
    let ((one, first), (other, second)) = (share(reopened()), share(reopened()));
    assert_ne!(one, other);
    let (area, heir) =
        (tree.process_with(first, Discard::None), tree.process_with(second, Discard::None));
    let runs = fill(&area);
    assert!(heir.alloc_run(0, 1).is_err(), "the owner is alive");
    assert_eq!(tree.table.held(one), 20);
    drop(area);
    // Other tests fork, and their children hold copies of the file for a moment.
    eventually("the clusters are free", || heir.alloc_run(0, 1).is_ok());
    assert_eq!(tree.table.held(one), 0);
    assert_eq!(slots_of(&fill(&heir)).len() + 1, slots_of(&runs).len());
}

#[test]
fn clusters_are_discarded_before_return() {
    let tree = Tree::of_clusters(256);
    let area = tree.process_with(TreeShare::new(tree.table, 7, None), Discard::Pages);
    let runs: Vec<_> = (0..128).map(|_| area.alloc_run(0, 64).unwrap()).collect();
    free_all(&area, &runs);
    let before = tree.table.held(7);
    let count = std::iter::from_fn(|| match area.discard_one() {
        crate::store::swap::area::Discarded::Bytes(bytes) => Some(bytes),
        _ => None,
    });
    assert!(count.sum::<u64>() >= 14 * CLUSTER_BYTES);
    assert!(tree.table.held(7) < before, "{before}");
}
