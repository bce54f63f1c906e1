//! Regular checks while the program runs: samples, notes and log entries.

use super::history::Samples;
use super::log::Log;
use super::outside_budget::Watch;
use super::progress::{Progress, Wanted};
use super::release::Space;
use super::tables::Tables;
use super::thrashing::Thrashing;
use super::tree::Tree;
use super::tree_areas::TreeAreas;
use super::unmanaged::{self, Search};
use serde_json::{Value, json};
use softswap_engine::base::stats::Stats;
use softswap_view::report::{OutsideBudget, Unmanaged};
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub(super) struct Supervised<'a> {
    pub(super) stats: Stats,
    /// The program inherits this shared memory.
    pub(super) stats_fd: BorrowedFd<'a>,
    pub(super) space: &'a mut Space,
    /// `None` if each process has its own budget.
    pub(super) tree: Option<&'a mut Tree>,
    pub(super) areas: &'a mut TreeAreas,
    pub(super) samples: &'a mut Samples,
    pub(super) log: Option<&'a mut Log>,
    pub(super) progress: Wanted,
    pub(super) is_quiet: bool,
    /// Search for processes without a budget.
    pub(super) is_all_managed: bool,
    pub(super) largest_budget_bytes: u64,
}

pub(super) struct Found {
    pub(super) outside_budget: Option<OutsideBudget>,
    pub(super) threads_peak: Option<u32>,
    pub(super) unmanaged: Option<Unmanaged>,
}

pub(super) struct Checks<'a> {
    run: Supervised<'a>,
    watch: Watch,
    search: Option<Search>,
    thrashing: Thrashing,
    tables: Tables,
    progress: Progress,
    is_unmanaged_noted: bool,
}

impl<'a> Checks<'a> {
    pub(super) fn new(pid: u32, run: Supervised<'a>) -> Checks<'a> {
        let is_noted = !run.is_quiet || run.log.is_some();
        Checks {
            watch: Watch::new(pid, run.stats),
            search: run.is_all_managed.then(|| Search::new(pid)),
            thrashing: Thrashing::new(pid, run.stats, run.largest_budget_bytes, is_noted),
            tables: Tables::new(run.stats, run.largest_budget_bytes),
            progress: Progress::new(pid, run.stats, run.progress),
            is_unmanaged_noted: false,
            run,
        }
    }

    /// Returns the time until the next checks.
    pub(super) fn poll(&mut self) -> Duration {
        self.watch.poll();
        self.check_budget();
        self.check_unmanaged();
        self.run.space.poll(&self.run.stats);
        if let Some(tree) = &mut self.run.tree {
            tree.poll();
        }
        for news in self.run.areas.poll() {
            self.note(&news);
            self.log("area", json!({ "news": news }));
        }
        self.sample();
        let pause = self.watch.pause();
        self.run.tree.as_ref().map_or(pause, |tree| pause.min(tree.max_interval()))
    }

    fn check_budget(&mut self) {
        let budget_bytes = self.run.tree.as_ref().map(|tree| tree.limit_bytes());
        if let Some(advice) = self.thrashing.poll(budget_bytes) {
            self.note(&advice);
            self.log("thrashing", json!({ "advice": advice }));
        }
        let report = self.run.tree.as_ref().map(|tree| tree.report());
        let sizes = report.iter().flat_map(|report| &report.processes).map(|process| process.sizes);
        if let Some(note) = self.tables.poll(budget_bytes, sizes) {
            self.note(&note);
        }
    }

    fn check_unmanaged(&mut self) {
        let Some(search) = &mut self.search else { return };
        let tree = self.run.tree.as_deref();
        let new = search.poll(&tree.map_or_else(Vec::new, Tree::member_pids));
        if let Some(tree) = tree {
            tree.set_unmanaged(search.now());
        }
        for process in &new {
            if !std::mem::replace(&mut self.is_unmanaged_noted, true) {
                self.note(&unmanaged::note(process));
            }
            self.log("unmanaged", json!({ "process": process }));
        }
    }

    fn sample(&mut self) {
        let Supervised { tree, log, samples, stats, .. } = &mut self.run;
        let report = || tree.as_ref().map(|tree| tree.report());
        self.progress.poll(report);
        if let Some(log) = log {
            log.poll_parked(tree.as_ref().is_some_and(|tree| tree.budget().is_stopped()));
            log.poll(stats, tree.as_ref().map(|tree| tree.limit_bytes()), report);
        }
        samples.poll(stats, report);
    }

    /// Ignores errors: the reader may have closed the pipe.
    fn note(&mut self, text: &str) {
        if !self.run.is_quiet {
            self.progress.end();
            let _ = writeln!(std::io::stderr(), "softswap: note: {text}");
        }
    }

    fn log(&mut self, event: &str, more: Value) {
        if let Some(log) = &mut self.run.log {
            log.write(event, more);
        }
    }

    pub(super) fn end_progress(&mut self) {
        self.progress.end();
    }

    pub(super) fn end(mut self) -> Found {
        self.progress.end();
        Found {
            outside_budget: self.watch.peak(),
            threads_peak: self.watch.threads_peak(),
            unmanaged: self.search.map(Search::end),
        }
    }
}
