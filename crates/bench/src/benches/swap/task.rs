//! The measured program, the same on every side. It fills its memory, touches it in the order of a
//! pattern, and compares every page at the end.

use super::page_content::Contents;
use super::plan::{Data, Pattern};
use super::touch::{Latencies, Touches};
use crate::measure::managed_program::Counters;
use crate::measure::region::{Region, WORDS, on_threads};
use crate::measure::task_pipe::{TaskPipe, process_cpu_seconds, receive, send, send_json};
use clap::Args;
use serde::{Deserialize, Serialize};
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_engine::base::stats::Stats;
use softswap_sys::child::SignalQueue;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

// Lines of the protocol between the task and the benchmark.
const FILLED: &str = "filled";
const CONTINUE: &str = "continue";
const SAME: &str = "same";

/// The program that `bench swap` and `bench swap-in` run; for internal use.
#[derive(Args)]
pub(crate) struct TaskArgs {
    task: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) pages: usize,
    pub(crate) data: Data,
    /// File with pages of a program, for compressible and mixed data.
    pub(crate) sample: Option<PathBuf>,
    /// Damages a page before the comparison, which must detect the damage.
    pub(crate) damage: bool,
    pub(crate) pattern: Pattern,
    pub(crate) threads: usize,
    /// Touches of all threads before the measurement, so that its state does not depend on earlier
    /// work.
    pub(crate) warm_touches: u64,
    pub(crate) warm_seconds: f64,
    pub(crate) seconds: f64,
    pub(crate) most_touches: u64,
    pub(crate) hot_share: f64,
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TaskTimes {
    pub(crate) touches: u64,
    pub(crate) seconds: f64,
    /// User and system time of the whole process, reclaim included.
    pub(crate) cpu_seconds: f64,
    pub(crate) latencies: Latencies,
}

impl Task {
    /// Runs the task with `command`. Returns the figures of the touches, and the engine's counters
    /// during them.
    pub(crate) fn run(
        &self,
        command: Command,
        signals: &SignalQueue,
        counters: &Counters,
        has_engine: bool,
    ) -> Result<(TaskTimes, Stats), Refusal> {
        let mut pipe = TaskPipe::start(command, "swap-task", self, signals, &[counters.fd()])?;
        pipe.expect(FILLED)?;
        if has_engine {
            counters.expect_engine()?;
        }
        let before = counters.values();
        pipe.send(CONTINUE);
        let took = pipe.receive_json()?;
        let stats = counters.since(&before)?;
        pipe.send(CONTINUE);
        pipe.expect(SAME)?;
        pipe.wait()?;
        Ok((took, stats))
    }

    fn perform(&self, region: &Region) -> TaskTimes {
        // Sequential threads start at different pages. After warming up they continue at their
        // positions, because pages touched before may still be resident.
        let touches = |thread: usize, touched: u64| Touches {
            pattern: self.pattern,
            hot_share: self.hot_share,
            first: (region.pages() * thread / self.threads) as u64 + touched,
            seed: self.seed + 2 * thread as u64 + u64::from(touched > 0),
        };
        let warm_time = Duration::from_secs_f64(self.warm_seconds);
        let each = self.warm_touches.div_ceil(self.threads as u64);
        let (_, warm) =
            on_threads(0..self.threads, |thread| touches(thread, 0).run(region, warm_time, each));
        let cpu_before = process_cpu_seconds();
        let time = Duration::from_secs_f64(self.seconds);
        let (seconds, touched) = on_threads(0..self.threads, |thread| {
            touches(thread, warm[thread].touches).run(region, time, self.most_touches)
        });
        let cpu_seconds = process_cpu_seconds() - cpu_before;
        let mut latencies = Latencies::new();
        touched.iter().for_each(|thread| latencies.add_all(&thread.latencies));
        let touches = touched.iter().map(|thread| thread.touches).sum();
        TaskTimes { touches, seconds, cpu_seconds, latencies }
    }
}

pub(crate) fn run(args: &TaskArgs) -> Result<ExitCode, Refusal> {
    let task: Task = serde_json::from_str(&args.task).map_err(Refusal::own)?;
    let contents = Contents::load(task.data, task.sample.as_deref()).map_err(Refusal::own)?;
    let region =
        Region::filled(task.pages, &contents).or_own("the task's memory cannot be allocated")?;
    send(FILLED)?;
    receive()?;
    send_json(&task.perform(&region))?;
    receive()?;
    if task.damage {
        region.word(task.pages - 1, WORDS / 2).fetch_xor(1, Relaxed);
    }
    match region.first_wrong(&contents) {
        None => send(SAME).map(|()| ExitCode::SUCCESS),
        Some(page) => Err(Refusal::own(format!(
            "page {page} differs from what was written: data corruption; please report this"
        ))),
    }
}
