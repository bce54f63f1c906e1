//! What telling same-filled pages costs, over the memory of real programs: in
//! three orders of words, and by softswap's own check.

mod programs;
mod mix;

use crate::measure::machine::{Machine, Usage};
use crate::measure::report::{Findings, Output};
use crate::measure::sample::{median, over, rotated, variation};
use crate::measure::task_pipe::signals;
use crate::pages::Page;
use crate::pages::checks::{Check, CheckRow, Shares, Verdicts, mbps};
use clap::Args;
use programs::{PROGRAMS, pages_of};
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::refusal::Refusal;
use softswap_cli::{memory_limits, units};
use softswap_sys::PAGE_SIZE;
use std::path::PathBuf;
use std::process::ExitCode;

/// A program is not made larger than this, 256 MiB.
const MOST_COLLECTED: usize = 65_536;
/// Rounds that do not count.
const WARM_UPS: usize = 1;
/// Pages that any second cache holds, with room to spare.
const IN_CACHE_PAGES: usize = 128;
const CACHE_LINE_BYTES: usize = 64;
/// The dump that is no program's.
const MIX: &str = "mix";

/// Measure telling same-filled pages, over the memory of real programs.
///
/// Starts programs, reads their memory while they run, ends them, and has every
/// check go over all of it: forward, backward, the last word first, and
/// softswap's own.
#[derive(Args)]
#[command(after_long_help = "\
Dumps: numeric_sort, sqlite, gnu_sort and graph_walk are programs of `softswap bench swap`, stopped
before their work is done; mix is made by a
rule: 20 % zeroes, 3 % another word, 10 % equal up to the last word, 34 % text, 33 % noise. A
program that is missing is left out, and a note says so. Each dump has an equal part of --pages; a
program grows to at most 256 MiB, and its pages are repeated to make up the rest.

Checks and iterations are those of `softswap analyze pages`. All checks go over the same pages in
every round, in changing order, twice: over a whole dump, which is larger than the processor's own
caches and so is met cold by each, as reclaim meets pages; and over 128 pages at a time that have just
been brought into the cache (in_cache), where memory holds nobody up.

With --json: {\"schema\": 2, \"bench\": \"samefill\", \"pages\", \"rounds\", \"machine\": {...}, ratios,
\"dumps\": [{\"dump\", \"pages\", \"collected_pages\", \"same_filled_share\", \"zero_share\", \"other_share\",
\"checks\": [{\"variant\", \"iterations\", \"mbps\", \"cov\", \"in_cache_mbps\", \"in_cache_cov\"}]}],
\"together\": the same of all dumps,
\"notes\"}. Ratios: iterations_last_first_vs_forward is the words that last_first compares over those
that forward does; throughput_last_first_vs_forward and throughput_softswap_vs_last_first are of
throughputs, with _in_cache in the cache; with _DUMP of one dump, with _programs of all dumps but mix. Figures are medians over
the rounds, of ratios, too; softswap's own check counts no iterations (null).")]
pub(crate) struct SamefillArgs {
    /// Pages of all dumps together
    #[arg(long, value_name = "N", default_value_t = 819_200,
          value_parser = clap::value_parser!(u32).range(1024..=16_777_216))]
    pages: u32,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 21,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Pages of one program, or made by a rule, and what the rounds took.
struct Dump {
    name: &'static str,
    collected: usize,
    pages: Vec<Page>,
    verdicts: Verdicts,
    /// Over all pages in one go, and over pages that are in the cache.
    times: [Times; 2],
}

/// Time for all pages by check and round, in ns.
type Times = [Vec<u64>; Check::ALL.len()];

#[derive(Debug, Serialize)]
struct Figures {
    pages: u64,
    rounds: u32,
    dumps: Vec<DumpRow>,
    together: DumpRow,
}

#[derive(Debug, Serialize)]
struct DumpRow {
    dump: &'static str,
    pages: u64,
    collected_pages: u64,
    #[serde(flatten)]
    shares: Shares,
    checks: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    cold: CheckRow,
    in_cache_mbps: f64,
    in_cache_cov: f64,
}

pub(super) fn run(args: &SamefillArgs) -> Result<ExitCode, Refusal> {
    check_memory(args.pages as usize)?;
    let output = Output::open(args.json.as_deref())?;
    output.finish(measure(args))
}

fn check_memory(pages: usize) -> Result<(), Refusal> {
    // The dumps, what was collected for them, and a program that still runs.
    let collected = collected_pages(pages) * (PROGRAMS.len() + 1);
    let needed_bytes = ((pages + 2 * collected) * PAGE_SIZE) as u64;
    let available_bytes = memory_limits::available().bytes;
    if available_bytes < needed_bytes {
        return Err(Refusal::usage(format!(
            "--pages {pages}: {} of memory are needed and {} are available; ask for fewer pages",
            units::bytes(needed_bytes),
            units::bytes(available_bytes),
        )));
    }
    Ok(())
}

/// Pages that a program is asked for.
fn collected_pages(pages: usize) -> usize {
    (pages / (PROGRAMS.len() + 1)).min(MOST_COLLECTED)
}

