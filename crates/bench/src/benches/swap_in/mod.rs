//! What a program that touches random pages of four times its budget gains by
//! how its swap-ins are waited for.
//!
//! The whole path, as users have it: a program of its own with the runtime
//! preloaded, faults by SIGBUS, background reclaim, writes to disk. The ways of
//! waiting take turns, a fresh program each time.

use super::swap::plan::Pattern;
use super::swap::task::{COMPARE, FILLED, Phase, SAME, Took};
use crate::measure::machine::{Machine, Usage};
use crate::measure::managed_program::{Counters, without_settings};
use crate::measure::poll_counts::PollCounts;
use crate::measure::report::{Findings, Output};
use crate::measure::sample::{median, over, rotated, variation};
use crate::measure::task_pipe::{TaskPipe, signals, this_program};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::units::parse_size;
use softswap_cli::{library, memory_limits, swapdir, units};
use softswap_engine::base::stats::{Counter, Stats, Tier};
use softswap_engine::door::settings::{AreaSpec, Config, MIN_MEMORY_BYTES};
use softswap_engine::store::io::poll::mode::Mode;
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

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
With --json: {\"schema\": 2, \"bench\": \"swap-in\", \"machine\": {...}, \"ratios\": {...}, \"rows\": [{\"variant\",
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

/// A run ends by its touches, not by the clock.
const LONGEST_SECONDS: f64 = 1e6;
/// The region over the budget, when no size is asked for.
const REGION_OVER_BUDGET: u64 = 4;

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
    output.finish(measured.map(|cells| {
        let all = |fact: fn(&TaskRun) -> bool| cells.iter().flat_map(|cell| &cell.runs).all(fact);
        let figures = Figures {
            memory_bytes: args.memory,
            region_bytes,
            touches: args.touches,
            rounds: args.rounds,
            io_uring: all(|ran| ran.facts.io_uring),
            direct: all(|ran| ran.facts.direct),
            device_polling: all(|ran| ran.facts.device_polling),
            rows: cells.iter().map(row).collect(),
        };
        let mut notes = Vec::new();
        if !figures.direct {
            notes.push("no O_DIRECT here: reads come from the page cache".into());
        }
        if !figures.io_uring {
            notes.push("no io_uring here: every read waits by interrupt".into());
        }
        let (machine, ratios) = (Machine::with_device(&dir.path, dir.file_system), ratios(&cells));
        Findings { notes, ..Findings::new("swap-in", machine, usage.since(), figures, ratios) }
    }))
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
    let available_bytes = memory_limits::available().bytes;
    if available_bytes < args.memory {
        return Err(Refusal::usage(format!(
            "--memory {}: only {} are available; ask for less",
            units::bytes(args.memory),
            units::bytes(available_bytes)
        )));
    }
    Ok(())
}

fn measure(
    args: &SwapInArgs,
    region_bytes: u64,
    config: &Config,
    library: &Path,
) -> Result<Vec<Cell>, Refusal> {
    let signals = signals()?;
    let cell = |threads: &u32, mode| Cell { mode, threads: *threads, runs: Vec::new() };
    let with_modes = |threads| Mode::ALL.into_iter().map(move |mode| cell(threads, mode));
    let mut cells: Vec<Cell> = args.threads.iter().flat_map(with_modes).collect();
    for round in 0..args.rounds as usize {
        for index in rotated(cells.len(), round) {
            let Cell { mode, threads, runs } = &mut cells[index];
            let config = Config { poll: *mode, ..config.clone() };
            let phase = Phase {
                pattern: Pattern::RandomWrite,
                threads: *threads as usize,
                warm_touches: 0,
                warm_seconds: 0.0,
                seconds: LONGEST_SECONDS,
                most_touches: u64::from(args.touches / *threads),
                hot_share: 0.0,
                // The same touches for every mode in a round.
                seed: 1000 * (round as u64 + 1),
            };
            runs.push(run_task(region_bytes, &phase, args.damage, &config, library, &signals)?);
        }
    }
    Ok(cells)
}

/// What one run of the task took and counted.
struct TaskRun {
    took: Took,
    /// Of the time in which pages were touched.
    stats: Stats,
    facts: Facts,
}

/// How the engine reached the swap file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Facts {
    io_uring: bool,
    direct: bool,
    device_polling: bool,
}

