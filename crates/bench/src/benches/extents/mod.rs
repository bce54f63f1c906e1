//! Cost of looking up extents in Linux's former list, in its red-black tree, and in softswap's map.
//!
//! Tasks swap to RAM, so that no device hides the cost. All variants run in every round.

mod layout;
mod areas;
mod rivals;
mod maps;
mod timing;

use crate::measure::machine::Machine;
use crate::measure::object::{Object, object};
use crate::measure::options::{InRounds, parse_seconds};
use crate::measure::report::Log;
use crate::measure::sample::{Cell, take_turns};
use clap::Args;
use maps::{LIST, Map, NONE, RBTREE, SOFTSWAP};
use softswap_cli::refusal::{OrRefuse, Refusal};
use std::path::PathBuf;
use std::time::Duration;
use timing::{Task, lookup_ns, queries, throughput};

/// The published table: 20 GiB in extents of 1 MiB.
const TABLE_PAGES: u64 = (20 << 30) / 4096;
const TABLE_EXTENTS: usize = 20_480;
/// The sweep: 80 GiB, in up to 84,656 extents, the largest number observed in a file of that size.
const SWEEP_PAGES: u64 = (80 << 30) / 4096;
const SWEEP_EXTENTS: [usize; 4] = [2, 2000, 20_480, 84_656];
const SWEEP_TASKS: usize = 4;

/// Measure the cost of looking up extents, compared with a list and a red-black tree.
///
/// Tasks swap pages out of and back into their memory, over an area in many extents, with a look-up
/// for each page. The device is RAM, so that the look-ups are a visible share. Nothing is written
/// to a disk.
#[derive(Args)]
#[command(after_long_help = "\
Variants: list is a linked list with one shared cursor that walks forward from the last extent
found, as in Linux before 5.4, which takes no lock either; rbtree a red-black tree
(intrusive-collections), as since 5.4, without a lock; softswap the engine's own map; none makes no
look-ups, as if the area were contiguous. The rivals' nodes are adjacent in memory, which is faster for
them than an allocation for each.

Swap-out uses slots one after the other in clusters of 512, each task in clusters of its own; swap-in
any page of the task's clusters. A page is one look-up and one copy. Tasks that share a processor take
turns after every page, as if each had one of its own. The look-up share is what is missing of the
throughput of none in the same round; around 0 it may be negative. The table (tasks) has 20 GiB in
extents of 1 MiB, the sweep 80 GiB with 4 tasks.

Look-ups alone: random_ns any page of the area, sequential_ns one page after the other.

With --area nothing of that is measured. The file must be on ext4 or xfs, and written once by
`softswap mkswap --raw`; this user must be allowed to open its device. Programs with each number of
threads (--tasks) touch four times their budget of 64 MiB, with the area through the file system (file)
and by its blocks (raw); the times are those of a page. fill_raw_N_tT_vs_file is the time of raw over that
of the file with N extents and T threads, fill_raw_N_tT_vs_M that with N extents over that with M.

swapout_softswap_vs_list_N is the throughput of softswap over that of the list with N tasks;
lookup_rbtree_vs_softswap_N the time of a random look-up in the tree over that in softswap's map, with
N extents; swapout_softswap_84656_vs_2 the throughput with 84656 extents over that with 2.")]
pub(crate) struct ExtentsArgs {
    /// Numbers of tasks for the table
    #[arg(long, value_name = "N,...", default_value = "4,8", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=64))]
    tasks: Vec<u32>,

    /// How long each variant swaps in a round and direction, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.03", value_parser = parse_seconds)]
    seconds: Duration,

    /// Measure programs that swap to this formatted file, instead of the map alone. May be repeated
    #[arg(long = "area", value_name = "FILE")]
    areas: Vec<PathBuf>,

    #[command(flatten)]
    common: InRounds<21>,
}

/// Swap throughput over a map in KiB/s, by round. The flag of the key is true for swap-out.
type SwapCell<'m> = Cell<(&'m Map, bool), f64>;

