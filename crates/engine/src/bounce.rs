//! Bounce buffers: what every page passes through between DRAM and the swap
//! area. Page-out gathers a cluster in one and seals it there; page-in reads
//! into one, because a page must be checked before the program can see it.
//!
//! The pool is cut into areas, one a CPU, so that threads on different CPUs
//! share no cache line in the common case. A taker that finds its own area
//! empty visits the others, each once, from its own upwards. A buffer is an
//! owned slice that moves through lock-free queues: whoever holds it is the
//! only one who can reach its bytes.

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use softswap_sys::memory::reserve_bytes;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Bytes of a swap-in buffer.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a swap-out buffer: 32 pages, one cluster of slots.
pub const CLUSTER_BYTES: usize = 32 * PAGE_BYTES;

/// A buffer for one page to swap in.
pub type PageBuffer<'pool> = Buffer<'pool, PAGE_BYTES>;
/// A buffer for one cluster of pages to swap out.
pub type ClusterBuffer<'pool> = Buffer<'pool, CLUSTER_BYTES>;

/// All bounce buffers of an engine.
pub struct Pool {
    areas: Box<[CachePadded<Area>]>,
    bytes: usize,
}

/// The buffers of one CPU.
struct Area {
    pages: Shelf,
    clusters: Shelf,
}

/// The buffers of one size in one area, and what became of them.
struct Shelf {
    free: ArrayQueue<&'static mut [u8]>,
    total: usize,
    used: AtomicUsize,
    high_water: AtomicUsize,
    takes: AtomicU64,
    refusals: AtomicU64,
    areas_visited: AtomicU64,
}

/// How the buffers of one size are being used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Buffers there are.
    pub total: usize,
    /// Buffers out now.
    pub used: usize,
    /// The areas' own peaks added up: no less than the pool's peak.
    pub high_water: usize,
    /// Buffers ever asked for.
    pub takes: u64,
    /// Times that every area was empty.
    pub refusals: u64,
    /// Areas looked into, all takes together. Equal to `takes` when every CPU
    /// found what it needed in its own area.
    pub areas_visited: u64,
}

impl Pool {
    /// Reserves all buffers; `areas` is rounded up to a power of two.
    pub fn new(areas: usize, pages_per_area: usize, clusters_per_area: usize) -> io::Result<Pool> {
        let areas = areas.max(1).next_power_of_two();
        let area_bytes = pages_per_area * PAGE_BYTES + clusters_per_area * CLUSTER_BYTES;
        let bytes = areas * area_bytes;
        let mut rest: &'static mut [u8] = if bytes == 0 { &mut [] } else { reserve_bytes(bytes)? };
        let areas = (0..areas)
            .map(|_| {
                let pages = Shelf::new(&mut rest, PAGE_BYTES, pages_per_area);
                let clusters = Shelf::new(&mut rest, CLUSTER_BYTES, clusters_per_area);
                CachePadded::new(Area { pages, clusters })
            })
            .collect();
        Ok(Pool { areas, bytes })
    }

    /// A page buffer, from the area of `cpu` if it has one left. Its content
    /// is whatever its last user left there.
    #[must_use]
    pub fn take_page(&self, cpu: usize) -> Option<PageBuffer<'_>> {
        self.take(cpu, |area| &area.pages)
    }

    /// A cluster buffer, likewise.
    #[must_use]
    pub fn take_cluster(&self, cpu: usize) -> Option<ClusterBuffer<'_>> {
        self.take(cpu, |area| &area.clusters)
    }

    /// What the buffers occupy, used or not.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many areas there are: a power of two.
    #[must_use]
    pub fn areas(&self) -> usize {
        self.areas.len()
    }

    /// How the page buffers are used.
    #[must_use]
    pub fn page_usage(&self) -> Usage {
        self.usage(|area| &area.pages)
    }

    /// How the cluster buffers are used.
    #[must_use]
    pub fn cluster_usage(&self) -> Usage {
        self.usage(|area| &area.clusters)
    }

    fn take<'pool, const BYTES: usize>(
        &'pool self,
        cpu: usize,
        shelf_of: impl Fn(&'pool Area) -> &'pool Shelf,
    ) -> Option<Buffer<'pool, BYTES>> {
        let own = shelf_of(&self.areas[cpu & (self.areas.len() - 1)]);
        own.takes.fetch_add(1, Relaxed);
        let mut visited = 0;
        let found = visit_order(cpu, self.areas.len()).find_map(|index| {
            visited += 1;
            let shelf = shelf_of(&self.areas[index]);
            shelf.take().map(|bytes| Buffer { bytes, home: shelf })
        });
        own.areas_visited.fetch_add(visited, Relaxed);
        if found.is_none() {
            own.refusals.fetch_add(1, Relaxed);
        }
        found
    }

    fn usage(&self, shelf_of: impl Fn(&Area) -> &Shelf) -> Usage {
        let mut usage = Usage::default();
        for shelf in self.areas.iter().map(|area| shelf_of(area)) {
            usage.total += shelf.total;
            usage.used += shelf.used.load(Relaxed);
            usage.high_water += shelf.high_water.load(Relaxed);
            usage.takes += shelf.takes.load(Relaxed);
            usage.refusals += shelf.refusals.load(Relaxed);
            usage.areas_visited += shelf.areas_visited.load(Relaxed);
        }
        usage
    }
}

