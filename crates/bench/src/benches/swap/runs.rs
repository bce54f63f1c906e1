//! One run of a pattern or a program.

use super::limits::Limits;
use super::plan::{Data, Pattern, RunKind, Side};
use super::programs::{ProgramRun, Ready};
use super::task::{self, Task, TaskTimes};
use super::testbed::{Bounds, Testbed};
use crate::measure::managed_program::{Counters, command, config, managed};
use crate::measure::options::Named;
use softswap_cli::library::{self, own_executable};
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_engine::api::settings::{Config, Faults, MIN_MEMORY_BYTES};
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

const MAX_WARM: f64 = 4.0;
/// Share of hot pages, at least [`MIN_HOT_OF_LIMIT`] of the pages that fit.
const HOT_SHARE: f64 = 0.1;
const MIN_HOT_OF_LIMIT: f64 = 0.3;

#[derive(Clone)]
pub(super) enum Work {
    Pattern { pattern: Pattern, data: Data, threads: u32 },
    Program { ready: Ready, first: ProgramRun, threads: u32 },
}

impl Work {
    pub(super) fn name(&self) -> String {
        match self {
            Work::Pattern { pattern, .. } => pattern.name(),
            Work::Program { ready, .. } => ready.name.clone(),
        }
    }

    pub(super) fn threads(&self) -> u32 {
        match self {
            Work::Pattern { threads, .. } | Work::Program { threads, .. } => *threads,
        }
    }

    pub(super) fn described(&self, run_kind: RunKind) -> String {
        let data = match self {
            Work::Pattern { data, .. } => format!(" of {} data", data.name()),
            Work::Program { .. } => String::new(),
        };
        let word = if self.threads() == 1 { "thread" } else { "threads" };
        let run_kind = run_kind.described();
        format!("{}{data}, {} {word}, {run_kind}", self.name(), self.threads())
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Run {
    /// Time of a program, or of one touch of a pattern.
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) digest: u64,
    pub(super) limits: Option<Limits>,
    pub(super) bounds: Bounds,
}

impl From<ProgramRun> for Run {
    fn from(ran: ProgramRun) -> Run {
        let ProgramRun { seconds, cpu_seconds, digest, .. } = ran;
        let (p50_us, p99_us) = (f64::NAN, f64::NAN);
        Run { seconds, cpu_seconds, digest, p50_us, p99_us, ..Run::default() }
    }
}

impl From<TaskTimes> for Run {
    fn from(took: TaskTimes) -> Run {
        let [seconds, cpu_seconds] =
            [took.seconds, took.cpu_seconds].map(|time| time / took.touches as f64);
        let [p50_us, p99_us] = [0.5, 0.99].map(|share| took.quantile_us(share));
        Run { seconds, cpu_seconds, p50_us, p99_us, ..Run::default() }
    }
}

pub(super) struct Conditions {
    pub(super) run_kind: RunKind,
    pub(super) config: Config,
    pub(super) kills: u64,
}

pub(super) enum Failure {
    Killed(u64),
    OverLimit(String),
    Other(String),
}

pub(super) struct Bench<'b> {
    pub(super) testbed: Testbed,
    pub(super) signals: &'b SignalQueue,
    library: PathBuf,
    sample: PathBuf,
    pub(super) working_set_bytes: u64,
    pub(super) seconds: f64,
    pub(super) damage: bool,
}

