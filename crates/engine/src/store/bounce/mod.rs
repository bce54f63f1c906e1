//! Bounce buffers: what every page passes through between DRAM and the swap
//! area. Page-out gathers a batch in one and seals it there; page-in reads
//! into one, because a page must be checked before the program can see it.
//!
//! Buffers come from pools, and each pool is cut into areas, one per CPU. Whoever
//! needs one looks into the area of its own CPU in every pool first, then into
//! the next area of every pool, and so on ([`order`]): as long as its own column
//! has room, it shares no cache line with other CPUs. An [`area`] is a few
//! segments of 64 slots, each with a word of bits, taken and freed without a
//! lock. A buffer is one page to 64 adjacent ones.
//!
//! The primary pool is there from the start. When it was too small [`resize`]
//! adds pools in the background, and meanwhile lends single buffers (transient
//! ones), both within a bound; who finds nothing waits. Swap-in has a reserve
//! that nobody else takes from: one page for each thread that may need it, so
//! that swap-outs that wait for the disk never keep a page from coming in.

mod area;
mod growth;
mod order;
mod resize;
mod usage;
#[cfg(all(test, feature = "loom"))]
mod model;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use area::{Pool, segments};
use crossbeam_utils::CachePadded;
use growth::Growth;
pub(crate) use growth::MOST_EXTRA_BYTES;
use softswap_sys::futex;
use softswap_sys::primitive::Ordering::{AcqRel, Acquire, Relaxed, Release};
use softswap_sys::primitive::{AtomicU32, AtomicU64};
use softswap_sys::segment::{Arena, Run, SEGMENT_SLOTS, Segment, StaticRange};
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicUsize;

/// How long a waiter sleeps at most before it looks again.
const WAIT_NS: u64 = 1_000_000;
/// Pages of the largest buffer.
pub(crate) const MAX_PAGES: usize = SEGMENT_SLOTS;

/// How many buffers there are, in slots of a page.
///
/// ```
/// use softswap_engine::store::bounce::{Pools, Shape};
/// let shape = Shape { areas: 1, slots_per_area: 64, reserve_slots: 1, extra_bytes: 0 };
/// assert!(Pools::new(shape).is_ok());
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Areas of the primary pool; rounded up to a power of two.
    pub areas: usize,
    /// Slots of each.
    pub slots_per_area: usize,
    /// Slots that only swap-in takes.
    pub reserve_slots: usize,
    /// What pools that are added, and transient buffers, may come to together.
    pub extra_bytes: usize,
}

/// All bounce buffers of an engine.
///
/// ```
/// use softswap_engine::store::bounce::{Pools, Shape};
/// let shape = Shape { areas: 1, slots_per_area: 64, reserve_slots: 1, extra_bytes: 0 };
/// let pools = Pools::new(shape).unwrap();
/// let buffer = pools.take(0, 8).unwrap();
/// assert_eq!(buffer.len(), 8 * 4096);
/// ```
#[derive(Debug)]
pub struct Pools {
    pools: Box<[Pool]>,
    /// A bit for each pool that is in use.
    open: AtomicU32,
    reserve: Box<[CachePadded<Segment>]>,
    fixed: StaticRange,
    growth: Growth,
    misses: AtomicU64,
    /// Slots of the longest run that an area can have.
    longest_run: usize,
    /// Threads that wait for a buffer, and what they wait on.
    waiters: AtomicU32,
    returns: std::sync::atomic::AtomicU32,
    long_wait: LongWait,
}

/// That somebody waited for long.
#[derive(Debug, Default)]
struct LongWait {
    /// For so many pages; 0: nobody did.
    pages: AtomicUsize,
    /// When it was last said; 0: never.
    said_ns: AtomicU64,
}

impl Pools {
    /// Reserves everything; the primary pool and the reserve get their memory.
    ///
    /// # Errors
    /// When there is no address space.
    pub fn new(shape: Shape) -> io::Result<Pools> {
        let Shape { slots_per_area, reserve_slots, extra_bytes, .. } = shape;
        let areas = shape.areas.max(1).next_power_of_two();
        let mut arena = Arena::reserve(areas * slots_per_area + reserve_slots)?;
        let fixed = arena.range();
        arena.populate();
        let mut pools = vec![Pool::new(&mut arena, areas, slots_per_area)];
        let reserve = segments(&mut arena, reserve_slots);
        pools[0].areas.iter().for_each(|area| area.open());
        reserve.iter().for_each(|segment| segment.open_populated());
        let growth = Growth::new(&mut pools, areas, slots_per_area, extra_bytes)?;
        Ok(Pools {
            pools: pools.into_boxed_slice(),
            open: AtomicU32::new(1),
            reserve,
            fixed,
            growth,
            misses: AtomicU64::new(0),
            longest_run: slots_per_area.min(SEGMENT_SLOTS),
            waiters: AtomicU32::new(0),
            returns: std::sync::atomic::AtomicU32::new(0),
            long_wait: LongWait::default(),
        })
    }

