//! Simulates the engine's policies over recorded traces and patterns.

pub(crate) mod recorded;
pub(crate) mod record;
mod patterns;
mod random_programs;

use crate::measure::failure::OrRefuse;
use crate::measure::machine::Machine;
use crate::measure::report::{Findings, Log};
use crate::measure::row::{Row, row};
use clap::Args;
use recorded::{Content, Event, Recorded, UNIT_BYTES};
use serde::Serialize;
use serde_json::Value;
use softswap_cli::refusal::{Refusal, plain};
use softswap_engine::policy::mechanism::Without;
use softswap_sys::PAGE_SIZE;
use softswap_testkit::simulator::{self, Costs, Figures as Simulated, Setup, Simulation};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// Pages of each pattern by default.
const PAGES: u32 = 4096;
/// Pages of each pattern with --quick.
const QUICK_PAGES: u32 = 512;
/// Memory sizes in percent of a trace's pages.
const PERCENTS: [usize; 3] = [75, 50, 25];
/// Fixed pool shares that --random compares with the default, in percent.
const FIXED_PERCENTS: [u8; 6] = [0, 10, 20, 40, 60, 80];
/// Minimum simulated memory, in pages.
const MIN_PAGES: usize = 64;

/// Simulate softswap's policies over recorded traces and patterns.
///
/// All policies together, in memory for 75, 50 and 25 % of the pages: with the pool, copies,
/// streams, and faults at fixed costs. No clock is read: the same input gives the same figures on
/// any machine.
#[derive(Args)]
#[command(after_long_help = "\
Patterns: random; zipf (exponent 0.99); hot_set (90 % of the touches in 10 % of the pages);
scan_and_hot_set; phases (six hot sets of 15 %, one after the other); loop (all pages in order). One
touch in four writes, and all pages compress as those of Python do.

--trace reads a file of `softswap bench record`, as in crates/bench/traces.

stalled_ms is the time for which the program waited. Ratios: stalled_without_vs_with_TRACE_PERCENT,
with --without.

--random makes programs of 1 to 8 threads, each with phases of loops, scans, hot sets, Zipf's law and
random touches over five kinds of content, in memory for 20 to 90 % of the pages. total_ms is the
time of work, faults and evictions. Ratios: default_vs_best_fixed_geomean and
default_vs_best_fixed_most, over pools of 0, 10, 20, 40, 60 and 80 %.")]
pub(crate) struct PolicyArgs {
    /// Pages of each pattern
    #[arg(long, value_name = "N", default_value_t = PAGES,
          value_parser = clap::value_parser!(u32).range(64..=65_536))]
    pages: u32,

    /// Fewer pages: 512
    #[arg(long, conflicts_with = "pages")]
    quick: bool,

    /// Seed of the patterns
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u32,

    /// Also a trace of a real program, recorded by softswap; may be repeated
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,

    /// Simulate with this many pages of memory instead of shares; may be repeated
    #[arg(long, value_name = "N")]
    memory_pages: Vec<usize>,

    /// Costs of faults: a file of `softswap bench faults --json`
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,

    /// Simulate also without these mechanisms, with commas between
    #[arg(long, value_name = "NAME,...", default_value_t = Without::default())]
    without: Without,

    /// Simulate N random programs instead, each with the default and with fixed shares of the
    /// pool
    #[arg(long, value_name = "N", conflicts_with_all = ["trace", "pages", "quick", "without"])]
    random: Option<u32>,

    /// Only these traces
    #[arg(long, requires = "trace")]
    only_traces: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    seed: u32,
    rows: Vec<Row>,
}

struct SizedRun {
    memory_percent: usize,
    stalled_ms: f64,
    row: Row,
}

