//! Programs that swap to a file in extents, through the file system and by its blocks.

use crate::benches::library::task::{self, Place, StepTimes, step_ratios, step_rows};
use crate::measure::machine::Machine;
use crate::measure::options::within;
use crate::measure::report::Log;
use crate::measure::sample::{Cell, Object, object, take_turns};
use crate::measure::task_pipe::signals;
use clap::Args;
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_cli::swapdir;
use softswap_sys::fiemap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Compare a swap file through the file system with the same file by its blocks.
///
/// Programs touch four times their budget of 64 MiB and swap to the file, which is on ext4 or xfs and
/// was written once by `softswap mkswap --raw`. This user must be allowed to open its device.
#[derive(Args)]
#[command(after_long_help = "\
The area is accessed through the file system (file) and by its blocks (raw); the times are those of a
page. fill_raw_N_tT_vs_file is the time of raw over that of the file with N extents and T threads,
fill_raw_N_tT_vs_M that with N extents over that with M.

Examples:
  softswap bench extents --area /mnt/fast/swapfile")]
pub(crate) struct ExtentsArgs {
    /// A formatted swap file; may be repeated
    #[arg(long = "area", value_name = "FILE", required = true)]
    areas: Vec<PathBuf>,

    /// Numbers of threads of the programs
    #[arg(long, value_name = "N,...", default_value = "1,4,8", value_delimiter = ',',
          value_parser = within(1..=64))]
    threads: Vec<u32>,

    /// Rounds, in which the variants take turns
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = within(1..=1000))]
    rounds: u32,
}

pub(super) fn measure(args: &ExtentsArgs) -> Result<Object, Refusal> {
    let folder = args.areas[0].parent().unwrap_or(Path::new("."));
    let dir = swapdir::check("--area", folder, 0)?;
    let mut log = Log::start();
    let areas = measure_areas(args, &mut log)?;
    let figures = object! { rounds: args.rounds, areas };
    Ok(log.findings("extents", Machine::with_dir(&dir), figures))
}

const BUDGET_BYTES: u64 = 64 << 20;
const OVER_BUDGET: u64 = 4;
const TOUCHES: u32 = 20_000;
const WAYS: [&str; 2] = ["file", "raw"];

struct Side<'a> {
    path: &'a PathBuf,
    extents: usize,
    way: &'static str,
    threads: u32,
}

fn measure_areas(args: &ExtentsArgs, log: &mut Log) -> Result<Vec<Object>, Refusal> {
    let signals = signals()?;
    let mut sides = Vec::new();
    for &threads in &args.threads {
        for path in &args.areas {
            let file = File::open(path).or_own(path.display())?;
            let extents = fiemap::extents(file.as_fd()).or_own(path.display())?.len();
            sides.extend(WAYS.map(|way| Side { path, extents, way, threads }));
        }
    }
    let cells = take_turns(sides, args.rounds, |side, round| {
        let mut area = side.path.clone().into_os_string();
        area.push(if side.way == "raw" { ",raw" } else { "" });
        let bytes = BUDGET_BYTES * OVER_BUDGET;
        let dir = PathBuf::new();
        let mut task = task::Task::new(Place::Run, bytes, TOUCHES, round, BUDGET_BYTES, dir);
        task.threads = side.threads as usize;
        task.run_swapped(&[area], &signals)
    })?;
    for group in cells.chunks(args.areas.len() * WAYS.len()) {
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
