//! What looking up extents costs: in the list and the red-black tree that
//! Linux had and has, and in softswap's map.
//!
//! Tasks swap to RAM, so that nothing hides the look-ups; every variant takes
//! its turn in every round.

pub(crate) mod layout;
mod list;
mod tree;
mod maps;
mod timing;
mod file;

use crate::measure::machine::{Machine, Usage};
use crate::measure::report::{Findings, Output};
use crate::measure::sample::rotated;
use clap::Args;
use layout::Layout;
use maps::{MapKind, Maps, Nodes};
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::swapdir;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use timing::{RANDOM, Rounds, SEQUENTIAL, SWAP_IN, SWAP_OUT, Task, lookup_ns, queries, throughput};

/// The published table: 20 GB in extents of 1 MiB.
const TABLE_PAGES: u64 = (20 << 30) / 4096;
const TABLE_EXTENTS: usize = 20_480;
/// The sweep: 80 GB, in as many extents as were found in such a file at worst.
const SWEEP_PAGES: u64 = (80 << 30) / 4096;
const SWEEP_EXTENTS: [usize; 4] = [2, 2000, 20_480, 84_656];
const SWEEP_TASKS: usize = 4;
/// Rounds that do not count.
const WARM_UPS: usize = 1;

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

Look-ups alone: random_ns any page of the area, sequential_ns one page after the other.

The file is allocated in turns with another one; its extents are what FIEMAP says. It has no name.

