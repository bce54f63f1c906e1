//! Run time by wait mode of a program that touches random pages of four times its budget. A new
//! program runs the complete path each time.

use super::swap::plan::{Data, Pattern};
use super::swap::task::{Task, TaskTimes};
use crate::measure::machine::Machine;
use crate::measure::managed_program::{config, managed};
use crate::measure::options::{InRounds, within};
use crate::measure::poll_counts::{notes_on, poll_counts};
use crate::measure::report::Log;
use crate::measure::sample::{Cell, Object, object, take_turns};
use crate::measure::task_pipe::signals;
use clap::Args;
use softswap_cli::library::own_executable;
use softswap_cli::refusal::Refusal;
use softswap_cli::units::parse_size;
use softswap_cli::{library, units};
use softswap_engine::api::settings::{Config, MIN_MEMORY_BYTES};
use softswap_engine::base::stats::{Counter, Stats, Tier};
use softswap_engine::store::io::poll::mode::Mode;
use softswap_sys::PAGE_SIZE;
use softswap_sys::memory_limits;

/// A run ends after its touches.
const MAX_SECONDS: f64 = 1e6;
const REGION_OVER_BUDGET: u64 = 4;

/// Measure a program that swaps, for each way to wait for a read.
///
/// The program writes one word at a time to random pages of a region that cannot be compressed, and
/// compares every page at the end. Only the touching is timed. Faults are those of pages that were
/// on disk, by the engine's own account; they include what else a fault does.
#[derive(Args)]
#[command(after_long_help = "\
Times are medians over the rounds, the other counts are of all rounds together.
swapin_interrupt_vs_MODE_tN: time with interrupts divided by time with MODE, with N threads.
swapin_cpu_MODE_vs_interrupt_tN: CPU seconds with MODE divided by those with interrupts. Faults'
latencies come from a histogram of four steps to the octave.

Examples:
  softswap bench swap-in --threads 8 --rounds 9")]
pub(crate) struct SwapInArgs {
    /// The DRAM budget
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = parse_size)]
    memory: u64,

    /// How much the program touches [default: four times the budget]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    region: Option<u64>,

    /// Touches in a run, all threads together
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = within(100..))]
    touches: u32,

    /// Numbers of threads to try
    #[arg(long, value_name = "N,...", default_value = "1,8", value_delimiter = ',',
          value_parser = within(1..=64))]
    threads: Vec<u32>,

    #[command(flatten)]
    common: InRounds<5>,

    /// Damage a page, which the comparison must detect; for tests
    #[arg(long, hide = true)]
    damage: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct WaitMode {
    mode: Mode,
    threads: u32,
}

struct TaskRun {
    took: TaskTimes,
    stats: Stats,
    /// io_uring, direct I/O, and IOPOLL for polled reads.
    uses: [bool; 3],
}

pub(super) fn measure(args: &SwapInArgs) -> Result<Object, Refusal> {
    let region_bytes = args.region.unwrap_or(args.memory.saturating_mul(REGION_OVER_BUDGET));
    check(args.memory, region_bytes)?;
    // Evicted pages are written to other slots.
    let dir = args.common.dir(region_bytes.saturating_mul(2))?;
    let (library, signals, mut log) = (library::find()?, signals()?, Log::start());
    let run = |wait_mode: &WaitMode, round: usize| {
        let config = Config { poll: wait_mode.mode, ..config(args.memory, &dir.path) };
        let task = Task {
            pages: region_bytes as usize / PAGE_SIZE,
            data: Data::Incompressible,
            sample: None,
            damage: args.damage,
            pattern: Pattern::RandomWrite,
            threads: wait_mode.threads as usize,
            warm_touches: 0,
            warm_seconds: 0.0,
            seconds: MAX_SECONDS,
            most_touches: u64::from(args.touches / wait_mode.threads),
            hot_share: 0.0,
            // The same for every mode in a round.
            seed: 1000 * (round as u64 + 1),
        };
        let (counters, command) = managed(&own_executable()?, &config, &library)?;
        let (took, stats) = task.run(command, &signals, &counters, true)?;
        let uses = [Counter::UsesIoUring, Counter::UsesDirectIo, Counter::UsesDevicePolling];
        let uses = uses.map(|counter| counters.stats.get(counter) == 1);
        Ok(TaskRun { took, stats, uses })
    };
    let wait_modes =
        args.threads.iter().flat_map(|&threads| Mode::ALL.map(|mode| WaitMode { mode, threads }));
    let cells = take_turns(wait_modes, args.common.rounds, run)?;
    add_ratios(&cells, &mut log);
    let runs = || cells.iter().flat_map(|cell| &cell.rounds);
    let [io_uring, direct, device_polling] = [0, 1, 2].map(|at| runs().all(|ran| ran.uses[at]));
    log.notes.extend(notes_on(direct, io_uring));
    let figures = object! {
        memory_bytes: args.memory,
        region_bytes,
        touches: args.touches,
        rounds: args.common.rounds,
        io_uring,
        direct,
        device_polling,
        rows: cells.iter().map(row_of).collect::<Vec<_>>(),
    };
    Ok(log.findings("swap-in", Machine::with_dir(&dir), figures))
}

