//! What looking up extents costs: in the list and the red-black tree that
//! Linux had and has, and in softswap's map.
//!
//! Tasks swap to RAM, so that nothing hides the look-ups; every variant takes
//! its turn in every round.

mod file;
mod outcome;
mod tasks;

use crate::extent_maps::layout::{Layout, Lengths};
use crate::extent_maps::lookups::Lookups;
use crate::extent_maps::maps::{Maps, Nodes};
use crate::measure::machine::{Machine, Usage};
use crate::measure::report::Target as Output;
use crate::measure::sample::rotated;
use clap::Args;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::{machine as memory, swapdir, units};
use std::path::{Path, PathBuf};
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
/// More tasks would not fit in most machines.
const MOST_TASKS: i64 = 64;

/// Measure what looking up extents costs, against a list and a red-black tree.
///
/// Tasks swap pages out of and back into their memory, over an area in many
/// extents, with a look-up for each page. The device is RAM, so that the
/// look-ups show. Nothing is written to a disk but the claims of one file.
#[derive(Args)]
#[command(after_long_help = "\
Variants: list is a linked list with one shared cursor that walks forward from the last extent
found, as in Linux before 5.4, which takes no lock either; rbtree a red-black tree
(intrusive-collections), as since 5.4, without a lock; softswap the engine's own map; none makes no
look-ups, as if the area lay in one piece. The rivals' nodes lie side by side, which is kinder to
them than an allocation for each.

Swap-out takes slots one after the other in clusters of 512, each task in clusters of its own;
swap-in any page of the task's clusters. A page is one look-up and one copy. Tasks that share a
processor take turns after every page, as if each had one of its own. The look-up share is
what is missing of the throughput of none in the same round; around 0 it may come out negative.
The table has 20 GiB in extents of 1 MiB, the sweep 80 GiB with 4 tasks.

Look-ups alone: random_ns any page of the area, random_extent_ns any page of any extent,
sequential_ns one page after the other. Lengths: equal; skewed, every magnitude equally often;
bimodal, half of the extents one or two pages each, all at the start.

The file is allocated in turns with another one; its extents are what FIEMAP says. It has no name.

With --json: {\"schema\": 1, \"bench\": \"extents\", \"machine\": {...}, ratios, \"tasks\": [{\"variant\",
\"tasks\", \"swapout_kbps\", \"swapout_lookup_share\", \"swapout_cov\", \"swapin_...\"}], \"sweep\": [the same
with \"extents\" and \"lengths\"], \"lookups\": [{\"extents\", \"lengths\", \"variant\", \"random_ns\",
\"random_extent_ns\", \"sequential_ns\", \"cov\", \"bytes\", \"bytes_per_extent\"}], \"file\": {\"extents\",
\"bytes\", \"lookups\": [...]} or null}. Ratios: swapout_softswap_vs_list_N is the throughput of
softswap over that of the list with N tasks; lookup_rbtree_vs_softswap_N the time of a random
look-up in the tree over that in softswap's map, with N extents of equal lengths, _skewed and
_bimodal of others, _by_extent by random_extent_ns; swapout_softswap_84656_vs_2 the throughput with
84656 extents over that with 2. Everything is a median over the rounds, of ratios, too.")]
pub(crate) struct ExtentsArgs {
    /// Numbers of tasks for the table
    #[arg(long, value_name = "N,...", default_value = "4,8", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=MOST_TASKS))]
    tasks: Vec<u32>,

    /// How long each variant swaps in a round and direction, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.03", value_parser = parse_seconds)]
    seconds: Duration,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 21,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Pieces in which the file is made to grow
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pieces: u32,

    /// The directory for the file
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.trim().parse::<f64>() {
        Ok(seconds) if (0.001..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give seconds from 0.001 to 60".into()),
    }
}

pub(super) fn run(args: &ExtentsArgs) -> Result<ExitCode, Refusal> {
    let dir = swapdir::check("--swap", &args.swap, file::most_bytes(args.pieces))?;
    let most_tasks = args.tasks.iter().map(|n| *n as usize).max().unwrap_or(0).max(SWEEP_TASKS);
    check_memory(most_tasks)?;
    let output = Output::open(args.json.as_deref())?;
    let machine = Machine::with_device(&dir.path, dir.file_system);
    let usage = Usage::now();
    match measure(args, &dir.path, most_tasks) {
        Ok(measured) => {
            let outcome = outcome::ExtentsOutcome::new(args, measured, machine, usage.since());
            output.write(&outcome).map(|()| ExitCode::SUCCESS)
        }
        Err(refusal) => {
            output.abandon();
            Err(refusal)
        }
    }
}

fn check_memory(tasks: usize) -> Result<(), Refusal> {
    /// What all the maps take, and some.
    const MAPS_BYTES: u64 = 128 << 20;
    let needed_bytes = tasks as u64 * Task::BYTES + MAPS_BYTES;
    let available_bytes = memory::available().bytes;
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

/// Throughputs with one number of tasks over one layout.
struct Cell {
    tasks: usize,
    extents: usize,
    lengths: Lengths,
    throughputs: Throughputs,
}

/// Look-ups over one layout.
struct Ground {
    extents: usize,
    lengths: Lengths,
    lookups: Lookups,
    rows: Vec<crate::extent_maps::lookups::LookupRow>,
}

/// Look-ups over a file.
struct OfFile {
    extents: usize,
    bytes: u64,
    lookups: Lookups,
    rows: Vec<crate::extent_maps::lookups::LookupRow>,
}

struct Measured {
    table: Vec<Cell>,
    sweep: Vec<Cell>,
    grounds: Vec<Ground>,
    file: Result<OfFile, String>,
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
    let (sweep, grounds) = measure_sweep(args, &mut tasks[..SWEEP_TASKS])?;
    Ok(Measured { table, sweep, grounds, file: measure_file(args, dir)? })
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
) -> Result<(Vec<Cell>, Vec<Ground>), Refusal> {
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
    let grounds =
        kinds.iter().zip(lookups).zip(&maps).map(|(((extents, lengths), lookups), maps)| {
            let rows = lookups.rows(maps);
            Ground { extents: *extents, lengths: *lengths, lookups, rows }
        });
    Ok((sweep.collect(), grounds.collect()))
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
