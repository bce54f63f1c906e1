//! One run of a pattern or of a whole program: on a side within a limit, or as it is.

use super::limits::Limits;
use super::page_content;
use super::plan::{Data, How, Pattern, Side};
use super::programs::Ready;
use super::task::{COMPARE, FILLED, Phase, SAME, Took};
use super::testbed::{Bounds, Testbed};
use crate::measure::managed_program::{Counters, without_settings};
use crate::measure::task_pipe::{TaskPipe, this_program};
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::units;
use softswap_engine::door::settings::{AreaSpec, Config, MIN_MEMORY_BYTES};
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often the peak of a program is read.
const LOOK: Duration = Duration::from_millis(5);
/// What takes longer is no result.
const LONGEST: Duration = Duration::from_secs(900);
/// Of a tick of /proc.
const TICKS_PER_S: f64 = 100.0;
/// Of the time that is measured, the most that may go before it.
const MOST_WARM: f64 = 4.0;
/// Of all pages, those that a hot set has; more where these were less than
/// [`LEAST_HOT_OF_LIMIT`] of what fits.
const HOT_SHARE: f64 = 0.1;
const LEAST_HOT_OF_LIMIT: f64 = 0.3;

/// What is run.
#[derive(Clone)]
pub(super) enum Work {
    Pattern {
        pattern: Pattern,
        data: Data,
        threads: u32,
    },
    /// With its run without a limit.
    Program {
        ready: Ready,
        first: Run,
        threads: u32,
    },
}

impl Work {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Work::Pattern { pattern, .. } => pattern.name(),
            Work::Program { ready, .. } => ready.program.name(),
        }
    }

    pub(super) fn threads(&self) -> u32 {
        match self {
            Work::Pattern { threads, .. } | Work::Program { threads, .. } => *threads,
        }
    }

    pub(super) fn described(&self) -> String {
        let data = match self {
            Work::Pattern { data, .. } => format!(" of {} data", data.name()),
            Work::Program { .. } => String::new(),
        };
        let word = if self.threads() == 1 { "thread" } else { "threads" };
        format!("{}{data}, {} {word}", self.name(), self.threads())
    }
}

/// What a run took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Run {
    /// Of a program, or of one touch of a pattern.
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// Of touches of a pattern.
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Of everything that a program printed.
    pub(super) digest: u64,
    /// The most DRAM of a program without a limit.
    pub(super) peak_bytes: u64,
    pub(super) limits: Option<Limits>,
    pub(super) bounds: Bounds,
}

/// Why a run has no result.
pub(super) enum Failure {
    /// The kernel killed it for outgrowing its group, so often.
    Killed(u64),
    Other(String),
}

/// Where runs take place, and what all of them share.
pub(super) struct Bench<'b> {
    pub(super) testbed: Testbed,
    signals: &'b SignalQueue,
    library: PathBuf,
    sample: PathBuf,
    working_set_bytes: u64,
    phase_seconds: f64,
    pub(super) damage: bool,
}

