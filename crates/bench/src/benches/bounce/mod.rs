//! What the order of the search for bounce buffers is worth, and what a buffer
//! costs.
//!
//! The published comparison is of Linux's swiotlb: one task with 4 KiB requests
//! (small), one with 64 KiB requests (big), four with 4 KiB requests, with the
//! primary pool too small for them, so that the others are searched too.

mod allocators;
mod tasks;
mod cells;
mod outcome;

use crate::measure::machine::{Machine, Usage};
use crate::measure::report::Output;
use crate::measure::sample::rotated;
use cells::{Alone, Cell};
use clap::Args;
use outcome::outcome;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::swapdir;
use softswap_engine::store::io::{Device, FileDevice, IoError};
use softswap_sys::file::SwapFile;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tasks::{MOST_TASKS, PART_BYTES, Storage, Task};

/// Measure bounce buffers: the order in which pools are searched, and the cost
/// of one.
///
/// Tasks send requests through bounce buffers to RAM and to a file, 32 at a time
/// each, with eight pools of which the first is too small. One thing differs:
/// whether a CPU's own area is looked for in every pool first, or every area in
/// the first pool.
#[derive(Args)]
#[command(after_long_help = "\
With --json: {\"schema\": 2, \"bench\": \"bounce\", \"machine\": {...}, \"ratios\": {...}, \"rows\": [{\"workload\",
\"device\", \"order\", \"mib_per_s\", \"areas_visited\", \"contended_per_million\", \"cov\", \"count\"}],
\"alone\": [{\"variant\", \"threads\", \"ns\", \"cov\"}]}. Figures are medians over the rounds.
W_area_first_vs_pool_first is the bandwidth of workload W with one order over that with the other,
W_area_first_vs_itself the same of two runs with the same order (noise); with _device, to the file.
alone has what taking a page and giving it back takes of a processor by threads,
take_mutex_vs_softswap_tN and take_queue_vs_softswap_tN how many times that others take.")]
pub(crate) struct BounceArgs {
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 15,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// How long each combination runs in a round, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=60_000))]
    ms: u32,

    /// Directory for the file that stands for a real device
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(args: &BounceArgs) -> Result<ExitCode, Refusal> {
    let output = Output::open(args.json.as_deref())?;
    output.finish(measure(args))
}

fn measure(args: &BounceArgs) -> Result<outcome::BounceOutcome, Refusal> {
    let memory = |error: std::io::Error| Refusal::own(format!("no memory: {}", plain(&error)));
    let bytes = (MOST_TASKS * PART_BYTES) as u64;
    let dir = swapdir::check("--swap", &args.swap, bytes)?;
    let file = SwapFile::open(&dir.path).map_err(|error| Refusal::usage(error.to_string()))?;
    let device = FileDevice::new(file, false);
    let failed = |error: IoError| Refusal::own(error.to_string());
    device.grow(0, bytes).map_err(failed)?;
    let mut tasks =
        (0..MOST_TASKS as u64).map(Task::new).collect::<Result<Vec<_>, _>>().map_err(memory)?;
    for (number, task) in tasks.iter_mut().enumerate() {
        task.attach(&device);
        task.fill_part(number, &device).map_err(failed)?;
    }
    let areas = std::thread::available_parallelism().map_or(1, usize::from);
    let allocators = allocators::Allocators::new(areas).map_err(memory)?;
    let mut cells = Cell::all();
    let mut alone = Alone::all();
    let usage = Usage::now();
    for round in 0..args.rounds as usize {
        for index in rotated(cells.len(), round) {
            let cell = &mut cells[index];
            let pools = cell.workload.pools(cell.order(), areas).map_err(memory)?;
            let storage = if cell.is_ram { Storage::Ram } else { Storage::Device(&device) };
            let time = Duration::from_millis(u64::from(args.ms));
            let ran = tasks::run(cell.workload, &pools, &storage, &mut tasks, time)
                .map_err(|error| Refusal::own(error.to_string()))?;
            cell.rounds.push(ran);
        }
        for index in rotated(alone.len(), round) {
            let cell = &mut alone[index];
            let times = args.ms * 5_000 / cell.threads as u32;
            cell.rounds.push(allocators.measure(cell.variant, cell.threads, times));
        }
    }
    let machine = Machine::with_device(&dir.path, dir.file_system);
    Ok(outcome(machine, usage.since(), &cells, &alone))
}
