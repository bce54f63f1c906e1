//! The rounds: every variant of each piece of work, in rotating order.

use super::limits::Limits;
use super::plan::{RunKind, Side};
use super::programs::{Program, Ready};
use super::runs::{Bench, Failure, Run, Work};
use crate::measure::options::Named;
use crate::measure::sample::{median, ratio_to, rotated};
use indicatif::{ProgressBar, ProgressStyle};
use softswap_cli::refusal::Refusal;
use softswap_cli::{memory_limits, units};
use softswap_engine::api::settings::{Config, MIN_MEMORY_BYTES};
use softswap_sys::PAGE_SIZE;

/// Maximum attempts of a run. The kernel may OOM-kill its own sides although it could reclaim
/// memory, so these are retried. softswap's limit covers all memory that it needs, so a kill is an
/// error. Such a run is retried once, with the budget of the first round, if its own was larger.
const ATTEMPTS: usize = 5;

/// Work under one set of conditions, with its runs by round. After a failure it has fewer runs than
/// rounds.
pub(super) struct Variant {
    pub(super) run_kind: RunKind,
    pub(super) config: Config,
    pub(super) runs: Vec<Run>,
    pub(super) kills: u64,
}

impl Variant {
    pub(super) fn new(run_kind: RunKind, config: &Config) -> Variant {
        Variant { run_kind, config: config.clone(), runs: Vec::new(), kills: 0 }
    }

    pub(super) fn of(&self, figure: fn(&Run) -> f64) -> Vec<f64> {
        self.runs.iter().map(figure).collect()
    }

    pub(super) fn median(&self, figure: fn(&Run) -> f64) -> f64 {
        median(self.of(figure))
    }

    /// Returns the median ratio of a figure to that of `other`.
    pub(super) fn ratio_to(&self, other: &Variant, figure: fn(&Run) -> f64) -> f64 {
        ratio_to(&self.of(figure), &other.of(figure))
    }
}

pub(super) struct Cell {
    pub(super) work: Work,
    pub(super) variants: Vec<Variant>,
}

/// Refuses a size that exceeds available memory, or whose smallest share is too small for the
/// engine.
pub(super) fn check_size(name: &str, bytes: u64, shares: &[u32]) -> Result<(), Refusal> {
    let refuse = |why: String| Refusal::usage(format!("{name} {}: {why}", units::bytes(bytes)));
    let smallest = shares.iter().copied().min().unwrap_or(100);
    if Limits::first(bytes * u64::from(smallest) / 100).memory_bytes < MIN_MEMORY_BYTES {
        return Err(refuse(format!(
            "too small: {smallest} % of it is less than the engine's minimum of {}; give 64M \
             or more",
            units::bytes(MIN_MEMORY_BYTES)
        )));
    }
    // The kernel's compressed pages and the run without a limit need DRAM, too.
    let (available, needed) = (memory_limits::available().bytes, bytes.saturating_mul(2));
    let (shown, is) = (units::bytes(needed), units::bytes(available));
    match available < needed {
        true => Err(refuse(format!(
            "{shown} of memory are needed, but {is} are available; give a smaller size"
        ))),
        false => Ok(()),
    }
}

fn whole_pages(bytes: u64) -> u64 {
    bytes / PAGE_SIZE as u64 * PAGE_SIZE as u64
}

