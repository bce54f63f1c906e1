//! What telling same-filled pages costs, over the memory of real programs: in
//! three orders of words, and by softswap's own check.

mod args;
mod programs;
mod mix;
mod dump;
mod outcome;

pub(crate) use args::SamefillArgs;

use crate::measure::machine::{Machine, Usage};
use crate::measure::report::Output;
use crate::pages::Page;
use crate::pages::checks::Check;
use dump::{Dump, MIX};
use programs::Program;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::{memory_limits, units};
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use std::process::ExitCode;

/// A program is not made larger than this, 256 MiB.
const MOST_COLLECTED: usize = 65_536;
/// Rounds that do not count.
const WARM_UPS: usize = 1;

pub(super) fn run(args: &SamefillArgs) -> Result<ExitCode, Refusal> {
    check_memory(args.pages as usize)?;
    let output = Output::open(args.json.as_deref())?;
    output.finish(measure(args))
}

fn check_memory(pages: usize) -> Result<(), Refusal> {
    // The dumps, what was collected for them, and a program that still runs.
    let collected = collected_pages(pages) * (Program::ALL.len() + 1);
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
    (pages / (Program::ALL.len() + 1)).min(MOST_COLLECTED)
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
    found.push((MIX, mix::pages(wanted)));
    notes.push(format!("mix: {}", mix::SHARES));
    Ok((found, notes))
}
