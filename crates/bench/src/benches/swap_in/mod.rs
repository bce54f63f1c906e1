//! What a program that touches random pages of four times its budget gains by
//! how its swap-ins are waited for.
//!
//! The whole path, as users have it: a program of its own with the runtime
//! preloaded, faults by SIGBUS, background reclaim, writes to disk. The ways of
//! waiting take turns, a fresh program each time.

mod child;
mod outcome;
pub(super) mod task;

use crate::measure::machine::{Machine, Usage};
use crate::measure::report::Target as Output;
use crate::measure::sample::rotated;
use child::{Ran, Task};
use clap::Args;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::units::parse_size;
use softswap_cli::{library, machine as memory, swapdir, units};
use softswap_engine::door::config::{AreaSpec, Config, MIN_MEMORY_BYTES};
use softswap_engine::store::io::poll::mode::Mode;
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use std::path::PathBuf;
use std::process::ExitCode;

/// The region over the budget, when no size is asked for.
const REGION_OVER_BUDGET: u64 = 4;
/// Threads that one fault context each could not serve.
const MOST_THREADS: u32 = 64;

/// Measure a program that swaps, by how its swap-ins are waited for.
///
/// The program writes one word at a time to random pages of a region that
/// cannot be compressed, and compares every page at the end. Only the touching
/// is timed. Faults are those of pages that were on disk, by the engine's own
/// account; they include what else a fault does.
#[derive(Args)]
#[command(after_long_help = "\
With --json: {\"schema\": 1, \"bench\": \"swap-in\", \"machine\": {...}, ratios, \"rows\": [{\"variant\",
\"mode\", \"threads\", \"seconds\", \"cpu_seconds\", \"fault_p50_us\", \"fault_p99_us\", \"faults\",
\"considered\", \"polled\", \"hit\", \"slept\", \"overslept\", \"polled_share\", \"hit_share\",
\"direct_reclaims\", \"pages_written\", \"cov\", \"count\"}]}. Times are medians over the rounds, the
other counts are of all rounds together. swapin_interrupt_vs_MODE_tN is the time by interrupt over
the time by MODE with N threads, the median over the rounds; swapin_cpu_MODE_vs_interrupt_tN the CPU
seconds of MODE over those by interrupt. Faults'
latencies come from a histogram of four steps to the octave.")]
pub(crate) struct SwapInArgs {
    /// The DRAM budget
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = parse_size)]
    memory: u64,

    /// How much the program touches [default: four times the budget]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    region: Option<u64>,

    /// Touches in a run, all threads together
    #[arg(long, value_name = "N", default_value_t = 40_000,
          value_parser = clap::value_parser!(u32).range(100..))]
    touches: u32,

    /// Numbers of threads to try
    #[arg(long, value_name = "N,...", default_value = "1,8", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_THREADS)))]
    threads: Vec<u32>,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// The directory for the swap files
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Damage a page, which must be noticed; for tests
    #[arg(long, hide = true)]
    damage: bool,
}

pub(super) fn run(args: &SwapInArgs) -> Result<ExitCode, Refusal> {
    let region_bytes = args.region.unwrap_or(args.memory.saturating_mul(REGION_OVER_BUDGET));
    check(args, region_bytes)?;
    // Pages that come back are written anew, which may spread them.
    let dir = swapdir::check("--swap", &args.swap, region_bytes.saturating_mul(2))?;
    let library = library::find()?;
    let output = Output::open(args.json.as_deref())?;
    let config = Config {
        memory_bytes: args.memory,
        areas: vec![AreaSpec::new(&dir.path)],
        reserve_bytes: 0,
        ..Config::default()
    };
    let usage = Usage::now();
    let measured = measure(args, region_bytes, &config, &library);
    match measured {
        Ok(cells) => {
            let machine = Machine::with_device(&dir.path, dir.file_system);
            let outcome =
                outcome::SwapInOutcome::new(&cells, args, region_bytes, machine, usage.since());
            output.write(&outcome).map(|()| ExitCode::SUCCESS)
        }
        Err(refusal) => {
            output.abandon();
            Err(refusal)
        }
    }
}

fn check(args: &SwapInArgs, region_bytes: u64) -> Result<(), Refusal> {
    if args.memory < MIN_MEMORY_BYTES {
        return Err(Refusal::usage(format!(
            "--memory {}: too little: the engine needs at least {} of DRAM",
            units::bytes(args.memory),
            units::bytes(MIN_MEMORY_BYTES)
        )));
    }
    if region_bytes <= args.memory {
        return Err(Refusal::usage(format!(
            "--region {}: fits in the budget of {}, so nothing would be swapped; ask for more",
            units::bytes(region_bytes),
            units::bytes(args.memory)
        )));
    }
    let available_bytes = memory::available().bytes;
    if available_bytes < args.memory {
        return Err(Refusal::usage(format!(
            "--memory {}: only {} are available; ask for less",
            units::bytes(args.memory),
            units::bytes(available_bytes)
        )));
    }
    Ok(())
}

/// One way of waiting with one number of threads, over all rounds.
struct Cell {
    mode: Mode,
    threads: u32,
    runs: Vec<Ran>,
}

fn measure(
    args: &SwapInArgs,
    region_bytes: u64,
    config: &Config,
    library: &std::path::Path,
) -> Result<Vec<Cell>, Refusal> {
    let signals = SignalQueue::hold(&[])
        .map_err(|error| Refusal::own(format!("cannot hold signals: {}", plain(&error))))?;
    let cell = |threads: &u32, mode| Cell { mode, threads: *threads, runs: Vec::new() };
    let with_modes = |threads| Mode::ALL.into_iter().map(move |mode| cell(threads, mode));
    let mut cells: Vec<Cell> = args.threads.iter().flat_map(with_modes).collect();
    for round in 0..args.rounds as usize {
        for index in rotated(cells.len(), round) {
            let Cell { mode, threads, runs } = &mut cells[index];
            let task = Task {
                pages: region_bytes as usize / PAGE_SIZE,
                touches: args.touches as usize,
                threads: *threads as usize,
                // The same touches for every mode in a round.
                seed: 1000 * (round as u64 + 1),
                damage: args.damage,
            };
            let config = Config { poll: *mode, ..config.clone() };
            runs.push(child::run(&task, &config, library, &signals)?);
        }
    }
    Ok(cells)
}