With --json: {\"schema\": 2, \"bench\": \"extents\", \"machine\": {...}, \"ratios\": {...}, \"tasks\": [{\"variant\",
\"tasks\", \"swapout_kbps\", \"swapout_lookup_share\", \"swapout_cov\", \"swapin_...\"}], \"sweep\": [the same
with \"extents\"], \"lookups\": [{\"extents\", \"variant\", \"random_ns\", \"sequential_ns\", \"cov\", \"bytes\",
\"bytes_per_extent\"}], \"file\": {\"extents\", \"bytes\", \"lookups\": [...]} or null}. Ratios:
swapout_softswap_vs_list_N is the throughput of softswap over that of the list with N tasks;
lookup_rbtree_vs_softswap_N the time of a random look-up in the tree over that in softswap's map, with
N extents; swapout_softswap_84656_vs_2 the throughput with 84656 extents over that with 2. Everything
is a median over the rounds, of ratios, too.")]
pub(crate) struct ExtentsArgs {
    /// Numbers of tasks for the table
    #[arg(long, value_name = "N,...", default_value = "4,8", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=64))]
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

#[derive(Debug, Serialize)]
struct Figures {
    seconds: f64,
    rounds: u32,
    bytes_per_extent: f64,
    bytes_per_extent_list: f64,
    bytes_per_extent_rbtree: f64,
    tasks: Vec<TaskRow>,
    sweep: Vec<TaskRow>,
    lookups: Vec<LayoutRow>,
    file: Option<FileFigures>,
}

#[derive(Debug, Serialize)]
struct TaskRow {
    variant: &'static str,
    tasks: usize,
    extents: usize,
    swapout_kbps: f64,
    swapout_lookup_share: f64,
    swapout_cov: f64,
    swapin_kbps: f64,
    swapin_lookup_share: f64,
    swapin_cov: f64,
}

#[derive(Debug, Serialize)]
struct LayoutRow {
    extents: usize,
    #[serde(flatten)]
    row: LookupRow,
}

#[derive(Debug, Serialize)]
struct FileFigures {
    extents: usize,
    bytes: u64,
    lookups: Vec<LookupRow>,
}

#[derive(Debug, Serialize)]
struct LookupRow {
    variant: &'static str,
    random_ns: f64,
    sequential_ns: f64,
    /// Of the random look-ups' rounds.
    cov: f64,
    bytes: u64,
    bytes_per_extent: f64,
}

const RIVALS: [MapKind; 2] = [MapKind::List, MapKind::RbTree];
const DIRECTIONS: [&str; 2] = [SWAP_OUT, SWAP_IN];

pub(super) fn run(args: &ExtentsArgs) -> Result<ExitCode, Refusal> {
    let dir = swapdir::check("--swap", &args.swap, file::most_bytes(args.pieces))?;
    let most_tasks = args.tasks.iter().map(|n| *n as usize).max().unwrap_or(0).max(SWEEP_TASKS);
    let output = Output::open(args.json.as_deref())?;
    let machine = Machine::with_device(&dir.path, dir.file_system);
    output.finish(measure(args, &dir.path, most_tasks, machine))
}

fn measure(
    args: &ExtentsArgs,
    dir: &Path,
    most_tasks: usize,
    machine: Machine,
) -> Result<Findings<Figures>, Refusal> {
    let (usage, mut ratios, mut notes) = (Usage::now(), Map::new(), Vec::new());
    let tasks: std::io::Result<Vec<Task>> = (0..most_tasks).map(|_| Task::new()).collect();
    let mut tasks = tasks
        .map_err(|error| Refusal::own(format!("no memory for the tasks: {}", plain(&error))))?;
    let mut table = Vec::new();
    let layout = Layout::made(TABLE_EXTENTS, TABLE_PAGES);
    let nodes = Nodes::of(&layout);
    let maps = Maps::new(&layout, &nodes)?;
    for count in args.tasks.iter().map(|count| *count as usize) {
        let mut cell = [(&maps, Rounds::default())];
        swap_in_turns(args, &mut cell, &mut tasks[..count]);
        let [(_, of)] = cell;
        for name in DIRECTIONS {
            for other in [MapKind::List, MapKind::RbTree, MapKind::None] {
                let ratio = of.over(MapKind::Softswap, &of, other, name);
                ratios.insert(format!("{name}_softswap_vs_{}_{count}", other.name()), ratio.into());
            }
        }
        table.extend(task_rows(count, TABLE_EXTENTS, &of));
    }

    let layouts = SWEEP_EXTENTS.map(|extents| Layout::made(extents, SWEEP_PAGES));
    let nodes: Vec<Nodes<'_>> = layouts.iter().map(Nodes::of).collect();
    let maps = layouts.iter().zip(&nodes).map(|(layout, nodes)| Maps::new(layout, nodes));
    let maps: Vec<Maps<'_>> = maps.collect::<Result<_, _>>()?;
    let mut cells: Vec<_> = maps.iter().map(|maps| (maps, Rounds::default())).collect();
    swap_in_turns(args, &mut cells, &mut tasks[..SWEEP_TASKS]);
    let last = SWEEP_EXTENTS.len() - 1;
    for name in DIRECTIONS {
        let ratio = cells[last].1.over(MapKind::Softswap, &cells[0].1, MapKind::Softswap, name);
        let (from, to) = (SWEEP_EXTENTS[0], SWEEP_EXTENTS[last]);
        ratios.insert(format!("{name}_softswap_{to}_vs_{from}"), ratio.into());
    }
    let cells = SWEEP_EXTENTS.iter().zip(&cells);
    let sweep = cells.flat_map(|(extents, (_, of))| task_rows(SWEEP_TASKS, *extents, of)).collect();

    let mut rows: Vec<LayoutRow> = Vec::new();
    for (extents, maps) in SWEEP_EXTENTS.into_iter().zip(&maps) {
        let looked_up = lookups(args, maps, &extents.to_string(), &mut ratios);
        rows.extend(looked_up.into_iter().map(|row| LayoutRow { extents, row }));
    }
    let file = match measure_file(args, dir, &mut ratios)? {
        Ok(file) => Some(file),
        Err(why) => {
            notes.push(why);
            None
        }
    };
    // The most of all layouts.
    let bytes = |map: MapKind| {
        let of_map = rows.iter().filter(|row| row.row.variant == map.name());
        of_map.fold(0.0, |most: f64, row| row.row.bytes_per_extent.max(most))
    };
    let figures = Figures {
        seconds: args.seconds.as_secs_f64(),
        rounds: args.rounds,
        bytes_per_extent: bytes(MapKind::Softswap),
        bytes_per_extent_list: bytes(MapKind::List),
        bytes_per_extent_rbtree: bytes(MapKind::RbTree),
        tasks: table,
        sweep,
        lookups: rows,
        file,
    };
    Ok(Findings { notes, ..Findings::new("extents", machine, usage.since(), figures, ratios) })
}

/// All maps over all layouts, in changing order. What is compared follows each other closely: the
/// maps of one layout, and the layouts.
fn swap_in_turns(args: &ExtentsArgs, cells: &mut [(&Maps<'_>, Rounds)], tasks: &mut [Task]) {
    for round in 0..WARM_UPS + args.rounds as usize {
        for what in DIRECTIONS {
            for index in rotated(MapKind::ALL.len(), round) {
                for place in rotated(cells.len(), round) {
                    let (maps, rounds) = &mut cells[place];
                    let (kind, seed) = (MapKind::ALL[index], 1 + round as u64);
                    let kbps = throughput(maps, kind, what, tasks, args.seconds, seed);
                    if round >= WARM_UPS {
                        rounds.add(kind, what, kbps);
                    }
                }
            }
        }
    }
}

fn task_rows(tasks: usize, extents: usize, of: &Rounds) -> Vec<TaskRow> {
    let lookup_share = |kind, what| 1.0 - of.over(kind, of, MapKind::None, what);
    let row = |kind: MapKind| TaskRow {
        variant: kind.name(),
        tasks,
        extents,
        swapout_kbps: of.median(kind, SWAP_OUT),
        swapout_lookup_share: lookup_share(kind, SWAP_OUT),
        swapout_cov: of.cov(kind, SWAP_OUT),
        swapin_kbps: of.median(kind, SWAP_IN),
        swapin_lookup_share: lookup_share(kind, SWAP_IN),
        swapin_cov: of.cov(kind, SWAP_IN),
    };
    MapKind::ALL.into_iter().map(row).collect()
}

/// Look-ups alone over one layout; their ratios are named after it.
fn lookups(
    args: &ExtentsArgs,
    maps: &Maps<'_>,
    layout: &str,
    ratios: &mut Map<String, Value>,
) -> Vec<LookupRow> {
    let kinds = &MapKind::ALL[1..];
    let mut rounds = Rounds::default();
    for round in 0..args.rounds as usize {
        for what in [RANDOM, SEQUENTIAL] {
            let queries = queries(maps.layout.pages, what, 1 + round as u64);
            for index in rotated(kinds.len(), round) {
                // They vary less than whole swaps.
                let ns = lookup_ns(maps, kinds[index], &queries, args.seconds / 4);
                rounds.add(kinds[index], what, ns);
            }
        }
    }
    for rival in RIVALS {
        let ratio = rounds.over(rival, &rounds, MapKind::Softswap, RANDOM);
        ratios.insert(format!("lookup_{}_vs_softswap_{layout}", rival.name()), ratio.into());
    }
    let row = |kind: &MapKind| LookupRow {
        variant: kind.name(),
        random_ns: rounds.median(*kind, RANDOM),
        sequential_ns: rounds.median(*kind, SEQUENTIAL),
        cov: rounds.cov(*kind, RANDOM),
        bytes: maps.bytes(*kind),
        bytes_per_extent: maps.bytes(*kind) as f64 / maps.layout.extents.len().max(1) as f64,
    };
    kinds.iter().map(row).collect()
}

/// A file system that does not tell where the file is only leaves out its figures.
fn measure_file(
    args: &ExtentsArgs,
    dir: &Path,
    ratios: &mut Map<String, Value>,
) -> Result<Result<FileFigures, String>, Refusal> {
    let found = match file::fragmented(dir, args.pieces) {
        Ok(found) => found,
        Err(why) => return Ok(Err(format!("no fragmented file in {}: {why}", dir.display()))),
    };
    let layout = Layout::of_file(&found);
    let nodes = Nodes::of(&layout);
    let maps = Maps::new(&layout, &nodes)?;
    Ok(Ok(FileFigures {
        extents: layout.extents.len(),
        bytes: found.iter().map(|extent| extent.length).sum(),
        lookups: lookups(args, &maps, "file", ratios),
    }))
}