fn measure(args: &SamefillArgs) -> Result<Findings<Figures>, Refusal> {
    let mut notes = Vec::new();
    let collected = collect(args.pages as usize, &mut notes)?;
    let part = args.pages as usize / collected.len();
    let mut dumps = Vec::new();
    for (name, collected) in collected {
        // Repeated until there are enough.
        let pages: Vec<Page> = collected.iter().cycle().take(part).cloned().collect();
        let (verdicts, collected) = (Verdicts::of(&pages)?, collected.len());
        dumps.push(Dump { name, collected, pages, verdicts, times: Default::default() });
    }
    let usage = Usage::now();
    for round in 0..WARM_UPS + args.rounds as usize {
        for dump in &mut dumps {
            let times = [cold(&dump.pages, round), in_cache(&dump.pages, round)];
            for (all, times) in dump.times.iter_mut().zip(times).filter(|_| round >= WARM_UPS) {
                all.iter_mut().zip(times).for_each(|(all, ns)| all.push(ns));
            }
        }
    }
    let all: Vec<&Dump> = dumps.iter().collect();
    let together = row("together", &all);
    let figures = Figures {
        pages: together.pages,
        rounds: args.rounds,
        dumps: dumps.iter().map(|dump| row(dump.name, &[dump])).collect(),
        together,
    };
    let machine = Machine::without_device();
    let findings = Findings::new("samefill", machine, usage.since(), figures, ratios(&dumps));
    Ok(Findings { notes, ..findings })
}

type Named = (&'static str, Vec<Page>);

/// The pages of every program that there is, and of the mix.
fn collect(pages: usize, notes: &mut Vec<String>) -> Result<Vec<Named>, Refusal> {
    let signals = signals()?;
    let wanted = collected_pages(pages);
    let mut found = Vec::new();
    for program in PROGRAMS {
        match pages_of(program, wanted, &signals)? {
            Ok(pages) => found.push((program.name(), pages)),
            Err(why) => notes.push(format!("{} is left out: {why}", program.name())),
        }
    }
    found.push((MIX, mix::pages(wanted)));
    Ok(found)
}

fn cold(pages: &[Page], round: usize) -> [u64; Check::ALL.len()] {
    let mut took = [0; Check::ALL.len()];
    for index in rotated(Check::ALL.len(), round) {
        took[index] = Check::ALL[index].time_ns(pages);
    }
    took
}

fn in_cache(pages: &[Page], round: usize) -> [u64; Check::ALL.len()] {
    let mut took = [0; Check::ALL.len()];
    for (at, pages) in pages.chunks(IN_CACHE_PAGES).enumerate() {
        let bytes = pages.iter().flat_map(|page| page.0.iter().step_by(CACHE_LINE_BYTES));
        std::hint::black_box(bytes.fold(0, |sum: u8, byte| sum ^ byte));
        let times = cold(pages, round + at);
        took.iter_mut().zip(times).for_each(|(sum, ns)| *sum += ns);
    }
    took
}

fn verdicts(dumps: &[&Dump]) -> Verdicts {
    let mut sum = Verdicts::default();
    dumps.iter().for_each(|dump| sum.add(&dump.verdicts));
    sum
}

/// Time of each round over all of `dumps`, in ns; `cache` is 1 for pages that are in it.
fn times(dumps: &[&Dump], cache: usize, check: Check) -> Vec<f64> {
    let rounds = dumps.first().map_or(0, |dump| dump.times[cache][check as usize].len());
    let of_round = |round: usize| {
        dumps.iter().map(|dump| dump.times[cache][check as usize][round] as f64).sum()
    };
    (0..rounds).map(of_round).collect()
}

fn row(dump: &'static str, dumps: &[&Dump]) -> DumpRow {
    let found = verdicts(dumps);
    let figures = |cache, check| {
        let times = times(dumps, cache, check).into_iter();
        let rounds: Vec<f64> = times.map(|ns| mbps(found.pages, ns as u64)).collect();
        (median(rounds.clone()), variation(&rounds))
    };
    let check_row = |check: Check| {
        let ((mbps, cov), (in_cache_mbps, in_cache_cov)) = (figures(0, check), figures(1, check));
        Row { cold: found.row(check, mbps, cov), in_cache_mbps, in_cache_cov }
    };
    DumpRow {
        dump,
        pages: found.pages,
        collected_pages: dumps.iter().map(|dump| dump.collected as u64).sum(),
        shares: found.shares(),
        checks: Check::ALL.into_iter().map(check_row).collect(),
    }
}

fn ratios(dumps: &[Dump]) -> Map<String, Value> {
    let programs: Vec<&Dump> = dumps.iter().filter(|dump| dump.name != MIX).collect();
    let mut groups = vec![(String::new(), dumps.iter().collect()), ("_programs".into(), programs)];
    groups.extend(dumps.iter().map(|dump| (format!("_{}", dump.name), vec![dump])));
    let mut ratios = Map::new();
    for (suffix, dumps) in &groups {
        let found = verdicts(dumps);
        let iterations = found.iterations(Check::LastFirst).zip(found.iterations(Check::Forward));
        let ratio = iterations.map(|(last_first, forward)| last_first / forward);
        // Of no dump at all it is no number, and so null.
        ratios.insert(format!("iterations_last_first_vs_forward{suffix}"), ratio.into());
        for (cache, place) in ["", "_in_cache"].into_iter().enumerate() {
            for (name, fast, slow) in [
                ("last_first_vs_forward", Check::LastFirst, Check::Forward),
                ("softswap_vs_last_first", Check::Softswap, Check::LastFirst),
            ] {
                let gain = over(&times(dumps, cache, slow), &times(dumps, cache, fast));
                ratios.insert(format!("throughput_{name}{place}{suffix}"), gain.into());
            }
        }
    }
    ratios
}
