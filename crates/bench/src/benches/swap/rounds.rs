//! The rounds: every variant of each piece of work, in rotating order.

use super::limits::Limits;
use super::plan::{RunKind, Side, suffix};
use super::programs::{Program, Ready};
use super::runs::{Bench, Conditions, Failure, Run, Work};
use crate::measure;
use crate::measure::options::{Named, check_memory};
use crate::measure::report::{Log, or_left_out, progress};
use crate::measure::sample::rotated;
use softswap_cli::refusal::Refusal;
use softswap_cli::units;
use softswap_engine::api::settings::{Config, MIN_MEMORY_BYTES};
use softswap_sys::PAGE_SIZE;
use std::collections::BTreeSet;

/// The kernel may OOM-kill its own sides although it could reclaim memory, or exceed their limit,
/// so these are retried. softswap's limit covers all that it needs, so a kill is an error. It is
/// retried once, with the first round's budget, if its own was larger.
const ATTEMPTS: usize = 5;

/// After a failure it has fewer runs than rounds.
pub(super) type Variant = measure::sample::Cell<Conditions, Run>;

pub(super) fn variant(run_kind: RunKind, config: &Config) -> Variant {
    Variant::new(Conditions { run_kind, config: config.clone(), kills: 0 })
}

pub(super) struct Cell {
    pub(super) work: Work,
    pub(super) variants: Vec<Variant>,
}

impl Cell {
    pub(super) fn new(work: Work, run_kinds: &[RunKind]) -> Cell {
        let default = |run_kind: &RunKind| variant(*run_kind, &Config::default());
        Cell { work, variants: run_kinds.iter().map(default).collect() }
    }
}

/// Refuses more than available memory, or a smallest share that is too small for the engine.
pub(super) fn check_size(name: &str, bytes: u64, shares: &[u32]) -> Result<(), Refusal> {
    let smallest = shares.iter().copied().min().unwrap_or(100);
    if Limits::first(bytes * u64::from(smallest) / 100).memory_bytes < MIN_MEMORY_BYTES {
        let [bytes, minimum] = [bytes, MIN_MEMORY_BYTES].map(units::bytes);
        return Err(Refusal::usage(format!(
            "{name} {bytes}: too small: {smallest} % of it is less than the engine's minimum of \
             {minimum}; give 64M or more"
        )));
    }
    // The kernel's compressed pages and the run without a limit need DRAM, too.
    check_memory(format_args!("{name} {}", units::bytes(bytes)), bytes.saturating_mul(2))
}

fn whole_pages(bytes: u64) -> u64 {
    bytes / PAGE_SIZE as u64 * PAGE_SIZE as u64
}

