//! Measures a program over its budget whose swap file is accessed through the file system, or raw.

use crate::benches::library::task::{Place, StepTimes, Task, step_ratios, step_rows};
use crate::measure::object::{Object, object};
use crate::measure::report::Log;
use crate::measure::sample::{Cell, take_turns};
use crate::measure::task_pipe::signals;
use softswap_cli::refusal::{OrRefuse, Refusal};
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
    take_turns(&mut cells, rounds, |side, round| {
        let mut area = side.path.clone().into_os_string();
        area.push(if side.way == "raw" { ",raw" } else { "" });
        let bytes = BUDGET_BYTES * OVER_BUDGET;
        let mut task = Task::new(Place::Run, bytes, TOUCHES, round, BUDGET_BYTES, PathBuf::new());
        task.threads = side.threads as usize;
        task.run_swapped(&[area], &signals)
    })?;
    for group in cells.chunks(paths.len() * WAYS.len()) {
        let raw = |cell: &&Cell<Side<'_>, StepTimes>| cell.key.way == "raw";
        let fewest = group.iter().filter(raw).min_by_key(|cell| cell.key.extents);
        for pair in group.chunks(WAYS.len()) {
            let Side { extents, threads, .. } = pair[1].key;
            let name = |step: &str| format!("{step}_raw_{extents}_t{threads}");
            step_ratios((&pair[1], &pair[0]), |step| name(step) + "_vs_file", log);
            if let Some(few) = fewest.filter(|few| few.key.extents < extents) {
                let name = |step: &str| format!("{}_vs_{}", name(step), few.key.extents);
                step_ratios((&pair[1], few), name, log);
            }
        }
    }
    let columns = |side: &Side<'_>| {
        let Side { extents, way, threads, .. } = side;
        object! { extents, way, threads }
    };
    Ok(step_rows(&cells, columns))
}