impl<'b> Bench<'b> {
    /// Removes unsupported sides, with a note.
    pub(super) fn prepare(
        under: &Path,
        area_bytes: u64,
        sides: &mut Vec<Side>,
        signals: &'b SignalQueue,
        notes: &mut Vec<String>,
    ) -> Result<Bench<'b>, Refusal> {
        let library = library::find()?;
        let testbed = Testbed::prepare(under, area_bytes, sides, notes)?;
        let sample = testbed.dir.join("sample");
        let pages = task::sample(notes).map_err(Refusal::own)?;
        fs::write(&sample, pages.as_flattened()).or_own(sample.display())?;
        let (working_set_bytes, seconds, damage) = (0, 0.0, false);
        Ok(Bench { testbed, signals, library, sample, working_set_bytes, seconds, damage })
    }

    /// Returns the memory to which shares refer.
    pub(super) fn whole_bytes(&self, work: &Work) -> u64 {
        match work {
            Work::Pattern { .. } => self.working_set_bytes,
            Work::Program { first, .. } => first.peak_bytes,
        }
    }

    /// Takes all but the budget, areas and reserve from `asked`.
    fn config(&self, asked: &Config, memory_bytes: u64) -> Config {
        let Config { areas, reserve_bytes, .. } = config(memory_bytes, &self.testbed.dir);
        Config { memory_bytes, areas, reserve_bytes, ..asked.clone() }
    }

    pub(super) fn plain_run(&self, ready: &Ready) -> Result<ProgramRun, String> {
        let counters = Counters::new().map_err(|error| error.to_string())?;
        ready.run(command(&ready.path), self.signals, &counters)
    }

    /// Runs a program under softswap with a budget that everything fits in.
    pub(super) fn unlimited_run(
        &self,
        ready: &Ready,
        asked: &Config,
        peak_bytes: u64,
    ) -> Result<ProgramRun, String> {
        const MORE_BYTES: u64 = 64 << 20;
        let config = self.config(asked, peak_bytes + peak_bytes / 4 + MORE_BYTES);
        let (counters, command) =
            managed(&ready.path, &config, &self.library).map_err(|error| error.to_string())?;
        let ran = ready.run(command, self.signals, &counters)?;
        counters.expect_engine().map_err(|error| error.to_string())?;
        Ok(ran)
    }

    pub(super) fn limited_run(
        &mut self,
        work: &Work,
        conditions: &Conditions,
        limits: Limits,
        round: usize,
    ) -> Result<Result<Run, Failure>, Refusal> {
        let Conditions { run_kind, config: ref asked, .. } = *conditions;
        let (Some(side), share_percent) = (run_kind.side, run_kind.share_percent()) else {
            return Ok(Err(Failure::Other("it has no limit".into())));
        };
        let is_softswap = side.is_softswap();
        if is_softswap && limits.memory_bytes < MIN_MEMORY_BYTES {
            let why = "the limit leaves less than the 8.0 MiB that the engine needs";
            return Ok(Err(Failure::Other(why.into())));
        }
        let task_program = own_executable()?;
        let mut files: Vec<&Path> = vec![&*task_program, &*self.library, &*self.sample];
        if let Work::Program { ready, .. } = work {
            files.extend(ready.path.is_absolute().then_some(&*ready.path));
        }
        let held = self.testbed.enter(side, limits.limit_bytes, &files)?;
        let counters = Counters::new()?;
        let environment = self.environment(side, asked, limits.memory_bytes, &counters);
        let ran = match work {
            Work::Pattern { pattern, data, threads } => {
                let task = self.task(*pattern, *data, *threads, share_percent, limits, round);
                let command = held.command(environment, &task_program);
                let ran = task.run(command, self.signals, &counters, is_softswap);
                ran.map(|(took, _)| Ok(Run::from(took)))
            }
            Work::Program { ready, .. } => {
                let command = held.command(environment, &ready.path);
                Ok(ready.run(command, self.signals, &counters).map(Run::from))
            }
        };
        let bounds = self.testbed.remove_cgroup(held)?;
        if bounds.oom_kills > 0 {
            return Ok(Err(Failure::Killed(bounds.oom_kills)));
        }
        let ran = ran.map_err(|refusal| {
            let what = work.described(run_kind);
            Refusal::new(refusal.status, format!("{what}: {refusal}"))
        })?;
        if let Err(why) = bounds.check(limits.limit_bytes) {
            return Ok(Err(Failure::OverLimit(why)));
        }
        let ran = ran.map_err(Failure::Other);
        Ok(ran.map(|ran| Run { limits: Some(limits), bounds, ..ran }))
    }

    /// Returns the variables that load softswap; none for the kernel's sides.
    fn environment(
        &self,
        side: Side,
        asked: &Config,
        memory_bytes: u64,
        counters: &Counters,
    ) -> Vec<(OsString, OsString)> {
        if !side.is_softswap() {
            return Vec::new();
        }
        let mut config = self.config(asked, memory_bytes);
        if side == Side::Protection {
            config.faults = Faults::Protection;
        }
        counters.environment(&config, &self.library)
    }

    fn task(
        &self,
        pattern: Pattern,
        data: Data,
        threads: u32,
        share_percent: u32,
        limits: Limits,
        round: usize,
    ) -> Task {
        Task {
            pages: self.working_set_bytes as usize / PAGE_SIZE,
            data,
            sample: Some(self.sample.clone()),
            damage: self.damage,
            pattern,
            threads: threads as usize,
            // As many as pages fit, so that the resident set results from this pattern.
            warm_touches: limits.limit_bytes / PAGE_SIZE as u64,
            warm_seconds: self.seconds * MAX_WARM,
            seconds: self.seconds,
            most_touches: u64::MAX,
            hot_share: HOT_SHARE.max(MIN_HOT_OF_LIMIT * f64::from(share_percent) / 100.0),
            // The same touches for every side in a round.
            seed: 1000 * (round as u64 + 1) + 100 * u64::from(threads),
        }
    }
}
