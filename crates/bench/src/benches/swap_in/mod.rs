//! What a program that touches random pages of four times its budget gains by
//! how its swap-ins are waited for.
//!
//! The whole path, as users have it: a program of its own with the runtime
//! preloaded, faults by SIGBUS, background reclaim, writes to disk. The ways of
//! waiting take turns, a fresh program each time.

mod args;
pub(super) mod task;
mod task_run;
mod outcome;

pub(crate) use args::SwapInArgs;

use crate::measure::machine::{Machine, Usage};
use crate::measure::report::Output;
use crate::measure::sample::rotated;
use outcome::Cell;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::{library, memory_limits, swapdir, units};
use softswap_engine::door::settings::{AreaSpec, Config, MIN_MEMORY_BYTES};
use softswap_engine::store::io::poll::mode::Mode;
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use std::process::ExitCode;
use task_run::Task;

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
        let machine = Machine::with_device(&dir.path, dir.file_system);
        outcome::SwapInOutcome::new(&cells, args, region_bytes, machine, usage.since())
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
            runs.push(task_run::run(&task, &config, library, &signals)?);
        }
    }
    Ok(cells)
}
