//! Large blocks of the program and their allocating functions, for `softswap record`.
//!
//! The lock-free table may be incomplete: if it is full, new entries replace old ones.

use crate::base::instance;
use softswap_engine::api::fault_samples::Block;
use softswap_engine::base::stats::Counter;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

pub(crate) const MIN_BYTES: usize = 1 << 20;
const ENTRIES: usize = 1024;
/// Value of `caller` for a mapping, whose caller is unknown.
pub(crate) const NO_CALLER: usize = 0;
/// Number of table entries that can hold a given block.
const PROBES: usize = 8;
const NONE: usize = 0;
/// `start` of an entry that is being written.
const BUSY: usize = 1;

struct Entry {
    start: AtomicUsize,
    len: AtomicUsize,
    caller: AtomicUsize,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry { start: AtomicUsize::new(NONE), len: AtomicUsize::new(0), caller: AtomicUsize::new(0) }
}; ENTRIES];

fn places(start: usize) -> impl Iterator<Item = &'static Entry> {
    const GOLDEN: usize = 0x9e37_79b9_7f4a_7c15;
    let first = start.wrapping_mul(GOLDEN) >> (usize::BITS - ENTRIES.ilog2());
    (0..PROBES).map(move |step| &TABLE[(first + step) % ENTRIES])
}

#[inline]
pub(crate) fn record(start: usize, len: usize, caller: usize) {
    if len >= MIN_BYTES && start != 0 {
        insert(start, len, caller);
    }
}

pub(crate) fn publish(len: usize) {
    if let Some(engine) = instance::engine() {
        engine.stats().peak(Counter::LargestBlockBytes, len as u64);
    }
}

#[cold]
fn insert(start: usize, len: usize, caller: usize) {
    let known = |entry: &&Entry| [start, NONE].contains(&entry.start.load(Relaxed));
    let Some(entry) = places(start).find(known).or_else(|| places(start).next()) else { return };
    let before = entry.start.load(Relaxed);
    let is_mine =
        before != BUSY && entry.start.compare_exchange(before, BUSY, Acquire, Relaxed).is_ok();
    if is_mine {
        entry.len.store(len, Relaxed);
        entry.caller.store(caller, Relaxed);
        entry.start.store(start, Release);
    }
}

#[inline]
pub(crate) fn forget(start: usize) {
    // Recorded blocks start at such addresses; few other blocks do.
    if start.is_multiple_of(64 << 10) && start != 0 {
        remove(start);
    }
}

#[cold]
fn remove(start: usize) {
    for entry in places(start).filter(|entry| entry.start.load(Relaxed) == start) {
        let _ = entry.start.compare_exchange(start, NONE, Relaxed, Relaxed);
    }
}

/// If several blocks contain an address, returns the smallest of them.
pub(crate) fn containing(addresses: impl Iterator<Item = u64>) -> Vec<Block> {
    let read = |entry: &Entry| {
        let start = entry.start.load(Acquire);
        let (len, caller) = (entry.len.load(Relaxed), entry.caller.load(Relaxed));
        let is_whole = start > BUSY && entry.start.load(Acquire) == start;
        let range = start as u64..start.saturating_add(len) as u64;
        is_whole.then_some(Block { range, caller: caller as u64 })
    };
    let all: Vec<Block> = TABLE.iter().filter_map(read).collect();
    let mut found: Vec<Block> = Vec::new();
    for address in addresses {
        if found.iter().any(|block| block.range.contains(&address)) {
            continue;
        }
        let around = all.iter().filter(|block| block.range.contains(&address));
        found.extend(around.min_by_key(|block| block.range.end - block.range.start).cloned());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_is_found_by_inner_address_until_freed() {
        const START: usize = 0x7f00_0000_0000;
        record(START, 2 << 20, 0x5500);
        record(START + (4 << 20), MIN_BYTES - 1, 0x5501);
        let of =
            |address: usize| containing([address as u64].into_iter()).first().map(|it| it.caller);
        assert_eq!(of(START), Some(0x5500));
        assert_eq!(of(START + (2 << 20) - 1), Some(0x5500));
        assert_eq!(of(START + (2 << 20)), None);
        assert_eq!(of(START + (4 << 20)), None, "blocks below the minimum size are not recorded");
        record(START, 3 << 20, 0x5502);
        assert_eq!(of(START + (2 << 20)), Some(0x5502));
        forget(START);
        assert_eq!(of(START), None);
        for number in 0..3 * ENTRIES {
            record(START + number * (2 << 20), 2 << 20, number);
        }
        let last = 3 * ENTRIES - 1;
        assert_eq!(of(START + last * (2 << 20)), Some(last as u64));
    }
}