impl<'b> Bench<'b> {
    /// Prepares `sides` below `under`; those that cannot be had are taken out with a note.
    pub(super) fn prepare(
        under: &Path,
        area_bytes: u64,
        sides: &mut Vec<Side>,
        library: PathBuf,
        signals: &'b SignalQueue,
        (working_set_bytes, phase_seconds): (u64, f64),
        notes: &mut Vec<String>,
    ) -> Result<Bench<'b>, Refusal> {
        let testbed = Testbed::prepare(under, area_bytes, sides, notes)?;
        let sample = testbed.dir.join("sample");
        let pages = page_content::sample(notes).map_err(Refusal::own)?;
        fs::write(&sample, pages.as_flattened())
            .map_err(|error| Refusal::own(format!("{}: {}", sample.display(), plain(&error))))?;
        // So that the first side to load it does not have to account for it.
        fs::read(&library).map_err(|e| Refusal::own(format!("{}: {e}", library.display())))?;
        let damage = false;
        Ok(Bench { testbed, signals, library, sample, working_set_bytes, phase_seconds, damage })
    }

    /// The memory of work, which limits are shares of.
    pub(super) fn whole_bytes(&self, work: &Work) -> u64 {
        match work {
            Work::Pattern { .. } => self.working_set_bytes,
            Work::Program { first, .. } => first.peak_bytes,
        }
    }

    /// softswap as users have it, but for the reserve and what `asked` sets.
    fn config(&self, asked: &Config, memory_bytes: u64) -> Config {
        let areas = vec![AreaSpec::new(&self.testbed.dir)];
        Config { memory_bytes, areas, reserve_bytes: 0, ..asked.clone() }
    }

    /// A program's run without a limit.
    pub(super) fn plain_run(&self, ready: &Ready) -> Result<Run, String> {
        let counters = Counters::new().map_err(|error| error.to_string())?;
        self.program_run(Command::new(&ready.path), ready, &counters)
    }

    /// A program under softswap with a budget that everything fits in.
    pub(super) fn roomy_run(
        &self,
        ready: &Ready,
        asked: &Config,
        peak_bytes: u64,
    ) -> Result<Run, String> {
        /// For the engine itself.
        const MORE_BYTES: u64 = 64 << 20;
        let counters = Counters::new().map_err(|error| error.to_string())?;
        let config = self.config(asked, peak_bytes + peak_bytes / 4 + MORE_BYTES);
        let mut command = Command::new(&ready.path);
        command.envs(counters.environment(&config, &self.library));
        let ran = self.program_run(command, ready, &counters)?;
        counters.expect_engine().map_err(|error| error.to_string())?;
        Ok(ran)
    }

    /// A run on a side, in a group of its limit.
    pub(super) fn limited_run(
        &mut self,
        work: &Work,
        how: How,
        asked: &Config,
        limits: Limits,
        round: usize,
    ) -> Result<Result<Run, Failure>, Refusal> {
        let side = how.side().unwrap_or(Side::Softswap);
        if side == Side::Softswap && limits.memory_bytes < MIN_MEMORY_BYTES {
            let why = "the limit leaves less than the 8.0 MiB that the engine needs";
            return Ok(Err(Failure::Other(why.into())));
        }
        let held = self.testbed.enter(side, limits.limit_bytes)?;
        let counters = Counters::new()?;
        let environment = match side {
            Side::Softswap => {
                counters.environment(&self.config(asked, limits.memory_bytes), &self.library)
            }
            _ => Vec::new(),
        };
        let ran = match work {
            Work::Pattern { pattern, data, threads } => {
                let command = held.command(environment, &this_program()?);
                let phase = self.phase(*pattern, *threads, how, limits.limit_bytes, round);
                let engine = (side == Side::Softswap).then_some(&counters);
                self.pattern_run(command, *data, &phase, &counters, engine).map(Ok)
            }
            Work::Program { ready, .. } => {
                let command = held.command(environment, &ready.path);
                Ok(self.program_run(command, ready, &counters))
            }
        };
        let bounds = self.testbed.leave(held)?;
        if bounds.oom_kills > 0 {
            return Ok(Err(Failure::Killed(bounds.oom_kills)));
        }
        let ran = ran.map_err(|refusal| {
            let what = format!("{}, {}", work.described(), how.described());
            Refusal::new(refusal.status, format!("{what}: {refusal}"))
        })?;
        if let Err(passed) = check(&bounds, limits.limit_bytes) {
            return Ok(Err(Failure::Other(passed.to_string())));
        }
        let in_group = |ran| Run { limits: Some(limits), bounds, ..ran };
        Ok(ran.map(in_group).map_err(Failure::Other))
    }

    fn phase(
        &self,
        pattern: Pattern,
        threads: u32,
        how: How,
        limit_bytes: u64,
        round: usize,
    ) -> Phase {
        let share = f64::from(how.share_percent()) / 100.0;
        Phase {
            pattern,
            threads: threads as usize,
            // As many as pages fit, so that those in memory are of this pattern.
            warm_touches: limit_bytes / PAGE_SIZE as u64,
            warm_seconds: self.phase_seconds * MOST_WARM,
            seconds: self.phase_seconds,
            most_touches: u64::MAX,
            hot_share: HOT_SHARE.max(LEAST_HOT_OF_LIMIT * share),
            // The same touches for every side in a round.
            seed: 1000 * (round as u64 + 1) + 100 * u64::from(threads),
        }
    }

    fn pattern_run(
        &self,
        mut command: Command,
        data: Data,
        phase: &Phase,
        counters: &Counters,
        engine: Option<&Counters>,
    ) -> Result<Run, Refusal> {
        without_settings(&mut command);
        let pages = self.working_set_bytes as usize / PAGE_SIZE;
        command.args(["swap-task", "--pages", &pages.to_string(), "--data", data.name()]);
        command.arg("--sample").arg(&self.sample).args(self.damage.then_some("--damage"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        self.signals.prepare(&mut command, &[counters.fd()]);
        let child = command
            .spawn()
            .map_err(|error| Refusal::own(format!("the task did not start: {}", plain(&error))))?;
        let mut pipe = TaskPipe::with(child)?;
        pipe.expect(FILLED)?;
        engine.map_or(Ok(()), Counters::expect_engine)?;
        pipe.send(&serde_json::to_string(phase).unwrap_or_default());
        let took: Took = pipe.receive_json()?;
        pipe.send(COMPARE);
        pipe.expect(SAME)?;
        pipe.end()?;
        Ok(Run {
            seconds: took.seconds / took.touches as f64,
            cpu_seconds: took.cpu_seconds / took.touches as f64,
            p50_us: took.latencies.quantile_us(0.5),
            p99_us: took.latencies.quantile_us(0.99),
            digest: 0,
            peak_bytes: 0,
            limits: None,
            bounds: Bounds::default(),
        })
    }

    fn program_run(
        &self,
        mut command: Command,
        ready: &Ready,
        counters: &Counters,
    ) -> Result<Run, String> {
        without_settings(&mut command);
        if let Some(input) = &ready.input {
            let read = File::open(input).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
            read.map_err(|error| format!("{}: {}", input.display(), plain(&error)))?;
        }
        command.args(&ready.arguments).env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        self.signals.prepare(&mut command, &[counters.fd()]);
        let (since, cpu_before) = (Instant::now(), children_cpu_seconds());
        let mut child = command.spawn().map_err(|error| plain(&error))?;
        let mut output = child.stdout.take().ok_or("it has no output")?;
        let reader = std::thread::spawn(move || digest_of(&mut output));
        let mut peak_bytes = 0;
        let status = loop {
            peak_bytes = peak_bytes.max(peak_of(child.id()));
            match child.try_wait().map_err(|error| plain(&error))? {
                None if since.elapsed() > LONGEST => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("it took more than {} s", LONGEST.as_secs()));
                }
                None => std::thread::sleep(LOOK),
                Some(status) => break status,
            }
        };
        let seconds = since.elapsed().as_secs_f64();
        let digest = reader.join().map_err(|_| "its output could not be read")?;
        let digest = digest.map_err(|error| plain(&error))?;
        if !status.success() {
            return Err(format!("it failed: {status}"));
        }
        let cpu_seconds = children_cpu_seconds() - cpu_before;
        let (p50_us, p99_us, limits, bounds) = (f64::NAN, f64::NAN, None, Bounds::default());
        Ok(Run { seconds, cpu_seconds, p50_us, p99_us, digest, peak_bytes, limits, bounds })
    }
}

/// Refuses a run whose group held more than its limit, by the kernel's own account.
pub(crate) fn check(bounds: &Bounds, limit_bytes: u64) -> Result<(), Refusal> {
    match bounds.peak_bytes {
        Some(peak) if peak > limit_bytes.next_multiple_of(PAGE_SIZE as u64) => {
            Err(Refusal::own(format!(
                "the control group of {} held {} at its peak",
                units::bytes(limit_bytes),
                units::bytes(peak)
            )))
        }
        _ => Ok(()),
    }
}

fn digest_of(from: &mut impl Read) -> io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    let mut room = vec![0; 1 << 16];
    loop {
        match from.read(&mut room)? {
            0 => return Ok(hasher.finish()),
            count => hasher.write(&room[..count]),
        }
    }
}

/// The most that a process has had in DRAM so far.
fn peak_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Processor time of children of this process that have exited.
fn children_cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may hold anything: cutime cstime.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(13);
    fields.take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_S
}
