//! Compares a pool of the crate `softswap`, the heap under `softswap run`, a file mapping, and the
//! heap with a kernel swap file. Each runs the same loops in a memory cgroup.

pub(crate) mod task;

use super::swap::limits::Limits;
use super::swap::plan::Side;
use super::swap::testbed::Testbed;
use crate::measure::machine::Machine;
use crate::measure::managed_program::{Counters, config};
use crate::measure::options::{InRounds, Named, within};
use crate::measure::report::Log;
use crate::measure::sample::{Object, object, take_turns};
use crate::measure::task_pipe::signals;
use clap::Args;
use softswap_cli::library::{self, own_executable};
use softswap_cli::refusal::Refusal;
use softswap_cli::units::{self, parse_size};
use softswap_engine::api::settings::MIN_MEMORY_BYTES;
use softswap_sys::child::SignalQueue;
use std::path::Path;
use task::{Place, StepTimes, Task, step_ratios, step_rows};

const OVER_LIMIT: u64 = 4;

/// Compare a pool of the library with `softswap run`, a file mapping and the kernel's swap.
#[derive(Args)]
#[command(after_long_help = "\
ns is the time for a page: of all pages in sequence, of one word of a page at random. Ratios are times
over the pool's: above 1 the pool is ahead.

Examples:
  softswap bench library --places pool,run,file
  sudo softswap bench library")]
pub(crate) struct LibraryArgs {
    /// The limit on DRAM of each
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    memory: u64,

    /// Places that are compared
    #[arg(long, value_name = "PLACE,...", value_delimiter = ',', value_enum,
          default_values_t = Place::all())]
    places: Vec<Place>,

    /// Touches of each step at random
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = within(1..=100_000_000))]
    touches: u32,

    #[command(flatten)]
    common: InRounds<5>,
}

pub(super) fn measure(args: &LibraryArgs) -> Result<Object, Refusal> {
    if Limits::first(args.memory).memory_bytes < MIN_MEMORY_BYTES {
        return Err(Refusal::usage(format!(
            "--memory {}: too little for the engine; give 16M or more",
            units::bytes(args.memory)
        )));
    }
    let dir = args.common.dir(args.memory.saturating_mul(OVER_LIMIT + 2))?;
    let (library, mut log) = (library::find()?, Log::start());
    let mut sides = vec![Side::Softswap, Side::KernelFile];
    let area_bytes = args.memory * (OVER_LIMIT + 1);
    let mut testbed = Testbed::prepare(&dir.path, area_bytes, &mut sides, &mut log.notes)?;
    let signals = signals()?;
    let mut places = args.places.clone();
    places.retain(|place| *place != Place::KernelFile || sides.contains(&Side::KernelFile));
    let cells = take_turns(places, args.common.rounds, |place, round| {
        one_run(&mut testbed, args, &library, &signals, *place, round)
    })?;
    if let Some(pool) = cells.iter().find(|cell| cell.key == Place::Pool) {
        for cell in cells.iter().filter(|cell| cell.key != Place::Pool) {
            let name = |step: &str| format!("{step}_{}_vs_pool", cell.key.name());
            step_ratios((cell, pool), name, &mut log);
        }
    }
    let rows = step_rows(&cells, |place| object! { place: place.name() });
    let (limit_bytes, region_bytes) = (args.memory, args.memory * OVER_LIMIT);
    let figures = object! { limit_bytes, region_bytes, rows };
    Ok(log.findings("library", Machine::with_dir(&dir), figures))
}

fn one_run(
    testbed: &mut Testbed,
    args: &LibraryArgs,
    library: &Path,
    signals: &SignalQueue,
    place: Place,
    round: usize,
) -> Result<StepTimes, Refusal> {
    let limits = Limits::first(args.memory);
    let side = if place == Place::KernelFile { Side::KernelFile } else { Side::Softswap };
    let program = own_executable()?;
    let held = testbed.enter(side, limits.limit_bytes, &[program.as_path(), library])?;
    let counters = Counters::new()?;
    let environment = match place {
        Place::Run => counters.environment(&config(limits.memory_bytes, &testbed.dir), library),
        _ => Vec::new(),
    };
    let command = held.command(environment, &program);
    let region_bytes = args.memory * OVER_LIMIT;
    let (dir, memory_bytes) = (testbed.dir.clone(), limits.memory_bytes);
    let task = Task::new(place, region_bytes, args.touches, round, memory_bytes, dir);
    let times = task.run(command, signals, &[counters.fd()]);
    let bounds = testbed.remove_cgroup(held)?;
    if bounds.oom_kills > 0 {
        return Err(Refusal::own(format!(
            "{}: the kernel killed the program at its limit of {}; give more --memory",
            place.name(),
            units::bytes(limits.limit_bytes)
        )));
    }
    bounds.check(limits.limit_bytes).map_err(Refusal::own)?;
    if place == Place::Run && times.is_ok() {
        counters.expect_engine()?;
    }
    times
}
