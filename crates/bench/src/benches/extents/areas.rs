//! Measures a program over its budget whose swap file is accessed through the file system, or raw.

use crate::benches::library::task::{Place, STEPS, StepTimes, Task};
use crate::measure::managed_program::softswap_run;
use crate::measure::object::{Object, object};
use crate::measure::report::Log;
use crate::measure::sample::{Cell, take_turns};
use crate::measure::task_pipe::signals;
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_sys::child::SignalQueue;
use softswap_sys::fiemap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

const BUDGET_BYTES: u64 = 64 << 20;
const OVER_BUDGET: u64 = 4;
/// Touches of each random step, over all threads.
const TOUCHES: u32 = 20_000;
/// Access through the file system, and raw access through the device.
const WAYS: [&str; 2] = ["file", "raw"];

struct Side<'a> {
    path: &'a PathBuf,
    extents: usize,
    way: &'static str,
    threads: u32,
}

impl Side<'_> {
    fn run(&self, round: usize, signals: &SignalQueue) -> Result<StepTimes, Refusal> {
        let mut area = self.path.clone().into_os_string();
        if self.way == "raw" {
            area.push(",raw");
        }
        let mut command = softswap_run()?;
        command.arg("--swap").arg(area);
        let bytes = BUDGET_BYTES * OVER_BUDGET;
        let task = Task::new(Place::Run, bytes, TOUCHES, round, BUDGET_BYTES, PathBuf::new());
        task.with_threads(self.threads).run_swapped(command, signals)
    }

    fn step(&self, step: &str) -> String {
        format!("{step}_{}_{}_t{}", self.way, self.extents, self.threads)
    }
}

/// Measures all areas in both ways with each number of threads. The ratios compare times.
pub(super) fn measure(
    paths: &[PathBuf],
    threads: &[u32],
    rounds: u32,
    log: &mut Log,
) -> Result<Vec<Object>, Refusal> {
    let signals = signals()?;
    let mut cells = Vec::new();
    for &threads in threads {
        for path in paths {
            let file = File::open(path).or_own(path.display())?;
            let extents = fiemap::extents(file.as_fd()).or_own(path.display())?.len();
            cells.extend(WAYS.map(|way| Cell::new(Side { path, extents, way, threads })));
        }
    }
    take_turns(&mut cells, rounds, |side, round| side.run(round, &signals))?;
    let mut rows = Vec::new();
    for group in cells.chunks(paths.len() * WAYS.len()) {
        let raw = |cell: &&Cell<Side<'_>, StepTimes>| cell.key.way == "raw";
        let fewest = group.iter().filter(raw).min_by_key(|cell| cell.key.extents);
        for pair in group.chunks(WAYS.len()) {
            for (at, step) in STEPS.into_iter().enumerate() {
                let ns = |times: &StepTimes| times[at];
                let name = pair[1].key.step(step);
                log.ratio(format!("{name}_vs_file"), pair[1].ratio_to(&pair[0], ns));
                if let Some(few) = fewest.filter(|few| few.key.extents < pair[1].key.extents) {
                    let ratio = pair[1].ratio_to(few, ns);
                    log.ratio(format!("{name}_vs_{}", few.key.extents), ratio);
                }
            }
        }
        for cell in group {
            let Side { extents, way, threads, .. } = cell.key;
            for (at, step) in STEPS.into_iter().enumerate() {
                let ns = |times: &StepTimes| times[at];
                let (ns, cov) = (cell.median(ns), cell.cov(ns));
                rows.push(object! { extents, way, threads, step, ns, cov });
            }
        }
    }
    Ok(rows)
}
