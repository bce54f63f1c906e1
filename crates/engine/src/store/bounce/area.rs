//! A pool of buffers, and the area of one CPU in it.

use crossbeam_utils::CachePadded;
use softswap_sys::PAGE_SIZE;
use softswap_sys::primitive::Ordering::Relaxed;
use softswap_sys::primitive::{AtomicU32, AtomicU64};
use softswap_sys::segment::{Arena, Run, SEGMENT_SLOTS, Segment};

#[derive(Debug, Default)]
pub(super) struct BounceArea {
    segments: Box<[CachePadded<Segment>]>,
    slots: u32,
    /// The segment in which the last search succeeded, and in which the next one starts.
    cursor: AtomicU32,
    pub(super) high_water: AtomicU32,
    /// Threads of one CPU that preempt each other may lose a count: exact counting is expensive.
    pub(super) takes: AtomicU64,
    /// Areas visited beyond the first, by searches that began here.
    pub(super) more_areas: AtomicU64,
    pub(super) contended: AtomicU64,
}

impl BounceArea {
    pub(super) fn new(arena: &mut Arena, slots: usize) -> BounceArea {
        BounceArea {
            segments: segments(arena, slots),
            slots: slots as u32,
            ..BounceArea::default()
        }
    }

    #[inline]
    pub(super) fn take(&self, slots: usize, contended: &mut u64) -> Option<Run<'_>> {
        let run = if slots == 1 {
            // Search from the end, where single slots break fewer long runs.
            self.segments.iter().rev().find_map(|segment| segment.take(1, contended))
        } else {
            self.take_next_fit(slots, contended)
        }?;
        self.takes.store(self.takes.load(Relaxed) + 1, Relaxed);
        let used = self.used() as u32;
        // Load first: the peak rarely changes.
        if used > self.high_water.load(Relaxed) {
            self.high_water.fetch_max(used, Relaxed);
        }
        Some(run)
    }

    fn take_next_fit(&self, slots: usize, contended: &mut u64) -> Option<Run<'_>> {
        let (count, start) = (self.segments.len(), self.cursor.load(Relaxed) as usize);
        for step in 0..count {
            let index = if start + step < count { start + step } else { start + step - count };
            if let Some(run) = self.segments[index].take(slots, contended) {
                if step > 0 {
                    self.cursor.store(index as u32, Relaxed);
                }
                return Some(run);
            }
        }
        None
    }

    pub(super) fn note(&self, more_areas: u64, contended: u64) {
        self.more_areas.fetch_add(more_areas, Relaxed);
        self.contended.fetch_add(contended, Relaxed);
    }

    pub(super) fn open(&self) {
        self.segments.iter().for_each(|segment| segment.open_populated());
    }

    /// Closes the area and releases its memory, unless a slot is used. Then returns false.
    pub(super) fn close(&self) -> bool {
        for (index, segment) in self.segments.iter().enumerate() {
            if !segment.close() {
                self.segments[..index].iter().for_each(|segment| segment.open_populated());
                return false;
            }
        }
        true
    }

    pub(super) fn slots(&self) -> usize {
        self.slots as usize
    }

    #[inline]
    pub(super) fn used(&self) -> usize {
        self.segments.iter().map(|segment| segment.used()).sum()
    }

    pub(super) fn reset_high_water(&self) {
        self.high_water.store(self.used() as u32, Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct BouncePool {
    /// A power of two, at most as many as in the primary pool.
    pub(super) areas: Box<[CachePadded<BounceArea>]>,
}

impl BouncePool {
    pub(super) fn new(arena: &mut Arena, areas: usize, slots_per_area: usize) -> BouncePool {
        let area = |_| CachePadded::new(BounceArea::new(arena, slots_per_area));
        BouncePool { areas: (0..areas).map(area).collect() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.areas.iter().map(|area| area.slots()).sum::<usize>() * PAGE_SIZE
    }

    pub(super) fn takes(&self) -> u64 {
        self.areas.iter().map(|area| area.takes.load(Relaxed)).sum()
    }

    pub(super) fn used(&self) -> usize {
        self.areas.iter().map(|area| area.used()).sum()
    }
}

pub(super) fn segments(arena: &mut Arena, slots: usize) -> Box<[CachePadded<Segment>]> {
    let sizes = (0..slots).step_by(SEGMENT_SLOTS).map(|first| (slots - first).min(SEGMENT_SLOTS));
    sizes.map(|slots| CachePadded::new(arena.segment(slots))).collect()
}
