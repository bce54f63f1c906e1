//! Runs of the same work under softswap in several setups, in changing order.

use super::super::limits::Limits;
use super::super::pattern_run::{self, Outgrown, RunContext};
use super::super::plan::{Case, Data, Pattern, Side};
use super::super::prepare;
use super::super::program_run::{self, ProgramRun};
use super::super::programs::Ready;
use super::super::ratios::{of_share, of_threads};
use super::super::rounds::{self, Workload};
use super::super::testbed::Testbed;
use crate::measure::sample::rotated;
use softswap_cli::refusal::Refusal;
use softswap_engine::door::settings::Config;

/// What is run.
pub(super) enum Work {
    Pattern {
        pattern: Pattern,
        data: Data,
    },
    /// With what it did as it is.
    Program {
        ready: Ready,
        first: ProgramRun,
    },
}

/// Work with so much of its memory, on so many threads.
pub(super) struct Cell {
    pub(super) work: Work,
    pub(super) share_percent: u32,
    pub(super) threads: u32,
}

impl Cell {
    pub(super) fn name(&self) -> String {
        match &self.work {
            Work::Pattern { pattern, data } => format!("{}_{}", pattern.name(), data.name()),
            Work::Program { ready, .. } => ready.program.name().into(),
        }
    }

    /// What follows in the name of a ratio: nothing for 25 %, nothing for one thread.
    pub(super) fn suffix(&self) -> String {
        of_share(self.share_percent) + &of_threads(self.threads)
    }

    pub(super) fn described(&self) -> String {
        let (name, share, threads) = (self.name(), self.share_percent, self.threads);
        let word = if threads == 1 { "thread" } else { "threads" };
        format!("{name}, {share} %, {threads} {word}")
    }
}

/// A cell, and what each run of it took.
pub(super) struct Timed<'c> {
    pub(super) cell: &'c Cell,
    /// Seconds of a program, or of one touch: of each setup, by rounds. A setup in which a
    /// run failed has fewer.
    pub(super) seconds: Vec<Vec<f64>>,
    /// What the runs were held to, and their groups' peaks.
    held: Vec<(Limits, Option<u64>)>,
    kills: u64,
}

/// What is asked of all cells.
#[derive(Debug, Clone, Copy)]
pub(super) struct Amount {
    pub(super) rounds: usize,
    pub(super) working_set_bytes: u64,
    /// For each phase of a pattern.
    pub(super) phase_seconds: f64,
}

/// Where the runs take place.
pub(super) struct Trials<'t, 'm> {
    pub(super) testbed: &'t mut Testbed,
    pub(super) context: &'t mut RunContext<'m>,
    pub(super) amount: Amount,
}

/// What a run took; why it is no result.
type Ran = Result<f64, String>;

impl Trials<'_, '_> {
    /// All cells of patterns and programs with these shares and numbers of threads.
    pub(super) fn cells(
        &self,
        (patterns, contents): (&[Pattern], &[Data]),
        programs: &[Ready],
        shares: &[u32],
        threads: &[u32],
    ) -> Result<Vec<Cell>, Refusal> {
        let mut cells = Vec::new();
        for &threads in threads {
            for &share_percent in shares {
                for &pattern in patterns {
                    cells.extend(contents.iter().map(|&data| {
                        let work = Work::Pattern { pattern, data };
                        Cell { work, share_percent, threads }
                    }));
                }
            }
            for ready in programs {
                // Who knows of no threads runs once.
                let asked = ready.on_threads(threads);
                let Some(ready) = asked.or_else(|| (threads == 1).then(|| ready.clone())) else {
                    continue;
                };
                let first = program_run::plain_run(&ready, self.context).map_err(|why| {
                    Refusal::own(format!("{} as it is: {why}", ready.program.name()))
                })?;
                cells.extend(shares.iter().map(|&share_percent| {
                    let work = Work::Program { ready: ready.clone(), first };
                    Cell { work, share_percent, threads }
                }));
            }
        }
        Ok(cells)
    }

