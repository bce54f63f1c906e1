//! What taking and giving back a swap slot costs, by threads, beside one bitmap
//! under one lock.
//!
//! Each thread keeps a window of runs and gives the oldest back for each one it
//! takes, as reclaim and swap-in do between them. Half of the area is in use.
//! Two threads with an area of their own each show what two processors cost each
//! other by themselves.

use crate::measure::affinity::bind_to_cpu;
use crate::measure::machine::Machine;
use crate::measure::report::{Output, Report, SCHEMA, lines, ratios_text};
use crate::measure::sample::{median, rotated, variation};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::refusal::{Refusal, plain};
use softswap_engine::store::swap::slot::SlotAllocator;
use softswap_sys::raw::now_ns;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Barrier, Mutex, PoisonError};

/// 4 GiB of pages.
const CLUSTERS: u32 = 2048;
const SLOTS: usize = CLUSTERS as usize * softswap_engine::store::swap::CLUSTER_SLOTS;
const VARIANTS: [&str; 3] = ["softswap", "apart", "bitmap"];
/// Slots taken at once: one, and what reclaim takes.
const BATCHES: [usize; 2] = [1, 32];

/// Measure slot allocation, beside one bitmap under one lock.
///
/// Each thread takes runs of slots and gives its oldest ones back, with half of
/// an area of 4 GiB in use. Time is per run and thread: with perfect scaling it
/// stays what it is for one thread as long as there are processors.
#[derive(Args)]
#[command(after_long_help = "\
With --json: {\"schema\": 2, \"bench\": \"slots\", \"machine\": {...}, \"ratios\": {...}, \"rows\": [{\"variant\",
\"threads\", \"batch\", \"ns\", \"cov\", \"count\"}]}. ns is the median over the rounds.
slots_two_threads_vs_one_bN is the time with two threads over that with one, slots_together_vs_apart_bN
that of two threads in one area over that of two with an area each, slots_bitmap_vs_softswap_tM_bN that
of the bitmap over softswap's, for runs of N slots.")]
pub(crate) struct SlotsArgs {
    /// Runs that each thread takes in a round
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u32).range(1000..))]
    runs: u32,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 9,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Slots for several threads.
trait Allocator: Sync {
    fn take(&self, cpu: usize, want: usize) -> Option<(u64, usize)>;
    fn give_back(&self, first: u64, len: usize);
}

impl Allocator for SlotAllocator {
    fn take(&self, cpu: usize, want: usize) -> Option<(u64, usize)> {
        self.alloc_run(cpu, want)
    }

    fn give_back(&self, first: u64, len: usize) {
        let _ = self.free(first, len);
    }
}

/// One bitmap, one cursor, one lock; next fit, a word at a time.
struct Bitmap(Mutex<(Vec<u64>, usize)>);

impl Bitmap {
    fn new() -> Bitmap {
        Bitmap(Mutex::new((vec![0; SLOTS / 64], 0)))
    }
}

impl Allocator for Bitmap {
    fn take(&self, _cpu: usize, want: usize) -> Option<(u64, usize)> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (words, cursor) = &mut *held;
        for step in 0..words.len() {
            let at = (*cursor + step) % words.len();
            let word = words[at];
            // Runs start at multiples of their length, so that none is split.
            let starts = (0..64 / want).map(|n| n * want);
            let mask = u64::MAX >> (64 - want);
            let free = if want == 1 {
                Some(word.trailing_ones() as usize).filter(|bit| *bit < 64)
            } else {
                starts.into_iter().find(|start| word >> start & mask == 0)
            };
            if let Some(start) = free {
                words[at] |= mask << start;
                *cursor = at;
                return Some(((at * 64 + start) as u64, want));
            }
        }
        None
    }

    fn give_back(&self, first: u64, len: usize) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.0[first as usize / 64] &= !(u64::MAX >> (64 - len) << (first % 64));
    }
}

#[derive(Debug, Serialize)]
struct SlotsRow {
    variant: &'static str,
    threads: usize,
    batch: usize,
    ns: f64,
    cov: f64,
    count: usize,
}

#[derive(Debug, Serialize)]
struct SlotsOutcome {
    schema: u32,
    bench: &'static str,
    machine: Machine,
    ratios: Map<String, Value>,
    rows: Vec<SlotsRow>,
    notes: Vec<String>,
}

/// One combination and what each round took, in ns per run.
struct Cell {
    variant: &'static str,
    threads: usize,
    batch: usize,
    rounds: Vec<f64>,
}

