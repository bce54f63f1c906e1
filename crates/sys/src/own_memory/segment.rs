//! Buffer memory, allocated in runs of adjacent slots of a page. One word holds the allocated slots
//! of a segment, up to 64, and freed runs merge automatically. A [`Run`] is the only access to its
//! slots' bytes. A closed segment allocates no slots and has no memory.

use crate::memory::{PAGE_SIZE, populate, release_dram, reserve_bytes};
use crate::primitive::{AtomicBool, AtomicU64, Ordering};
use std::io;
use std::ops::{Deref, DerefMut};

pub const SEGMENT_SLOTS: usize = u64::BITS as usize;

#[derive(Debug)]
pub struct Arena {
    rest: &'static mut [u8],
    range: StaticRange,
}

/// Addresses that are readable and writable until the process exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaticRange {
    base: usize,
    len: usize,
}

impl StaticRange {
    pub fn base(self) -> usize {
        self.base
    }

    pub fn len_bytes(self) -> usize {
        self.len
    }

    pub fn contains(self, bytes: &[u8]) -> bool {
        let offset = bytes.as_ptr().addr().wrapping_sub(self.base);
        offset < self.len && bytes.len() <= self.len - offset
    }
}

impl Arena {
    pub fn reserve(slots: usize) -> io::Result<Arena> {
        let rest = reserve_bytes(slots * PAGE_SIZE)?;
        let range = StaticRange { base: rest.as_ptr().addr(), len: rest.len() };
        Ok(Arena { rest, range })
    }

    pub fn populate(&mut self) {
        populate(self.rest);
    }

    pub fn range(&self) -> StaticRange {
        self.range
    }

    /// Splits off the next segment, closed. Panics if `slots` is too large or no memory is left.
    pub fn segment(&mut self, slots: usize) -> Segment {
        assert!((1..=SEGMENT_SLOTS).contains(&slots), "a segment of {slots} slots");
        let (memory, rest) = std::mem::take(&mut self.rest).split_at_mut(slots * PAGE_SIZE);
        self.rest = rest;
        Segment {
            taken: AtomicU64::new(u64::MAX),
            is_closed: AtomicBool::new(true),
            missing: !run_mask(slots),
            base: memory.as_mut_ptr(),
        }
    }
}

#[inline]
fn run_mask(slots: usize) -> u64 {
    u64::MAX >> (SEGMENT_SLOTS - slots)
}

#[derive(Debug)]
pub struct Segment {
    /// A bit for each slot that is allocated or missing.
    taken: AtomicU64,
    /// Set while every bit of `taken` is set and no run exists. Only the thread that clears this
    /// may access the memory without a run.
    is_closed: AtomicBool,
    missing: u64,
    base: *mut u8,
}

// SAFETY: the memory is accessed through runs, whose slots are disjoint (each bit of `taken` is set
// by one thread), and by the thread that opens or closes the segment while no run exists. All
// synchronise through `taken`.
unsafe impl Send for Segment {}
// SAFETY: threads that share a segment allocate slots by setting bits of `taken`. Each bit is set
// by one thread, so no two threads access the same bytes.
unsafe impl Sync for Segment {}

