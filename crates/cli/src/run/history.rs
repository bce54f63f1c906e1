//! Time series of a program's figures, for the report.
//!
//! At [`MAX`] samples every second one is removed and the interval is doubled, so they are evenly
//! spaced over a run of any length.

use super::tree_sums::{Carried, OfTree};
use crate::tree_peaks::counts_of;
use crate::tree_report::TreeReport;
use softswap_engine::base::stats::{Stats, TIERS};
use softswap_view::reading::Reading;
use softswap_view::report::{Columns, History, Tree, TreeHistory};
use std::time::{Duration, Instant};

const MAX: usize = 512;
const FIRST_STEP: Duration = Duration::from_millis(10);

pub(super) struct Samples {
    is_wanted: bool,
    started: Instant,
    step: Duration,
    next: Duration,
    taken: Vec<Sample>,
    carried: Carried,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    at: Duration,
    reading: Reading,
    tree: Option<OfTree>,
}

impl Samples {
    pub(super) fn new(is_wanted: bool) -> Samples {
        Samples {
            is_wanted,
            started: Instant::now(),
            step: FIRST_STEP,
            next: Duration::ZERO,
            taken: Vec::new(),
            carried: Carried::default(),
        }
    }

    pub(super) fn poll(&mut self, stats: &Stats, tree: impl FnOnce() -> Option<TreeReport>) {
        let at = self.started.elapsed();
        if self.is_wanted && at >= self.next {
            self.take(at, Reading::of(stats), tree());
        }
    }

    fn take(&mut self, at: Duration, reading: Reading, tree: Option<TreeReport>) {
        if self.taken.len() == MAX {
            let mut number = 0;
            self.taken.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            // The interval of the samples that remain.
            self.step = at * 2 / MAX as u32;
        }
        let tree = tree.map(|tree| self.carried.add(&tree));
        self.taken.push(Sample { at, reading, tree });
        self.next = at + self.step;
    }

    /// For a tree, `peaks` adds the counters of processes that exited since the last sample.
    /// Without `peaks` the program was alone.
    pub(super) fn end(mut self, stats: &Stats, peaks: Option<&Tree>) -> History {
        let (at, last) = (self.started.elapsed(), self.taken.last().copied().unwrap_or_default());
        let counts = peaks.map(counts_of).unwrap_or_default();
        let tree = last.tree.map(|tree| tree.with_minimum(&counts));
        self.taken.push(Sample { at, reading: Reading::of(stats), tree });
        let mut history = history_of(&self.taken);
        if peaks.is_none()
            && let Some(tree) = history.tree.take()
        {
            history.columns.budget_bytes = tree.columns.budget_bytes;
        }
        history
    }
}

fn history_of(samples: &[Sample]) -> History {
    let column = |value: fn(&Reading) -> u64| -> Vec<u64> {
        samples.iter().map(|sample| value(&sample.reading)).collect()
    };
    let faults = TIERS.map(|tier| {
        let of_tier = samples.iter().map(|sample| sample.reading.faults_of(tier));
        (tier.name().into(), of_tier.collect())
    });
    History {
        at_s: samples.iter().map(|sample| milliseconds(sample.at)).collect(),
        columns: Columns {
            budget_bytes: column(|it| it.budget_bytes),
            used_bytes: column(|it| it.used_bytes),
            resident_bytes: column(|it| it.resident_bytes),
            pool_bytes: column(|it| it.pool_bytes),
            disk_bytes: column(|it| it.disk_bytes),
            stalled_ns: column(|it| it.stalled_ns),
            bytes_read: column(|it| it.bytes_read),
            bytes_written: column(|it| it.bytes_written),
        },
        pool_pages: column(|it| it.pool_pages),
        faults: faults.into(),
        tree: tree_history_of(samples),
    }
}

