//! The engine's policies over recorded traces and patterns, in the simulator.

pub(crate) mod recorded;
pub(crate) mod record;
mod patterns;

use crate::measure::machine::{Machine, Usage};
use crate::measure::report::{Findings, Output};
use clap::Args;
use recorded::{Content, Event, Recorded, UNIT_BYTES};
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::refusal::{Refusal, plain};
use softswap_engine::policy::mechanism::Without;
use softswap_sys::PAGE_SIZE;
use softswap_testkit::simulator::{self, Costs, Figures as Simulated, Setup, Simulation};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Pages of each pattern, and with --quick.
const PAGES: u32 = 4096;
const QUICK_PAGES: u32 = 512;
/// Shares of a trace's pages that there is memory for.
const PERCENTS: [usize; 3] = [75, 50, 25];
/// No memory is smaller.
const LEAST_PAGES: usize = 64;

/// Simulate softswap's policies over recorded traces and patterns.
///
/// All policies together, in memory for 75, 50 and 25 % of the pages: with the pool, copies, streams,
/// and faults at stated costs. No clock is read: the same input gives the same figures on any machine.
#[derive(Args)]
#[command(after_long_help = "\
Patterns: random; zipf (exponent 0.99); hot_set (90 % of the touches in 10 % of the pages);
scan_and_hot_set; phases (six hot sets of 15 %, one after the other); loop (all pages in order). One
touch in four writes, and all pages pack as those of Python do.

--trace takes what `softswap bench record` wrote, as in crates/bench/traces.

With --json: {\"schema\": 2, \"bench\": \"policy\", \"machine\": {...}, \"seed\", \"rows\":
[{\"trace\", \"pages\", \"touches\", \"memory_percent\", \"memory_pages\", \"without\", \"zero_faults\",
\"filled_faults\", \"pool_faults\", \"disk_faults\", \"write_faults\", \"pages_ahead\", \"pages_written\",
\"stalled_ms\", \"pool_bytes\"}], \"ratios\": {...}}. stalled_ms is the time for which the program stood
still. Ratios: stalled_without_vs_with_TRACE_PERCENT, with --without.")]
pub(crate) struct PolicyArgs {
    /// Pages of each pattern
    #[arg(long, value_name = "N", default_value_t = PAGES,
          value_parser = clap::value_parser!(u32).range(64..=65_536))]
    pages: u32,

    /// Fewer pages: 512
    #[arg(long, conflicts_with = "pages")]
    quick: bool,

    /// What patterns are made from
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32))]
    seed: u32,

    /// Also a trace of a real program, recorded by softswap; may be repeated
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,

    /// Simulate with so many pages of memory, instead of shares; may be repeated
    #[arg(long, value_name = "N")]
    memory_pages: Vec<usize>,

    /// What faults cost: a file of `softswap bench faults --json`
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,

    /// Simulate also without these mechanisms, with commas between
    #[arg(long, value_name = "NAME,...", default_value_t = Without::default())]
    without: Without,

    /// Only these traces
    #[arg(long, requires = "trace")]
    only_traces: bool,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Figures {
    seed: u32,
    rows: Vec<Row>,
}

/// What happened with so much memory.
#[derive(Debug, Clone, Serialize)]
struct Row {
    trace: String,
    pages: usize,
    touches: usize,
    memory_percent: usize,
    memory_pages: usize,
    /// What was switched off.
    without: String,
    zero_faults: u64,
    filled_faults: u64,
    pool_faults: u64,
    disk_faults: u64,
    write_faults: u64,
    pages_ahead: u64,
    pages_written: u64,
    stalled_ms: f64,
    pool_bytes: u64,
}

pub(super) fn run(args: &PolicyArgs) -> Result<ExitCode, Refusal> {
    let output = Output::open(args.json.as_deref())?;
    output.finish(measure(args))
}

