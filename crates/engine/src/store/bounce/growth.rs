//! What there may be beside the primary pool: pools that are added, and buffers that are
//! lent for one use.

use super::area::{Pool, segments};
use crossbeam_utils::CachePadded;
use softswap_sys::PAGE_SIZE;
use softswap_sys::primitive::AtomicU64;
use softswap_sys::primitive::Ordering::{Relaxed, Release};
use softswap_sys::segment::{Arena, Run, SEGMENT_SLOTS, Segment};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// The primary pool and those that may be added.
pub(super) const MAX_POOLS: usize = 8;
/// Buffers that can be lent at once.
const TRANSIENT_BUFFERS: usize = 8;
/// What all may come to in any budget.
pub(crate) const MOST_EXTRA_BYTES: usize = 8 << 20;

/// What there may be beside the primary pool.
#[derive(Debug)]
pub(super) struct Growth {
    limit_bytes: AtomicUsize,
    /// Of pools that were added and buffers that are lent.
    pub(super) bytes: AtomicUsize,
    pub(super) is_asked_for: AtomicBool,
    transient: Box<[CachePadded<Segment>]>,
    lent_slots: AtomicUsize,
    lent: AtomicU64,
    pub(super) grown: AtomicU64,
    pub(super) released: AtomicU64,
    /// What each pool had handed out when it was last seen busy, and when that
    /// was. Held while pools come and go.
    pub(super) seen: Mutex<[(u64, u64); MAX_POOLS]>,
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
        // And as many as there may be, in case that rises.
        let mut later = (MOST_EXTRA_BYTES / area_bytes.max(1)).saturating_sub(areas);
        let mut shapes = Vec::new();
        for areas in [&mut areas, &mut later] {
            while *areas > 0 && 1 + shapes.len() < MAX_POOLS {
                let shape = most_areas.min(1 << areas.ilog2());
                shapes.push(shape);
                *areas -= shape;
            }
        }
        let slots = shapes.iter().sum::<usize>() * slots_per_area;
        let transient_slots = TRANSIENT_BUFFERS * SEGMENT_SLOTS;
        let mut arena = Arena::reserve(slots + transient_slots)?;
        pools.extend(shapes.iter().map(|areas| Pool::new(&mut arena, *areas, slots_per_area)));
        let transient = segments(&mut arena, transient_slots);
        transient.iter().for_each(|segment| segment.open());
        Ok(Growth {
            limit_bytes: AtomicUsize::new(limit_bytes),
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

    /// All may come to so many bytes from now on; what there is more stays until it is idle.
    pub(super) fn resize(&self, limit_bytes: usize) {
        self.limit_bytes.store(limit_bytes, Relaxed);
    }

    /// Asks for another pool.
    pub(super) fn ask(&self) {
        if !self.is_asked_for.load(Relaxed) {
            self.is_asked_for.store(true, Release);
        }
    }

    /// Counts `bytes` if the bound allows them.
    pub(super) fn charge(&self, bytes: usize) -> bool {
        let within =
            |now: usize| Some(now + bytes).filter(|sum| *sum <= self.limit_bytes.load(Relaxed));
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
