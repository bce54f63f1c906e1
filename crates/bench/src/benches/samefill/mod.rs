//! Cost of detecting same-filled pages of real programs: three orders, and softswap's check.

mod mix;

use super::swap::programs::Program;
use crate::measure::machine::Machine;
use crate::measure::managed_program::{Running, temporary_directory};
use crate::measure::options::{Named, check_memory, within};
use crate::measure::report::{Log, or_left_out};
use crate::measure::sample::{Object, median, object, ratio_to, rotated, variation};
use crate::measure::task_pipe::signals;
use crate::pages::checks::{Check, Verdicts, mbps};
use crate::pages::{Page, process};
use clap::Args;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use softswap_cli::control_client::Process;
use softswap_cli::refusal::{OrRefuse, Refusal, plain};
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

const MAX_COLLECTED: usize = 65_536;
/// Fit in any L2 cache.
const IN_CACHE_PAGES: usize = 128;
const CACHE_LINE_BYTES: usize = 64;
const MIX: &str = "mix";
/// Different data: numbers of Python, a database, lines of text, a graph.
const PROGRAMS: [Program; 4] =
    [Program::NumericSort, Program::Sqlite, Program::GnuSort, Program::GraphWalk];
const INTERVAL: Duration = Duration::from_millis(1);

/// Measure detecting same-filled pages, over the memory of real programs.
///
/// Starts programs, reads their memory while they run, kills them, and runs every check over all of
/// it: forward, backward, the last word first, and softswap's own.
#[derive(Args)]
#[command(after_long_help = "\
Dumps: numeric_sort, sqlite, gnu_sort and graph_walk are programs of `softswap bench swap`, stopped
before their work is done; mix is made by a rule: 20 % zeroes, 3 % another word, 10 % equal up to the
last word, 34 % text, 33 % noise. A program that is missing is omitted, with a note. Each dump
has an equal part of --pages; a program grows to at most 256 MiB, and its pages are repeated to make up
the rest. together is all dumps.

Checks and iterations are those of `softswap analyze pages`. All checks go over the same pages in
every round, in changing order, twice: over a whole dump, which exceeds the processor's caches, so
each check reads its pages from DRAM, as reclaim does; and over 128 pages at a time that have just
been brought into the cache (in_cache), so that none waits for memory.

iterations_last_first_vs_forward is the words that last_first compares over those that forward does;
throughput_last_first_vs_forward and throughput_softswap_vs_last_first are of throughputs, with
_in_cache in the cache; with _DUMP of one dump, with _programs of all dumps but mix.

Examples:
  softswap bench samefill --pages 65536 --rounds 9")]
pub(crate) struct SamefillArgs {
    /// Pages of all dumps together
    #[arg(long, value_name = "N", default_value_t = 819_200,
          value_parser = within(1024..=16_777_216))]
    pages: u32,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = within(1..=1000))]
    rounds: u32,
}

struct Dump {
    name: String,
    collected: u64,
    pages: Vec<Page>,
    verdicts: Verdicts,
    times: [Times; 2],
}

/// Times for all pages in ns, by check and round.
type Times = [Vec<u64>; Check::ALL.len()];

pub(super) fn measure(args: &SamefillArgs) -> Result<Object, Refusal> {
    let pages = args.pages as usize;
    let collected = collected_pages(pages) * (PROGRAMS.len() + 1);
    let needed_bytes = (pages + 2 * collected) * PAGE_SIZE;
    check_memory(format_args!("--pages {pages}"), needed_bytes as u64)?;
    let mut log = Log::start();
    let mut dumps = collect(pages, &mut log.notes)?;
    for round in 0..=args.rounds as usize {
        for dump in &mut dumps {
            let found = [cold(&dump.pages, round), in_cache(&dump.pages, round)];
            for (times, found) in dump.times.iter_mut().zip(found).filter(|_| round > 0) {
                times.iter_mut().zip(found).for_each(|(times, ns)| times.push(ns));
            }
        }
    }
    let all: Vec<&Dump> = dumps.iter().collect();
    let programs: Vec<&Dump> = all.iter().copied().filter(|dump| dump.name != MIX).collect();
    add_ratios("", &all, &mut log);
    add_ratios("_programs", &programs, &mut log);
    all.iter().for_each(|dump| add_ratios(&format!("_{}", dump.name), &[dump], &mut log));
    let figures = object! {
        pages: verdicts(&all).pages,
        rounds: args.rounds,
        dumps: all.iter().map(|dump| row(&dump.name, &[dump])).collect::<Vec<_>>(),
        together: row("together", &all),
    };
    Ok(log.findings("samefill", Machine::without_device(), figures))
}

fn collected_pages(pages: usize) -> usize {
    (pages / (PROGRAMS.len() + 1)).min(MAX_COLLECTED)
}