pub(super) fn measure(args: &PolicyArgs) -> Result<Findings<Figures>, Refusal> {
    let mut log = Log::start();
    let costs = args.costs.as_deref().map_or(Ok(Costs::default()), read_costs)?;
    if let Some(count) = args.random {
        let rows = random(count, u64::from(args.seed), costs, &mut log);
        let rows = rows.or_own("a random program cannot be simulated")?;
        let figures = Figures { seed: args.seed, rows };
        return Ok(log.findings("policy", Machine::without_device(), figures));
    }
    let mut rows = Vec::new();
    for (name, recorded) in &traces(args)? {
        let simulated = |without| {
            let rows = rows_of(name, recorded, &args.memory_pages, costs, without);
            rows.or_own(format!("the trace {name} cannot be simulated"))
        };
        let with = simulated(Without::default())?;
        let mut without = Vec::new();
        if args.without != Without::default() {
            without = simulated(args.without)?;
        }
        for (without, with) in without.iter().zip(&with) {
            let key = format!("stalled_without_vs_with_{name}_{}", with.memory_percent);
            log.ratio(key, without.stalled_ms / with.stalled_ms);
        }
        rows.extend(with.into_iter().chain(without).map(|simulated| simulated.row));
    }
    let figures = Figures { seed: args.seed, rows };
    Ok(log.findings("policy", Machine::without_device(), figures))
}

/// Returns the selected patterns and traces, by name.
fn traces(args: &PolicyArgs) -> Result<Vec<(String, Recorded)>, Refusal> {
    let pages = if args.quick { QUICK_PAGES } else { args.pages } as usize;
    let mut traces: Vec<(String, Recorded)> = match args.only_traces {
        true => Vec::new(),
        false => patterns::all(pages, u64::from(args.seed)).collect(),
    };
    for path in &args.trace {
        let refuse = |why: String| Refusal::usage(format!("--trace {}: {why}", path.display()));
        let bytes = std::fs::read(path);
        let recorded = bytes.and_then(|bytes| Recorded::from_bytes(&bytes)).map_err(|error| {
            let remedy = "record one with `softswap bench record --out FILE -- PROGRAM`";
            refuse(format!("{}; {remedy}", plain(&error)))
        })?;
        let name = path.file_stem().map_or("trace".into(), |stem| stem.to_string_lossy());
        if traces.iter().any(|(other, _)| *other == name) {
            let remedy = "rename the file";
            return Err(refuse(format!("there is a trace {name:?} already; {remedy}")));
        }
        traces.push((name.into_owned(), recorded));
    }
    Ok(traces)
}