fn measure(args: &PolicyArgs) -> Result<Findings<Figures>, Refusal> {
    let usage = Usage::now();
    let costs = args.costs.as_deref().map_or(Ok(Costs::default()), read_costs)?;
    let pages = if args.quick { QUICK_PAGES } else { args.pages } as usize;
    let mut traces: Vec<(String, Recorded)> = match args.only_traces {
        true => Vec::new(),
        false => patterns::all(pages, u64::from(args.seed)).collect(),
    };
    for path in &args.trace {
        let (name, recorded) = read(path)?;
        if traces.iter().any(|(other, _)| *other == name) {
            return Err(Refusal::usage(format!(
                "--trace {}: there is a trace {name:?} already; give the file another name",
                path.display()
            )));
        }
        traces.push((name, recorded));
    }
    let (mut rows, mut ratios) = (Vec::new(), Map::new());
    for (name, recorded) in &traces {
        let simulated = |without| {
            rows_of(name, recorded, &args.memory_pages, costs, without).map_err(|error| {
                Refusal::own(format!("no memory for the trace {name}: {}", plain(&error)))
            })
        };
        let with = simulated(Without::default())?;
        let mut without = Vec::new();
        if args.without != Without::default() {
            without = simulated(args.without)?;
        }
        for (without, with) in without.iter().zip(&with) {
            let key = format!("stalled_without_vs_with_{name}_{}", with.memory_percent);
            ratios.insert(key, (without.stalled_ms / with.stalled_ms).into());
        }
        rows.extend(with.into_iter().chain(without));
    }
    let figures = Figures { seed: args.seed, rows };
    Ok(Findings::new("policy", Machine::without_device(), usage.since(), figures, ratios))
}

/// The costs of faults in a file of `softswap bench faults --json`; others are as they are.
fn read_costs(path: &Path) -> Result<Costs, Refusal> {
    let refuse = |why: String| Refusal::usage(format!("--costs {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| refuse(plain(&error)))?;
    let found: Value = serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
    let ns = |variant: &str| {
        let rows = found["rows"].as_array();
        let row = rows.into_iter().flatten().find(|row| row["variant"] == variant);
        let us = row.and_then(|row| row["p50_us"].as_f64());
        us.map(|us| (us * 1000.0) as u64).ok_or(refuse(format!("it has no row {variant}")))
    };
    Ok(Costs {
        zero_ns: ns("fault_zero_write")?,
        filled_ns: ns("fault_same_filled")?,
        pool_ns: ns("fault_pool")?,
        disk_ns: ns("fault_disk")?,
        ..Costs::default()
    })
}

/// A trace from a file, by the file's name.
fn read(path: &Path) -> Result<(String, Recorded), Refusal> {
    let bytes = std::fs::read(path);
    let recorded = bytes.and_then(|bytes| Recorded::from_bytes(&bytes)).map_err(|error| {
        let why = plain(&error);
        Refusal::usage(format!(
            "--trace {}: {why}; record one with `softswap bench record --out FILE -- PROGRAM`",
            path.display()
        ))
    })?;
    let name = path.file_stem().map_or("trace".into(), |stem| stem.to_string_lossy());
    Ok((name.into_owned(), recorded))
}

fn content(content: Content) -> simulator::Content {
    let bytes = |units: u8| u16::from(units) * UNIT_BYTES as u16;
    simulator::Content { lz4_bytes: bytes(content.lz4), zstd_bytes: bytes(content.zstd) }
}

/// Runs the policies over a trace, with memory for so many pages.
fn simulate(
    recorded: &Recorded,
    memory_pages: usize,
    costs: Costs,
    without: Without,
) -> io::Result<Simulated> {
    let mut simulation = Simulation::new(Setup {
        window_pages: recorded.pages.into(),
        memory_bytes: memory_pages * PAGE_SIZE,
        costs,
        without,
    })?;
    let counted = recorded.events.len().saturating_sub(recorded.before as usize).max(1);
    // Spread evenly: the trace does not tell how it was.
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
            Event::Gone { page, pages } => {
                simulation.gone(page.into()..u64::from(page) + u64::from(pages));
            }
        }
    }
    Ok(simulation.figures())
}

/// One row for each share of memory, or for so many pages of it.
fn rows_of(
    trace: &str,
    recorded: &Recorded,
    memory: &[usize],
    costs: Costs,
    without: Without,
) -> io::Result<Vec<Row>> {
    let mut touched = recorded.touches();
    let touches = touched.len();
    touched.sort_unstable();
    touched.dedup();
    let pages = touched.len();
    let row = |memory_percent: usize, memory_pages: usize| {
        let memory_pages = memory_pages.max(LEAST_PAGES);
        let figures = simulate(recorded, memory_pages, costs, without)?;
        Ok(Row {
            trace: trace.into(),
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
            stalled_ms: figures.stalled_ns as f64 / 1e6,
            pool_bytes: figures.pool_bytes,
        })
    };
    if memory.is_empty() {
        return PERCENTS.into_iter().map(|percent| row(percent, pages * percent / 100)).collect();
    }
    memory.iter().map(|count| row(count * 100 / pages.max(1), *count)).collect()
}
