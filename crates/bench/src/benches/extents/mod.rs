//! Cost of looking up extents in Linux's former list, in its red-black tree, and in softswap's map,
//! and of programs that swap to a file in extents.
//!
//! Tasks swap to RAM, so that no device hides the cost. All variants run in every round.

mod maps;
mod timing;

use crate::benches::library::task::{self, Place, StepTimes, step_ratios, step_rows};
use crate::measure::machine::Machine;
use crate::measure::options::{InRounds, parse_seconds};
use crate::measure::report::Log;
use crate::measure::sample::{Cell, Object, object, take_turns};
use crate::measure::task_pipe::signals;
use clap::Args;
use maps::Map;
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_sys::fiemap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;
use timing::{Task, lookup_ns, queries, throughput};

/// The published table: 20 GiB in extents of 1 MiB.
const TABLE_PAGES: u64 = (20 << 30) / 4096;
const TABLE_EXTENTS: usize = 20_480;
/// Look-ups alone: 80 GiB, in up to 84,656 extents, the largest number observed in a file of that
/// size.
const LOOKUP_PAGES: u64 = (80 << 30) / 4096;
const LOOKUP_EXTENTS: [usize; 4] = [2, 2000, 20_480, 84_656];

/// Measure the cost of looking up extents, compared with a list and a red-black tree.
///
/// Tasks swap pages out of and back into their memory, over an area in many extents, with a look-up
/// for each page. The device is RAM, so that the look-ups are a visible share. Nothing is written
/// to a disk.
#[derive(Args)]
#[command(after_long_help = "\
Variants: list is a linked list with one shared cursor that walks forward from the last extent
found, as in Linux before 5.4, which takes no lock either; rbtree a red-black tree
(intrusive-collections), as since 5.4, without a lock; softswap the engine's own map. The rivals' nodes
are adjacent in memory, which is faster for them than an allocation for each.

Swap-out uses slots one after the other in clusters of 512, each task in clusters of its own; swap-in
any page of the task's clusters. A page is one look-up and one copy. Tasks that share a processor take
turns after every page, as if each had one of its own. The area has 20 GiB in extents of 1 MiB.

Look-ups alone, in 80 GiB: random_ns any page of the area, sequential_ns one page after the other.

With --area nothing of that is measured. The file must be on ext4 or xfs, and written once by
`softswap mkswap --raw`; this user must be allowed to open its device. Programs with each number of
threads (--tasks) touch four times their budget of 64 MiB, with the area through the file system (file)
and by its blocks (raw); the times are those of a page. fill_raw_N_tT_vs_file is the time of raw over that
of the file with N extents and T threads, fill_raw_N_tT_vs_M that with N extents over that with M.

swapout_softswap_vs_list_N is the throughput of softswap over that of the list with N tasks;
lookup_rbtree_vs_softswap_N the time of a random look-up in the tree over that in softswap's map, with
N extents.")]
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

pub(super) fn measure(args: &ExtentsArgs) -> Result<Object, Refusal> {
    let dir = args.common.dir(0)?;
    let mut log = Log::start();
    let mut figures = object! { seconds: args.seconds.as_secs_f64(), rounds: args.common.rounds };
    if args.areas.is_empty() {
        let tasks = swaps(args, &mut log)?;
        let mut lookups = Vec::new();
        for extents in LOOKUP_EXTENTS {
            lookups.extend(measure_lookups(args, extents, &mut log)?);
        }
        figures.extend(object! { tasks, lookups });
    } else {
        let areas = measure_areas(&args.areas, &args.tasks, args.common.rounds, &mut log)?;
        figures.extend(object! { areas });
    }
    Ok(log.findings("extents", Machine::with_dir(&dir), figures))
}

/// Measures swap throughput over each map in KiB/s, for each number of tasks.
fn swaps(args: &ExtentsArgs, log: &mut Log) -> Result<Vec<Object>, Refusal> {
    let max_tasks = args.tasks.iter().copied().max().unwrap_or(0);
    let tasks: std::io::Result<Vec<Task>> = (0..max_tasks).map(|_| Task::new()).collect();
    let mut tasks = tasks.or_own("the tasks cannot be allocated")?;
    let maps = maps::all(TABLE_EXTENTS, TABLE_PAGES)?;
    let keys =
        || [true, false].into_iter().flat_map(|is_out| maps.iter().map(move |m| (m, is_out)));
    let mut rows = Vec::new();
    for &count in &args.tasks {
        let mut cells: Vec<Cell<(&Map, bool), f64>> = keys().map(Cell::new).collect();
        // The first round warms up.
        take_turns(&mut cells, args.common.rounds + 1, |(map, is_out), round| {
            let tasks = &mut tasks[..count as usize];
            Ok(throughput(map, *is_out, tasks, args.seconds, 1 + round as u64))
        })?;
        for cell in &mut cells {
            cell.rounds.remove(0);
        }
        let (out, back) = cells.split_at(maps.len());
        for (direction, cells) in [("swapout", out), ("swapin", back)] {
            let [rivals @ .., softswap] = cells else { continue };
            for rival in rivals {
                let ratio = softswap.ratio_to(rival, f64::clone);
                log.ratio(format!("{direction}_softswap_vs_{}_{count}", rival.key.0.name), ratio);
            }
        }
        rows.extend(out.iter().zip(back).map(|(out, back)| {
            object! {
                variant: out.key.0.name,
                tasks: count,
                swapout_kbps: out.median(f64::clone),
                swapout_cov: out.cov(f64::clone),
                swapin_kbps: back.median(f64::clone),
                swapin_cov: back.cov(f64::clone),
            }
        }));
    }
    Ok(rows)
}

