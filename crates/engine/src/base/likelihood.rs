//! Estimated likelihood of an event, learnt from single cases.
//!
//! A word holds the likelihood in its low 16 bits and a count of decisions above them. Concurrent
//! updates may be lost.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Likelihood of an event that always happens.
pub(crate) const CERTAIN: u32 = 256;
/// One case moves the estimate by 1/16 of the remaining difference.
const WEIGHT_SHIFT: u32 = 4;
const LIKELY_BITS: u32 = 16;

pub(crate) fn likelihood(estimate: &AtomicU32) -> u32 {
    estimate.load(Relaxed) & ((1 << LIKELY_BITS) - 1)
}

/// Returns true once in `every` calls: try the unlikely choice then, because behaviour changes.
pub(crate) fn is_probe(estimate: &AtomicU32, every: u32) -> bool {
    debug_assert!(every.is_power_of_two(), "the count wraps around");
    let skipped = estimate.fetch_add(1 << LIKELY_BITS, Relaxed) >> LIKELY_BITS;
    skipped % every == every - 1
}

pub(crate) fn note(estimate: &AtomicU32, happened: bool) {
    let seen = estimate.load(Relaxed);
    let likely = seen & ((1 << LIKELY_BITS) - 1);
    let moved = match happened {
        true => likely + ((CERTAIN - likely) >> WEIGHT_SHIFT),
        false => likely - likely.div_ceil(1 << WEIGHT_SHIFT),
    };
    // Unchanged: avoid dirtying a cache line that other threads read.
    if moved != likely {
        estimate.store(seen - likely + moved, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likelihood_converges() {
        let estimate = AtomicU32::new(0);
        (0..1000).for_each(|_| note(&estimate, true));
        assert!(likelihood(&estimate) > CERTAIN * 9 / 10);
        (0..1000).for_each(|at| note(&estimate, at % 4 == 0));
        assert!((CERTAIN / 8..CERTAIN / 2).contains(&likelihood(&estimate)));
        (0..1000).for_each(|_| note(&estimate, false));
        assert_eq!(likelihood(&estimate), 0);
    }

    #[test]
    fn probes_have_a_fixed_rate() {
        for start in [0, CERTAIN] {
            let estimate = AtomicU32::new(start);
            // Enough calls for the count to wrap around.
            let tried = (0..200_000).filter(|_| is_probe(&estimate, 16)).count();
            assert_eq!(tried, 200_000 / 16);
            assert_eq!(likelihood(&estimate), start);
        }
    }
}