/// The areas to look into, beginning with that of `cpu`.
fn visit_order(cpu: usize, areas: usize) -> impl Iterator<Item = usize> {
    debug_assert!(areas.is_power_of_two());
    (0..areas).map(move |step| cpu.wrapping_add(step) & (areas - 1))
}

impl Shelf {
    /// Cuts `count` buffers of `size_bytes` off the front of `memory`.
    fn new(memory: &mut &'static mut [u8], size_bytes: usize, count: usize) -> Shelf {
        // A queue cannot have no room at all; an empty one has the same effect.
        let free = ArrayQueue::new(count.max(1));
        for _ in 0..count {
            let (buffer, rest) = std::mem::take(memory).split_at_mut(size_bytes);
            *memory = rest;
            let pushed = free.push(buffer);
            debug_assert!(pushed.is_ok());
        }
        Shelf {
            free,
            total: count,
            used: AtomicUsize::new(0),
            high_water: AtomicUsize::new(0),
            takes: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            areas_visited: AtomicU64::new(0),
        }
    }

    fn take(&self) -> Option<&'static mut [u8]> {
        let bytes = self.free.pop()?;
        let used = self.used.fetch_add(1, Relaxed) + 1;
        // A read first: the peak rarely moves, and a read shares the line.
        if used > self.high_water.load(Relaxed) {
            self.high_water.fetch_max(used, Relaxed);
        }
        Some(bytes)
    }

    fn put_back(&self, bytes: &'static mut [u8]) {
        // Before the push, or another thread could count it used twice.
        self.used.fetch_sub(1, Relaxed);
        // There is room: every buffer goes back to the shelf it came from.
        let pushed = self.free.push(bytes);
        debug_assert!(pushed.is_ok(), "a bounce buffer went back twice");
    }
}

/// A buffer held; dropped, it goes back to the area it came from.
pub struct Buffer<'pool, const BYTES: usize> {
    bytes: &'static mut [u8],
    home: &'pool Shelf,
}

impl<const BYTES: usize> Buffer<'_, BYTES> {
    /// The buffer with its length in its type.
    #[must_use]
    pub fn as_array(&mut self) -> &mut [u8; BYTES] {
        self.bytes.as_mut_array().expect("buffers are cut to their size")
    }
}

impl<const BYTES: usize> Deref for Buffer<'_, BYTES> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl<const BYTES: usize> DerefMut for Buffer<'_, BYTES> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