impl Segment {
    /// Allocates the first free run, but a single slot from the end, to leave space for longer
    /// runs. The slots keep their content. `contended` counts changes by other threads meanwhile.
    #[must_use]
    #[inline]
    pub fn take(&self, slots: usize, contended: &mut u64) -> Option<Run<'_>> {
        debug_assert!((1..=SEGMENT_SLOTS).contains(&slots));
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let first = if slots == 1 { last(!taken)? } else { find(!taken, slots)? };
            let mask = run_mask(slots) << first;
            let change = self.taken.compare_exchange(
                taken,
                taken | mask,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            match change {
                Ok(_) => return Some(Run { segment: self, first, slots, is_exclusive: false }),
                Err(now) => taken = now,
            }
            *contended += 1;
        }
    }

    /// Prevents other runs while this one exists. Its drop returns the memory to the system.
    #[must_use]
    pub fn take_exclusive(&self, slots: usize) -> Option<Run<'_>> {
        debug_assert!((1..=self.slots()).contains(&slots));
        let all_free = self.taken.load(Ordering::Relaxed) == self.missing;
        if !all_free || !self.swap_all(self.missing, u64::MAX) {
            return None;
        }
        Some(Run { segment: self, first: 0, slots, is_exclusive: true })
    }

    #[inline]
    pub fn slots(&self) -> usize {
        self.missing.count_zeros() as usize
    }

    /// Returns the number of allocated slots; 0 while the segment is closed.
    #[inline]
    pub fn used(&self) -> usize {
        match self.taken.load(Ordering::Relaxed) & !self.missing {
            taken if taken == !self.missing && self.is_closed.load(Ordering::Relaxed) => 0,
            taken => taken.count_ones() as usize,
        }
    }

    /// Opens the segment. Slots get memory when they are written.
    pub fn open(&self) {
        // `close` set all bits, and no other thread opens the segment now.
        if self.is_closed.swap(false, Ordering::Acquire) {
            self.taken.store(self.missing, Ordering::Release);
        }
    }

    pub fn open_populated(&self) {
        if self.is_closed.swap(false, Ordering::Acquire) {
            for slot in 0..self.slots() {
                // SAFETY: the slot is in the segment's memory. While every bit of `taken` is set,
                // no other thread accesses the slot.
                unsafe { self.base.add(slot * PAGE_SIZE).write_volatile(0) };
            }
            self.taken.store(self.missing, Ordering::Release);
        }
    }

    /// Returns the memory to the system; false if a slot is allocated, or the segment was closed.
    pub fn close(&self) -> bool {
        if !self.swap_all(self.missing, u64::MAX) {
            return false;
        }
        // SAFETY: no slot was allocated, and now that every bit is set, none can be. The segment
        // cannot be opened before `is_closed` is set again. So no other thread accesses the memory.
        release_dram(unsafe {
            std::slice::from_raw_parts_mut(self.base, self.slots() * PAGE_SIZE)
        });
        self.is_closed.store(true, Ordering::Release);
        true
    }

    fn swap_all(&self, from: u64, to: u64) -> bool {
        self.taken.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

#[inline]
fn last(free: u64) -> Option<usize> {
    (free != 0).then(|| free.ilog2() as usize)
}

/// Returns the lowest bit at which `count` set bits start.
#[inline]
fn find(free: u64, count: usize) -> Option<usize> {
    // Invariant: a bit is set if `have` set bits start there.
    let (mut starts, mut have) = (free, 1);
    while have < count {
        let step = have.min(count - have);
        starts &= starts >> step;
        have += step;
    }
    (starts != 0).then(|| starts.trailing_zeros() as usize)
}

/// Adjacent slots with one owner, freed when dropped.
#[derive(Debug)]
pub struct Run<'s> {
    segment: &'s Segment,
    first: usize,
    slots: usize,
    is_exclusive: bool,
}

impl Run<'_> {
    #[inline]
    pub fn slots(&self) -> usize {
        self.slots
    }

    #[inline]
    fn base(&self) -> *mut u8 {
        // SAFETY: the segment has at least `first + slots` slots: its word has the run's bits.
        unsafe { self.segment.base.add(self.first * PAGE_SIZE) }
    }
}

impl Deref for Run<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the slots belong to this run alone, so no other thread accesses them; they are
        // never unmapped, and any bytes are valid.
        unsafe { std::slice::from_raw_parts(self.base(), self.slots * PAGE_SIZE) }
    }
}

impl DerefMut for Run<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the slots belong to this run alone, and `self` is borrowed exclusively, so
        // nothing else accesses them; they are never unmapped, and any bytes are valid.
        unsafe { std::slice::from_raw_parts_mut(self.base(), self.slots * PAGE_SIZE) }
    }
}