/// Measures look-ups alone over one layout, and adds their ratios.
fn measure_lookups(
    args: &ExtentsArgs,
    extents: usize,
    log: &mut Log,
) -> Result<Vec<Object>, Refusal> {
    let maps = maps::all(extents, LOOKUP_PAGES)?;
    let of = |is_random: bool| {
        let mut cells: Vec<Cell<&Map, f64>> = maps.iter().map(Cell::new).collect();
        take_turns(&mut cells, args.common.rounds, |map, round| {
            let queries = queries(map.pages, is_random, 1 + round as u64);
            // Shorter runs suffice: look-ups vary less than whole swaps.
            Ok(lookup_ns(&*map.lookup, &queries, args.seconds / 4))
        })?;
        Ok::<_, Refusal>(cells)
    };
    let (random, sequential) = (of(true)?, of(false)?);
    if let [rivals @ .., softswap] = &random[..] {
        for rival in rivals {
            let ratio = rival.ratio_to(softswap, f64::clone);
            log.ratio(format!("lookup_{}_vs_softswap_{extents}", rival.key.name), ratio);
        }
    }
    let row = |(random, sequential): (&Cell<&Map, f64>, &Cell<&Map, f64>)| {
        object! {
            extents,
            variant: random.key.name,
            random_ns: random.median(f64::clone),
            sequential_ns: sequential.median(f64::clone),
            // Over the rounds of random look-ups.
            cov: random.cov(f64::clone),
        }
    };
    Ok(random.iter().zip(&sequential).map(row).collect())
}

const BUDGET_BYTES: u64 = 64 << 20;
const OVER_BUDGET: u64 = 4;
/// Touches of each random step, over all threads.
const TOUCHES: u32 = 20_000;
/// Access through the file system, and raw access through the device.
const WAYS: [&str; 2] = ["file", "raw"];

struct Side<'a> {
    path: &'a PathBuf,
    extents: usize,
    way: &'static str,
    threads: u32,
}

/// Measures programs over their budget whose swap file is accessed through the file system, or raw,
/// with each number of threads. The ratios compare times.
fn measure_areas(
    paths: &[PathBuf],
    threads: &[u32],
    rounds: u32,
    log: &mut Log,
) -> Result<Vec<Object>, Refusal> {
    let signals = signals()?;
    let mut cells = Vec::new();
    for &threads in threads {
        for path in paths {
            let file = File::open(path).or_own(path.display())?;
            let extents = fiemap::extents(file.as_fd()).or_own(path.display())?.len();
            cells.extend(WAYS.map(|way| Cell::new(Side { path, extents, way, threads })));
        }
    }
    take_turns(&mut cells, rounds, |side, round| {
        let mut area = side.path.clone().into_os_string();
        area.push(if side.way == "raw" { ",raw" } else { "" });
        let bytes = BUDGET_BYTES * OVER_BUDGET;
        let dir = PathBuf::new();
        let mut task = task::Task::new(Place::Run, bytes, TOUCHES, round, BUDGET_BYTES, dir);
        task.threads = side.threads as usize;
        task.run_swapped(&[area], &signals)
    })?;
    for group in cells.chunks(paths.len() * WAYS.len()) {
        let raw = |cell: &&Cell<Side<'_>, StepTimes>| cell.key.way == "raw";
        let fewest = group.iter().filter(raw).min_by_key(|cell| cell.key.extents);
        for pair in group.chunks(WAYS.len()) {
            let Side { extents, threads, .. } = pair[1].key;
            let name = |step: &str| format!("{step}_raw_{extents}_t{threads}");
            step_ratios((&pair[1], &pair[0]), |step| name(step) + "_vs_file", log);
            if let Some(few) = fewest.filter(|few| few.key.extents < extents) {
                let name = |step: &str| format!("{}_vs_{}", name(step), few.key.extents);
                step_ratios((&pair[1], few), name, log);
            }
        }
    }
    let columns = |side: &Side<'_>| {
        let Side { extents, way, threads, .. } = side;
        object! { extents, way, threads }
    };
    Ok(step_rows(&cells, columns))
}