fn collect(pages: usize, notes: &mut Vec<String>) -> Result<Vec<Dump>, Refusal> {
    let signals = signals()?;
    let wanted = collected_pages(pages);
    let mut found = Vec::new();
    for program in PROGRAMS {
        let (name, pages) = (program.name(), pages_of(program, wanted, &signals)?);
        found.extend(or_left_out(pages, &name, notes).map(|pages| (name, pages)));
    }
    found.push((MIX.into(), mix::pages(wanted)));
    let part = pages / found.len();
    let dump = |(name, collected): (String, Vec<Page>)| {
        let pages: Vec<Page> = collected.iter().cycle().take(part).cloned().collect();
        let (verdicts, collected) = (Verdicts::of(&pages)?, collected.len() as u64);
        Ok(Dump { name, collected, pages, verdicts, times: Default::default() })
    };
    found.into_iter().map(dump).collect()
}

/// Fails with the reason why this machine cannot run the program.
fn pages_of(
    program: Program,
    pages: usize,
    signals: &SignalQueue,
) -> Result<Result<Vec<Page>, String>, Refusal> {
    let dir = temporary_directory()?;
    // The program would grow to 4/3 of `goal_bytes` and then free memory, so it is stopped earlier.
    let goal_bytes = (pages * PAGE_SIZE) as u64;
    let ready = match program.make_ready(dir.path(), goal_bytes / 3 * 4) {
        Ok(ready) => ready,
        Err(why) => return Ok(Err(why)),
    };
    let mut command = Command::new(&ready.path);
    command.args(&ready.arguments).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    signals.prepare(&mut command, &[std::io::stderr().as_fd()]);
    let mut running = match command.spawn() {
        Ok(child) => Running(child),
        Err(error) => return Ok(Err(plain(&error))),
    };
    while resident_bytes(running.0.id()) < goal_bytes {
        if let Ok(Some(status)) = running.0.try_wait() {
            return Ok(Err(format!("it exited before it was large enough ({status})")));
        }
        std::thread::sleep(INTERVAL);
    }
    let pid = Pid::from_child(&running.0);
    let stopped = kill_process(pid, Signal::STOP);
    stopped.map_err(Into::into).or_own("the program cannot be stopped")?;
    // The program may exit before the stop.
    let events = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let waited = retry_on_intr(|| waitid(WaitId::Pid(pid), events));
    waited.map_err(Into::into).or_own("the program cannot be waited for")?;
    if let Ok(Some(status)) = running.0.try_wait() {
        return Ok(Err(format!("it exited before it was read ({status})")));
    }
    let mut found = Vec::with_capacity(pages);
    process::open(&running.0.id().to_string())?.read(pages as u64, |chunk| {
        found.extend_from_slice(chunk);
        Ok(())
    })?;
    Ok(Ok(found))
}

fn resident_bytes(pid: u32) -> u64 {
    let resident = Process::read(pid).and_then(|process| process.resident);
    resident.map_or(0, |it| it.anonymous_bytes + it.shared_bytes + it.file_bytes)
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

/// Sums the times of all dumps by round, in ns. `cache` is 1 for pages in the cache.
fn times(dumps: &[&Dump], cache: usize, check: Check) -> Vec<f64> {
    let all: Vec<_> = dumps.iter().map(|dump| &dump.times[cache][check as usize]).collect();
    let rounds = 0..all.first().map_or(0, |times| times.len());
    rounds.map(|round| all.iter().map(|times| times[round] as f64).sum()).collect()
}

fn row(name: &str, dumps: &[&Dump]) -> Object {
    let found = verdicts(dumps);
    let rates = |cache, check| -> Vec<f64> {
        times(dumps, cache, check).iter().map(|ns| mbps(found.pages, *ns as u64)).collect()
    };
    let check_row = |check: Check| {
        let (cold, in_cache) = (rates(0, check), rates(1, check));
        let mut row = found.row(check, &cold);
        row.extend(object! {
            in_cache_cov: variation(&in_cache),
            in_cache_mbps: median(in_cache),
        });
        row
    };
    let collected_pages = dumps.iter().map(|dump| dump.collected).sum::<u64>();
    let mut row = object! { dump: name, pages: found.pages, collected_pages };
    row.extend(found.shares());
    row.extend(object! { checks: Check::ALL.map(check_row) });
    row
}

fn add_ratios(suffix: &str, dumps: &[&Dump], log: &mut Log) {
    let found = verdicts(dumps);
    let iterations = found.iterations(Check::LastFirst).zip(found.iterations(Check::Forward));
    // NaN without dumps; JSON shows it as null.
    let ratio = iterations.map(|(last_first, forward)| last_first / forward);
    log.ratio(format!("iterations_last_first_vs_forward{suffix}"), ratio);
    for (cache, place) in ["", "_in_cache"].into_iter().enumerate() {
        for (name, fast, slow) in [
            ("last_first_vs_forward", Check::LastFirst, Check::Forward),
            ("softswap_vs_last_first", Check::Softswap, Check::LastFirst),
        ] {
            let gain = ratio_to(&times(dumps, cache, slow), &times(dumps, cache, fast));
            log.ratio(format!("throughput_{name}{place}{suffix}"), gain);
        }
    }
}
