//! Sums of the counters of all processes of a tree.

use crate::tree_report::TreeReport;
use softswap_shared::ledger::{Counts, Sizes};
use std::collections::HashMap;
use std::time::Duration;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OfTree {
    pub(super) budget_bytes: u64,
    pub(super) used_bytes: u64,
    pub(super) processes: u64,
    pub(super) faults: u64,
    pub(super) counts: Counts,
    pub(super) sizes: Sizes,
}

impl OfTree {
    /// Raises each counter to at least that of `counts`.
    pub(super) fn with_minimum(self, counts: &Counts) -> OfTree {
        let counts = self.counts.max_of_each(counts);
        OfTree { counts, faults: counts.returns(), ..self }
    }
}

/// Sums include exited processes.
#[derive(Debug, Default)]
pub(super) struct Carried {
    now: HashMap<u32, Counts>,
    all: Counts,
}

impl Carried {
    pub(super) fn add(&mut self, tree: &TreeReport) -> OfTree {
        for process in &tree.processes {
            let before = self.now.insert(process.pid, process.counts).unwrap_or_default();
            self.all = self.all.and(&process.counts.since(&before));
        }
        self.now.retain(|pid, _| tree.processes.iter().any(|process| process.pid == *pid));
        OfTree {
            budget_bytes: tree.budget_bytes,
            used_bytes: tree.used_bytes,
            processes: tree.processes.len() as u64,
            faults: self.all.returns(),
            counts: self.all,
            sizes: tree.processes.iter().fold(Sizes::default(), |all, it| all.and(&it.sizes)),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct TreeWatch {
    sums: Carried,
    last: Option<(Duration, OfTree)>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TreeRates {
    pub(super) now: OfTree,
    /// Average since the previous sample.
    pub(super) stalled_threads: f64,
    pub(super) returns_per_s: f64,
}

impl TreeWatch {
    /// `None` on the first call, and for a tree of one process. `at` is the time since the start.
    pub(super) fn poll(&mut self, at: Duration, tree: Option<TreeReport>) -> Option<TreeRates> {
        let now = self.sums.add(&tree?);
        let (then, before) = self.last.replace((at, now)).filter(|_| now.processes > 1)?;
        let seconds = at.saturating_sub(then).as_secs_f64().max(1e-9);
        let waited_ns = now.counts.stalled_ns.saturating_sub(before.counts.stalled_ns) as f64;
        let returns = now.faults.saturating_sub(before.faults) as f64;
        Some(TreeRates {
            now,
            stalled_threads: waited_ns / 1e9 / seconds,
            returns_per_s: returns / seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_view::report::Process;

    fn tree(each: &[(u32, u64, u64)]) -> Option<TreeReport> {
        let process = |(pid, faults, stalled_ns): &(u32, u64, u64)| Process {
            pid: *pid,
            used_bytes: 1 << 20,
            counts: Counts {
                faults: [0, 0, 0, 0, 0, *faults],
                stalled_ns: *stalled_ns,
                ..Counts::default()
            },
            ..Process::default()
        };
        Some(TreeReport::of(8 << 20, each.iter().map(process).collect()))
    }

    #[test]
    fn rates_include_exited_processes() {
        let (mut watch, at) = (TreeWatch::default(), Duration::from_secs);
        assert!(watch.poll(at(1), tree(&[(7, 0, 0), (8, 100, 1_000_000_000)])).is_none());
        let busy = tree(&[(7, 0, 0), (8, 300, 4_000_000_000), (9, 100, 1_000_000_000)]);
        let rates = watch.poll(at(3), busy).unwrap();
        assert_eq!((rates.now.processes, rates.now.used_bytes), (3, 3 << 20));
        assert_eq!((rates.stalled_threads, rates.returns_per_s), (2.0, 150.0));
        let rates = watch.poll(at(4), tree(&[(7, 0, 0), (9, 100, 1_000_000_000)])).unwrap();
        assert_eq!((rates.stalled_threads, rates.returns_per_s), (0.0, 0.0));
        assert!(watch.poll(at(5), tree(&[(7, 9, 9)])).is_none(), "it is alone");
        assert!(watch.poll(at(6), None).is_none());
    }
}
