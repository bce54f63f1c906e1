//! One run of the task on one side: filled, touched over in a pattern, compared.

use super::latency::Latencies;
use super::limits::Limits;
use super::plan::{Case, Side};
use super::task::{COMPARE, Filled, Phase, SAME, Took};
use super::testbed::{Bounds, Held, Testbed};
use crate::measure::managed_program::{Counters, without_settings};
use crate::measure::task_pipe::TaskPipe;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::units;
use softswap_engine::base::stats::{TIERS, Tier};
use softswap_engine::door::settings::{AreaSpec, Config};
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;

/// What every session is made with.
pub(super) struct RunContext<'a> {
    pub(super) signals: &'a SignalQueue,
    pub(super) library: PathBuf,
    pub(super) sample: PathBuf,
    /// What was asked of its side.
    pub(super) softswap: Config,
    pub(super) damage: bool,
}

/// What a session said, or several.
pub(super) struct PatternRun {
    pub(super) filled: Filled,
    /// In the order of the phases.
    pub(super) took: Vec<Took>,
    /// Faults of all phases by where the page was; of softswap only.
    pub(super) tiers: Vec<(Tier, Latencies)>,
    /// Of each process, in the order of the patterns.
    pub(super) memory_uses: Vec<MemoryUse>,
}

/// What a process was held to, and how it kept to that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MemoryUse {
    pub(super) limits: Limits,
    pub(super) bounds: Bounds,
}

impl MemoryUse {
    /// The same DRAM in all, for softswap.
    pub(super) fn in_all_bytes(&self) -> u64 {
        self.limits.limit_bytes + self.bounds.outside_bytes
    }

    /// What the group held at its peak, and what lay outside.
    pub(super) fn dram_bytes(&self) -> Option<u64> {
        Some(self.bounds.peak_bytes? + self.bounds.outside_bytes)
    }
}

impl PatternRun {
    /// What this and another said together.
    pub(super) fn and(mut self, other: PatternRun) -> PatternRun {
        self.filled.seconds += other.filled.seconds;
        self.took.extend(other.took);
        self.memory_uses.extend(other.memory_uses);
        for (tier, latencies) in other.tiers {
            match self.tiers.iter_mut().find(|(known, _)| *known == tier) {
                Some((_, known)) => known.add_all(&latencies),
                None => self.tiers.push((tier, latencies)),
            }
        }
        self
    }

    /// Seconds to fill the memory once.
    pub(super) fn fill_seconds(&self) -> f64 {
        self.filled.seconds / self.memory_uses.len().max(1) as f64
    }
}

/// How softswap is set up: as users have it, but for the reserve and what was asked for.
pub(super) fn config(context: &RunContext<'_>, memory_bytes: u64, dir: &std::path::Path) -> Config {
    let areas = vec![AreaSpec::new(dir)];
    Config { memory_bytes, areas, reserve_bytes: 0, ..context.softswap.clone() }
}

/// How a run outgrew its limit.
pub(super) enum Outgrown {
    /// The kernel killed it, so often.
    Killed(u64),
    /// It came through, but its group had held more for a moment: the kernel does not
    /// refuse everything.
    Passed(Refusal),
}

/// Runs the task on a side, in a group of its limit, if it keeps to that.
pub(super) fn run(
    testbed: &mut Testbed,
    context: &RunContext<'_>,
    case: Case,
    working_set_bytes: u64,
    limits: Limits,
    phases: &[Phase],
) -> Result<Result<PatternRun, Outgrown>, Refusal> {
    let held = testbed.enter(case.side, limits.limit_bytes)?;
    let config =
        (case.side == Side::Softswap).then(|| config(context, limits.memory_bytes, &testbed.dir));
    let arguments = arguments(case, working_set_bytes, context);
    let said = in_turns(&held, context, config.as_ref(), &arguments, phases);
    let bounds = testbed.leave(held)?;
    if bounds.oom_kills > 0 {
        return Ok(Err(Outgrown::Killed(bounds.oom_kills)));
    }
    let Said { filled, took, tiers } = said?;
    if let Err(passed) = check(&bounds, limits.limit_bytes) {
        return Ok(Err(Outgrown::Passed(passed)));
    }
    Ok(Ok(PatternRun { filled, took, tiers, memory_uses: vec![MemoryUse { limits, bounds }] }))
}

struct Said {
    filled: Filled,
    took: Vec<Took>,
    tiers: Vec<(Tier, Latencies)>,
}

