//! More buffers when there were too few, and fewer when they are idle.
//!
//! A search that found nothing asks for a pool; background reclaim adds one
//! when the budget has room for it, and takes away what nobody has used for a
//! while. Until then a buffer can be lent from address space kept for that: it
//! gets its memory when it is first written to and loses it on return.

use super::{MAX_POOLS, Pool, Pools, segments};
use crate::base::primitive::AtomicU64;
use crate::base::primitive::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crossbeam_utils::CachePadded;
use softswap_sys::segment::{Arena, Run, SEGMENT_SLOTS, Segment};
use softswap_sys::{PAGE_SIZE, futex};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, PoisonError};

/// Buffers that can be lent at once.
const TRANSIENT_BUFFERS: usize = 8;
/// How long a pool that was added must be idle before it goes.
const IDLE_NS: u64 = 10_000_000_000;
/// How long a waiter sleeps at most before it looks again.
const WAIT_NS: u64 = 1_000_000;

/// What there may be beside the primary pool.
#[derive(Debug)]
pub(super) struct Growth {
    limit_bytes: usize,
    /// Of pools that were added and buffers that are lent.
    bytes: AtomicUsize,
    is_asked_for: AtomicBool,
    transient: Box<[CachePadded<Segment>]>,
    lent_slots: AtomicUsize,
    lent: AtomicU64,
    grown: AtomicU64,
    released: AtomicU64,
    /// What each pool had handed out when it was last seen busy, and when that
    /// was. Held while pools come and go.
    seen: Mutex<[(u64, u64); MAX_POOLS]>,
}

impl Growth {
    /// Makes room for as many pools as `limit_bytes` allows: of the primary
    /// one's shape, and with fewer areas where the rest is too little for that.
    pub(super) fn new(
        pools: &mut Vec<Pool>,
        most_areas: usize,
        slots_per_area: usize,
        limit_bytes: usize,
    ) -> io::Result<Growth> {
        let area_bytes = slots_per_area * PAGE_SIZE;
        let mut areas = limit_bytes.checked_div(area_bytes).unwrap_or(0);
        let mut shapes = Vec::new();
        while areas > 0 && 1 + shapes.len() < MAX_POOLS {
            let shape = most_areas.min(1 << areas.ilog2());
            shapes.push(shape);
            areas -= shape;
        }
        let slots = shapes.iter().sum::<usize>() * slots_per_area;
        let transient_slots = TRANSIENT_BUFFERS * SEGMENT_SLOTS;
        let mut arena = Arena::reserve(slots + transient_slots)?;
        pools.extend(shapes.iter().map(|areas| Pool::new(&mut arena, *areas, slots_per_area)));
        let transient = segments(&mut arena, transient_slots);
        transient.iter().for_each(|segment| segment.open());
        Ok(Growth {
            limit_bytes,
            bytes: AtomicUsize::new(0),
            is_asked_for: AtomicBool::new(false),
            transient,
            lent_slots: AtomicUsize::new(0),
            lent: AtomicU64::new(0),
            grown: AtomicU64::new(0),
            released: AtomicU64::new(0),
            seen: Mutex::new([(0, 0); MAX_POOLS]),
        })
    }

    /// Asks for another pool.
    pub(super) fn ask(&self) {
        if !self.is_asked_for.load(Relaxed) {
            self.is_asked_for.store(true, Release);
        }
    }

    /// Counts `bytes` if the bound allows them.
    fn charge(&self, bytes: usize) -> bool {
        let within = |now: usize| Some(now + bytes).filter(|sum| *sum <= self.limit_bytes);
        self.bytes.fetch_update(Relaxed, Relaxed, within).is_ok()
    }