pub(super) fn run(args: &SlotsArgs) -> Result<ExitCode, Refusal> {
    let output = Output::open(args.json.as_deref())?;
    let mut cells: Vec<_> = BATCHES
        .into_iter()
        .flat_map(|batch| [1, 2].map(|threads| (batch, threads)))
        .flat_map(|(batch, threads)| {
            VARIANTS.map(|variant| Cell { variant, threads, batch, rounds: Vec::new() })
        })
        // One thread has its area to itself anyway.
        .filter(|cell| cell.variant != "apart" || cell.threads > 1)
        .collect();
    for round in 0..args.rounds as usize {
        for index in rotated(cells.len(), round) {
            let cell = &mut cells[index];
            let (threads, batch) = (cell.threads, cell.batch);
            let ns = match cell.variant {
                "softswap" => measure(&[&softswaps()?], threads, batch, args.runs),
                "apart" => measure(&[&softswaps()?, &softswaps()?], threads, batch, args.runs),
                _ => measure(&[&Bitmap::new()], threads, batch, args.runs),
            };
            cell.rounds.push(ns);
        }
    }
    output.finish(Ok(outcome(&cells)))
}

fn softswaps() -> Result<SlotAllocator, Refusal> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let slots = SlotAllocator::new(CLUSTERS, cpus)
        .map_err(|error| Refusal::own(format!("no memory: {}", plain(&error))))?;
    slots.grow(CLUSTERS);
    Ok(slots)
}

/// ns per run taken and given back, of each thread. Several allocators go round.
fn measure(allocators: &[&dyn Allocator], threads: usize, batch: usize, runs: u32) -> f64 {
    let barrier = Barrier::new(threads);
    let each = |thread: usize| {
        let allocator = allocators[thread % allocators.len()];
        bind_to_cpu(thread);
        let mut held: VecDeque<_> = (0..SLOTS / 2 / threads / batch)
            .filter_map(|_| allocator.take(thread, batch))
            .collect();
        barrier.wait();
        let start = now_ns();
        for _ in 0..runs {
            if let Some((first, len)) = held.pop_front() {
                allocator.give_back(first, len);
            }
            held.extend(allocator.take(thread, batch));
        }
        (now_ns() - start) as f64 / f64::from(runs)
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || each(thread))).collect();
        let took: Vec<f64> = workers.into_iter().filter_map(|worker| worker.join().ok()).collect();
        took.iter().sum::<f64>() / took.len() as f64
    })
}

fn outcome(cells: &[Cell]) -> SlotsOutcome {
    let find = |variant: &str, threads: usize, batch: usize| {
        let is_it = |cell: &&Cell| {
            cell.variant == variant && cell.threads == threads && cell.batch == batch
        };
        cells.iter().find(is_it)
    };
    // By rounds: what slows the machine down then slows both.
    let over = |one: Option<&Cell>, other: Option<&Cell>| {
        let pairs = one?.rounds.iter().zip(&other?.rounds);
        Some(median(pairs.map(|(one, other)| one / other).collect()))
    };
    let mut ratios = Map::new();
    for batch in BATCHES {
        let two = over(find("softswap", 2, batch), find("softswap", 1, batch));
        ratios.insert(format!("slots_two_threads_vs_one_b{batch}"), two.into());
        let together = over(find("softswap", 2, batch), find("apart", 2, batch));
        ratios.insert(format!("slots_together_vs_apart_b{batch}"), together.into());
        for threads in [1, 2] {
            let gain = over(find("bitmap", threads, batch), find("softswap", threads, batch));
            ratios.insert(format!("slots_bitmap_vs_softswap_t{threads}_b{batch}"), gain.into());
        }
    }
    let row = |cell: &Cell| SlotsRow {
        variant: cell.variant,
        threads: cell.threads,
        batch: cell.batch,
        ns: median(cell.rounds.clone()),
        cov: variation(&cell.rounds),
        count: cell.rounds.len(),
    };
    let mut notes = Vec::new();
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        notes.push("one processor only: two threads take turns".into());
    }
    SlotsOutcome {
        schema: SCHEMA,
        bench: "slots",
        machine: Machine::without_device(),
        ratios,
        rows: cells.iter().map(row).collect(),
        notes,
    }
}

impl Report for SlotsOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.machine.line());
        let head = ["variant", "threads", "batch", "ns", "CoV"];
        text +=
            &format!("{:<12}{:>8}{:>7}{:>10}{:>9}\n", head[0], head[1], head[2], head[3], head[4]);
        for row in &self.rows {
            text += &format!(
                "{:<12}{:>8}{:>7}{:>10.1}{:>7.1} %\n",
                row.variant,
                row.threads,
                row.batch,
                row.ns,
                row.cov * 100.0
            );
        }
        text + "\n" + &ratios_text(&self.ratios) + &lines(&self.notes)
    }
}