impl<const BYTES: usize> Drop for Buffer<'_, BYTES> {
    fn drop(&mut self) {
        self.home.put_back(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn buffers_are_aligned_for_direct_io_and_of_their_size() {
        let pool = Pool::new(2, 3, 2).unwrap();
        let mut page = pool.take_page(0).unwrap();
        let mut cluster = pool.take_cluster(0).unwrap();
        assert_eq!(page.as_ptr().addr() % PAGE_BYTES, 0);
        assert_eq!(cluster.as_ptr().addr() % PAGE_BYTES, 0);
        assert_eq!((page.len(), page.as_array().len()), (PAGE_BYTES, PAGE_BYTES));
        assert_eq!((cluster.len(), cluster.as_array().len()), (CLUSTER_BYTES, CLUSTER_BYTES));
        assert_eq!(pool.bytes(), 2 * (3 * PAGE_BYTES + 2 * CLUSTER_BYTES));
    }

    #[test]
    fn every_buffer_is_other_memory() {
        let pool = Pool::new(4, 8, 3).unwrap();
        let mut pages: Vec<_> = (0..32).map(|_| pool.take_page(1).unwrap()).collect();
        let mut clusters: Vec<_> = (0..12).map(|_| pool.take_cluster(1).unwrap()).collect();
        for (mark, page) in pages.iter_mut().enumerate() {
            page.fill(mark as u8);
        }
        for (mark, cluster) in clusters.iter_mut().enumerate() {
            cluster.fill(100 + mark as u8);
        }
        for (mark, page) in pages.iter().enumerate() {
            assert!(page.iter().all(|&byte| byte == mark as u8));
        }
        for (mark, cluster) in clusters.iter().enumerate() {
            assert!(cluster.iter().all(|&byte| byte == 100 + mark as u8));
        }
    }

    #[test]
    fn a_cpu_is_served_from_its_own_area_while_that_lasts() {
        let pool = Pool::new(4, 2, 0).unwrap();
        let own: Vec<_> = (0..2).map(|_| pool.take_page(2).unwrap()).collect();
        assert_eq!(pool.page_usage().areas_visited, 2);
        let next = pool.take_page(2).unwrap();
        assert_eq!(pool.page_usage().areas_visited, 4);
        let address = next.as_ptr();
        drop((own, next));
        let from_next_area: Vec<_> = (0..2).map(|_| pool.take_page(3).unwrap()).collect();
        assert!(from_next_area.iter().any(|buffer| buffer.as_ptr() == address));
    }

    #[test]
    fn an_exhausted_pool_refuses_until_a_buffer_is_dropped() {
        let pool = Pool::new(2, 1, 1).unwrap();
        let first = pool.take_page(0).unwrap();
        let second = pool.take_page(0).unwrap();
        assert!(pool.take_page(0).is_none() && pool.take_page(1).is_none());
        assert!(pool.take_cluster(0).is_some(), "sizes do not take from each other");
        drop(first);
        assert!(pool.take_page(1).is_some());
        drop(second);
        let usage = pool.page_usage();
        assert_eq!((usage.total, usage.used, usage.high_water), (2, 0, 2));
        assert_eq!((usage.takes, usage.refusals), (5, 2));
    }

    #[test]
    fn a_pool_of_nothing_refuses() {
        let pool = Pool::new(1, 0, 0).unwrap();
        assert!(pool.take_page(0).is_none() && pool.take_cluster(0).is_none());
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn threads_never_hold_the_same_buffer() {
        const THREADS: usize = 4;
        let pool = Pool::new(2, 2, 1).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..20_000u32 {
                        let Some(mut buffer) = pool.take_page(thread) else {
                            continue;
                        };
                        let mark = (round << 4 | thread as u32).to_le_bytes();
                        buffer[..4].copy_from_slice(&mark);
                        buffer[PAGE_BYTES - 4..].copy_from_slice(&mark);
                        if round.is_multiple_of(16) {
                            std::thread::yield_now();
                        }
                        assert_eq!(buffer[..4], mark);
                        assert_eq!(buffer[PAGE_BYTES - 4..], mark);
                    }
                });
            }
        });
        let usage = pool.page_usage();
        assert_eq!((usage.used, usage.takes), (0, 4 * 20_000));
        assert!(usage.high_water <= usage.total);
        let all: HashSet<_> =
            (0..4).map(|_| Box::leak(Box::new(pool.take_page(0).unwrap())).as_ptr()).collect();
        assert_eq!(all.len(), 4);
    }

    proptest! {
        #[test]
        fn every_area_is_visited_exactly_once_from_any_start(cpu: usize, areas_log in 0..8u32) {
            let areas = 1 << areas_log;
            let order: Vec<_> = visit_order(cpu, areas).collect();
            prop_assert_eq!(order[0], cpu % areas);
            prop_assert_eq!(order.len(), areas);
            prop_assert_eq!(order.into_iter().collect::<HashSet<_>>().len(), areas);
        }

        #[test]
        fn the_whole_pool_is_within_reach_of_any_cpu(cpu: usize, areas in 1..9usize, each in 1..4usize) {
            let pool = Pool::new(areas, each, 0).unwrap();
            let held: Vec<_> = std::iter::from_fn(|| pool.take_page(cpu)).collect();
            prop_assert_eq!(held.len(), pool.areas() * each);
        }
    }
}