impl Bench<'_> {
    /// Prepares the programs that this machine supports to use `bytes`.
    pub(super) fn ready(
        &self,
        programs: &[Program],
        bytes: u64,
        notes: &mut Vec<String>,
    ) -> Vec<Ready> {
        let mut all = Vec::new();
        for program in programs {
            match program.make_ready(&self.testbed.dir, bytes) {
                Ok(ready) => all.push(ready),
                Err(why) => notes.push(format!("{} was left out: {why}", program.name())),
            }
        }
        all
    }

    /// Runs a program once without a limit, to measure its memory, and returns it as work.
    pub(super) fn program(&self, ready: Ready, threads: u32) -> Result<Work, Refusal> {
        let first = self
            .plain_run(&ready)
            .map_err(|why| Refusal::own(format!("{} without a limit: {why}", ready.name)))?;
        Ok(Work::Program { ready, first, threads })
    }

    /// Runs all cells in `rounds` rounds.
    pub(super) fn run(
        &mut self,
        cells: &mut [Cell],
        rounds: u32,
        notes: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        let runs = cells.iter().map(|cell| cell.variants.len() as u64).sum::<u64>();
        let bar = ProgressBar::new(runs * u64::from(rounds));
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {eta} to go  {msg}") {
            bar.set_style(style);
        }
        for round in 0..rounds as usize {
            for index in rotated(cells.len(), round) {
                let cell = &mut cells[index];
                for at in in_turn(&cell.variants, round) {
                    let what = format!(
                        "{}, {}",
                        cell.work.described(),
                        cell.variants[at].run_kind.described()
                    );
                    bar.set_message(format!("round {}: {what}", round + 1));
                    bar.inc(1);
                    // Skip a variant that has failed: it would fail again.
                    if cell.variants[at].runs.len() < round {
                        continue;
                    }
                    match self.run_one(cell, at, round)? {
                        None => {}
                        Some(Ok(ran)) => cell.variants[at].runs.push(ran),
                        Some(Err(why)) => {
                            notes.push(format!("{what}: {why}; no figures are shown for it"))
                        }
                    }
                }
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Runs a variant once. Returns `None` if its limit depends on a failed run.
    fn run_one(
        &mut self,
        cell: &mut Cell,
        at: usize,
        round: usize,
    ) -> Result<Option<Result<Run, String>>, Refusal> {
        let Variant { run_kind, ref config, .. } = cell.variants[at];
        let ran = match (&cell.work, run_kind) {
            (Work::Program { ready, .. }, RunKind::Plain) => self.plain_run(ready).map(Run::from),
            (Work::Program { ready, first, .. }, RunKind::Unlimited) => {
                self.unlimited_run(ready, config, first.peak_bytes).map(Run::from)
            }
            _ => match self.limit_of(cell, run_kind, round) {
                None => return Ok(None),
                Some(limit_bytes) => self.attempt(cell, at, limit_bytes, round)?,
            },
        };
        match (&cell.work, &ran) {
            (Work::Program { first, .. }, Ok(ran)) if ran.digest != first.digest => {
                let what = format!("{}, {}", cell.work.described(), run_kind.described());
                Err(Refusal::own(format!(
                    "{what}: its output differs from that without a limit; please report this"
                )))
            }
            _ => Ok(Some(ran)),
        }
    }

    fn limit_of(&self, cell: &Cell, run_kind: RunKind, round: usize) -> Option<u64> {
        let share_percent = run_kind.share_percent();
        let Some(side) = run_kind.same_dram_as() else {
            return Some(whole_pages(
                self.whole_bytes(&cell.work) * u64::from(share_percent) / 100,
            ));
        };
        let theirs = RunKind::Limited { side, share_percent, same_dram_as: None };
        let rival = cell.variants.iter().find(|variant| variant.run_kind == theirs)?;
        let ran = rival.runs.get(round)?;
        Some(whole_pages(ran.limits?.limit_bytes + ran.bounds.outside_bytes))
    }

    /// Runs a variant within a limit, and retries it if it is OOM-killed.
    fn attempt(
        &mut self,
        cell: &mut Cell,
        at: usize,
        limit_bytes: u64,
        round: usize,
    ) -> Result<Result<Run, String>, Refusal> {
        let attempts = attempts(cell, at, limit_bytes, round);
        let Cell { work, variants } = cell;
        let variant = &mut variants[at];
        let mut failed = String::new();
        for limits in attempts {
            match self.limited_run(work, variant.run_kind, &variant.config, limits, round)? {
                Ok(ran) => return Ok(Ok(ran)),
                Err(Failure::Killed(kills)) => {
                    variant.kills += kills;
                    failed = format!(
                        "the kernel killed it at the limit of its control group, {} times",
                        variant.kills
                    );
                }
                Err(Failure::Other(why)) if variant.run_kind.is_softswap() => failed = why,
                Err(Failure::Other(why)) => return Ok(Err(why)),
            }
        }
        Ok(Err(failed))
    }
}

/// Returns the order of variants in a round. softswap with a kernel side's DRAM runs right after
/// that side.
fn in_turn(variants: &[Variant], round: usize) -> Vec<usize> {
    let run_kinds: Vec<RunKind> = variants.iter().map(|variant| variant.run_kind).collect();
    let first =
        rotated(run_kinds.len(), round).filter(|at| run_kinds[*at].same_dram_as().is_none());
    let mut order = Vec::new();
    for at in first {
        order.push(at);
        let RunKind::Limited { side, share_percent, .. } = run_kinds[at] else { continue };
        let same =
            RunKind::Limited { side: Side::Softswap, share_percent, same_dram_as: Some(side) };
        order.extend((0..run_kinds.len()).filter(|at| run_kinds[*at] == same));
    }
    order
}

/// Returns the limits of a run and of its retries. The budget depends on the peaks of earlier
/// rounds, and is the same for all variants of the cell with the same kind of run.
fn attempts(cell: &Cell, at: usize, limit_bytes: u64, round: usize) -> Vec<Limits> {
    let first = Limits::first(limit_bytes);
    let run_kind = cell.variants[at].run_kind;
    if !run_kind.is_softswap() {
        return vec![first; ATTEMPTS];
    }
    let alike = || cell.variants.iter().filter(|variant| variant.run_kind == run_kind);
    if alike().any(|variant| variant.kills > 0) {
        return vec![first];
    }
    let runs = alike().flat_map(|variant| variant.runs.iter().take(round));
    let before = runs.filter_map(|ran| Some((ran.limits?, ran.bounds.peak_bytes)));
    let mut limits = vec![Limits::after(limit_bytes, before), first];
    limits.dedup();
    limits
}
