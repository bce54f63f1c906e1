//! One run of the task under the preloaded runtime, as `softswap run` starts a
//! program. Whoever starts it shares its page of counters and looks at them
//! before and after the touching.

use super::task::Took;
use crate::refusal::{Refusal, plain};
use softswap_engine::config::{Config, ENV_PREFIX};
use softswap_engine::stats::{Counter, STATS_WORDS, Stats};
use softswap_sys::child::SignalQueue;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What one run said.
pub(super) struct Ran {
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
    mut config: Config,
    library: &Path,
    signals: &SignalQueue,
) -> Result<Ran, Refusal> {
    let failed =
        |what: &str, error: std::io::Error| Refusal::own(format!("{what}: {}", plain(&error)));
    let (stats_fd, words) = softswap_sys::shared::create(STATS_WORDS)
        .map_err(|error| failed("cannot make the shared page of figures", error))?;
    let stats = Stats::new(words);
    config.stats_fd = Some(stats_fd.as_raw_fd());
    config.supervisor_pid = i32::try_from(std::process::id()).ok();
    let mut command = command(task, &config, library)?;
    signals.prepare(&mut command, stats_fd.as_fd());
    let child = command.spawn().map_err(|error| failed("the task did not start", error))?;
    let mut talk = Talk::with(child)?;

    talk.expect("filled")?;
    if stats.get(Counter::Version) == 0 {
        return Err(Refusal::own("the runtime did not come up in the task; see `softswap doctor`"));
    }
    let before = values(&stats);
    talk.say("touch")?;
    let line = talk.hear()?;
    let touched = since(&before, &stats)?;
    let took = serde_json::from_str(&line)
        .map_err(|_| Refusal::own(format!("the task said {line:?} instead of its times")))?;
    talk.say("compare")?;
    talk.expect("same")?;
    talk.end()?;
    let facts = Facts {
        io_uring: stats.get(Counter::UsesIoUring) == 1,
        direct: stats.get(Counter::UsesDirectIo) == 1,
        device_polling: stats.get(Counter::UsesDevicePolling) == 1,
    };
    Ok(Ran { took, stats: touched, facts })
}

fn command(task: &Task, config: &Config, library: &Path) -> Result<Command, Refusal> {
    let program = std::env::current_exe()
        .map_err(|error| Refusal::own(format!("cannot find softswap itself: {}", plain(&error))))?;
    let mut command = Command::new(program);
    command.args(["bench", "swap-in-task"]);
    for (name, value) in [
        ("--pages", task.pages as u64),
        ("--touches", task.touches as u64),
        ("--threads", task.threads as u64),
        ("--seed", task.seed),
    ] {
        command.arg(name).arg(value.to_string());
    }
    command.args(task.damage.then_some("--damage"));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with(ENV_PREFIX)) {
            command.env_remove(name);
        }
    }
    for (name, value) in config.to_env() {
        command.env(format!("{ENV_PREFIX}{name}"), value);
    }
    let mut preload = OsString::from(library);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    command.env("LD_PRELOAD", preload).stdin(Stdio::piped()).stdout(Stdio::piped());
    Ok(command)
}

/// The task under way. It is ended when this goes.
struct Talk {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Talk {
    fn with(mut child: Child) -> Result<Talk, Refusal> {
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => Ok(Talk { child, to, from: BufReader::new(from) }),
            _ => Err(Refusal::own("the task has no standard streams")),
        }
    }

    fn say(&mut self, line: &str) -> Result<(), Refusal> {
        // A task that has ended says why when it is listened to.
        let _ = writeln!(self.to, "{line}");
        Ok(())
    }

    fn hear(&mut self) -> Result<String, Refusal> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(count) if count > 0 => Ok(line.trim_end().to_string()),
            _ => Err(match self.child.wait() {
                Ok(status) => Refusal::own(format!("the task failed: {status}")),
                Err(error) => Refusal::own(format!("the task failed: {}", plain(&error))),
            }),
        }
    }

    fn expect(&mut self, word: &str) -> Result<(), Refusal> {
        match self.hear()? {
            line if line == word => Ok(()),
            line => Err(Refusal::own(format!("the task said {line:?} instead of {word:?}"))),
        }
    }

    fn end(mut self) -> Result<(), Refusal> {
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Refusal::own(format!("the task failed: {status}"))),
            Err(error) => Err(Refusal::own(format!("the task failed: {}", plain(&error)))),
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // Both fail where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn values(stats: &Stats) -> Vec<u64> {
    stats.words().iter().map(|word| word.load(Relaxed)).collect()
}

/// What was added to each word since `before`; peaks and sizes mean nothing then.
fn since(before: &[u64], stats: &Stats) -> Result<Stats, Refusal> {
    let words = softswap_sys::memory::reserve_u64(before.len())
        .map_err(|error| Refusal::own(format!("no memory: {}", plain(&error))))?;
    let add = |(word, (now, before)): (&AtomicU64, (&AtomicU64, &u64))| {
        word.store(now.load(Relaxed).wrapping_sub(*before), Relaxed);
    };
    words.iter().zip(stats.words().iter().zip(before)).for_each(add);
    Ok(Stats::new(words))
}
