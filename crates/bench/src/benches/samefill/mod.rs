//! What telling same-filled pages costs, over the memory of real programs: in
//! three orders of words, and by softswap's own check.

mod mix;
mod outcome;
mod programs;

use crate::measure::machine::{Machine, Usage};
use crate::measure::report::Target as Output;
use crate::measure::sample::rotated;
use crate::pages::Page;
use crate::pages::checks::{Check, Verdicts};
use clap::Args;
use programs::Program;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::{machine as memory, units};
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use std::path::PathBuf;
use std::process::ExitCode;

/// A program is not made larger than this, 256 MiB.
const MOST_COLLECTED: usize = 65_536;
/// Pages that any second cache holds, with room to spare.
const IN_CACHE_PAGES: usize = 128;
const CACHE_LINE_BYTES: usize = 64;
/// Rounds that do not count.
const WARM_UPS: usize = 1;

/// Measure telling same-filled pages, over the memory of real programs.
///
/// Starts programs, reads their memory while they run, ends them, and has every
/// check go over all of it: forward, backward, the last word first, and
/// softswap's own.
#[derive(Args)]
#[command(after_long_help = "\
Dumps: python is a Python program with records, lists, text, arrays and buffers; compiler is gcc's
cc1 with -O2 at a large source; database SQLite in memory, a table and an index; mix is made by a
rule: 20 % zeroes, 3 % another word, 10 % equal up to the last word, 34 % text, 33 % noise. A
program that is missing is left out, and a note says so. Each dump has an equal part of --pages; a
program grows to at most 256 MiB, and its pages are repeated to make up the rest.

Checks and iterations are those of `softswap analyze pages`. All checks go over the same pages in
every round, in changing order, twice: over a whole dump, which is larger than the processor's own
caches and so is met cold by each, as reclaim meets pages; and over 128 pages at a time that have just
been brought into the cache (in_cache), where memory holds nobody up.

With --json: {\"schema\": 1, \"bench\": \"samefill\", \"pages\", \"rounds\", \"machine\": {...}, ratios,
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

pub(super) fn run(args: &SamefillArgs) -> Result<ExitCode, Refusal> {
    check_memory(args.pages as usize)?;
    let output = Output::open(args.json.as_deref())?;
    match measure(args) {
        Ok(outcome) => output.write(&outcome).map(|()| ExitCode::SUCCESS),
        Err(refusal) => {
            output.abandon();
            Err(refusal)
        }
    }
}

fn check_memory(pages: usize) -> Result<(), Refusal> {
    // The dumps, what was collected for them, and a program that still runs.
    let collected = collected_pages(pages) * (Program::ALL.len() + 1);
    let needed_bytes = ((pages + 2 * collected) * PAGE_SIZE) as u64;
    let available_bytes = memory::available().bytes;
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
    (pages / (Program::ALL.len() + 1)).min(MOST_COLLECTED)
}

/// Pages of one program, or made by a rule, and what the rounds took.
struct Dump {
    name: &'static str,
    collected: usize,
    pages: Vec<Page>,
    verdicts: Verdicts,
    /// Over all pages in one go.
    cold: Rounds,
    /// Over pages that are in the cache.
    in_cache: Rounds,
}

/// Time for all pages by check and round, in ns.
type Rounds = [Vec<u64>; Check::ALL.len()];

impl Dump {
    /// Repeats what was collected until there are `pages` pages.
    fn new(name: &'static str, collected: &[Page], pages: usize) -> Result<Dump, Refusal> {
        let pages: Vec<Page> = collected.iter().cycle().take(pages).cloned().collect();
        let verdicts = Verdicts::of(&pages)?;
        let (cold, in_cache) = Default::default();
        Ok(Dump { name, collected: collected.len(), pages, verdicts, cold, in_cache })
    }

    fn measure_cold(&self, round: usize) -> [u64; Check::ALL.len()] {
        let mut took = [0; Check::ALL.len()];
        for index in rotated(Check::ALL.len(), round) {
            took[index] = Check::ALL[index].time_ns(&self.pages);
        }
        took
    }

    fn measure_in_cache(&self, round: usize) -> [u64; Check::ALL.len()] {
        let mut took = [0; Check::ALL.len()];
        for (at, pages) in self.pages.chunks(IN_CACHE_PAGES).enumerate() {
            let bytes = pages.iter().flat_map(|page| page.0.iter().step_by(CACHE_LINE_BYTES));
            std::hint::black_box(bytes.fold(0, |sum: u8, byte| sum ^ byte));
            for index in rotated(Check::ALL.len(), round + at) {
                took[index] += Check::ALL[index].time_ns(pages);
            }
        }
        took
    }
}

fn measure(args: &SamefillArgs) -> Result<outcome::SamefillOutcome, Refusal> {
    let (collected, notes) = collect(args.pages as usize)?;
    let part = args.pages as usize / collected.len();
    let mut dumps = collected
        .iter()
        .map(|(name, pages)| Dump::new(name, pages, part))
        .collect::<Result<Vec<_>, _>>()?;
    drop(collected);
    let usage = Usage::now();
    for round in 0..WARM_UPS + args.rounds as usize {
        for dump in &mut dumps {
            let (cold, in_cache) = (dump.measure_cold(round), dump.measure_in_cache(round));
            for index in (0..Check::ALL.len()).filter(|_| round >= WARM_UPS) {
                dump.cold[index].push(cold[index]);
                dump.in_cache[index].push(in_cache[index]);
            }
        }
    }
    let machine = Machine::without_device();
    Ok(outcome::SamefillOutcome::new(args, &dumps, machine, usage.since(), notes))
}

type Named = (&'static str, Vec<Page>);

/// The pages of every program that there is, and of the mix; and notes.
fn collect(pages: usize) -> Result<(Vec<Named>, Vec<String>), Refusal> {
    let signals = SignalQueue::hold(&[])
        .map_err(|error| Refusal::own(format!("cannot hold signals: {}", plain(&error))))?;
    let wanted = collected_pages(pages);
    let (mut found, mut notes) = (Vec::new(), Vec::new());
    for program in Program::ALL {
        match program.pages(wanted, &signals)? {
            Ok(pages) => found.push((program.name(), pages)),
            Err(why) => notes.push(why),
        }
    }
    found.push((outcome::MIX, mix::pages(wanted)));
    notes.push(format!("mix: {}", mix::SHARES));
    Ok((found, notes))
}
