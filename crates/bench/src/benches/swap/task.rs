//! The program that is measured: the same one on every side. It fills its
//! memory, walks over it as it is told, and compares every page at the end.

use super::latency::Latencies;
use super::page_content::Contents;
use super::plan::{Data, Pattern};
use super::touch::Touches;
use crate::measure::region::{Region, WORDS, on_threads};
use crate::measure::task_pipe::{process_cpu_seconds, receive, send, send_json};
use clap::Args;
use serde::{Deserialize, Serialize};
use softswap_cli::refusal::{Refusal, plain};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Said instead of a phase, it asks for the comparison.
pub(crate) const COMPARE: &str = "compare";
/// Sent once the memory is filled.
pub(crate) const FILLED: &str = "filled";
pub(crate) const SAME: &str = "same";

/// The program that `bench swap` runs; of no use by itself.
#[derive(Args)]
pub(crate) struct TaskArgs {
    #[arg(long)]
    pages: usize,
    #[arg(long)]
    data: Data,
    /// For data that is not incompressible.
    #[arg(long)]
    sample: Option<PathBuf>,
    /// Damages a page before the comparison, which must notice.
    #[arg(long)]
    damage: bool,
}

/// What the task is told to do next.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Phase {
    pub(crate) pattern: Pattern,
    pub(crate) threads: usize,
    /// Touches that are not counted, so that what came before does not case.
    pub(crate) warm_touches: u64,
    /// They may take so long.
    pub(crate) warm_seconds: f64,
    pub(crate) seconds: f64,
    /// Of each thread.
    pub(crate) most_touches: u64,
    pub(crate) hot_share: f64,
    pub(crate) seed: u64,
}

/// What a phase took.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Took {
    pub(crate) touches: u64,
    pub(crate) seconds: f64,
    /// User and system time of the whole process, reclaim included.
    pub(crate) cpu_seconds: f64,
    pub(crate) latencies: Latencies,
}

pub(crate) fn run(args: &TaskArgs) -> Result<ExitCode, Refusal> {
    let contents = Contents::load(args.data, args.sample.as_deref()).map_err(Refusal::own)?;
    let region = Region::filled(args.pages, &contents)
        .map_err(|error| Refusal::own(format!("no memory: {}", plain(&error))))?;
    send(FILLED)?;
    loop {
        let line = receive()?;
        if line == COMPARE {
            break;
        }
        let phase: Phase = serde_json::from_str(&line)
            .map_err(|error| Refusal::own(format!("the task was told {line:?}: {error}")))?;
        send_json(&perform(&phase, &region))?;
    }
    if args.damage {
        region.word(args.pages - 1, WORDS / 2).fetch_xor(1, Relaxed);
    }
    match region.first_wrong(&contents) {
        None => send(SAME).map(|()| ExitCode::SUCCESS),
        Some(page) => Err(Refusal::own(format!("page {page} does not hold what was written"))),
    }
}

fn perform(phase: &Phase, region: &Region) -> Took {
    // Who goes from page to page begins at a place of its own, and goes on from
    // where it was: what was touched last is still there, and is not what is asked.
    let walk = |thread: usize, touched: u64| Touches {
        pattern: phase.pattern,
        hot_share: phase.hot_share,
        first: (region.pages() * thread / phase.threads) as u64 + touched,
        seed: phase.seed + 2 * thread as u64 + u64::from(touched > 0),
    };
    let warm_time = Duration::from_secs_f64(phase.warm_seconds);
    let each = phase.warm_touches.div_ceil(phase.threads as u64);
    let (_, warm) = on_threads(phase.threads, |thread| walk(thread, 0).go(region, warm_time, each));
    let cpu_before = process_cpu_seconds();
    let time = Duration::from_secs_f64(phase.seconds);
    let (seconds, touched) = on_threads(phase.threads, |thread| {
        walk(thread, warm[thread].touches).go(region, time, phase.most_touches)
    });
    let cpu_seconds = process_cpu_seconds() - cpu_before;
    let mut latencies = Latencies::new();
    touched.iter().for_each(|thread| latencies.add_all(&thread.latencies));
    let touches = touched.iter().map(|thread| thread.touches).sum();
    Took { touches, seconds, cpu_seconds, latencies }
}