fn tree_history_of(samples: &[Sample]) -> Option<TreeHistory> {
    samples.iter().find(|sample| sample.tree.is_some())?;
    let trees = || samples.iter().map(|sample| sample.tree.unwrap_or_default());
    let column = |value: fn(&OfTree) -> u64| trees().map(|tree| value(&tree)).collect();
    let faults_by_tier = TIERS.map(|tier| {
        (tier.name().into(), trees().map(|it| it.counts.faults[tier as usize]).collect())
    });
    Some(TreeHistory {
        columns: Columns {
            budget_bytes: column(|it| it.budget_bytes),
            used_bytes: column(|it| it.used_bytes),
            resident_bytes: column(|it| it.sizes.resident_bytes),
            pool_bytes: column(|it| it.sizes.pool_bytes),
            disk_bytes: column(|it| it.sizes.disk_bytes),
            stalled_ns: column(|it| it.counts.stalled_ns),
            bytes_read: column(|it| it.counts.bytes_read),
            bytes_written: column(|it| it.counts.bytes_written),
        },
        processes: column(|it| it.processes),
        faults: column(|it| it.faults),
        faults_by_tier: faults_by_tier.into(),
    })
}

/// More digits are noise and lengthen the report.
fn milliseconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_shared::ledger::{Counts, Sizes};
    use softswap_view::report::Process;

    #[test]
    fn samples_are_evenly_spaced_for_any_run_length() {
        for seconds in [1, 100, 36_000] {
            let mut samples = Samples::new(true);
            for poll in 0..seconds * 20 {
                let at = Duration::from_millis(poll * 50);
                if at >= samples.next {
                    samples.take(at, Reading::default(), None);
                }
            }
            let at: Vec<Duration> = samples.taken.iter().map(|sample| sample.at).collect();
            assert!(at.len() <= MAX && at.len() >= 20.min(MAX), "{}", at.len());
            let steps = at.windows(2).map(|pair| pair[1] - pair[0]);
            let (least, most) = (steps.clone().min().unwrap(), steps.max().unwrap());
            assert!(most <= least * 3, "{least:?} to {most:?}");
        }
    }

    #[test]
    fn exited_processes_are_counted() {
        let process = |pid, faults, stalled_ns| Process {
            pid,
            counts: Counts { faults: [7, 0, 0, 0, 0, faults], stalled_ns, ..Counts::default() },
            sizes: Sizes { disk_bytes: 4096, ..Sizes::default() },
            ..Process::default()
        };
        let mut carried = Carried::default();
        let mut add = |processes| {
            let sum = carried.add(&TreeReport::of(1 << 20, processes));
            // Sizes of running processes only, unlike the counters.
            assert_eq!(sum.sizes.disk_bytes, 4096 * sum.processes);
            (sum.faults, sum.counts.stalled_ns, sum.processes)
        };
        assert_eq!(add(vec![process(1, 10, 100)]), (10, 100, 1));
        assert_eq!(add(vec![process(1, 15, 150), process(2, 1, 1)]), (16, 151, 2));
        assert_eq!(add(vec![process(2, 5, 9)]), (20, 159, 1));
        // Another program in the same process, after exec.
        assert_eq!(add(vec![process(2, 2, 3)]), (22, 162, 1));
    }

    #[test]
    fn tree_columns_sum_all_processes() {
        let tree = |at: u64| OfTree {
            counts: Counts {
                faults: [1, 0, 0, 0, at, 2 * at],
                bytes_read: at,
                ..Counts::default()
            },
            sizes: Sizes {
                resident_bytes: 3 * at,
                pool_bytes: 4 * at,
                disk_bytes: 5 * at,
                ..Sizes::default()
            },
            ..OfTree::default()
        };
        let sample = |tree| Sample { tree, ..Sample::default() };
        let columns =
            tree_history_of(&[sample(None), sample(Some(tree(1))), sample(Some(tree(9)))]);
        let columns = columns.unwrap();
        assert_eq!(columns.faults_by_tier["pool"], [0, 1, 9]);
        assert_eq!(columns.faults_by_tier["disk"], [0, 2, 18]);
        let columns = columns.columns;
        assert_eq!(columns.resident_bytes, [0, 3, 27]);
        assert_eq!((columns.pool_bytes[2], columns.disk_bytes[2]), (36, 45));
        assert_eq!((columns.bytes_read[2], columns.bytes_written[2]), (9, 0));
        assert!(tree_history_of(&[sample(None)]).is_none());
    }
}
