//! What looking up extents costs: in the list and the red-black tree that
//! Linux had and has, and in softswap's map.
//!
//! Tasks swap to RAM, so that nothing hides the look-ups; every variant takes
//! its turn in every round.

mod args;
mod file;
mod tasks;
mod measured;
mod outcome;

pub(crate) use args::ExtentsArgs;

use crate::extent_maps::layout::{Layout, Lengths};
use crate::extent_maps::lookups::Lookups;
use crate::extent_maps::maps::{Maps, Nodes};
use crate::measure::machine::{Machine, Usage};
use crate::measure::report::Output;
use crate::measure::sample::rotated;
use measured::{Cell, Measured, OfFile, OfLayout};
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::{memory_limits, swapdir, units};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use tasks::{Direction, SWAPPERS, Task, Throughputs, throughput};

/// The published table: 20 GB in extents of 1 MiB.
const TABLE_PAGES: u64 = (20 << 30) / 4096;
const TABLE_EXTENTS: usize = 20_480;
/// The sweep: 80 GB, in as many extents as were found in such a file at worst.
const SWEEP_PAGES: u64 = (80 << 30) / 4096;
const SWEEP_EXTENTS: [usize; 4] = [2, 2000, 20_480, 84_656];
const SWEEP_TASKS: usize = 4;
/// Rounds that do not count.
const WARM_UPS: usize = 1;

pub(super) fn run(args: &ExtentsArgs) -> Result<ExitCode, Refusal> {
    let dir = swapdir::check("--swap", &args.swap, file::most_bytes(args.pieces))?;
    let most_tasks = args.tasks.iter().map(|n| *n as usize).max().unwrap_or(0).max(SWEEP_TASKS);
    check_memory(most_tasks)?;
    let output = Output::open(args.json.as_deref())?;
    let machine = Machine::with_device(&dir.path, dir.file_system);
    let usage = Usage::now();
    let measured = measure(args, &dir.path, most_tasks);
    output.finish(
        measured
            .map(|measured| outcome::ExtentsOutcome::new(args, measured, machine, usage.since())),
    )
}

fn check_memory(tasks: usize) -> Result<(), Refusal> {
    /// What all the maps take, and some.
    const MAPS_BYTES: u64 = 128 << 20;
    let needed_bytes = tasks as u64 * Task::BYTES + MAPS_BYTES;
    let available_bytes = memory_limits::available().bytes;
    if available_bytes < needed_bytes {
        return Err(Refusal::usage(format!(
            "--tasks {tasks}: {} of memory are needed and {} are available; ask for fewer tasks, \
             {SWEEP_TASKS} at least are used",
            units::bytes(needed_bytes),
            units::bytes(available_bytes),
        )));
    }
    Ok(())
}

fn measure(args: &ExtentsArgs, dir: &Path, most_tasks: usize) -> Result<Measured, Refusal> {
    let tasks: std::io::Result<Vec<Task>> = (0..most_tasks).map(|_| Task::new()).collect();
    let mut tasks = tasks
        .map_err(|error| Refusal::own(format!("no memory for the tasks: {}", plain(&error))))?;
    let mut table = Vec::new();
    let layout = Layout::made(TABLE_EXTENTS, TABLE_PAGES, Lengths::Equal);
    let nodes = Nodes::of(&layout);
    let maps = Maps::new(&layout, &nodes)?;
    for count in &args.tasks {
        let count = *count as usize;
        let mut cell = [(&maps, Throughputs::default())];
        swap_in_turns(args, &mut cell, &mut tasks[..count]);
        let [(_, throughputs)] = cell;
        table.push(Cell {
            tasks: count,
            extents: TABLE_EXTENTS,
            lengths: Lengths::Equal,
            throughputs,
        });
    }
    let (sweep, layouts) = measure_sweep(args, &mut tasks[..SWEEP_TASKS])?;
    Ok(Measured { table, sweep, layouts, file: measure_file(args, dir)? })
}

