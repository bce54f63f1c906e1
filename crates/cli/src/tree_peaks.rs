//! Peaks of a process tree during a run, for the summary and the report.

use crate::tree_report::{Process, TreeReport};
use serde::Serialize;
use softswap_engine::base::stats::TIERS;
use softswap_shared::ledger::Counts;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Number of processes kept for the report: half of them with the highest usage, the others with
/// the longest waits.
const KEPT: usize = 100;

/// Peaks of a tree, as far as it was sampled.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct TreePeaks {
    pub(crate) budget_bytes: u64,
    /// Peak of the budget.
    pub(crate) budget_peak_bytes: u64,
    /// Peak of the memory used by all processes.
    pub(crate) used_peak_bytes: u64,
    /// Peak of the number of processes.
    pub(crate) processes_peak: usize,
    /// Processes kept, by decreasing usage.
    pub(crate) largest: Vec<Process>,
    /// Sums of the other processes.
    pub(crate) left_out: OmittedSums,
    /// Sums over all processes.
    pub(crate) faults_by_tier: BTreeMap<&'static str, u64>,
    /// The other processes: those that still run, and sums of those that have exited.
    #[serde(skip)]
    others: HashMap<u32, Process>,
    #[serde(skip)]
    gone: OmittedSums,
    /// PID of the program that was started.
    #[serde(skip)]
    pub(crate) program_pid: u32,
}

/// Sums of processes that are not kept.
#[derive(Debug, Clone, Copy, Default, Serialize, PartialEq, Eq)]
pub(crate) struct OmittedSums {
    pub(crate) processes: u64,
    pub(crate) faults: u64,
    pub(crate) stalled_ns: u64,
    #[serde(skip)]
    counts: Counts,
}

impl OmittedSums {
    fn add(&mut self, process: &Process) {
        self.processes += 1;
        self.faults = self.faults.saturating_add(process.faults);
        self.stalled_ns = self.stalled_ns.saturating_add(process.stalled_ns);
        self.counts = self.counts.and(&process.counts);
    }
}

impl TreePeaks {
    /// Adds a sample of a tree whose processes use `used_bytes` together.
    pub(crate) fn raise(&mut self, now: &TreeReport, used_bytes: u64) {
        self.budget_bytes = now.budget_bytes;
        self.budget_peak_bytes = self.budget_peak_bytes.max(now.budget_bytes);
        self.used_peak_bytes = self.used_peak_bytes.max(used_bytes);
        self.processes_peak = self.processes_peak.max(now.processes.len());
        let mut others = std::mem::take(&mut self.others);
        for process in &now.processes {
            let at = self.largest.iter().position(|it| it.pid == process.pid);
            let known =
                at.map(|at| self.largest.remove(at)).or_else(|| others.remove(&process.pid));
            let before = known.unwrap_or_default();
            // After exec a process's counters restart at 0.
            self.largest.push(Process {
                faults: process.faults.max(before.faults),
                stalled_ns: process.stalled_ns.max(before.stalled_ns),
                counts: process.counts.max_of_each(&before.counts),
                ..process.clone()
            });
        }
        others.values().for_each(|process| self.gone.add(process));
        self.fold_others();
    }

    /// Keeps the most important processes, and sums of the others.
    fn fold_others(&mut self) {
        if self.largest.len() > KEPT {
            self.largest.sort_by_key(|process| Reverse(process.used_peak_bytes));
            self.largest[KEPT / 2..].sort_by_key(|process| Reverse(process.stalled_ns));
            let others = self.largest.split_off(KEPT);
            self.others = others.into_iter().map(|process| (process.pid, process)).collect();
        }
        self.largest.sort_by_key(|process| Reverse(process.used_peak_bytes));
        self.left_out = self.gone;
        self.others.values().for_each(|process| self.left_out.add(process));
        let all = self.counts();
        self.faults_by_tier = TIERS.map(|tier| (tier.name(), all.faults[tier as usize])).into();
    }

    /// Returns the counters of all processes.
    pub(crate) fn counts(&self) -> Counts {
        let kept = self.largest.iter().map(|process| &process.counts);
        kept.fold(self.left_out.counts, |all, counts| all.and(counts))
    }

    /// Returns the time for which threads of all processes waited for pages.
    pub(crate) fn stalled_ns(&self) -> u64 {
        self.largest.iter().map(|it| it.stalled_ns).sum::<u64>() + self.left_out.stalled_ns
    }

    /// Returns the refaults of all processes.
    pub(crate) fn faults(&self) -> u64 {
        self.largest.iter().map(|it| it.faults).sum::<u64>() + self.left_out.faults
    }

    /// Returns true if the started program was the only process.
    pub(crate) fn is_of_one(&self) -> bool {
        self.largest.iter().all(|process| process.pid == self.program_pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, used_peak_bytes: u64, stalled_ns: u64) -> Process {
        Process {
            pid,
            name: "a".into(),
            granted_bytes: used_peak_bytes,
            used_bytes: used_peak_bytes,
            used_peak_bytes,
            faults: 10,
            stalled_ns,
            counts: Counts { faults: [3, 0, 0, 0, 4, 6], stalled_ns, ..Counts::default() },
            ..Process::default()
        }
    }

    #[test]
    fn important_processes_are_kept_and_others_summed() {
        let mut peaks = TreePeaks::default();
        let many = |count: u32| (1..=count).map(|pid| process(pid, 1_000, 1)).collect::<Vec<_>>();
        let raise =
            |peaks: &mut TreePeaks, processes| peaks.raise(&TreeReport::of(1, processes), 1);
        raise(&mut peaks, many(KEPT as u32));
        assert_eq!((peaks.largest.len(), peaks.left_out), (KEPT, OmittedSums::default()));
        let mut all = many(KEPT as u32 + 30);
        all[110] = process(111, 2_000, 0);
        all[120] = process(121, 0, 5_000);
        for _ in 0..3 {
            raise(&mut peaks, all.clone());
            let OmittedSums { processes, faults, stalled_ns, .. } = peaks.left_out;
            assert_eq!((processes, faults, stalled_ns), (30, 300, 30));
            assert_eq!((peaks.faults_by_tier["disk"], peaks.faults_by_tier["zero"]), (780, 390));
        }
        let kept = |pid| peaks.largest.iter().any(|process| process.pid == pid);
        assert!(kept(111) && kept(121) && peaks.largest[0].pid == 111);
        assert_eq!((peaks.processes_peak, peaks.largest.len()), (130, KEPT));
        // Counters of exited processes still count.
        raise(&mut peaks, (201..=250).map(|pid| process(pid, 3_000, 2)).collect());
        let OmittedSums { processes, faults, .. } = peaks.left_out;
        assert_eq!((processes, faults), (80, 800));
        assert_eq!((peaks.faults_by_tier["pool"], peaks.faults()), (180 * 4, 180 * 10));
        assert_eq!(peaks.largest.iter().filter(|process| process.pid > 200).count(), 50);
    }
}