    /// A run that has its memory for this use only.
    pub(super) fn lend(&self, pages: usize) -> Option<Run<'_>> {
        if !self.charge(pages * PAGE_SIZE) {
            return None;
        }
        let run = self.transient.iter().find_map(|segment| segment.take_alone(pages));
        if run.is_some() {
            self.lent_slots.fetch_add(pages, Relaxed);
            self.lent.fetch_add(1, Relaxed);
        } else {
            self.bytes.fetch_sub(pages * PAGE_SIZE, Relaxed);
        }
        run
    }

    /// Notes that a run is back.
    pub(super) fn take_back(&self, pages: usize) {
        self.lent_slots.fetch_sub(pages, Relaxed);
        self.bytes.fetch_sub(pages * PAGE_SIZE, Relaxed);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    pub(super) fn lent_slots(&self) -> usize {
        self.lent_slots.load(Relaxed)
    }

    pub(super) fn lent(&self) -> u64 {
        self.lent.load(Relaxed)
    }

    pub(super) fn grown(&self) -> u64 {
        self.grown.load(Relaxed)
    }

    pub(super) fn released(&self) -> u64 {
        self.released.load(Relaxed)
    }
}

impl Pools {
    /// What there is beside the fixed part, in bytes.
    #[must_use]
    pub fn extra_bytes(&self) -> usize {
        self.growth.bytes()
    }

    /// Whether a search found nothing since a pool was last added. Asking
    /// again is left to the next search that finds nothing.
    #[must_use]
    pub fn wants_pool(&self) -> bool {
        self.growth.is_asked_for.load(Relaxed) && self.growth.is_asked_for.swap(false, Acquire)
    }

    /// Adds a pool of up to `room_bytes`, if there is one to add within the
    /// bound; whether it did. Not in a fault: it waits for other growing, and
    /// for the kernel's pages.
    pub fn grow(&self, room_bytes: usize, now_ns: u64) -> bool {
        let mut seen = self.growth.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let open = self.open.load(Relaxed);
        let mut closed = self.pools.iter().enumerate().filter(|(index, _)| open >> index & 1 == 0);
        let Some((index, pool)) = closed.find(|(_, pool)| pool.bytes() <= room_bytes) else {
            return false;
        };
        if !self.growth.charge(pool.bytes()) {
            return false;
        }
        pool.areas.iter().for_each(|area| area.open());
        seen[index] = (pool.takes(), now_ns);
        self.open.fetch_or(1 << index, AcqRel);
        self.growth.grown.fetch_add(1, Relaxed);
        self.wake_waiters();
        true
    }

    /// Takes away pools that were added and have been idle for a while.
    pub fn release_idle(&self, now_ns: u64) {
        let open = self.open.load(Relaxed);
        if open == 1 {
            return;
        }
        let mut seen = self.growth.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, pool) in self.pools.iter().enumerate().skip(1) {
            let (takes, since_ns) = seen[index];
            if open >> index & 1 == 0 {
                continue;
            }
            if pool.takes() != takes || pool.used() > 0 {
                seen[index] = (pool.takes(), now_ns);
            } else if now_ns.saturating_sub(since_ns) >= IDLE_NS {
                self.release(index);
            }
        }
    }

    /// Takes a pool out of use. One of which something has been taken meanwhile
    /// stays.
    pub(super) fn release(&self, index: usize) -> bool {
        let pool = &self.pools[index];
        // First, so that searches pass it by.
        self.open.fetch_and(!(1 << index), AcqRel);
        let closed = pool.areas.iter().take_while(|area| area.close()).count();
        if closed < pool.areas.len() {
            pool.areas[..closed].iter().for_each(|area| area.open());
            self.open.fetch_or(1 << index, AcqRel);
            return false;
        }
        self.growth.bytes.fetch_sub(pool.bytes(), Relaxed);
        self.growth.released.fetch_add(1, Relaxed);
        true
    }

    /// Waits until a buffer has come back, or for a moment. Holders wait for
    /// the disk at most, never for a buffer, so one does come back.
    pub fn wait(&self) {
        self.waiters.fetch_add(1, AcqRel);
        futex::wait(&self.returns, self.returns.load(Acquire), Some(WAIT_NS));
        self.waiters.fetch_sub(1, AcqRel);
    }

    /// Wakes who waits for a buffer. One that comes too late is made good by
    /// the waiter's looking again.
    #[inline]
    pub(super) fn wake_waiters(&self) {
        if self.waiters.load(Relaxed) > 0 {
            self.returns.fetch_add(1, Release);
            futex::wake_all(&self.returns);
        }
    }
}

impl Pool {
    fn takes(&self) -> u64 {
        self.areas.iter().map(|area| area.takes()).sum()
    }

    fn used(&self) -> usize {
        self.areas.iter().map(|area| area.used()).sum()
    }
}
