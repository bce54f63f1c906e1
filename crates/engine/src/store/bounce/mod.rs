//! Bounce buffers, through which every page passes between DRAM and the swap area. Page-out seals a
//! batch in a buffer. Page-in verifies a page there before the program can see it.
//!
//! Buffers come from pools, and each pool is divided into areas, one for each CPU. A search visits
//! the area of the thread's CPU in every pool first, then the next area of every pool ([`order`]).
//! While its own areas have free buffers, a CPU shares no cache line with other CPUs. An [`area`]
//! is a few segments of 64 slots, each with a word of bits, used without a lock. If the primary
//! pool is too small, [`resize`] adds pools, and meanwhile provides transient buffers. Swap-in has
//! a reserve, so swap-outs that wait for the disk never block a swap-in.

mod area;
mod growth;
mod order;
mod resize;
mod usage;
#[cfg(all(test, feature = "loom"))]
mod model;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use area::{BouncePool, segments};
use crossbeam_utils::CachePadded;
use growth::Growth;
pub(crate) use growth::MAX_EXTRA_BYTES;
use softswap_sys::futex;
use softswap_sys::primitive::Ordering::{AcqRel, Acquire, Relaxed, Release};
use softswap_sys::primitive::{AtomicU32, AtomicU64};
use softswap_sys::segment::{Arena, Run, SEGMENT_SLOTS, Segment, StaticRange};
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicUsize;

pub(crate) const MAX_PAGES: usize = SEGMENT_SLOTS;

#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Areas of the primary pool; rounded up to a power of two.
    pub areas: usize,
    pub slots_per_area: usize,
    pub reserve_slots: usize,
    pub extra_bytes: usize,
}

#[derive(Debug)]
pub struct BouncePools {
    pools: Box<[BouncePool]>,
    open: AtomicU32,
    reserve: Box<[CachePadded<Segment>]>,
    fixed: StaticRange,
    growth: Growth,
    misses: AtomicU64,
    max_run: usize,
    waiters: AtomicU32,
    /// Futex word of the waiting threads. Incremented when a buffer is returned.
    returns: std::sync::atomic::AtomicU32,
    long_wait: LongWait,
}

#[derive(Debug, Default)]
struct LongWait {
    /// Pages wanted; 0 if no thread waited.
    pages: AtomicUsize,
    reported_ns: AtomicU64,
}

impl BouncePools {
    /// Populates the primary pool and the reserve. Fails if no address space is left.
    pub fn new(shape: Shape) -> io::Result<BouncePools> {
        let Shape { slots_per_area, reserve_slots, extra_bytes, .. } = shape;
        let areas = shape.areas.max(1).next_power_of_two();
        let mut arena = Arena::reserve(areas * slots_per_area + reserve_slots)?;
        let fixed = arena.range();
        arena.populate();
        let mut pools = vec![BouncePool::new(&mut arena, areas, slots_per_area)];
        let reserve = segments(&mut arena, reserve_slots);
        pools[0].areas.iter().for_each(|area| area.open());
        reserve.iter().for_each(|segment| segment.open_populated());
        let growth = Growth::new(&mut pools, areas, slots_per_area, extra_bytes)?;
        Ok(BouncePools {
            pools: pools.into_boxed_slice(),
            open: AtomicU32::new(1),
            reserve,
            fixed,
            growth,
            misses: AtomicU64::new(0),
            max_run: slots_per_area.min(SEGMENT_SLOTS),
            waiters: AtomicU32::new(0),
            returns: std::sync::atomic::AtomicU32::new(0),
            long_wait: LongWait::default(),
        })
    }