/// Runs the task of `bench swap` once, under the preloaded runtime as `softswap run` starts a
/// program.
fn run_task(
    region_bytes: u64,
    phase: &Phase,
    damage: bool,
    config: &Config,
    library: &Path,
    signals: &SignalQueue,
) -> Result<TaskRun, Refusal> {
    let counters = Counters::new()?;
    let mut command = Command::new(this_program()?);
    without_settings(&mut command);
    let pages = region_bytes as usize / PAGE_SIZE;
    command.args(["swap-task", "--pages", &pages.to_string(), "--data", "incompressible"]);
    command.args(damage.then_some("--damage"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.envs(counters.environment(config, library));
    signals.prepare(&mut command, &[counters.fd()]);
    let child = command
        .spawn()
        .map_err(|error| Refusal::own(format!("the task did not start: {}", plain(&error))))?;
    let mut pipe = TaskPipe::with(child)?;
    pipe.expect(FILLED)?;
    counters.expect_engine()?;
    let before = counters.values();
    pipe.send(&serde_json::to_string(phase).unwrap_or_default());
    let took = pipe.receive_json()?;
    let stats = counters.since(&before)?;
    pipe.send(COMPARE);
    pipe.expect(SAME)?;
    pipe.end()?;
    let is_used = |counter| counters.stats().get(counter) == 1;
    let facts = Facts {
        io_uring: is_used(Counter::UsesIoUring),
        direct: is_used(Counter::UsesDirectIo),
        device_polling: is_used(Counter::UsesDevicePolling),
    };
    Ok(TaskRun { took, stats, facts })
}

/// One way of waiting with one number of threads, over all rounds.
struct Cell {
    mode: Mode,
    threads: u32,
    runs: Vec<TaskRun>,
}

impl Cell {
    fn of(&self, figure: impl Fn(&TaskRun) -> f64) -> Vec<f64> {
        self.runs.iter().map(figure).collect()
    }
}

#[derive(Debug, Serialize)]
struct Figures {
    memory_bytes: u64,
    region_bytes: u64,
    touches: u32,
    rounds: u32,
    io_uring: bool,
    direct: bool,
    /// Polled reads ask the device itself (IOPOLL).
    device_polling: bool,
    rows: Vec<SwapInRow>,
}

#[derive(Debug, Serialize)]
struct SwapInRow {
    variant: String,
    mode: &'static str,
    threads: u32,
    seconds: f64,
    cpu_seconds: f64,
    fault_p50_us: f64,
    fault_p99_us: f64,
    /// Touches that found their page on disk.
    faults: u64,
    #[serde(flatten)]
    counts: PollCounts,
    /// Of the reads of single pages.
    polled_share: Option<f64>,
    /// Of those that were polled for.
    hit_share: Option<f64>,
    direct_reclaims: u64,
    pages_written: u64,
    /// Of the seconds.
    cov: f64,
    count: usize,
}

fn row(cell: &Cell) -> SwapInRow {
    let quantile_us = |quantile: f64| {
        let us = |ran: &TaskRun| {
            let ns = ran.stats.fault_quantile_ns(Tier::Disk, quantile);
            ns.map_or(f64::NAN, |ns| ns as f64 / 1000.0)
        };
        median(cell.of(us))
    };
    let sum = |counter| cell.runs.iter().map(|ran| ran.stats.get(counter)).sum();
    let counts: PollCounts = cell.runs.iter().map(|ran| PollCounts::of(&ran.stats)).sum();
    let seconds = cell.of(|ran| ran.took.seconds);
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    SwapInRow {
        variant: format!("{}_t{}", cell.mode, cell.threads),
        mode: cell.mode.name(),
        threads: cell.threads,
        cov: variation(&seconds),
        seconds: median(seconds),
        cpu_seconds: median(cell.of(|ran| ran.took.cpu_seconds)),
        fault_p50_us: quantile_us(0.5),
        fault_p99_us: quantile_us(0.99),
        faults: cell.runs.iter().map(|ran| ran.stats.faults(Tier::Disk)).sum(),
        polled_share: share(counts.polled, counts.considered),
        hit_share: share(counts.hit, counts.polled),
        counts,
        direct_reclaims: sum(Counter::DirectReclaims),
        pages_written: sum(Counter::PagesWritten),
        count: cell.runs.len(),
    }
}

fn ratios(cells: &[Cell]) -> Map<String, Value> {
    let mut ratios = Map::new();
    for cell in cells.iter().filter(|cell| cell.mode != Mode::Interrupt) {
        let threads = cell.threads;
        let interrupt =
            cells.iter().find(|other| other.mode == Mode::Interrupt && other.threads == threads);
        let Some(interrupt) = interrupt else { continue };
        let seconds = |ran: &TaskRun| ran.took.seconds;
        let cpu_seconds = |ran: &TaskRun| ran.took.cpu_seconds;
        let mode = cell.mode;
        let time = over(&interrupt.of(seconds), &cell.of(seconds));
        ratios.insert(format!("swapin_interrupt_vs_{mode}_t{threads}"), time.into());
        let cpu = over(&cell.of(cpu_seconds), &interrupt.of(cpu_seconds));
        ratios.insert(format!("swapin_cpu_{mode}_vs_interrupt_t{threads}"), cpu.into());
    }
    ratios
}