fn check(memory: u64, region: u64) -> Result<(), Refusal> {
    let available = memory_limits::available().bytes;
    let [needed, budget, shown, is] =
        [MIN_MEMORY_BYTES, memory, region, available].map(units::bytes);
    let why = if memory < MIN_MEMORY_BYTES {
        format!("--memory {budget}: too little; the engine needs at least {needed} of DRAM")
    } else if region <= memory {
        format!(
            "--region {shown}: fits in the budget of {budget}, so nothing would be swapped; give \
             a larger --region"
        )
    } else if available < memory {
        format!("--memory {budget}: only {is} are available; give less")
    } else {
        return Ok(());
    };
    Err(Refusal::usage(why))
}

fn row_of(cell: &Cell<WaitMode, TaskRun>) -> Object {
    let quantile_us = |quantile: f64| {
        cell.median(|ran| {
            let ns = ran.stats.fault_quantile_ns(Tier::Disk, quantile);
            ns.map_or(f64::NAN, |ns| ns as f64 / 1000.0)
        })
    };
    let sum = |counter| cell.rounds.iter().map(|ran| ran.stats.get(counter)).sum::<u64>();
    let [polled, considered] = [Counter::IoPolled, Counter::IoConsidered].map(sum);
    let WaitMode { mode, threads } = cell.key;
    let mut row = object! {
        variant: format!("{mode}_t{threads}"),
        mode: mode.name(),
        threads,
        seconds: cell.median(|ran| ran.took.seconds),
        cpu_seconds: cell.median(|ran| ran.took.cpu_seconds),
        fault_p50_us: quantile_us(0.5),
        fault_p99_us: quantile_us(0.99),
        faults: cell.rounds.iter().map(|ran| ran.stats.faults(Tier::Disk)).sum::<u64>(),
    };
    row.extend(poll_counts(cell.rounds.iter().map(|ran| &ran.stats)));
    row.extend(object! {
        polled_share: (considered > 0).then(|| polled as f64 / considered as f64),
        cov: cell.cov(|ran| ran.took.seconds),
        count: cell.rounds.len(),
    });
    row
}

fn add_ratios(cells: &[Cell<WaitMode, TaskRun>], log: &mut Log) {
    for cell in cells.iter().filter(|cell| cell.key.mode != Mode::Interrupt) {
        let WaitMode { mode, threads } = cell.key;
        let interrupt = WaitMode { mode: Mode::Interrupt, threads };
        let Some(interrupt) = cells.iter().find(|other| other.key == interrupt) else { continue };
        let time = interrupt.ratio_to(cell, |ran| ran.took.seconds);
        log.ratio(format!("swapin_interrupt_vs_{mode}_t{threads}"), time);
        let cpu = cell.ratio_to(interrupt, |ran| ran.took.cpu_seconds);
        log.ratio(format!("swapin_cpu_{mode}_vs_interrupt_t{threads}"), cpu);
    }
}