    /// Takes a buffer of adjacent pages, preferably of `cpu`. It has the content of its last use.
    #[must_use]
    #[inline]
    pub fn take(&self, cpu: usize, pages: usize) -> Option<Buffer<'_>> {
        debug_assert!((1..=MAX_PAGES).contains(&pages));
        match self.search(cpu, pages) {
            Some(run) => Some(self.buffer(run)),
            None => self.miss(),
        }
    }

    /// Takes a buffer as [`BouncePools::take`] does, but does not request another pool.
    #[inline]
    fn search(&self, cpu: usize, pages: usize) -> Option<Run<'_>> {
        let areas = &self.pools[0].areas;
        // Nearly every search ends here.
        let mut contended = 0;
        match areas[cpu & (areas.len() - 1)].take(pages, &mut contended) {
            Some(run) => {
                self.note(cpu, 0, contended);
                Some(run)
            }
            None => self.take_elsewhere(cpu, pages),
        }
    }

    #[cold]
    fn miss(&self) -> Option<Buffer<'_>> {
        self.misses.fetch_add(1, Relaxed);
        self.growth.request();
        None
    }

    /// Takes a buffer of `pages` pages, else of half of it, and so on. Requests another pool only
    /// if there is no buffer at all, because another pool would not have longer runs.
    #[must_use]
    pub(crate) fn take_up_to(&self, cpu: usize, pages: usize) -> Option<Buffer<'_>> {
        let longest = pages.min(self.max_run);
        let lengths = std::iter::successors(Some(longest), |pages| Some(pages / 2));
        let mut runs = lengths
            .take_while(|pages| *pages > 0)
            .map(|pages| self.search(cpu, pages))
            .filter_map(|run| run.map(|run| self.buffer(run)));
        runs.next().or_else(|| self.miss())
    }

    #[inline]
    fn buffer<'p>(&'p self, run: Run<'p>) -> Buffer<'p> {
        Buffer { run: Some(run), is_transient: false, pools: self }
    }

    #[cold]
    fn take_elsewhere(&self, cpu: usize, pages: usize) -> Option<Run<'_>> {
        let open = self.open.load(Acquire);
        let areas_of = |pool: usize| self.pools[pool].areas.len();
        let mut order = order::area_first(cpu, open, areas_of).skip(1);
        let (mut visited, mut contended) = (1, 0);
        // `find_map` is faster than a loop over nested iterators.
        let run = order.find_map(|(pool, index)| {
            visited += 1;
            self.pools[pool].areas[index].take(pages, &mut contended)
        });
        let more = if run.is_some() { visited - 1 } else { visited };
        self.note(cpu, more, contended);
        run
    }

    #[inline]
    fn note(&self, cpu: usize, more_areas: u64, contended: u64) {
        if more_areas | contended != 0 {
            let areas = &self.pools[0].areas;
            areas[cpu & (areas.len() - 1)].note(more_areas, contended);
        }
    }

    /// Takes a page for a swap-in. Succeeds for as many threads as the reserve has slots.
    #[must_use]
    pub(crate) fn take_for_read(&self, cpu: usize) -> Option<Buffer<'_>> {
        self.take(cpu, 1).or_else(|| {
            let run = self.reserve.iter().find_map(|segment| segment.take(1, &mut 0))?;
            Some(self.buffer(run))
        })
    }

    /// Takes a buffer for one use, within the limit. Filling it costs page faults.
    #[must_use]
    pub fn take_transient(&self, pages: usize) -> Option<Buffer<'_>> {
        let run = self.growth.alloc_transient(pages)?;
        Some(Buffer { run: Some(run), is_transient: true, pools: self })
    }

    pub(crate) fn fixed_bytes(&self) -> usize {
        self.fixed.len_bytes()
    }

    pub(crate) fn fixed_range(&self) -> StaticRange {
        self.fixed
    }

    /// Waits at most 1 ms for a buffer. A thread that holds one waits for the disk only, never for
    /// another buffer, so it will return its buffer.
    pub(crate) fn wait(&self) {
        self.waiters.fetch_add(1, AcqRel);
        futex::wait(&self.returns, self.returns.load(Acquire), Some(1_000_000));
        self.waiters.fetch_sub(1, AcqRel);
    }

    /// A missed wake-up is harmless, because waiters time out and retry.
    #[inline]
    fn wake_waiters(&self) {
        if self.waiters.load(Relaxed) > 0 {
            self.returns.fetch_add(1, Release);
            futex::wake_all(&self.returns);
        }
    }
}

#[derive(Debug)]
pub struct Buffer<'p> {
    run: Option<Run<'p>>,
    is_transient: bool,
    pools: &'p BouncePools,
}

impl Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.run.as_deref().unwrap_or(&[])
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.run.as_deref_mut().unwrap_or(&mut [])
    }
}

impl Drop for Buffer<'_> {
    #[inline]
    fn drop(&mut self) {
        let slots = self.run.take().map_or(0, |run| run.slots());
        if self.is_transient {
            self.pools.growth.take_back(slots);
        }
        self.pools.wake_waiters();
    }
}