/// All swappers over all of these maps, in changing order. What is compared
/// follows each other closely: the variants of one map, and the maps.
fn swap_in_turns(args: &ExtentsArgs, cells: &mut [(&Maps<'_>, Throughputs)], tasks: &mut [Task]) {
    for round in 0..WARM_UPS + args.rounds as usize {
        for direction in Direction::ALL {
            for index in rotated(SWAPPERS.len(), round) {
                for place in rotated(cells.len(), round) {
                    let (maps, throughputs) = &mut cells[place];
                    let (swapper, seed) = (SWAPPERS[index], 1 + round as u64);
                    let kbps = throughput(maps, swapper, direction, tasks, args.seconds, seed);
                    if round >= WARM_UPS {
                        throughputs.add(index, direction, kbps);
                    }
                }
            }
        }
    }
}

fn measure_sweep(
    args: &ExtentsArgs,
    tasks: &mut [Task],
) -> Result<(Vec<Cell>, Vec<OfLayout>), Refusal> {
    let kinds: Vec<(usize, Lengths)> = Lengths::ALL
        .into_iter()
        .flat_map(|lengths| SWEEP_EXTENTS.map(|extents| (extents, lengths)))
        .collect();
    let layouts: Vec<Layout> = kinds
        .iter()
        .map(|(extents, lengths)| Layout::made(*extents, SWEEP_PAGES, *lengths))
        .collect();
    let nodes: Vec<Nodes<'_>> = layouts.iter().map(Nodes::of).collect();
    let maps: Result<Vec<Maps<'_>>, Refusal> =
        layouts.iter().zip(&nodes).map(|(layout, nodes)| Maps::new(layout, nodes)).collect();
    let maps = maps?;
    let mut cells: Vec<_> = maps.iter().map(|maps| (maps, Throughputs::default())).collect();
    // By lengths: the counts are compared.
    for cells in cells.chunks_mut(SWEEP_EXTENTS.len()) {
        swap_in_turns(args, cells, tasks);
    }
    let mut lookups: Vec<Lookups> = maps.iter().map(|_| Lookups::default()).collect();
    for round in 0..args.rounds as usize {
        for place in rotated(maps.len(), round) {
            lookups[place].measure_round(&maps[place], round, lookup_time(args));
        }
    }
    let sweep = kinds.iter().zip(cells).map(|((extents, lengths), (_, throughputs))| Cell {
        tasks: SWEEP_TASKS,
        extents: *extents,
        lengths: *lengths,
        throughputs,
    });
    let looked_up =
        kinds.iter().zip(lookups).zip(&maps).map(|(((extents, lengths), lookups), maps)| {
            let rows = lookups.rows(maps);
            OfLayout { extents: *extents, lengths: *lengths, lookups, rows }
        });
    Ok((sweep.collect(), looked_up.collect()))
}

/// Look-ups alone vary less than whole swaps.
fn lookup_time(args: &ExtentsArgs) -> Duration {
    args.seconds / 4
}

/// A file system that does not tell is no reason to have no figures at all.
fn measure_file(args: &ExtentsArgs, dir: &Path) -> Result<Result<OfFile, String>, Refusal> {
    let found = match file::fragmented(dir, args.pieces) {
        Ok(found) => found,
        Err(why) => return Ok(Err(format!("no fragmented file in {}: {why}", dir.display()))),
    };
    let layout = Layout::of_file(&found);
    let nodes = Nodes::of(&layout);
    let maps = Maps::new(&layout, &nodes)?;
    let mut lookups = Lookups::default();
    for round in 0..args.rounds as usize {
        lookups.measure_round(&maps, round, lookup_time(args));
    }
    Ok(Ok(OfFile {
        extents: layout.extents.len(),
        bytes: found.iter().map(|extent| extent.length).sum(),
        rows: lookups.rows(&maps),
        lookups,
    }))
}
