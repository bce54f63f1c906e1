//! Peaks of a process tree during a run, for the summary and the report.

use crate::tree_report::TreeReport;
use softswap_engine::base::stats::{TIERS, Tier};
use softswap_shared::ledger::Counts;
use softswap_view::report::{LeftOut, Process, Tree};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Half of the kept processes have the highest usage, the others the longest waits.
const KEPT: usize = 100;

#[derive(Debug, Clone, Default)]
pub(crate) struct TreePeaks {
    pub(crate) tree: Tree,
    /// Running processes that are not among the kept ones.
    others: HashMap<u32, Process>,
    /// Exited processes that are not among the kept ones.
    gone: LeftOut,
    pub(crate) program_pid: u32,
}

fn add(sum: &mut LeftOut, process: &Process) {
    sum.processes += 1;
    sum.faults = sum.faults.saturating_add(process.faults);
    sum.stalled_ns = sum.stalled_ns.saturating_add(process.stalled_ns);
    sum.counts = sum.counts.and(&process.counts);
}

impl TreePeaks {
    pub(crate) fn raise(&mut self, now: &TreeReport, used_bytes: u64) {
        let tree = &mut self.tree;
        tree.budget_bytes = now.budget_bytes;
        tree.budget_peak_bytes = tree.budget_peak_bytes.max(now.budget_bytes);
        tree.used_peak_bytes = tree.used_peak_bytes.max(used_bytes);
        tree.processes_peak = tree.processes_peak.max(now.processes.len());
        tree.turns = tree.turns.max(now.turns.taken);
        let mut others = std::mem::take(&mut self.others);
        for process in &now.processes {
            let at = tree.largest.iter().position(|it| it.pid == process.pid);
            let known =
                at.map(|at| tree.largest.remove(at)).or_else(|| others.remove(&process.pid));
            let before = known.unwrap_or_default();
            // After exec a process's counters restart at 0.
            tree.largest.push(Process {
                faults: process.faults.max(before.faults),
                stalled_ns: process.stalled_ns.max(before.stalled_ns),
                counts: process.counts.max_of_each(&before.counts),
                ..process.clone()
            });
        }
        others.values().for_each(|process| add(&mut self.gone, process));
        self.fold_others();
    }

    fn fold_others(&mut self) {
        let tree = &mut self.tree;
        if tree.largest.len() > KEPT {
            tree.largest.sort_by_key(|process| Reverse(process.used_peak_bytes));
            tree.largest[KEPT / 2..].sort_by_key(|process| Reverse(process.stalled_ns));
            let others = tree.largest.split_off(KEPT);
            self.others = others.into_iter().map(|process| (process.pid, process)).collect();
        }
        tree.largest.sort_by_key(|process| Reverse(process.used_peak_bytes));
        tree.left_out = self.gone;
        self.others.values().for_each(|process| add(&mut tree.left_out, process));
        let all = counts_of(tree);
        let of_tier = |tier: Tier| (tier.name().to_string(), all.faults[tier as usize]);
        tree.faults_by_tier = TIERS.map(of_tier).into();
    }

    /// Returns true if the program was the only process of the tree.
    pub(crate) fn is_of_one(&self) -> bool {
        self.tree.largest.iter().all(|process| process.pid == self.program_pid)
    }
}

pub(crate) fn counts_of(tree: &Tree) -> Counts {
    let kept = tree.largest.iter().map(|process| &process.counts);
    kept.fold(tree.left_out.counts, |all, counts| all.and(counts))
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
        assert_eq!((peaks.tree.largest.len(), peaks.tree.left_out), (KEPT, LeftOut::default()));
        let mut all = many(KEPT as u32 + 30);
        all[110] = process(111, 2_000, 0);
        all[120] = process(121, 0, 5_000);
        for _ in 0..3 {
            raise(&mut peaks, all.clone());
            let LeftOut { processes, faults, stalled_ns, .. } = peaks.tree.left_out;
            assert_eq!((processes, faults, stalled_ns), (30, 300, 30));
            assert_eq!(
                (peaks.tree.faults_by_tier["disk"], peaks.tree.faults_by_tier["zero"]),
                (780, 390)
            );
        }
        let kept = |pid| peaks.tree.largest.iter().any(|process| process.pid == pid);
        assert!(kept(111) && kept(121) && peaks.tree.largest[0].pid == 111);
        assert_eq!((peaks.tree.processes_peak, peaks.tree.largest.len()), (130, KEPT));
        raise(&mut peaks, (201..=250).map(|pid| process(pid, 3_000, 2)).collect());
        let LeftOut { processes, faults, .. } = peaks.tree.left_out;
        assert_eq!((processes, faults), (80, 800));
        assert_eq!((peaks.tree.faults_by_tier["pool"], peaks.tree.faults()), (180 * 4, 180 * 10));
        assert_eq!(peaks.tree.largest.iter().filter(|process| process.pid > 200).count(), 50);
    }
}