impl Drop for Run<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_exclusive {
            release_dram(self);
        }
        let mask = if self.is_exclusive {
            !self.segment.missing
        } else {
            run_mask(self.slots) << self.first
        };
        let before = self.segment.taken.fetch_and(!mask, Ordering::Release);
        // Impossible unless memory was overwritten. A panic prevents two owners of the same bytes.
        assert_eq!(
            before & mask,
            mask,
            "buffer slots were freed twice: a bug in softswap; please report it"
        );
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn segment(slots: usize) -> Segment {
        let mut arena = Arena::reserve(slots).unwrap();
        let range = arena.range();
        assert_eq!(range.len_bytes(), slots * PAGE_SIZE);
        assert!(!range.contains(b"elsewhere"));
        let segment = arena.segment(slots);
        assert_eq!(segment.slots(), slots);
        segment.open();
        segment
    }

    #[test]
    fn first_fitting_run_is_allocated() {
        for free in [0, 1, 0b1101_1000, u64::MAX, u64::MAX << 60, 0xff00_ff00_00ff_0f0f] {
            for count in 1..=SEGMENT_SLOTS {
                let fits = |first: &usize| free >> first & run_mask(count) == run_mask(count);
                let expected = (0..=SEGMENT_SLOTS - count).find(fits);
                assert_eq!(find(free, count), expected, "{count} in {free:#x}");
            }
        }
    }

    #[test]
    fn freed_runs_merge() {
        let segment = segment(64);
        let mut none = 0;
        let mut runs: Vec<_> =
            [1, 16, 7, 40].map(|slots| segment.take(slots, &mut none).unwrap()).into();
        assert!(segment.take(1, &mut none).is_none());
        for (mark, run) in (1..).zip(&mut runs) {
            run.fill(mark);
        }
        for (mark, run) in (1..).zip(&runs) {
            assert!(run.iter().all(|byte| *byte == mark));
        }
        assert_eq!(runs.iter().map(|run| run.len()).sum::<usize>(), SEGMENT_SLOTS * PAGE_SIZE);
        drop(runs.drain(1..3));
        assert!(segment.take(24, &mut none).is_none());
        assert_eq!(segment.take(23, &mut none).unwrap().slots(), 23);
        drop(runs);
        assert_eq!(segment.take(64, &mut none).unwrap().len(), SEGMENT_SLOTS * PAGE_SIZE);
        assert_eq!(none, 0);
    }

    #[test]
    fn single_slots_do_not_fragment_runs() {
        let segment = segment(48);
        let single: Vec<_> = (0..16).map(|_| segment.take(1, &mut 0).unwrap()).collect();
        assert!(segment.take(32, &mut 0).is_some());
        assert!(segment.take(33, &mut 0).is_none());
        drop(single);
    }

    #[test]
    fn small_segment_has_only_its_slots() {
        let segment = segment(5);
        let held = segment.take(5, &mut 0).unwrap();
        assert!(segment.take(1, &mut 0).is_none());
        drop(held);
        assert!(segment.take(6, &mut 0).is_none());
    }

    #[test]
    fn segment_closes_only_if_empty() {
        let segment = segment(8);
        let mut run = segment.take(2, &mut 0).unwrap();
        run.fill(7);
        assert!(!segment.close());
        drop(run);
        assert!(segment.close() && !segment.close());
        assert!(segment.take(1, &mut 0).is_none());
        segment.open();
        segment.open();
        assert!(segment.take(8, &mut 0).unwrap().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn exclusive_run_blocks_others_and_frees_memory() {
        let segment = segment(8);
        let mut run = segment.take_exclusive(3).unwrap();
        assert_eq!(run.len(), 3 * PAGE_SIZE);
        run.fill(9);
        assert!(segment.take(1, &mut 0).is_none() && segment.take_exclusive(1).is_none());
        assert!(!segment.close());
        drop(run);
        let shared = segment.take(8, &mut 0).unwrap();
        assert!(shared.iter().all(|byte| *byte == 0));
        assert!(segment.take_exclusive(1).is_none());
    }
}
