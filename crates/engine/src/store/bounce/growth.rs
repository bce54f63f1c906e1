//! Memory in addition to the primary pool: added pools and transient buffers.

use super::area::{BouncePool, segments};
use crossbeam_utils::CachePadded;
use softswap_sys::PAGE_SIZE;
use softswap_sys::primitive::AtomicU64;
use softswap_sys::primitive::Ordering::{Relaxed, Release};
use softswap_sys::segment::{Arena, Run, SEGMENT_SLOTS, Segment};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Maximum number of pools, including the primary one.
pub(super) const MAX_POOLS: usize = 8;
/// Limit for added pools and transient buffers in any budget, in bytes.
pub(crate) const MAX_EXTRA_BYTES: usize = 8 << 20;

#[derive(Debug, Default)]
pub(super) struct Growth {
    /// Limit of added pools and transient buffers. Memory above it is released when it is idle.
    pub(super) limit_bytes: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    pub(super) is_requested: AtomicBool,
    transient: Box<[CachePadded<Segment>]>,
    pub(super) transient_slots_used: AtomicUsize,
    pub(super) transient_total: AtomicU64,
    pub(super) grown: AtomicU64,
    pub(super) released: AtomicU64,
    /// For each pool, buffers taken when it was last seen busy, and that time. Locked for changes.
    pub(super) last_busy: Mutex<[(u64, u64); MAX_POOLS]>,
}

impl Growth {
    /// Reserves pools of the primary one's shape, or with fewer areas if the limit is too small.
    pub(super) fn new(
        pools: &mut Vec<BouncePool>,
        max_areas: usize,
        slots_per_area: usize,
        limit_bytes: usize,
    ) -> io::Result<Growth> {
        let area_bytes = slots_per_area * PAGE_SIZE;
        let mut areas = limit_bytes.checked_div(area_bytes).unwrap_or(0);
        // Reserve address space for a later, higher limit, too.
        let mut later = (MAX_EXTRA_BYTES / area_bytes.max(1)).saturating_sub(areas);
        let mut shapes = Vec::new();
        for areas in [&mut areas, &mut later] {
            while *areas > 0 && 1 + shapes.len() < MAX_POOLS {
                let shape = max_areas.min(1 << areas.ilog2());
                shapes.push(shape);
                *areas -= shape;
            }
        }
        let slots = shapes.iter().sum::<usize>() * slots_per_area;
        // At most eight transient buffers are in use.
        let transient_slots = 8 * SEGMENT_SLOTS;
        let mut arena = Arena::reserve(slots + transient_slots)?;
        pools
            .extend(shapes.iter().map(|areas| BouncePool::new(&mut arena, *areas, slots_per_area)));
        let transient = segments(&mut arena, transient_slots);
        transient.iter().for_each(|segment| segment.open());
        Ok(Growth { limit_bytes: AtomicUsize::new(limit_bytes), transient, ..Growth::default() })
    }

    pub(super) fn request(&self) {
        if !self.is_requested.load(Relaxed) {
            self.is_requested.store(true, Release);
        }
    }

    pub(super) fn charge(&self, bytes: usize) -> bool {
        let within =
            |now: usize| Some(now + bytes).filter(|sum| *sum <= self.limit_bytes.load(Relaxed));
        self.bytes.fetch_update(Relaxed, Relaxed, within).is_ok()
    }

    pub(super) fn alloc_transient(&self, pages: usize) -> Option<Run<'_>> {
        if !self.charge(pages * PAGE_SIZE) {
            return None;
        }
        let run = self.transient.iter().find_map(|segment| segment.take_exclusive(pages));
        if run.is_some() {
            self.transient_slots_used.fetch_add(pages, Relaxed);
            self.transient_total.fetch_add(1, Relaxed);
        } else {
            self.bytes.fetch_sub(pages * PAGE_SIZE, Relaxed);
        }
        run
    }

    pub(super) fn take_back(&self, pages: usize) {
        self.transient_slots_used.fetch_sub(pages, Relaxed);
        self.bytes.fetch_sub(pages * PAGE_SIZE, Relaxed);
    }
}
