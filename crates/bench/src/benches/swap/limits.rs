//! What a run is held to: the limit of its group, and softswap's budget inside.

/// What a program is taken to have that softswap does not manage, and the kernel for
/// it, before it has run: code that is its own, stacks, page tables, the task's own
/// tables.
const OWN_BYTES: u64 = 3 << 20;
const OWN_SHARE: u64 = 64;
/// What is left free beside what a run before had: no two are quite the same.
const SPARE_BYTES: u64 = 1 << 20;

/// A limit, and a budget inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Limits {
    /// Of the group.
    pub(crate) limit_bytes: u64,
    /// What softswap is told it may use (`--memory`), where it takes part.
    pub(crate) memory_bytes: u64,
}

impl Limits {
    /// For a first run.
    pub(crate) fn first(limit_bytes: u64) -> Limits {
        let own_bytes = OWN_BYTES + limit_bytes / OWN_SHARE;
        Limits { limit_bytes, memory_bytes: limit_bytes.saturating_sub(own_bytes) }
    }

    /// For the next run, after others like it and what their groups held at the peak:
    /// the kernel's sides use all of the limit, and so should softswap. Never less
    /// than for a first run: what fills a group may be files that it can let go.
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
    fn the_first_budget_lies_well_below_the_limit() {
        assert_eq!(Limits::first(64 << 20).memory_bytes, 60 << 20);
        assert_eq!(Limits::first(1 << 20).memory_bytes, 0);
        assert_eq!(Limits::after(64 << 20, std::iter::empty()), Limits::first(64 << 20));
    }

    #[test]
    fn a_later_budget_leaves_room_for_what_was_seen_beside_the_others() {
        let limit = 64 << 20;
        let ran = |memory_mib: u64, peak_mib| {
            (Limits { limit_bytes: limit, memory_bytes: memory_mib << 20 }, peak_mib)
        };
        let after = |runs: &[(Limits, Option<u64>)]| {
            Limits::after(limit, runs.iter().copied()).memory_bytes >> 19
        };
        assert_eq!(after(&[ran(60, Some(61 << 20))]), 2 * 64 - 2 - 2);
        assert_eq!(after(&[ran(60, Some(61 << 20)), ran(62, Some(64 << 20))]), 2 * 64 - 4 - 2);
        // All of it, with files perhaps; less than it was allowed; not known: as at first.
        assert_eq!(after(&[ran(60, Some(64 << 20))]), 2 * 60);
        assert_eq!(after(&[ran(60, Some(50 << 20)), ran(60, None)]), 2 * 60);
    }
}
