//! The rounds: every way to run each piece of work, in changing order.

use super::limits::Limits;
use super::plan::{How, Side};
use super::programs::{Program, Ready};
use super::runs::{Bench, Failure, Run, Work};
use crate::measure::sample::{over, rotated};
use indicatif::{ProgressBar, ProgressStyle};
use softswap_cli::refusal::Refusal;
use softswap_cli::{memory_limits, units};
use softswap_engine::door::settings::{Config, MIN_MEMORY_BYTES};
use softswap_sys::PAGE_SIZE;
use std::path::Path;

/// The kernel's sides may be killed for memory that could be had, so they are retried. softswap
/// may not be killed: its limit holds all that it needs. If it had more than in a first run, it
/// is retried with that.
const ATTEMPTS: usize = 5;

/// One way to run work, and what the rounds took. After a failure it has fewer runs.
pub(super) struct Variant {
    pub(super) how: How,
    /// Of softswap's side.
    pub(super) config: Config,
    pub(super) runs: Vec<Run>,
    pub(super) kills: u64,
}

impl Variant {
    pub(super) fn new(how: How, config: Config) -> Variant {
        Variant { how, config, runs: Vec::new(), kills: 0 }
    }

    pub(super) fn of(&self, figure: fn(&Run) -> f64) -> Vec<f64> {
        self.runs.iter().map(figure).collect()
    }

    pub(super) fn seconds(&self) -> Vec<f64> {
        self.of(|ran| ran.seconds)
    }

    /// How many times as long it took, by rounds.
    pub(super) fn over(&self, other: &Variant) -> f64 {
        over(&self.seconds(), &other.seconds())
    }
}

/// A piece of work in all ways.
pub(super) struct Cell {
    pub(super) work: Work,
    pub(super) variants: Vec<Variant>,
}

/// Refuses a size of which some share is too little for the engine, or that is more than
/// there is.
pub(super) fn check_size(name: &str, bytes: u64, shares: &[u32]) -> Result<(), Refusal> {
    let smallest = shares.iter().copied().min().unwrap_or(100);
    if Limits::first(bytes * u64::from(smallest) / 100).memory_bytes < MIN_MEMORY_BYTES {
        return Err(Refusal::usage(format!(
            "{name} {}: too little: within {smallest} % of it the engine needs at least {}; \
             ask for 64M or more",
            units::bytes(bytes),
            units::bytes(MIN_MEMORY_BYTES)
        )));
    }
    // The kernel's packed pages, and the program as it is, take DRAM too.
    let (available_bytes, needed_bytes) =
        (memory_limits::available().bytes, bytes.saturating_mul(2));
    if available_bytes < needed_bytes {
        return Err(Refusal::usage(format!(
            "{name} {}: needs {}, but only {} are available; ask for less",
            units::bytes(bytes),
            units::bytes(needed_bytes),
            units::bytes(available_bytes)
        )));
    }
    Ok(())
}

/// The programs that there are, ready to run.
pub(super) fn ready(
    programs: &[Program],
    dir: &Path,
    bytes: u64,
    notes: &mut Vec<String>,
) -> Vec<Ready> {
    let mut all = Vec::new();
    for program in programs {
        match program.make_ready(dir, bytes) {
            Ok(ready) => all.push(ready),
            Err(why) => notes.push(format!("{} was left out: {why}", program.name())),
        }
    }
    all
}