const DIRECTIONS: [(&str, bool); 2] = [("swapout", true), ("swapin", false)];

fn same(figure: &f64) -> f64 {
    *figure
}

pub(super) fn measure(args: &ExtentsArgs) -> Result<Object, Refusal> {
    let dir = args.common.dir(0)?;
    let mut log = Log::start();
    let mut figures = object! { seconds: args.seconds.as_secs_f64(), rounds: args.common.rounds };
    if !args.areas.is_empty() {
        let areas = areas::measure(&args.areas, &args.tasks, args.common.rounds, &mut log)?;
        figures.extend(object! { areas });
        return Ok(log.findings("extents", Machine::with_dir(&dir), figures));
    }
    let counts: Vec<usize> = args.tasks.iter().map(|count| *count as usize).collect();
    let max_tasks = counts.iter().copied().max().unwrap_or(0).max(SWEEP_TASKS);
    let tasks: std::io::Result<Vec<Task>> = (0..max_tasks).map(|_| Task::new()).collect();
    let mut tasks = tasks.or_own("the tasks cannot be allocated")?;
    let table = table(args, &counts, &mut tasks, &mut log)?;
    let mut maps = Vec::new();
    for extents in SWEEP_EXTENTS {
        maps.extend(maps::all(&layout::made(extents, SWEEP_PAGES))?);
    }
    let sweep = sweep(args, &maps, &mut tasks[..SWEEP_TASKS], &mut log)?;
    // Maximum over all layouts.
    let bytes = |name: &str| {
        let of_map = maps.iter().filter(|map| map.name == name);
        of_map.fold(0.0, |most: f64, map| map.bytes_per_extent().max(most))
    };
    figures.extend(object! {
        bytes_per_extent: bytes(SOFTSWAP),
        bytes_per_extent_list: bytes(LIST),
        bytes_per_extent_rbtree: bytes(RBTREE),
        tasks: table,
        sweep,
    });
    let mut lookups = Vec::new();
    for maps in maps.chunks_exact(maps::COUNT) {
        lookups.extend(measure_lookups(args, maps, &mut log)?);
    }
    figures.extend(object! { lookups });
    Ok(log.findings("extents", Machine::with_dir(&dir), figures))
}

/// Measures swap throughput for each number of tasks.
fn table(
    args: &ExtentsArgs,
    counts: &[usize],
    tasks: &mut [Task],
    log: &mut Log,
) -> Result<Vec<Object>, Refusal> {
    let mut rows = Vec::new();
    let maps = maps::all(&layout::made(TABLE_EXTENTS, TABLE_PAGES))?;
    for &count in counts {
        let cells = swap_in_turns(args, &maps, &mut tasks[..count])?;
        for (direction, is_out) in DIRECTIONS {
            let of = |name| find(&cells, name, TABLE_EXTENTS, is_out);
            for other in [LIST, RBTREE, NONE] {
                let ratio =
                    of(SOFTSWAP).zip(of(other)).map(|(ours, other)| ours.ratio_to(other, same));
                log.ratio(format!("{direction}_softswap_vs_{other}_{count}"), ratio);
            }
        }
        rows.extend(task_rows(count, &cells));
    }
    Ok(rows)
}

/// Measures swap throughput for each number of extents.
fn sweep(
    args: &ExtentsArgs,
    maps: &[Map],
    tasks: &mut [Task],
    log: &mut Log,
) -> Result<Vec<Object>, Refusal> {
    let cells = swap_in_turns(args, maps, tasks)?;
    let (from, to) = (SWEEP_EXTENTS[0], SWEEP_EXTENTS[SWEEP_EXTENTS.len() - 1]);
    for (direction, is_out) in DIRECTIONS {
        let of = |extents| find(&cells, SOFTSWAP, extents, is_out);
        let ratio = of(to).zip(of(from)).map(|(many, few)| many.ratio_to(few, same));
        log.ratio(format!("{direction}_softswap_{to}_vs_{from}"), ratio);
    }
    Ok(task_rows(SWEEP_TASKS, &cells))
}