/// Reads the costs of faults from a file of `softswap bench faults --json`.
fn read_costs(path: &Path) -> Result<Costs, Refusal> {
    let refuse = |why: String| Refusal::usage(format!("--costs {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| refuse(plain(&error)))?;
    let found: Value = serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
    let ns = |variant: &str| {
        let rows = found["rows"].as_array();
        let row = rows.into_iter().flatten().find(|row| row["variant"] == variant);
        let us = row.and_then(|row| row["p50_us"].as_f64());
        us.map(|us| (us * 1000.0) as u64).ok_or(refuse(format!(
            "it has no row {variant}; give a file of `softswap bench faults --json`"
        )))
    };
    Ok(Costs {
        zero_ns: ns("fault_zero_write")?,
        filled_ns: ns("fault_same_filled")?,
        pool_ns: ns("fault_pool")?,
        disk_ns: ns("fault_disk")?,
        ..Costs::default()
    })
}

fn content(content: Content) -> simulator::Content {
    let bytes = |units: u8| u16::from(units) * UNIT_BYTES as u16;
    simulator::Content { lz4_bytes: bytes(content.lz4), zstd_bytes: bytes(content.zstd) }
}

/// Simulates random programs with the default and with fixed pool shares.
fn random(count: u32, seed: u64, costs: Costs, log: &mut Log) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let (mut most, mut logs) = (0.0_f64, 0.0);
    for number in 0..u64::from(count) {
        let program = random_programs::program(seed * 1_000_000 + number);
        let recorded = &program.recorded;
        let memory_pages = recorded.pages as usize * program.memory_percent / 100;
        let total_ms = |percent| {
            let figures = simulate(recorded, memory_pages, costs, Without::default(), percent)?;
            let ns = figures.stalled_ns + figures.reclaim_ns + u64::from(recorded.cpu_us) * 1000;
            io::Result::Ok((ns as f64 / 1e6, figures))
        };
        let (default_ms, figures) = total_ms(None)?;
        let mut best = (f64::INFINITY, 0_u8);
        for percent in FIXED_PERCENTS {
            let (ms, _) = total_ms(Some(percent))?;
            best = if ms < best.0 { (ms, percent) } else { best };
        }
        let ratio = default_ms / best.0;
        (most, logs) = (most.max(ratio), logs + ratio.ln());
        rows.push(row! {
            number,
            threads: program.threads,
            memory_percent: program.memory_percent,
            default_ms,
            best_fixed_ms: best.0,
            best_fixed_percent: best.1,
            ratio,
            pool_faults: figures.pool_faults,
            disk_faults: figures.disk_faults,
            pool_bytes: figures.pool_bytes,
        });
    }
    log.ratio("default_vs_best_fixed_geomean".to_string(), (logs / f64::from(count.max(1))).exp());
    log.ratio("default_vs_best_fixed_most".to_string(), most);
    Ok(rows)
}

fn simulate(
    recorded: &Recorded,
    memory_pages: usize,
    costs: Costs,
    without: Without,
    pool_percent: Option<u8>,
) -> io::Result<Simulated> {
    let mut simulation = Simulation::new(Setup {
        window_pages: recorded.pages.into(),
        memory_bytes: memory_pages * PAGE_SIZE,
        costs,
        without,
        pool_percent,
    })?;
    let counted = recorded.events.len().saturating_sub(recorded.before as usize).max(1);
    // Distribute the CPU time evenly over the events, because the trace has only the total.
    let work_ns = u64::from(recorded.cpu_us) * 1000 / counted as u64;
    for (at, event) in recorded.events.iter().enumerate() {
        if at == recorded.before as usize {
            simulation.forget_figures();
        }
        if at >= recorded.before as usize {
            simulation.work(work_ns);
        }
        match *event {
            Event::Touch { page, is_write, content: of_page } => {
                simulation.touch(page.into(), is_write, of_page.map(content));
            }
            Event::Freed { page, pages } => {
                simulation.gone(page.into()..u64::from(page) + u64::from(pages));
            }
        }
    }
    Ok(simulation.figures())
}

fn rows_of(
    trace: &str,
    recorded: &Recorded,
    memory: &[usize],
    costs: Costs,
    without: Without,
) -> io::Result<Vec<SizedRun>> {
    let touched = recorded.touches();
    let (touches, pages) = (touched.len(), BTreeSet::from_iter(touched).len());
    let row = |memory_percent: usize, memory_pages: usize| {
        let memory_pages = memory_pages.max(MIN_PAGES);
        let figures = simulate(recorded, memory_pages, costs, without, None)?;
        let stalled_ms = figures.stalled_ns as f64 / 1e6;
        let row = row! {
            trace,
            pages,
            touches,
            memory_percent,
            memory_pages,
            without: without.to_string(),
            zero_faults: figures.zero_faults,
            filled_faults: figures.filled_faults,
            pool_faults: figures.pool_faults,
            disk_faults: figures.disk_faults,
            write_faults: figures.write_faults,
            pages_ahead: figures.pages_ahead,
            pages_written: figures.pages_written,
            stalled_ms,
            pool_bytes: figures.pool_bytes,
        };
        Ok(SizedRun { memory_percent, stalled_ms, row })
    };
    if memory.is_empty() {
        return PERCENTS.into_iter().map(|percent| row(percent, pages * percent / 100)).collect();
    }
    memory.iter().map(|count| row(count * 100 / pages.max(1), *count)).collect()
}
