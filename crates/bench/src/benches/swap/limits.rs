//! Limits of a run: of its cgroup, and softswap's budget within it.

/// Reserved by a first run, with a share of the limit, for charged memory outside the budget: code,
/// stacks, page tables.
const OWN_BYTES: u64 = 3 << 20;
const OWN_SHARE: u64 = 64;
/// Added to earlier runs' peak outside the budget, because runs differ.
const SPARE_BYTES: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Limits {
    pub(crate) limit_bytes: u64,
    pub(crate) memory_bytes: u64,
}

impl Limits {
    pub(crate) fn first(limit_bytes: u64) -> Limits {
        let own_bytes = OWN_BYTES + limit_bytes / OWN_SHARE;
        Limits { limit_bytes, memory_bytes: limit_bytes.saturating_sub(own_bytes) }
    }

    /// Returns limits by the peaks of earlier runs, so that softswap uses the whole limit, as the
    /// kernel does. The budget is at least that of a first run: a peak may include reclaimable page
    /// cache.
    pub(crate) fn after(
        limit_bytes: u64,
        runs: impl Iterator<Item = (Limits, Option<u64>)>,
    ) -> Limits {
        let own = runs.filter_map(|(limits, peak)| peak?.checked_sub(limits.memory_bytes));
        let first = Limits::first(limit_bytes);
        own.max().map_or(first, |own_bytes| {
            let memory_bytes = limit_bytes.saturating_sub(own_bytes + SPARE_BYTES);
            Limits { memory_bytes: memory_bytes.max(first.memory_bytes), ..first }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_follows_earlier_runs() {
        let limit = 64 << 20;
        assert_eq!(Limits::first(limit).memory_bytes, 60 << 20);
        assert_eq!(Limits::first(1 << 20).memory_bytes, 0);
        let after = |runs: &[(u64, Option<u64>)]| {
            let runs = runs.iter().map(|(memory_mib, peak_mib)| {
                let memory_bytes = memory_mib << 20;
                (Limits { limit_bytes: limit, memory_bytes }, peak_mib.map(|peak| peak << 20))
            });
            Limits::after(limit, runs).memory_bytes >> 20
        };
        assert_eq!(after(&[]), 60);
        assert_eq!(after(&[(60, Some(61))]), 62);
        assert_eq!(after(&[(60, Some(61)), (62, Some(64))]), 61);
        // The first limits apply if the peak is at the limit, below the budget, or unknown.
        assert_eq!(after(&[(60, Some(64))]), 60);
        assert_eq!(after(&[(60, Some(50)), (60, None)]), 60);
    }
}