impl Bench<'_> {
    pub(super) fn ready(
        &self,
        programs: &[Program],
        bytes: u64,
        notes: &mut Vec<String>,
    ) -> Vec<Ready> {
        let ready = |program: &Program| {
            or_left_out(program.make_ready(&self.testbed.dir, bytes), &program.name(), notes)
        };
        programs.iter().filter_map(ready).collect()
    }

    /// Runs a program once without a limit, to measure its memory.
    pub(super) fn program(&self, ready: Ready, threads: u32) -> Result<Work, Refusal> {
        let first = self
            .plain_run(&ready)
            .map_err(|why| Refusal::own(format!("{} without a limit: {why}", ready.name)))?;
        Ok(Work::Program { ready, first, threads })
    }

    pub(super) fn run(
        &mut self,
        cells: &mut [Cell],
        rounds: u32,
        notes: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        let runs = cells.iter().map(|cell| cell.variants.len() as u64).sum::<u64>();
        let bar = progress(runs * u64::from(rounds), "{bar:30} {eta} to go  {msg}");
        for round in 0..rounds as usize {
            for index in rotated(cells.len(), round) {
                let cell = &mut cells[index];
                for at in in_turn(&cell.variants, round) {
                    let what = cell.work.described(cell.variants[at].key.run_kind);
                    bar.set_message(format!("round {}: {what}", round + 1));
                    bar.inc(1);
                    if cell.variants[at].rounds.len() < round {
                        continue;
                    }
                    match self.run_one(cell, at, round)? {
                        None => {}
                        Some(Ok(ran)) => cell.variants[at].rounds.push(ran),
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

    /// Returns `None` if the limit depends on a failed run.
    fn run_one(
        &mut self,
        cell: &mut Cell,
        at: usize,
        round: usize,
    ) -> Result<Option<Result<Run, String>>, Refusal> {
        let Conditions { run_kind, ref config, .. } = cell.variants[at].key;
        let ran = match (&cell.work, run_kind) {
            (Work::Program { ready, .. }, RunKind::PLAIN) => self.plain_run(ready).map(Run::from),
            (Work::Program { ready, first, .. }, RunKind::UNLIMITED) => {
                self.unlimited_run(ready, config, first.peak_bytes).map(Run::from)
            }
            _ => match self.limit_of(cell, run_kind, round) {
                None => return Ok(None),
                Some(limit_bytes) => self.attempt(cell, at, limit_bytes, round)?,
            },
        };
        match (&cell.work, &ran) {
            (Work::Program { first, .. }, Ok(ran)) if ran.digest != first.digest => {
                let what = cell.work.described(run_kind);
                Err(Refusal::own(format!(
                    "{what}: its output differs from that without a limit; please report this"
                )))
            }
            _ => Ok(Some(ran)),
        }
    }

    fn limit_of(&self, cell: &Cell, run_kind: RunKind, round: usize) -> Option<u64> {
        let share_percent = run_kind.share_percent();
        let Some(side) = run_kind.same_dram_as else {
            return Some(whole_pages(
                self.whole_bytes(&cell.work) * u64::from(share_percent) / 100,
            ));
        };
        let theirs = RunKind::limited(side, share_percent, None);
        let rival = cell.variants.iter().find(|variant| variant.key.run_kind == theirs)?;
        let ran = rival.rounds.get(round)?;
        Some(whole_pages(ran.limits?.limit_bytes + ran.bounds.outside_bytes))
    }

    /// Retries after an OOM kill or an exceeded limit.
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
            match self.limited_run(work, &variant.key, limits, round)? {
                Ok(ran) => return Ok(Ok(ran)),
                Err(Failure::Killed(kills)) => {
                    variant.key.kills += kills;
                    failed = format!(
                        "the kernel killed it at the limit of its control group, {} times",
                        variant.key.kills
                    );
                }
                Err(Failure::OverLimit(why)) => failed = why,
                Err(Failure::Other(why)) if variant.key.run_kind.is_softswap() => failed = why,
                Err(Failure::Other(why)) => return Ok(Err(why)),
            }
        }
        Ok(Err(failed))
    }
}

/// softswap with a kernel side's DRAM runs right after that side.
fn in_turn(variants: &[Variant], round: usize) -> Vec<usize> {
    let run_kinds: Vec<RunKind> = variants.iter().map(|variant| variant.key.run_kind).collect();
    let first = rotated(run_kinds.len(), round).filter(|at| run_kinds[*at].same_dram_as.is_none());
    let mut order = Vec::new();
    for at in first {
        order.push(at);
        let RunKind { side: Some(side), limit_percent: Some(percent), .. } = run_kinds[at] else {
            continue;
        };
        let same = RunKind::limited(Side::Softswap, percent, Some(side));
        order.extend((0..run_kinds.len()).filter(|at| run_kinds[*at] == same));
    }
    order
}

/// Returns the limits of a run and of its retries. Variants with the same kind of run get the same
/// budget, by earlier peaks.
fn attempts(cell: &Cell, at: usize, limit_bytes: u64, round: usize) -> Vec<Limits> {
    let first = Limits::first(limit_bytes);
    let run_kind = cell.variants[at].key.run_kind;
    if !run_kind.is_softswap() {
        return vec![first; ATTEMPTS];
    }
    let alike = || cell.variants.iter().filter(|variant| variant.key.run_kind == run_kind);
    if alike().any(|variant| variant.key.kills > 0) {
        return vec![first];
    }
    let runs = alike().flat_map(|variant| variant.rounds.iter().take(round));
    let before = runs.filter_map(|ran| Some((ran.limits?, ran.bounds.peak_bytes)));
    let mut limits = vec![Limits::after(limit_bytes, before), first];
    limits.dedup();
    limits
}

fn seconds(ran: &Run) -> f64 {
    ran.seconds
}

/// Compares no variants that failed in a round.
pub(super) fn add_ratios(cells: &[Cell], rounds: usize, log: &mut Log) {
    for cell in cells {
        let complete = || cell.variants.iter().filter(|variant| variant.rounds.len() == rounds);
        let find = |run_kind: RunKind| complete().find(|variant| variant.key.run_kind == run_kind);
        let shares = cell.variants.iter().map(|variant| variant.key.run_kind.share_percent());
        for share_percent in shares.collect::<BTreeSet<_>>() {
            let on = |side, same| find(RunKind::limited(side, share_percent, same));
            between_sides(cell, share_percent, on, log);
        }
        let Some(plain) = find(RunKind::PLAIN) else { continue };
        for variant in complete().filter(|variant| variant.key.run_kind != RunKind::PLAIN) {
            let as_side =
                variant.key.run_kind.same_dram_as.map(|side| format!("_as_{}", side.name()));
            let side = variant.key.run_kind.name() + &as_side.unwrap_or_default();
            let end =
                format!("{side}_vs_in_memory{}", suffix(variant.key.run_kind.share_percent(), 1));
            let name = cell.work.name();
            log.ratio(format!("{name}_{end}"), variant.ratio_to(plain, seconds));
            let cpu = variant.ratio_to(plain, |ran| ran.cpu_seconds);
            log.ratio(format!("{name}_cpu_{end}"), cpu);
        }
    }
}

fn between_sides<'c>(
    cell: &Cell,
    share_percent: u32,
    on: impl Fn(Side, Option<Side>) -> Option<&'c Variant>,
    log: &mut Log,
) {
    let (name, suffix) = (cell.work.name(), suffix(share_percent, cell.work.threads()));
    let is_pattern = matches!(cell.work, Work::Pattern { .. });
    for rival in Side::RIVALS {
        for same_dram_as in [None, Some(rival)] {
            let (ours, theirs) = (on(Side::Softswap, same_dram_as), on(rival, None));
            let (Some(ours), Some(theirs)) = (ours, theirs) else { continue };
            // Patterns are compared by rate, programs by time.
            let (one, other) = if is_pattern { (theirs, ours) } else { (ours, theirs) };
            let key = format!("{name}_{}_vs_{}{suffix}", ours.key.run_kind.name(), rival.name());
            log.ratio(key, one.ratio_to(other, seconds));
        }
    }
    let theirs = Side::KERNEL.into_iter().filter_map(|rival| on(rival, None));
    let best = theirs.min_by(|a, b| a.median(seconds).total_cmp(&b.median(seconds)));
    if let (false, Some(ours), Some(best)) = (is_pattern, on(Side::Softswap, None), best) {
        log.ratio(format!("{name}_softswap_vs_best_kernel{suffix}"), ours.ratio_to(best, seconds));
    }
}