fn progress(runs: usize) -> ProgressBar {
    let bar = ProgressBar::new(runs as u64);
    let style = ProgressStyle::with_template("{bar:30} {eta} to go  {msg}");
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

fn whole_pages(bytes: u64) -> u64 {
    bytes / PAGE_SIZE as u64 * PAGE_SIZE as u64
}

impl Bench<'_> {
    /// A program as work, with its first run.
    pub(super) fn program(&self, ready: Ready, threads: u32) -> Result<Work, Refusal> {
        let first = self
            .plain_run(&ready)
            .map_err(|why| Refusal::own(format!("{} as it is: {why}", ready.program.name())))?;
        Ok(Work::Program { ready, first, threads })
    }

    /// Runs all cells for so many rounds.
    pub(super) fn run(
        &mut self,
        cells: &mut [Cell],
        rounds: usize,
        notes: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        let bar = progress(cells.iter().map(|cell| cell.variants.len()).sum::<usize>() * rounds);
        for round in 0..rounds {
            for index in rotated(cells.len(), round) {
                let cell = &mut cells[index];
                for at in rotated(cell.variants.len(), round) {
                    let Variant { how, .. } = cell.variants[at];
                    if how.beside().is_some() {
                        continue;
                    }
                    self.turn(cell, at, round, &bar, notes)?;
                    // softswap with the same DRAM goes by this run, right after it.
                    for other in 0..cell.variants.len() {
                        let beside = cell.variants[other].how;
                        if beside.beside().is_some()
                            && beside.beside() == how.side()
                            && beside.share_percent() == how.share_percent()
                        {
                            self.turn(cell, other, round, &bar, notes)?;
                        }
                    }
                }
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn turn(
        &mut self,
        cell: &mut Cell,
        at: usize,
        round: usize,
        bar: &ProgressBar,
        notes: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        let what = format!("{}, {}", cell.work.described(), cell.variants[at].how.described());
        bar.set_message(format!("round {}: {what}", round + 1));
        bar.inc(1);
        // What failed once would fail again.
        if cell.variants[at].runs.len() < round {
            return Ok(());
        }
        let ran = match cell.variants[at].how {
            How::Limited { side, share_percent, beside } => {
                let Some(limit_bytes) = self.limit_of(cell, share_percent, beside, round) else {
                    return Ok(());
                };
                let attempts = attempts(cell, at, side, limit_bytes, round);
                self.attempt(cell, at, attempts, round)?
            }
            how => match &cell.work {
                Work::Pattern { .. } => Err("patterns run within limits only".into()),
                Work::Program { ready, .. } if how == How::Plain => self.plain_run(ready),
                Work::Program { ready, first, .. } => {
                    self.roomy_run(ready, &cell.variants[at].config, first.peak_bytes)
                }
            },
        };
        if let (Work::Program { first, .. }, Ok(ran)) = (&cell.work, &ran)
            && ran.digest != first.digest
        {
            let why = format!("{what}: it printed something else than without a limit");
            return Err(Refusal::own(why));
        }
        match ran {
            Ok(ran) => cell.variants[at].runs.push(ran),
            Err(why) => notes.push(format!("{what}: {why}; it has no figures")),
        }
        Ok(())
    }

    /// The limit of a run. `None` if it goes by a run of another side that there is not.
    fn limit_of(
        &self,
        cell: &Cell,
        share_percent: u32,
        beside: Option<Side>,
        round: usize,
    ) -> Option<u64> {
        let Some(rival) = beside else {
            return Some(whole_pages(
                self.whole_bytes(&cell.work) * u64::from(share_percent) / 100,
            ));
        };
        let theirs = How::Limited { side: rival, share_percent, beside: None };
        let rival = cell.variants.iter().find(|variant| variant.how == theirs)?;
        let ran = rival.runs.get(round)?;
        Some(whole_pages(ran.limits?.limit_bytes + ran.bounds.outside_bytes))
    }

    fn attempt(
        &mut self,
        cell: &mut Cell,
        at: usize,
        attempts: Vec<Limits>,
        round: usize,
    ) -> Result<Result<Run, String>, Refusal> {
        let Cell { work, variants } = cell;
        let variant = &mut variants[at];
        let mut failed = String::new();
        for limits in attempts {
            match self.limited_run(work, variant.how, &variant.config, limits, round)? {
                Ok(ran) => return Ok(Ok(ran)),
                Err(Failure::Killed(kills)) => {
                    variant.kills += kills;
                    failed = format!(
                        "the kernel killed it for outgrowing its control group, {} times",
                        variant.kills
                    );
                }
                Err(Failure::Other(why)) if variant.how.side() == Some(Side::Softswap) => {
                    failed = why
                }
                Err(Failure::Other(why)) => return Ok(Err(why)),
            }
        }
        Ok(Err(failed))
    }
}

/// The limits of a run and of its retries. Budgets go by what was seen in the rounds before; all
/// variants that run in the same way have the same.
fn attempts(cell: &Cell, at: usize, side: Side, limit_bytes: u64, round: usize) -> Vec<Limits> {
    let first = Limits::first(limit_bytes);
    let how = cell.variants[at].how;
    let alike = || cell.variants.iter().filter(|variant| variant.how == how);
    match side {
        Side::Softswap if alike().any(|variant| variant.kills > 0) => vec![first],
        Side::Softswap => {
            let runs = alike().flat_map(|variant| variant.runs.iter().take(round));
            let before = runs.filter_map(|ran| Some((ran.limits?, ran.bounds.peak_bytes)));
            let mut limits = vec![Limits::after(limit_bytes, before), first];
            limits.dedup();
            limits
        }
        _ => vec![first; ATTEMPTS],
    }
}