fn swap_in_turns<'m>(
    args: &ExtentsArgs,
    maps: &'m [Map],
    tasks: &mut [Task],
) -> Result<Vec<SwapCell<'m>>, Refusal> {
    let keys = DIRECTIONS.iter().flat_map(|(_, is_out)| maps.iter().map(|map| (map, *is_out)));
    let mut cells: Vec<_> = keys.map(Cell::new).collect();
    // The first round warms up.
    take_turns(&mut cells, args.common.rounds + 1, |(map, is_out), round| {
        Ok(throughput(map, *is_out, tasks, args.seconds, 1 + round as u64))
    })?;
    for cell in &mut cells {
        cell.rounds.remove(0);
    }
    Ok(cells)
}

fn find<'c, 'm>(
    cells: &'c [SwapCell<'m>],
    name: &str,
    extents: usize,
    is_out: bool,
) -> Option<&'c SwapCell<'m>> {
    let is_it = |map: &Map| map.name == name && map.extents == extents;
    cells.iter().find(|cell| is_it(cell.key.0) && cell.key.1 == is_out)
}

fn task_rows(tasks: usize, cells: &[SwapCell<'_>]) -> Vec<Object> {
    let (out, back): (Vec<_>, Vec<_>) = cells.iter().partition(|cell| cell.key.1);
    let lookup_share = |cell: &SwapCell<'_>| {
        let none = find(cells, NONE, cell.key.0.extents, cell.key.1);
        none.map(|none| 1.0 - cell.ratio_to(none, same))
    };
    let rows = out.into_iter().zip(back).map(|(out, back)| {
        object! {
            variant: out.key.0.name,
            tasks,
            extents: out.key.0.extents,
            swapout_kbps: out.median(same),
            swapout_lookup_share: lookup_share(out),
            swapout_cov: out.cov(same),
            swapin_kbps: back.median(same),
            swapin_lookup_share: lookup_share(back),
            swapin_cov: back.cov(same),
        }
    });
    rows.collect()
}

/// Measures look-ups alone over one layout, and adds their ratios.
fn measure_lookups(
    args: &ExtentsArgs,
    maps: &[Map],
    log: &mut Log,
) -> Result<Vec<Object>, Refusal> {
    let rivals = || maps.iter().filter(|map| map.name != NONE);
    let of = |is_random: bool| {
        let mut cells: Vec<Cell<&Map, f64>> = rivals().map(Cell::new).collect();
        take_turns(&mut cells, args.common.rounds, |map, round| {
            let queries = queries(map.pages, is_random, 1 + round as u64);
            // Shorter runs suffice: look-ups vary less than whole swaps.
            Ok(lookup_ns(&*map.lookup, &queries, args.seconds / 4))
        })?;
        Ok::<_, Refusal>(cells)
    };
    let (random, sequential) = (of(true)?, of(false)?);
    let find = |name: &str| random.iter().find(|cell| cell.key.name == name);
    for rival in [LIST, RBTREE] {
        let ratio = find(rival).zip(find(SOFTSWAP)).map(|(rival, ours)| rival.ratio_to(ours, same));
        log.ratio(format!("lookup_{rival}_vs_softswap_{}", maps[0].extents), ratio);
    }
    let row = |(random, sequential): (&Cell<&Map, f64>, &Cell<&Map, f64>)| {
        object! {
            extents: random.key.extents,
            variant: random.key.name,
            random_ns: random.median(same),
            sequential_ns: sequential.median(same),
            // Over the rounds of random look-ups.
            cov: random.cov(same),
            bytes: random.key.bytes,
            bytes_per_extent: random.key.bytes_per_extent(),
        }
    };
    Ok(random.iter().zip(&sequential).map(row).collect())
}
