//! What the compressed pool costs: pages stored, loaded and invalidated a
//! second, and how much of its memory it cannot use; beside zram.
//!
//! Both get the same pages from as many threads on the same processors, and
//! take turns in every round. softswap is called as the walks call it; zram is
//! asked through its block device, one page at a time.

pub(super) mod contents;
mod measure;
mod outcome;
mod stores;
mod waste;
mod zram;

use crate::measure::machine::{Disturbance, Usage};
use crate::measure::report::Target as Output;
use crate::measure::sample::rotated;
use clap::Args;
use contents::KINDS;
use measure::Took;
use softswap_cli::refusal::{Refusal, plain};
use softswap_sys::memory::Page;
use std::path::PathBuf;
use std::process::ExitCode;
use stores::{Damaged, Softswap, Store};
use waste::WasteRow;
use zram::Zram;

const SOFTSWAP: &str = "softswap";
const ZRAM: &str = "zram";
/// More would only take turns.
const MOST_THREADS: u32 = 64;

/// Measure the compressed pool, beside zram.
///
/// A store is what page-out does with a page that stays in DRAM: look whether
/// it is same-filled, compress it, put it into the pool. A load takes it from
/// there and unpacks it, an invalidation frees it. zram does the same behind a
/// block device of the bench's own, with O_DIRECT: 4 KiB written, read, and
/// discarded. It needs root and the zram module, and is left out with a note
/// where these are missing. Devices that exist are not touched; its own is
/// removed however the bench ends.
#[derive(Args)]
#[command(after_long_help = "\
Kinds of pages, all of them LZ4's to pack and none same-filled:
  pointers     nodes of 64 bytes: a table of functions, three addresses or null, two small numbers
  text         words of a vocabulary of 600, frequent ones short, with punctuation
  half_random  2 KiB of random numbers, then zeroes
  counters     numbers of eight bytes that go up by 1 to 3
  python       memory of a Python process full of records, as far as it packs; not the same in
               every run, and left out where there is no python3
In the table of waste also:
  mixed        all of these kinds
  sizes        random numbers of 8 to 3007 bytes, then zeroes

Pages are stored in sequence, loaded and invalidated in random orders, and dealt out to the threads.
Time is from the first thread's start to the last one's end, so operations a second are those of
all threads together. A system call is part of each of zram's.

Waste is the share of the memory in use that holds no packed bytes: after filling; with half of the
pages invalidated and other pages stored in their place; and after four times as many random
replacements as there are pages. halved is in between, with half of them gone.

With --json: {\"schema\": 1, \"bench\": \"pool\", \"machine\": {...}, ratios, \"kinds\": [{\"kind\",
\"packed_bytes\"}], \"rows\": [{\"variant\", \"kind\", \"threads\", \"op\", \"ops_per_s\", \"cov\", \"count\"}],
\"waste\": [{\"variant\", \"content\", \"filled_percent\", \"halved_percent\", \"refilled_percent\",
\"churned_percent\"}]}. OP_softswap_vs_zram_tN is how many times as many operations softswap did with
N threads, over all kinds together, the median over the rounds; without _tN it is for one thread.
waste_percent is softswap's largest of filled, refilled and churned, waste_percent_STATE that of one
of them. What could not be measured is null.")]
pub(crate) struct PoolArgs {
    /// Pages of each kind
    #[arg(long, value_name = "N", default_value_t = 8192,
          value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    pages: u32,

    /// Pages in a store whose waste is looked at
    #[arg(long, value_name = "N", default_value_t = 65_536,
          value_parser = clap::value_parser!(u32).range(64..=1 << 22))]
    objects: u32,

    /// Numbers of threads to try
    #[arg(long, value_name = "N,...", default_value = "1,2,4", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_THREADS)))]
    threads: Vec<u32>,

    /// Rounds that count, after one in which every page is compared
    #[arg(long, value_name = "N", default_value_t = 9,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Leave zram out
    #[arg(long)]
    no_zram: bool,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Damage a page, which must be noticed; for tests
    #[arg(long, hide = true)]
    damage: bool,
}

/// Pages of a kind.
struct Content {
    name: &'static str,
    pages: &'static [Page],
    mean_packed_bytes: f64,
}

/// A variant with a kind and so many threads, and what each round took.
struct Cell {
    variant: &'static str,
    content: usize,
    threads: usize,
    rounds: Vec<Took>,
}

/// Everything that was found.
struct Found {
    contents: Vec<Content>,
    cells: Vec<Cell>,
    waste: Vec<WasteRow>,
    disturbance: Disturbance,
    notes: Vec<String>,
}