    /// A buffer of `pages` adjacent pages, from the area of `cpu` if it has one.
    /// Its content is whatever its last user left there.
    #[must_use]
    #[inline]
    pub fn take(&self, cpu: usize, pages: usize) -> Option<Buffer<'_>> {
        debug_assert!((1..=MAX_PAGES).contains(&pages));
        match self.look(cpu, pages) {
            Some(run) => Some(self.buffer(run)),
            None => self.miss(),
        }
    }

    /// As [`Pools::take`], but asks for nothing.
    #[inline]
    fn look(&self, cpu: usize, pages: usize) -> Option<Run<'_>> {
        let areas = &self.pools[0].areas;
        // Nearly every search ends here.
        let mut contended = 0;
        match areas[cpu & (areas.len() - 1)].take(pages, &mut contended) {
            Some(run) => {
                self.note(cpu, 0, contended);
                Some(run)
            }
            None => self.look_elsewhere(cpu, pages),
        }
    }

    /// There is nothing: a pool more might have something.
    #[cold]
    fn miss(&self) -> Option<Buffer<'_>> {
        self.misses.fetch_add(1, Relaxed);
        self.growth.ask();
        None
    }

    /// As [`Pools::take`], with fewer pages where there is no run as long: the
    /// longest there is, by halves. Asks for a pool only where there is nothing
    /// at all: one more would not have longer runs.
    #[must_use]
    pub(crate) fn take_up_to(&self, cpu: usize, pages: usize) -> Option<Buffer<'_>> {
        let longest = pages.min(self.longest_run);
        let lengths = std::iter::successors(Some(longest), |pages| Some(pages / 2));
        let mut runs = lengths
            .take_while(|pages| *pages > 0)
            .map(|pages| self.look(cpu, pages))
            .filter_map(|run| run.map(|run| self.buffer(run)));
        runs.next().or_else(|| self.miss())
    }

    #[inline]
    fn buffer<'p>(&'p self, run: Run<'p>) -> Buffer<'p> {
        Buffer { run: Some(run), is_transient: false, pools: self }
    }

    #[cold]
    fn look_elsewhere(&self, cpu: usize, pages: usize) -> Option<Run<'_>> {
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

    /// Notes what a search cost beyond one look into the own area.
    #[inline]
    fn note(&self, cpu: usize, more_areas: u64, contended: u64) {
        if more_areas | contended != 0 {
            let areas = &self.pools[0].areas;
            areas[cpu & (areas.len() - 1)].note(more_areas, contended);
        }
    }

    /// A buffer for one page to come in: from the reserve when there is no
    /// other. There is always one for as many threads as it has slots.
    #[must_use]
    pub(crate) fn take_for_read(&self, cpu: usize) -> Option<Buffer<'_>> {
        self.take(cpu, 1).or_else(|| {
            let run = self.reserve.iter().find_map(|segment| segment.take(1, &mut 0))?;
            Some(self.buffer(run))
        })
    }

    /// A buffer made for one use, within the bound. Taking it costs page faults.
    #[must_use]
    pub fn take_transient(&self, pages: usize) -> Option<Buffer<'_>> {
        let run = self.growth.lend(pages)?;
        Some(Buffer { run: Some(run), is_transient: true, pools: self })
    }

    /// What is there from the start, in bytes.
    #[must_use]
    pub(crate) fn fixed_bytes(&self) -> usize {
        self.fixed.len_bytes()
    }

    /// Where that is.
    #[must_use]
    pub(crate) fn fixed_range(&self) -> StaticRange {
        self.fixed
    }

    /// Waits until a buffer has come back, or for a moment. Holders wait for
    /// the disk at most, never for a buffer, so one does come back.
    pub(crate) fn wait(&self) {
        self.waiters.fetch_add(1, AcqRel);
        futex::wait(&self.returns, self.returns.load(Acquire), Some(WAIT_NS));
        self.waiters.fetch_sub(1, AcqRel);
    }

    /// Wakes who waits for a buffer. One that comes too late is made good by
    /// the waiter's looking again.
    #[inline]
    fn wake_waiters(&self) {
        if self.waiters.load(Relaxed) > 0 {
            self.returns.fetch_add(1, Release);
            futex::wake_all(&self.returns);
        }
    }
}

/// A buffer held; dropped, it goes back to where it came from.
///
/// ```
/// use softswap_engine::store::bounce::{Pools, Shape};
/// let shape = Shape { areas: 1, slots_per_area: 64, reserve_slots: 0, extra_bytes: 0 };
/// let pools = Pools::new(shape).unwrap();
/// let mut buffer = pools.take(0, 1).unwrap();
/// buffer.fill(7);
/// drop(buffer); // Its slots are free again.
/// assert!(pools.take(0, 64).is_some());
/// ```
#[derive(Debug)]
pub struct Buffer<'p> {
    /// `None` only while it is dropped.
    run: Option<Run<'p>>,
    is_transient: bool,
    pools: &'p Pools,
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
