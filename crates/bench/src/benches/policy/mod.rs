//! Simulates the engine's policies over recorded traces and random programs.

pub(crate) mod recorded;
pub(crate) mod record;
mod random_programs;

use crate::measure::machine::Machine;
use crate::measure::report::Log;
use crate::measure::sample::{Object, object};
use clap::Args;
use random_programs::Program;
use recorded::{Content, Event, Recorded, UNIT_BYTES};
use softswap_cli::refusal::{OrRefuse, Refusal, plain};
use softswap_engine::policy::mechanism::Without;
use softswap_sys::PAGE_SIZE;
use softswap_testkit::simulator::{self, Costs, Figures, Setup, Simulation};
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

const PERCENTS: [usize; 3] = [75, 50, 25];
/// Fixed pool shares that --random compares with the default.
const FIXED_PERCENTS: [u8; 6] = [0, 10, 20, 40, 60, 80];
const MIN_PAGES: usize = 64;
const FIRST_SEED: u64 = 1_000_000;

/// Simulate softswap's policies over recorded traces or random programs.
///
/// All policies together, in memory for 75, 50 and 25 % of the pages: with the pool, copies,
/// streams, and faults at fixed costs. No clock is read: the same input gives the same figures on
/// any machine.
#[derive(Args)]
#[command(after_long_help = "\
stalled_ms is the time for which the program waited. Ratio, only if --without is given:
stalled_without_vs_with_TRACE_PERCENT.

--random makes programs of 1 to 8 threads, each with phases of loops, scans, hot sets, Zipf's law and
random touches over five kinds of content, in memory for 20 to 90 % of the pages. total_ms is the
time of work, faults and evictions. Ratios: default_vs_best_fixed_geomean and
default_vs_best_fixed_most, over pools of 0, 10, 20, 40, 60 and 80 %.

Examples:
  softswap bench policy --random 40
  softswap bench policy --trace crates/bench/traces/sqlite.touches --without strides")]
pub(crate) struct PolicyArgs {
    /// A trace of `softswap bench record`, as in crates/bench/traces; may be repeated
    #[arg(long, value_name = "FILE", required_unless_present = "random")]
    trace: Vec<PathBuf>,

    /// Simulate also without these mechanisms, with commas between
    #[arg(long, value_name = "NAME,...", default_value_t = Without::default())]
    without: Without,

    /// Simulate N random programs, each with the default and with fixed shares of the pool
    #[arg(long, value_name = "N", conflicts_with_all = ["trace", "without"])]
    random: Option<u32>,
}

pub(super) fn measure(args: &PolicyArgs) -> Result<Object, Refusal> {
    let mut log = Log::start();
    let mut rows = Vec::new();
    if let Some(count) = args.random {
        rows = random(count, &mut log).or_own("a random program cannot be simulated")?;
    }
    for (name, recorded) in &traces(&args.trace)? {
        let touched = recorded.touches();
        let (touches, pages) = (touched.len(), BTreeSet::from_iter(touched).len());
        for memory_percent in PERCENTS {
            let memory_pages = (pages * memory_percent / 100).max(MIN_PAGES);
            let mut stalled_ms = |without: Without| {
                let figures = simulate(recorded, memory_pages, without, None)
                    .or_own(format!("the trace {name} cannot be simulated"))?;
                let stalled_ms = figures.stalled_ns as f64 / 1e6;
                rows.push(object! {
                    trace: name,
                    pages,
                    touches,
                    memory_percent,
                    memory_pages,
                    without: without.to_string(),
                    zero_faults: figures.zero_faults,
                    filled_faults: figures.same_filled_faults,
                    pool_faults: figures.pool_faults,
                    disk_faults: figures.disk_faults,
                    pages_written: figures.pages_written,
                    stalled_ms,
                });
                Ok::<_, Refusal>(stalled_ms)
            };
            let with = stalled_ms(Without::default())?;
            if args.without != Without::default() {
                let key = format!("stalled_without_vs_with_{name}_{memory_percent}");
                log.ratio(key, stalled_ms(args.without)? / with);
            }
        }
    }
    Ok(log.findings("policy", Machine::without_device(), object! { rows }))
}

/// Refuses equal names, because rows and ratios contain them.
fn traces(paths: &[PathBuf]) -> Result<Vec<(String, Recorded)>, Refusal> {
    let mut traces: Vec<(String, Recorded)> = Vec::new();
    for path in paths {
        let refuse = |why: String| Refusal::usage(format!("--trace {}: {why}", path.display()));
        let bytes = std::fs::read(path);
        let recorded = bytes.and_then(|bytes| Recorded::from_bytes(&bytes)).map_err(|error| {
            let remedy = "record one with `softswap bench record --out FILE -- PROGRAM`";
            refuse(format!("{}; {remedy}", plain(&error)))
        })?;
        let name = path.file_stem().map_or("trace".into(), |stem| stem.to_string_lossy());
        if traces.iter().any(|(other, _)| *other == name) {
            return Err(refuse(format!("there is a trace {name:?} already; rename the file")));
        }
        traces.push((name.into_owned(), recorded));
    }
    Ok(traces)
}

fn random(count: u32, log: &mut Log) -> io::Result<Vec<Object>> {
    let mut rows = Vec::new();
    let (mut most, mut logs) = (0.0_f64, 0.0);
    for number in 0..u64::from(count) {
        let Program { recorded, memory_percent, threads } =
            random_programs::program(FIRST_SEED + number);
        let memory_pages = recorded.pages as usize * memory_percent / 100;
        let total_ms = |percent| {
            let figures = simulate(&recorded, memory_pages, Without::default(), percent)?;
            let ns = figures.stalled_ns + figures.reclaim_ns + u64::from(recorded.cpu_us) * 1000;
            io::Result::Ok(ns as f64 / 1e6)
        };
        let default_ms = total_ms(None)?;
        let mut best = (f64::INFINITY, 0_u8);
        for percent in FIXED_PERCENTS {
            let ms = total_ms(Some(percent))?;
            best = if ms < best.0 { (ms, percent) } else { best };
        }
        let ratio = default_ms / best.0;
        (most, logs) = (most.max(ratio), logs + ratio.ln());
        rows.push(object! {
            number,
            threads,
            memory_percent,
            default_ms,
            best_fixed_ms: best.0,
            best_fixed_percent: best.1,
            ratio,
        });
    }
    log.ratio("default_vs_best_fixed_geomean".to_string(), (logs / f64::from(count.max(1))).exp());
    log.ratio("default_vs_best_fixed_most".to_string(), most);
    Ok(rows)
}

fn simulate(
    recorded: &Recorded,
    memory_pages: usize,
    without: Without,
    pool_percent: Option<u8>,
) -> io::Result<Figures> {
    let mut simulation = Simulation::new(Setup {
        window_pages: recorded.pages.into(),
        memory_bytes: memory_pages * PAGE_SIZE,
        costs: Costs::default(),
        without,
        pool_percent,
    })?;
    let bytes = |units: u8| u16::from(units) * UNIT_BYTES as u16;
    let content = |Content { lz4, zstd }| simulator::Content {
        lz4_bytes: bytes(lz4),
        zstd_bytes: bytes(zstd),
    };
    let counted = recorded.events.len().saturating_sub(recorded.before as usize).max(1);
    // The trace has only the total CPU time: distribute it evenly over the counted events.
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