pub(super) fn run(args: &PoolArgs) -> Result<ExitCode, Refusal> {
    let output = Output::open(args.json.as_deref())?;
    match measure(args) {
        Ok(found) => {
            output.write(&outcome::PoolOutcome::new(found, args)).map(|()| ExitCode::SUCCESS)
        }
        Err(refusal) => {
            output.abandon();
            Err(refusal)
        }
    }
}

fn measure(args: &PoolArgs) -> Result<Found, Refusal> {
    let usage = Usage::now();
    let mut notes = Vec::new();
    let contents = contents(args.pages as usize, &mut notes)?;
    let room = args.pages.max(args.objects) as usize;
    let softswap = Softswap::new(room).map_err(|error| no_memory(&error))?;
    let zram = if args.no_zram { Err("--no-zram".into()) } else { Zram::new(room) };
    if let Err(why) = &zram {
        notes.push(format!("zram was left out: {why}"));
    }
    let mut stores: Vec<(&str, &dyn Store)> = vec![(SOFTSWAP, &softswap)];
    stores.extend(zram.iter().map(|zram| (ZRAM, zram as &dyn Store)));
    let damaged = Damaged(stores[stores.len() - 1].1);
    if let (true, Some((_, last))) = (args.damage, stores.last_mut()) {
        *last = &damaged;
    }
    let mut cells = cells(args, &contents, &stores);
    for round in 0..=args.rounds as usize {
        for index in rotated(cells.len(), round) {
            let Cell { variant, content, threads, rounds } = &mut cells[index];
            let pages = contents[*content].pages;
            let took = stores
                .iter()
                .find(|(name, _)| name == variant)
                .ok_or_else(|| "is missing".to_string())
                .and_then(|(_, store)| {
                    measure::run(*store, pages, *threads, round as u64 * 1000, round == 0)
                })
                .map_err(|why| failed(variant, contents[*content].name, &why))?;
            if round > 0 {
                rounds.push(took);
            }
        }
    }
    let waste = waste(&contents, &stores, args.pages as usize, args.objects as usize)?;
    Ok(Found { contents, cells, waste, disturbance: usage.since(), notes })
}

fn no_memory(error: &std::io::Error) -> Refusal {
    Refusal::own(format!("no memory: {}", plain(error)))
}

fn failed(variant: &str, content: &str, why: &str) -> Refusal {
    Refusal::own(format!("{variant}, {content}: {why}"))
}

fn contents(count: usize, notes: &mut Vec<String>) -> Result<Vec<Content>, Refusal> {
    let mut all = Vec::new();
    let mut add = |name, pages: &'static [Page]| {
        let mean_packed_bytes = contents::mean_packed_bytes(pages)
            .ok_or_else(|| Refusal::own(format!("{name}: a page is not one for the pool")))?;
        all.push(Content { name, pages, mean_packed_bytes });
        Ok::<(), Refusal>(())
    };
    for kind in KINDS {
        add(kind.name(), contents::generated(kind, count).map_err(|error| no_memory(&error))?)?;
    }
    match contents::of_python(count) {
        Ok((pages, others)) => {
            add("python", pages)?;
            notes.push(format!(
                "python: {others} of its pages were passed over, same-filled or incompressible"
            ));
        }
        Err(why) => notes.push(format!("python was left out: {why}")),
    }
    Ok(all)
}

fn cells(
    args: &PoolArgs,
    contents: &[Content],
    stores: &[(&'static str, &dyn Store)],
) -> Vec<Cell> {
    let mut cells = Vec::new();
    for content in 0..contents.len() {
        for threads in &args.threads {
            cells.extend(stores.iter().map(|(variant, _)| Cell {
                variant,
                content,
                threads: *threads as usize,
                rounds: Vec::new(),
            }));
        }
    }
    cells
}

fn waste(
    contents: &[Content],
    stores: &[(&'static str, &dyn Store)],
    pages: usize,
    objects: usize,
) -> Result<Vec<WasteRow>, Refusal> {
    let sizes: &[Page] = contents::of_every_size(pages).map_err(|error| no_memory(&error))?;
    let mut groups: Vec<(&str, Vec<&[Page]>)> =
        contents.iter().map(|content| (content.name, vec![content.pages])).collect();
    groups.push(("mixed", contents.iter().map(|content| content.pages).collect()));
    groups.push(("sizes", vec![sizes]));
    let mut rows = Vec::new();
    for (name, pages) in &groups {
        for (variant, store) in stores {
            let row = waste::measure(*store, variant, name, pages, objects);
            rows.push(row.map_err(|why| failed(variant, name, &why))?);
        }
    }
    Ok(rows)
}
