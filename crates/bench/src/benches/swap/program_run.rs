//! One run of a whole program: on a side within a limit, or as it is.

use super::limits::Limits;
use super::pattern_run::{RunContext, check, config};
use super::plan::Side;
use super::programs::Ready;
use super::testbed::{Bounds, Testbed};
use crate::measure::managed_program::{Counters, without_settings};
use softswap_cli::refusal::{Refusal, plain};
use softswap_engine::door::settings::MIN_MEMORY_BYTES;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often the peak of a program is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// What takes longer is no result.
const LONGEST: Duration = Duration::from_secs(900);
/// Of a tick of /proc.
const TICKS_PER_S: f64 = 100.0;

/// What a run took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ProgramRun {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// Of everything that it printed.
    pub(super) digest: u64,
    /// The most that it had in DRAM, where it runs as it is.
    pub(super) peak_bytes: u64,
    /// Of its group, where it has one.
    pub(super) limits: Option<Limits>,
    pub(super) bounds: Bounds,
}

/// Runs it as it is.
pub(super) fn plain_run(ready: &Ready, context: &RunContext<'_>) -> Result<ProgramRun, String> {
    let mut command = Command::new(&ready.path);
    without_settings(&mut command);
    let ran = start(command, ready, context, io::stderr().as_fd())?;
    finish(ran)
}

/// Runs it under softswap with a budget that everything fits in.
pub(super) fn roomy_run(
    ready: &Ready,
    context: &RunContext<'_>,
    testbed: &Testbed,
    peak_bytes: u64,
) -> Result<ProgramRun, String> {
    /// For what the engine itself needs.
    const MORE_BYTES: u64 = 64 << 20;
    let counters = Counters::new().map_err(|error| error.to_string())?;
    let config = config(context, peak_bytes + peak_bytes / 4 + MORE_BYTES, &testbed.dir);
    let mut command = Command::new(&ready.path);
    without_settings(&mut command);
    command.envs(counters.environment(&config, &context.library));
    let ran = finish(start(command, ready, context, counters.fd())?)?;
    counters.expect_engine().map_err(|error| error.to_string())?;
    Ok(ran)
}

/// Why a run is no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// By the kernel, so often, for outgrowing its group.
    Killed(u64),
    Other(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure::Other(why)
    }
}

/// Runs it on a side, in a group of its limit.
pub(super) fn limited_run(
    ready: &Ready,
    context: &RunContext<'_>,
    testbed: &mut Testbed,
    side: Side,
    limits: Limits,
) -> Result<Result<ProgramRun, Failure>, Refusal> {
    let Limits { limit_bytes, memory_bytes } = limits;
    if side == Side::Softswap && memory_bytes < MIN_MEMORY_BYTES {
        let why = "the limit leaves less than the 8.0 MiB that the engine needs";
        return Ok(Err(Failure::Other(why.into())));
    }
    let held = testbed.enter(side, limit_bytes)?;
    let counters = Counters::new()?;
    let environment = match side {
        Side::Softswap => {
            counters.environment(&config(context, memory_bytes, &testbed.dir), &context.library)
        }
        _ => Vec::new(),
    };
    let mut command = held.command(environment, &ready.path);
    without_settings(&mut command);
    let started = start(command, ready, context, counters.fd());
    let ran = started.and_then(finish);
    let bounds = testbed.leave(held)?;
    if bounds.oom_kills > 0 {
        return Ok(Err(Failure::Killed(bounds.oom_kills)));
    }
    check(&bounds, limit_bytes)?;
    let in_group = |ran| ProgramRun { limits: Some(limits), bounds, ..ran };
    Ok(ran.map(in_group).map_err(Failure::Other))
}

struct Started {
    child: Child,
    since: Instant,
    cpu_before: f64,
}

fn start(
    mut command: Command,
    ready: &Ready,
    context: &RunContext<'_>,
    keep: std::os::fd::BorrowedFd<'_>,
) -> Result<Started, String> {
    if let Some(input) = &ready.input {
        let read = File::open(input).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
        read.map_err(|error| format!("{}: {}", input.display(), plain(&error)))?;
    }
    command.args(&ready.arguments).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    context.signals.prepare(&mut command, &[keep]);
    let (since, cpu_before) = (Instant::now(), children_cpu_seconds());
    let child = command.spawn().map_err(|error| plain(&error))?;
    Ok(Started { child, since, cpu_before })
}

/// Waits until it has ended.
fn finish(mut started: Started) -> Result<ProgramRun, String> {
    let child = &mut started.child;
    let mut output = child.stdout.take().ok_or("it has no output")?;
    let reader = std::thread::spawn(move || digest_of(&mut output));
    let mut peak_bytes = 0;
    let status = loop {
        peak_bytes = peak_bytes.max(peak_of(child.id()));
        match child.try_wait() {
            Ok(None) if started.since.elapsed() > LONGEST => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it took more than {} s", LONGEST.as_secs()));
            }
            Ok(None) => std::thread::sleep(LOOK),
            Ok(Some(status)) => break status,
            Err(error) => return Err(plain(&error)),
        }
    };
    let seconds = started.since.elapsed().as_secs_f64();
    let digest = reader.join().map_err(|_| "its output could not be read")?;
    let digest = digest.map_err(|error| plain(&error))?;
    if !status.success() {
        return Err(format!("it failed: {status}"));
    }
    let cpu_seconds = children_cpu_seconds() - started.cpu_before;
    let (limits, bounds) = (None, Bounds::default());
    Ok(ProgramRun { seconds, cpu_seconds, digest, peak_bytes, limits, bounds })
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

/// What children of this process that have ended used of the processors.
fn children_cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may hold anything: cutime cstime.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(13);
    fields.take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_S
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_tell_outputs_apart() {
        let digest = |text: &[u8]| digest_of(&mut &text[..]).unwrap();
        assert_eq!(digest(b"abc"), digest(b"abc"));
        assert_ne!(digest(b"abc"), digest(b"abd"));
    }

    #[test]
    fn this_process_has_a_peak() {
        assert!(peak_of(std::process::id()) > 1 << 20);
    }
}
