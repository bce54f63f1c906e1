//! A pool of the crate `softswap` beside other ways to more memory than DRAM: the same loops over
//! a region of four times the limit, in a pool, on the heap under `softswap run`, in a mapping of
//! a file, and on the heap with a swap file of the kernel. A memory control group holds each to
//! the limit.

pub(crate) mod task;

use super::swap::limits::Limits;
use super::swap::plan::Side;
use super::swap::runs::check as check_bounds;
use super::swap::testbed::Testbed;
use crate::measure::machine::{Machine, Usage};
use crate::measure::managed_program::{Counters, without_settings};
use crate::measure::report::{Findings, Output};
use crate::measure::sample::{median, over, rotated, variation};
use crate::measure::task_pipe::{TaskPipe, signals, this_program};
use clap::Args;
use serde::Serialize;
use serde_json::Map;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::units::{self, parse_size};
use softswap_cli::{library, swapdir};
use softswap_engine::door::settings::{AreaSpec, Config, MIN_MEMORY_BYTES};
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use task::{Place, STEPS, Told};

/// The region over the limit.
const OVER_LIMIT: u64 = 4;

/// Compare a pool of the library with `softswap run`, a file mapping and the kernel's swap.
#[derive(Args)]
#[command(after_long_help = "\
With --json: {\"schema\": 2, \"bench\": \"library\", \"machine\": {...}, \"limit_bytes\", \"region_bytes\", \"ratios\":
{...}, \"rows\": [{\"place\", \"step\", \"ns\", \"cov\", \"count\"}]}. ns is the time for a page: of all pages in
sequence, of one word of a page at random. Ratios are times over the pool's, by rounds: above 1 the pool
is ahead.")]
pub(crate) struct LibraryArgs {
    /// The limit on DRAM of each
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    memory: u64,

    /// Directory of all files; about six times the limit is used there
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,

    /// Places that are compared
    #[arg(long, value_name = "PLACE,...", value_delimiter = ',', value_enum,
          default_values_t = Place::ALL)]
    places: Vec<Place>,

    /// Touches of each step at random
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    touches: u32,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Figures {
    limit_bytes: u64,
    region_bytes: u64,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    place: &'static str,
    step: &'static str,
    ns: f64,
    cov: f64,
    count: usize,
}

/// What one place took, by rounds.
struct Cell {
    place: Place,
    rounds: Vec<Told>,
}

impl Cell {
    fn series(&self, step: usize) -> Vec<f64> {
        self.rounds.iter().map(|told| told[step]).collect()
    }
}

pub(crate) fn run(args: &LibraryArgs) -> Result<ExitCode, Refusal> {
    if Limits::first(args.memory).memory_bytes < MIN_MEMORY_BYTES {
        return Err(Refusal::usage(format!(
            "--memory {}: too little for the engine in it; ask for 16M or more",
            units::bytes(args.memory)
        )));
    }
    let dir = swapdir::check("--swap", &args.swap, args.memory.saturating_mul(OVER_LIMIT + 2))?;
    let library = library::find()?;
    let output = Output::open(args.json.as_deref())?;
    let usage = Usage::now();
    let measured = measure(args, &dir.path, &library);
    output.finish(measured.map(|(cells, notes)| {
        let (mut rows, mut ratios) = (Vec::new(), Map::new());
        let pool = cells.iter().find(|cell| cell.place == Place::Pool);
        for (at, step) in STEPS.into_iter().enumerate() {
            for cell in &cells {
                let (ns, place) = (cell.series(at), cell.place.name());
                if let Some(pool) = pool.filter(|pool| pool.place != cell.place) {
                    let ratio = over(&ns, &pool.series(at));
                    ratios.insert(format!("{step}_{place}_vs_pool"), ratio.into());
                }
                let (cov, count) = (variation(&ns), ns.len());
                rows.push(Row { place, step, ns: median(ns), cov, count });
            }
        }
        let (limit_bytes, region_bytes) = (args.memory, args.memory * OVER_LIMIT);
        let figures = Figures { limit_bytes, region_bytes, rows };
        let machine = Machine::with_device(&dir.path, dir.file_system);
        Findings { notes, ..Findings::new("library", machine, usage.since(), figures, ratios) }
    }))
}

fn measure(
    args: &LibraryArgs,
    under: &Path,
    library: &Path,
) -> Result<(Vec<Cell>, Vec<String>), Refusal> {
    let (mut sides, mut notes) = (vec![Side::Softswap, Side::KernelFile], Vec::new());
    let area_bytes = args.memory * (OVER_LIMIT + 1);
    let mut testbed = Testbed::prepare(under, area_bytes, &mut sides, &mut notes)?;
    let signals = signals()?;
    let mut cells: Vec<Cell> =
        args.places.iter().map(|place| Cell { place: *place, rounds: Vec::new() }).collect();
    cells.retain(|cell| cell.place != Place::KernelFile || sides.contains(&Side::KernelFile));
    for round in 0..args.rounds as usize {
        for at in rotated(cells.len(), round) {
            let told = once(&mut testbed, args, library, &signals, cells[at].place, round)?;
            cells[at].rounds.push(told);
        }
    }
    Ok((cells, notes))
}

/// One run of the task, held to the limit.
fn once(
    testbed: &mut Testbed,
    args: &LibraryArgs,
    library: &Path,
    signals: &SignalQueue,
    place: Place,
    round: usize,
) -> Result<Told, Refusal> {
    let limits = Limits::first(args.memory);
    let side = if place == Place::KernelFile { Side::KernelFile } else { Side::Softswap };
    let held = testbed.enter(side, limits.limit_bytes)?;
    let config = Config {
        memory_bytes: limits.memory_bytes,
        areas: vec![AreaSpec::new(&testbed.dir)],
        reserve_bytes: 0,
        ..Config::default()
    };
    let counters = Counters::new()?;
    let environment = match place {
        Place::Run => counters.environment(&config, library),
        _ => Vec::new(),
    };
    let mut command = held.command(environment, &this_program()?);
    without_settings(&mut command);
    command.args(["library-task", "--place", place.name(), "--dir"]).arg(&testbed.dir);
    let numbers = [
        ("--pages", args.memory * OVER_LIMIT / PAGE_SIZE as u64),
        ("--touches", u64::from(args.touches)),
        // The same touches for every place in a round.
        ("--seed", 1000 * (round as u64 + 1)),
        ("--memory", limits.memory_bytes),
    ];
    for (name, number) in numbers {
        command.args([name, &number.to_string()]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    signals.prepare(&mut command, &[counters.fd()]);
    let told = ask(command, (place == Place::Run).then_some(&counters));
    let bounds = testbed.leave(held)?;
    if bounds.oom_kills > 0 {
        return Err(Refusal::own(format!(
            "{}: the kernel killed it at {}; give more --memory",
            place.name(),
            units::bytes(limits.limit_bytes)
        )));
    }
    check_bounds(&bounds, limits.limit_bytes)?;
    told
}

fn ask(mut command: std::process::Command, engine: Option<&Counters>) -> Result<Told, Refusal> {
    let child = command
        .spawn()
        .map_err(|error| Refusal::own(format!("the task did not start: {}", plain(&error))))?;
    let mut pipe = TaskPipe::with(child)?;
    let told = pipe.receive_json()?;
    engine.map_or(Ok(()), Counters::expect_engine)?;
    pipe.end()?;
    Ok(told)
}