    /// Runs every cell in every setup, round by round.
    pub(super) fn measure<'c>(
        &mut self,
        cells: &'c [Cell],
        setups: &[(String, Config)],
        notes: &mut Vec<String>,
    ) -> Result<Vec<Timed<'c>>, Refusal> {
        let progress = prepare::progress(cells.len() * setups.len() * self.amount.rounds);
        let timed = |cell| Timed {
            cell,
            seconds: vec![Vec::new(); setups.len()],
            held: Vec::new(),
            kills: 0,
        };
        let mut all: Vec<Timed<'_>> = cells.iter().map(timed).collect();
        for round in 0..self.amount.rounds {
            for timed in &mut all {
                let before = timed.held.clone();
                for at in rotated(setups.len(), round) {
                    let (name, config) = &setups[at];
                    let what = format!("{}, {name}", timed.cell.described());
                    progress.set_message(format!("round {}: {what}", round + 1));
                    progress.inc(1);
                    // What failed once would fail again.
                    if timed.seconds[at].len() < round {
                        continue;
                    }
                    self.context.softswap = config.clone();
                    match self.run(timed, &before, round)? {
                        Ok(seconds) => timed.seconds[at].push(seconds),
                        Err(why) => notes.push(format!("{what}: {why}")),
                    }
                }
            }
        }
        progress.finish_and_clear();
        Ok(all)
    }

    /// One run. All setups of a cell have the same budget in a round: what was seen in the
    /// rounds `before` says what is left beside it.
    fn run(
        &mut self,
        timed: &mut Timed<'_>,
        before: &[(Limits, Option<u64>)],
        round: usize,
    ) -> Result<Ran, Refusal> {
        let Cell { work, share_percent, threads } = timed.cell;
        let whole_bytes = match work {
            Work::Pattern { .. } => self.amount.working_set_bytes,
            Work::Program { first, .. } => first.peak_bytes,
        };
        let limit_bytes = rounds::whole_pages(whole_bytes * u64::from(*share_percent) / 100);
        let before = before.iter().copied();
        let attempts = rounds::attempts(Side::Softswap, limit_bytes, timed.kills, before);
        match work {
            Work::Pattern { pattern, data } => {
                let case = Case {
                    side: Side::Softswap,
                    data: *data,
                    share_percent: *share_percent,
                    beside: None,
                };
                let workload = Workload { pattern: *pattern, threads: *threads };
                self.run_pattern(timed, case, workload, attempts, round)
            }
            Work::Program { ready, first } => self.run_program(timed, ready, first, attempts),
        }
    }

    fn run_pattern(
        &mut self,
        timed: &mut Timed<'_>,
        case: Case,
        workload: Workload,
        attempts: Vec<Limits>,
        round: usize,
    ) -> Result<Ran, Refusal> {
        let Amount { working_set_bytes, phase_seconds, .. } = self.amount;
        let mut why = rounds::KILLED.to_string();
        for limits in attempts {
            let limit_bytes = limits.limit_bytes;
            let phase =
                rounds::phase(phase_seconds, workload, case.share_percent, limit_bytes, round);
            let testbed = &mut *self.testbed;
            match pattern_run::run(
                testbed,
                self.context,
                case,
                working_set_bytes,
                limits,
                &[phase],
            )? {
                Ok(ran) => {
                    let uses = ran.memory_uses.iter();
                    timed.held.extend(uses.map(|room| (room.limits, room.bounds.peak_bytes)));
                    let touches_per_s = ran.took.iter().map(|took| took.touches_per_s());
                    return Ok(Ok(1.0 / touches_per_s.sum::<f64>()));
                }
                Err(Outgrown::Killed(kills)) => timed.kills += kills,
                Err(Outgrown::Passed(refusal)) => why = refusal.to_string(),
            }
        }
        Ok(Err(why))
    }

    fn run_program(
        &mut self,
        timed: &mut Timed<'_>,
        ready: &Ready,
        first: &ProgramRun,
        attempts: Vec<Limits>,
    ) -> Result<Ran, Refusal> {
        let side = Side::Softswap;
        let kills = &mut timed.kills;
        let ran = rounds::limited_run(ready, self.context, self.testbed, side, attempts, kills)?;
        if ran.as_ref().is_ok_and(|ran| ran.digest != first.digest) {
            return Err(Refusal::own(format!(
                "{}: it printed something else than without a limit",
                timed.cell.described()
            )));
        }
        Ok(ran.map(|ran| {
            timed.held.extend(ran.limits.map(|limits| (limits, ran.bounds.peak_bytes)));
            ran.seconds
        }))
    }
}
