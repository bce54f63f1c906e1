//! Simulates the engine's policies over recorded traces.

pub(crate) mod recorded;
pub(crate) mod record;

use crate::measure::machine::Machine;
use crate::measure::object::{Object, object};
use crate::measure::report::Log;
use clap::Args;
use recorded::{Content, Event, Recorded, UNIT_BYTES};
use softswap_cli::refusal::{OrRefuse, Refusal, plain};
use softswap_engine::policy::mechanism::Without;
use softswap_sys::PAGE_SIZE;
use softswap_testkit::simulator::{self, Costs, Figures, Setup, Simulation};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// Memory sizes in percent of a trace's pages.
const PERCENTS: [usize; 3] = [75, 50, 25];
/// Minimum simulated memory, in pages.
const MIN_PAGES: usize = 64;

/// Simulate softswap's policies over recorded traces.
///
/// All policies together, in memory for 75, 50 and 25 % of the pages: with the pool, copies,
/// streams, and faults at fixed costs. No clock is read: the same input gives the same figures on
/// any machine.
#[derive(Args)]
#[command(after_long_help = "\
stalled_ms is the time for which the program waited. Ratios: stalled_without_vs_with_TRACE_PERCENT,
with --without.")]
pub(crate) struct PolicyArgs {
    /// A trace of `softswap bench record`, as in crates/bench/traces; may be repeated
    #[arg(long, value_name = "FILE", required = true)]
    trace: Vec<PathBuf>,

    /// Simulate also without these mechanisms, with commas between
    #[arg(long, value_name = "NAME,...", default_value_t = Without::default())]
    without: Without,
}

pub(super) fn measure(args: &PolicyArgs) -> Result<Object, Refusal> {
    let mut log = Log::start();
    let mut rows = Vec::new();
    for path in &args.trace {
        let name = path.file_stem().map_or("trace".into(), |stem| stem.to_string_lossy());
        let recorded = read(path)?;
        let touched = recorded.touches();
        let (touches, pages) = (touched.len(), BTreeSet::from_iter(touched).len());
        for memory_percent in PERCENTS {
            let memory_pages = (pages * memory_percent / 100).max(MIN_PAGES);
            let mut stalled_ms = |without: Without| {
                let figures = simulate(&recorded, memory_pages, without)
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
                    filled_faults: figures.filled_faults,
                    pool_faults: figures.pool_faults,
                    disk_faults: figures.disk_faults,
                    write_faults: figures.write_faults,
                    pages_ahead: figures.pages_ahead,
                    pages_written: figures.pages_written,
                    stalled_ms,
                    pool_bytes: figures.pool_bytes,
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

fn read(path: &Path) -> Result<Recorded, Refusal> {
    let bytes = std::fs::read(path);
    bytes.and_then(|bytes| Recorded::from_bytes(&bytes)).map_err(|error| {
        Refusal::usage(format!(
            "--trace {}: {}; record one with `softswap bench record --out FILE -- PROGRAM`",
            path.display(),
            plain(&error)
        ))
    })
}

fn simulate(recorded: &Recorded, memory_pages: usize, without: Without) -> io::Result<Figures> {
    let mut simulation = Simulation::new(Setup {
        window_pages: recorded.pages.into(),
        memory_bytes: memory_pages * PAGE_SIZE,
        costs: Costs::default(),
        without,
    })?;
    let bytes = |units: u8| u16::from(units) * UNIT_BYTES as u16;
    let content = |Content { lz4, zstd }| simulator::Content {
        lz4_bytes: bytes(lz4),
        zstd_bytes: bytes(zstd),
    };
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
