//! The kernel's limit on a process's mappings, which page protections use up.

use crate::self_memory::SelfMaps;
use crate::{program_filter, raw};
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Linux's default, for when the limit cannot be read.
const USUAL_LIMIT: usize = 65_530;
/// Divisor of the limit: 1/10 is reserved for the program.
const PROGRAM_DIVISOR: usize = 10;
/// The program's mappings are counted again when the window has this many more mappings.
const BETWEEN_COUNTS: usize = 2048;
const BETWEEN_COUNTS_NS: u64 = 2_000_000_000;
/// Mappings that the window may always have.
const MIN_MAPPINGS: usize = 512;

/// Use of the kernel's limit on mappings (`vm.max_map_count`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MappingPressure {
    /// Below half of the limit.
    None,
    /// Above half: neighbours should be faulted in and evicted together.
    Half,
    /// Above three quarters.
    High,
    /// At the limit: pages must be evicted first.
    Full,
}

#[derive(Debug)]
pub(super) struct MappingBudget {
    pub(super) maps: SelfMaps,
    limit: usize,
    /// Mappings outside the window when last counted.
    others_count: AtomicUsize,
    /// Number of the window's mappings at which to count again.
    count_at: AtomicUsize,
    count_at_ns: AtomicU64,
}

impl MappingBudget {
    pub(super) fn new() -> io::Result<MappingBudget> {
        let read = || std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        let limit = if program_filter::is_in_force() { None } else { read() };
        let limit = limit.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL_LIMIT);
        Ok(MappingBudget {
            maps: SelfMaps::open()?,
            limit: limit - limit / PROGRAM_DIVISOR,
            others_count: AtomicUsize::new(0),
            count_at: AtomicUsize::new(BETWEEN_COUNTS),
            count_at_ns: AtomicU64::new(u64::MAX),
        })
    }

    /// Records that the kernel has refused a mapping: the next query counts the mappings again.
    pub(super) fn note_refusal(&self) {
        self.count_at.store(0, Ordering::Relaxed);
    }

    pub(super) fn mapping_pressure(&self, own: usize) -> MappingPressure {
        let at_ns = self.count_at_ns.load(Ordering::Relaxed);
        if own >= self.count_at.load(Ordering::Relaxed)
            || at_ns != u64::MAX && raw::now_ns() >= at_ns
        {
            self.count(own);
        }
        let limit = self.window_limit();
        match own {
            _ if own >= limit => MappingPressure::Full,
            _ if own >= limit / 4 * 3 => MappingPressure::High,
            _ if own >= limit / 2 => MappingPressure::Half,
            _ => MappingPressure::None,
        }
    }

    pub(super) fn window_limit(&self) -> usize {
        self.limit.saturating_sub(self.others_count.load(Ordering::Relaxed)).max(MIN_MAPPINGS)
    }

    pub(super) fn count(&self, own: usize) {
        // Stored first, so that other threads do not count as well.
        self.count_at.store(own + BETWEEN_COUNTS, Ordering::Relaxed);
        if let Ok(all) = self.maps.count() {
            self.others_count.store(all.saturating_sub(own), Ordering::Relaxed);
        }
        let is_near = own >= self.window_limit() / 2;
        let at_ns = if is_near { raw::now_ns() + BETWEEN_COUNTS_NS } else { u64::MAX };
        self.count_at_ns.store(at_ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_rises_with_mappings() {
        let budget = MappingBudget { limit: 10_000, ..MappingBudget::new().unwrap() };
        let all = budget.maps.count().unwrap();
        assert!(all > 10);
        assert_eq!(budget.mapping_pressure(0), MappingPressure::None);
        let seen = [4_999, 5_000, 7_500, 10_000].map(|own| {
            budget.count_at.store(usize::MAX, Ordering::Relaxed);
            budget.mapping_pressure(own)
        });
        assert_eq!(
            seen,
            [
                MappingPressure::None,
                MappingPressure::Half,
                MappingPressure::High,
                MappingPressure::Full
            ]
        );
        assert_eq!(budget.others_count.load(Ordering::Relaxed), 0);
        budget.note_refusal();
        budget.mapping_pressure(1);
        assert!(budget.others_count.load(Ordering::Relaxed) > 9);
    }
}
