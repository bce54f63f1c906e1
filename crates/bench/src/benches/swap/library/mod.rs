//! A pool of the crate `softswap` beside the other ways to more memory than DRAM: the same
//! loops over a region of four times the limit, in a pool, on the heap under `softswap run`, in
//! a mapping of a file, on the heap with a swap file of the kernel's, and with what others have
//! made for it. A memory control group holds each to the limit.

mod place;
pub(crate) mod task;
mod ready;
mod outcome;

use super::limits::Limits;
use super::pattern_run::check as check_bounds;
use super::plan::Side;
use super::prepare::signals;
use super::testbed::{Held, Testbed};
use crate::measure::machine::{Machine, Usage};
use crate::measure::managed_program::{Counters, without_settings};
use crate::measure::report::Output;
use crate::measure::sample::rotated;
use crate::measure::task_pipe::TaskPipe;
use clap::Args;
use outcome::{Cell, LibraryOutcome};
use place::{Needs, OVER_LIMIT, Place, region_pages};
use ready::{Others, Ready};
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::units::{self, parse_size};
use softswap_cli::{library, swapdir};
use softswap_engine::door::settings::{AreaSpec, Config, MIN_MEMORY_BYTES};
use softswap_sys::child::SignalQueue;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use task::Told;

/// Compare a pool of the library with `softswap run`, a file mapping, the kernel's swap, and others.
#[derive(Args)]
#[command(after_long_help = "\
With --json: {\"schema\": 2, \"bench\": \"library\", \"machine\": {...}, \"limit_bytes\", \"region_bytes\", \"ratios\":
{...}, \"rows\": [{\"place\", \"step\", \"ns\", \"cov\", \"count\"}]}. ns is the time for a page: of all pages in
sequence, of one word of a page at random. Ratios are times over the pool's, by rounds: above 1 the pool
is ahead; those of arrays of NumPy's are over numpy_pool's where that is there. What a place lacks is said
in \"notes\".

Places of others are measured where their option is given: umap is LLNL's (libumap.so), BigMaac is
misko's (bigmaac.so), both built from their sources; --python takes a Python with numpy, and with blosc2,
zarr and softswap for these.")]
pub(crate) struct LibraryArgs {
    /// The limit on DRAM of each
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    memory: u64,

    /// Directory of all files; about six times the limit is used there
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,

    /// Places that are compared
    #[arg(long, value_name = "PLACE", value_delimiter = ',', default_values_t = Place::ALL)]
    places: Vec<Place>,

    #[command(flatten)]
    others: Others,

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
        let machine = Machine::with_device(&dir.path, dir.file_system);
        LibraryOutcome::new(&cells, args.memory, machine, usage.since(), notes)
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
    let has_kernel = sides.contains(&Side::KernelFile);
    let mut cells = Vec::new();
    for place in args.places.iter().copied() {
        if place == Place::KernelFile && !has_kernel {
            continue;
        }
        match Ready::make(place, (&args.others, args.memory), &testbed.dir) {
            Ok(ready) => cells.push(Cell { ready, rounds: Vec::new() }),
            Err(why) => notes.push(format!("{place} was left out: {why}")),
        }
    }
    for round in 0..args.rounds as usize {
        // By their places, as one that fails goes.
        let order: Vec<_> = rotated(cells.len(), round).map(|at| cells[at].ready.place).collect();
        for place in order {
            let Some(at) = cells.iter().position(|cell| cell.ready.place == place) else {
                continue;
            };
            match once(&mut testbed, (args, library, &signals), &cells[at].ready, round) {
                Ok(told) => cells[at].rounds.push(told),
                Err(why) if place.needs() != Needs::Nothing => {
                    notes.push(format!("{place} was left out: {why}"));
                    cells.remove(at);
                }
                Err(why) => return Err(why),
            }
        }
    }
    Ok((cells, notes))
}

/// One run of the task, held to the limit.
fn once(
    testbed: &mut Testbed,
    with: (&LibraryArgs, &Path, &SignalQueue),
    ready: &Ready,
    round: usize,
) -> Result<Told, Refusal> {
    let limits = Limits::first(with.0.memory);
    let limit_bytes = limits.limit_bytes + ready.own_bytes;
    let is_kernels = ready.place == Place::KernelFile;
    let side = if is_kernels { Side::KernelFile } else { Side::Softswap };
    let held = testbed.enter(side, limit_bytes)?;
    let told = ask(&held, &testbed.dir, with, ready, (limits, round));
    let bounds = testbed.leave(held)?;
    if bounds.oom_kills > 0 {
        return Err(Refusal::own(format!(
            "{}: the kernel killed it at {}; give more --memory",
            ready.place,
            units::bytes(limit_bytes)
        )));
    }
    check_bounds(&bounds, limit_bytes)?;
    told
}

fn ask(
    held: &Held,
    dir: &Path,
    (args, library, signals): (&LibraryArgs, &Path, &SignalQueue),
    ready: &Ready,
    (limits, round): (Limits, usize),
) -> Result<Told, Refusal> {
    let counters = Counters::new()?;
    let memory_bytes = limits.memory_bytes;
    let areas = vec![AreaSpec::new(dir)];
    let config = Config { memory_bytes, areas, reserve_bytes: 0, ..Config::default() };
    let environment = match ready.place {
        Place::Run => counters.environment(&config, library),
        _ => ready.environment.clone(),
    };
    let mut command = held.command(environment, Path::new(&ready.program[0]));
    without_settings(&mut command);
    let pages = region_pages(args.memory);
    command.args(&ready.program[1..]).args(["--place", ready.place.name(), "--dir"]).arg(dir);
    let numbers = [
        ("--pages", pages),
        ("--touches", u64::from(args.touches)),
        // The same touches for every place in a round.
        ("--seed", 1000 * (round as u64 + 1)),
        ("--memory", memory_bytes),
    ];
    numbers.iter().for_each(|(name, number)| {
        command.args([name, number.to_string().as_str()]);
    });
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    signals.prepare(&mut command, &[counters.fd()]);
    let child = command
        .spawn()
        .map_err(|error| Refusal::own(format!("the task did not start: {}", plain(&error))))?;
    let mut pipe = TaskPipe::with(child)?;
    let told = pipe.receive_json()?;
    if ready.place == Place::Run {
        counters.expect_engine()?;
    }
    pipe.end()?;
    Ok(told)
}
