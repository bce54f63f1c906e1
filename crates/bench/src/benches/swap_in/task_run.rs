//! One run of the task under the preloaded runtime, as `softswap run` starts a
//! program. Whoever starts it shares its page of counters and looks at them
//! before and after the touching.

use super::task::Took;
use crate::measure::managed_program::{Counters, without_settings};
use crate::measure::task_pipe::{TaskPipe, this_program};
use softswap_cli::refusal::{Refusal, plain};
use softswap_engine::base::stats::{Counter, Stats};
use softswap_engine::door::settings::Config;
use softswap_sys::child::SignalQueue;
use std::path::Path;
use std::process::{Command, Stdio};

/// What one run said.
pub(super) struct TaskRun {
    pub(super) took: Took,
    /// What was counted while the pages were touched, and not before.
    pub(super) stats: Stats,
    pub(super) facts: Facts,
}

/// How the engine reached the swap file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) io_uring: bool,
    pub(super) direct: bool,
    pub(super) device_polling: bool,
}

/// The task's arguments.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    pub(super) pages: usize,
    pub(super) touches: usize,
    pub(super) threads: usize,
    pub(super) seed: u64,
    pub(super) damage: bool,
}

/// Runs the task once, within `config`.
pub(super) fn run(
    task: &Task,
    config: &Config,
    library: &Path,
    signals: &SignalQueue,
) -> Result<TaskRun, Refusal> {
    let counters = Counters::new()?;
    let mut command = command(task)?;
    without_settings(&mut command);
    command.envs(counters.environment(config, library));
    signals.prepare(&mut command, &[counters.fd()]);
    let child = command
        .spawn()
        .map_err(|error| Refusal::own(format!("the task did not start: {}", plain(&error))))?;
    let mut pipe = TaskPipe::with(child)?;

    pipe.expect("filled")?;
    counters.expect_engine()?;
    let before = counters.values();
    pipe.send("touch");
    let took = pipe.receive_json()?;
    let touched = counters.since(&before)?;
    pipe.send("compare");
    pipe.expect("same")?;
    pipe.end()?;
    let is_used = |counter| counters.stats().get(counter) == 1;
    let facts = Facts {
        io_uring: is_used(Counter::UsesIoUring),
        direct: is_used(Counter::UsesDirectIo),
        device_polling: is_used(Counter::UsesDevicePolling),
    };
    Ok(TaskRun { took, stats: touched, facts })
}

fn command(task: &Task) -> Result<Command, Refusal> {
    let mut command = Command::new(this_program()?);
    command.arg("swap-in-task");
    for (name, value) in [
        ("--pages", task.pages as u64),
        ("--touches", task.touches as u64),
        ("--threads", task.threads as u64),
        ("--seed", task.seed),
    ] {
        command.arg(name).arg(value.to_string());
    }
    command.args(task.damage.then_some("--damage"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(command)
}
