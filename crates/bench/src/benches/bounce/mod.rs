//! What the order of the search for bounce buffers is worth, and what a buffer
//! costs.
//!
//! The published comparison is of Linux's swiotlb: one task with 4 KiB requests
//! (small), one with 64 KiB requests (big), four with 4 KiB requests, with the
//! primary pool too small for them, so that the others are searched too.

mod tasks;

use crate::measure::machine::{Machine, Usage};
use crate::measure::region::on_threads;
use crate::measure::report::{Findings, Output};
use crate::measure::sample::{median, over, rotated, variation};
use clap::Args;
use serde::Serialize;
use serde_json::Map;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::swapdir;
use softswap_engine::store::bounce::{Pools, Shape};
use softswap_engine::store::io::{Device, FileDevice, IoError};
use softswap_sys::file::SwapFile;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tasks::{MOST_TASKS, PART_BYTES, Ran, Storage, Task, WORKLOADS, Workload, bind_to_cpu};

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
\"alone\": [{\"threads\", \"ns\", \"cov\"}]}. Figures are medians over the rounds.
W_area_first_vs_pool_first is the bandwidth of workload W with one order over that with the other,
W_area_first_vs_itself the same of two runs with the same order (noise); with _device, to the file.
alone is the processor time to take a page and give it back, by threads.")]
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

/// The orders, with true if pools are apart. The first one twice: the difference is noise.
const ORDERS: [(&str, bool); 3] =
    [("area_first", false), ("pool_first", true), ("area_first_again", false)];
const THREADS: [usize; 4] = [1, 2, 4, 8];
/// Buffers of the allocator that is measured alone.
const SLOTS: usize = 256;

/// One workload, device and order.
struct Cell {
    workload: Workload,
    is_ram: bool,
    name: &'static str,
    is_apart: bool,
    rounds: Vec<Ran>,
}

impl Cell {
    fn all() -> Vec<Cell> {
        let mut cells = Vec::new();
        for is_ram in [true, false] {
            for workload in WORKLOADS {
                let cell = |(name, is_apart)| Cell {
                    workload,
                    is_ram,
                    name,
                    is_apart,
                    rounds: Vec::new(),
                };
                cells.extend(ORDERS.map(cell));
            }
        }
        cells
    }

    fn of(&self, figure: fn(&Ran) -> f64) -> Vec<f64> {
        self.rounds.iter().map(figure).collect()
    }

    fn row(&self) -> Row {
        let speeds = self.of(|ran| ran.mib_per_s);
        Row {
            workload: self.workload.name,
            device: if self.is_ram { "ram" } else { "file" },
            order: self.name,
            cov: variation(&speeds),
            mib_per_s: median(speeds),
            areas_visited: median(self.of(|ran| ran.areas_visited)),
            contended_per_million: median(self.of(|ran| ran.contended)),
            count: self.rounds.len(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    workload: &'static str,
    device: &'static str,
    order: &'static str,
    mib_per_s: f64,
    areas_visited: f64,
    contended_per_million: f64,
    cov: f64,
    count: usize,
}

#[derive(Debug, Serialize)]
struct Alone {
    threads: usize,
    ns: f64,
    cov: f64,
}

#[derive(Debug, Serialize)]
struct Figures {
    rows: Vec<Row>,
    alone: Vec<Alone>,
}

fn measure(args: &BounceArgs) -> Result<Findings<Figures>, Refusal> {
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
    let slots_per_area = SLOTS / areas.next_power_of_two();
    let shape = Shape { areas, slots_per_area, reserve_slots: 0, extra_bytes: 0 };
    let pools = Pools::new(shape).map_err(memory)?;
    let mut cells = Cell::all();
    let mut alone: [Vec<f64>; THREADS.len()] = Default::default();
    let usage = Usage::now();
    let time = Duration::from_millis(u64::from(args.ms));
    for round in 0..args.rounds as usize {
        for index in rotated(cells.len(), round) {
            let cell = &mut cells[index];
            let pools = cell.workload.pools(cell.is_apart, areas).map_err(memory)?;
            let storage = if cell.is_ram { Storage::Ram } else { Storage::Device(&device) };
            let ran = tasks::run(cell.workload, &pools, &storage, &mut tasks, time);
            cell.rounds.push(ran.map_err(failed)?);
        }
        for index in rotated(THREADS.len(), round) {
            alone[index].push(take_ns(&pools, THREADS[index], args.ms * 5_000));
        }
    }
    let mut ratios = Map::new();
    for triple in cells.chunks_exact(ORDERS.len()) {
        let (name, suffix) =
            (triple[0].workload.name, if triple[0].is_ram { "" } else { "_device" });
        for (other, against) in [(&triple[1], "pool_first"), (&triple[2], "itself")] {
            let ratio = over(&triple[0].of(|ran| ran.mib_per_s), &other.of(|ran| ran.mib_per_s));
            ratios.insert(format!("{name}_area_first_vs_{against}{suffix}"), ratio.into());
        }
    }
    let row =
        |(threads, ns): (usize, Vec<f64>)| Alone { threads, cov: variation(&ns), ns: median(ns) };
    let figures = Figures {
        rows: cells.iter().map(Cell::row).collect(),
        alone: THREADS.into_iter().zip(alone).map(row).collect(),
    };
    let machine = Machine::with_device(&dir.path, dir.file_system);
    Ok(Findings::new("bounce", machine, usage.since(), figures, ratios))
}

/// Returns the processor time to take a page and give it back, in ns.
fn take_ns(pools: &Pools, threads: usize, times: u32) -> f64 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(threads);
    let each = times / threads as u32;
    let (seconds, _) = on_threads(threads, |thread| {
        bind_to_cpu(thread);
        for _ in 0..each {
            std::hint::black_box(pools.take(thread, 1));
        }
    });
    seconds * 1e9 * cpus as f64 / (threads as f64 * f64::from(each))
}