/// `config` is softswap's; without one, softswap has no part in it.
fn in_turns(
    held: &Held,
    context: &RunContext<'_>,
    config: Option<&Config>,
    arguments: &[OsString],
    phases: &[Phase],
) -> Result<Said, Refusal> {
    let counters = Counters::new()?;
    let environment =
        config.map_or(Vec::new(), |config| counters.environment(config, &context.library));
    let mut command = held.command(environment, &this_program()?);
    without_settings(&mut command);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    context.signals.prepare(&mut command, &[counters.fd()]);
    let child = command
        .spawn()
        .map_err(|error| Refusal::own(format!("the task did not start: {}", plain(&error))))?;

    let mut pipe = TaskPipe::with(child)?;
    let filled = pipe.receive_json()?;
    if config.is_some() {
        counters.expect_engine()?;
    }
    let before = counters.values();
    let mut took = Vec::with_capacity(phases.len());
    for phase in phases {
        pipe.send(&serde_json::to_string(phase).unwrap_or_default());
        took.push(pipe.receive_json()?);
    }
    let counted = counters.since(&before)?;
    pipe.send(COMPARE);
    pipe.expect(SAME)?;
    pipe.end()?;
    let tiers = TIERS.iter().map(|tier| (*tier, Latencies::of_counts(counted.fault_counts(*tier))));
    let tiers = tiers.filter(|(_, latencies)| latencies.count() > 0).collect();
    Ok(Said { filled, took, tiers })
}

fn this_program() -> Result<PathBuf, Refusal> {
    std::env::current_exe()
        .map_err(|error| Refusal::own(format!("cannot find softswap itself: {}", plain(&error))))
}

fn arguments(case: Case, working_set_bytes: u64, context: &RunContext<'_>) -> Vec<OsString> {
    let pages = working_set_bytes as usize / PAGE_SIZE;
    let mut all: Vec<OsString> = ["swap-task", "--pages"].map(Into::into).into();
    all.push(pages.to_string().into());
    all.extend(["--data".into(), case.data.name().into(), "--sample".into()]);
    all.push(context.sample.clone().into());
    all.extend(context.damage.then(|| "--damage".into()));
    all
}

/// The kernel itself says whether a side kept to its limit.
pub(super) fn check(bounds: &Bounds, limit_bytes: u64) -> Result<(), Refusal> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_that_outgrew_its_limit_is_not_reported_as_a_result() {
        let bounds = |peak_bytes| Bounds { peak_bytes, ..Bounds::default() };
        assert!(check(&bounds(Some(1 << 20)), 1 << 20).is_ok());
        assert!(check(&bounds(None), 1 << 20).is_ok());
        assert!(check(&bounds(Some(2 << 20)), 1 << 20).is_err());
    }

    #[test]
    fn what_several_processes_said_is_put_together_in_their_order() {
        let ran = |seconds: f64, outside_bytes: u64, tiers: &[(Tier, u64)]| PatternRun {
            filled: Filled { seconds },
            took: Vec::new(),
            tiers: tiers
                .iter()
                .map(|(tier, ns)| {
                    let mut latencies = Latencies::new();
                    latencies.add(*ns);
                    (*tier, latencies)
                })
                .collect(),
            memory_uses: vec![MemoryUse {
                limits: Limits { limit_bytes: 100, memory_bytes: 90 },
                bounds: Bounds {
                    outside_bytes,
                    peak_bytes: Some(100 - outside_bytes),
                    ..Bounds::default()
                },
            }],
        };
        let both = ran(1.0, 30, &[(Tier::Disk, 50_000)]).and(ran(
            3.0,
            20,
            &[(Tier::Pool, 5000), (Tier::Disk, 60_000)],
        ));
        assert_eq!(both.fill_seconds(), 2.0);
        assert_eq!(
            both.memory_uses.iter().map(MemoryUse::in_all_bytes).collect::<Vec<_>>(),
            [130, 120]
        );
        assert_eq!(both.memory_uses.iter().map(MemoryUse::dram_bytes).max(), Some(Some(100)));
        assert_eq!(
            both.memory_uses.iter().map(|room| room.bounds.peak_bytes).max(),
            Some(Some(80))
        );
        let counts = both.tiers.iter().map(|(tier, latencies)| (*tier, latencies.count()));
        assert_eq!(counts.collect::<Vec<_>>(), [(Tier::Disk, 2), (Tier::Pool, 1)]);
    }
}
