//! softswap beside the kernel's own swap: the same program, the same limit,
//! the same file system, in turns.
//!
//! A memory control group holds each run to the limit. softswap's may not
//! swap, so the kernel itself proves that the budget is kept; those of the
//! kernel's sides may swap to the one area that is on at that time.

mod plan;
mod limits;
mod latency;
mod page_content;
mod touch;
pub(super) mod task;
mod watch;
mod testbed;
mod pattern_run;
mod programs;
mod program_run;
mod args;
mod rounds;
mod ratios;
mod outcome;
mod plots;
mod html;
mod plot_files;

pub(crate) use args::SwapArgs;

use super::pool::page_kinds as real;
use crate::measure::machine::{Machine, Usage};
use crate::measure::report::Output;
use html::HtmlFile;
use indicatif::{ProgressBar, ProgressStyle};
use limits::Limits;
use outcome::{Found, SwapOutcome};
use page_content::SAMPLE_PAGES;
use pattern_run::RunContext;
use plan::{Case, Side};
use plot_files::PlotDir;
use programs::Ready;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::swapdir::SwapDir;
use softswap_cli::{library, memory_limits, swapdir, units};
use softswap_engine::door::settings::MIN_MEMORY_BYTES;
use softswap_sys::child::SignalQueue;
use softswap_sys::memory::Page;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use testbed::Testbed;

/// Of so many real pages the sample is taken.
const SAMPLE_OF_PAGES: usize = 4096;

pub(super) fn run(args: &SwapArgs) -> Result<ExitCode, Refusal> {
    check(args)?;
    args.softswap_config()?;
    let dir = swapdir::check("--swap", &args.swap, args.disk_bytes())?;
    let library = library::find()?;
    let output = Output::open(args.json.as_deref())?;
    output.finish(measured_and_drawn(args, &dir, library))
}

/// Measures, and draws what was found where that is asked for.
fn measured_and_drawn(
    args: &SwapArgs,
    dir: &SwapDir,
    library: PathBuf,
) -> Result<SwapOutcome, Refusal> {
    let page = HtmlFile::open(args.html.as_deref())?;
    let plot_dir = PlotDir::open(args.plots.as_deref())?;
    let found = measure(args, &dir.path, library)?;
    let machine = Machine::with_device(&dir.path, dir.file_system);
    let outcome = SwapOutcome::new(found, args, machine);
    let plots = plots::all(&outcome)
        .map_err(|error| Refusal::own(format!("the plots could not be drawn: {error}")))?;
    page.write(&outcome, &plots)?;
    plot_dir.write(&plots)?;
    Ok(outcome)
}

fn check(args: &SwapArgs) -> Result<(), Refusal> {
    for (name, bytes, shares) in [
        ("--working-set", args.working_set(), plan::PATTERN_SHARES.as_slice()),
        ("--program-size", args.program_size(), args.program_shares()),
    ] {
        let smallest = shares.iter().copied().min().unwrap_or(100);
        if Limits::first(bytes * u64::from(smallest) / 100).memory_bytes < MIN_MEMORY_BYTES {
            return Err(Refusal::usage(format!(
                "{name} {}: too little: within {smallest} % of it the engine needs at least {}; \
                 ask for 64M or more",
                units::bytes(bytes),
                units::bytes(MIN_MEMORY_BYTES)
            )));
        }
        // The kernel's packed pages, and the program as it is, take DRAM too.
        let (available_bytes, needed_bytes) =
            (memory_limits::available().bytes, bytes.saturating_mul(2));
        if available_bytes < needed_bytes {
            return Err(Refusal::usage(format!(
                "{name} {}: needs {}, but only {} are available; ask for less",
                units::bytes(bytes),
                units::bytes(needed_bytes),
                units::bytes(available_bytes)
            )));
        }
    }
    Ok(())
}

fn measure(args: &SwapArgs, under: &Path, library: PathBuf) -> Result<Found, Refusal> {
    let usage = Usage::now();
    let signals = SignalQueue::hold(&[])
        .map_err(|error| Refusal::own(format!("cannot hold signals: {}", plain(&error))))?;
    let (mut sides, mut notes) = (args.sides.clone(), Vec::new());
    let mut testbed = Testbed::prepare(under, args.area_bytes(), &mut sides, &mut notes)?;
    let sample = testbed.dir.join("sample");
    write_sample(&sample, &mut notes)?;
    // So that the first side to load it does not have to account for it.
    fs::read(&library).map_err(|e| Refusal::own(format!("{}: {e}", library.display())))?;
    let context = RunContext {
        signals: &signals,
        library,
        sample,
        softswap: args.softswap_config()?,
        damage: args.damage,
    };
    let ready = if args.no_programs { Vec::new() } else { ready(args, &testbed.dir, &mut notes) };

    let progress = progress(args, &sides, testbed.counts_zswap(), ready.len());
    let cells = rounds::patterns(args, &mut testbed, &context, &sides, &progress, &mut notes)?;
    let programs =
        rounds::programs(args, &mut testbed, &context, &sides, &ready, &progress, &mut notes)?;
    progress.finish_and_clear();
    let (settings, disturbance) = (testbed.settings(), usage.since());
    Ok(Found { cells, programs, disturbance, settings, notes })
}

fn progress(args: &SwapArgs, sides: &[Side], counts_zswap: bool, programs: usize) -> ProgressBar {
    let sets = if args.no_patterns { Vec::new() } else { Case::sets(sides, counts_zswap) };
    let runs = sets.concat().len() + programs * rounds::ways(args, sides, counts_zswap);
    let bar = ProgressBar::new(runs as u64 * u64::from(args.rounds()));
    let style = ProgressStyle::with_template("{bar:30} {eta} to go  {msg}");
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

fn ready(args: &SwapArgs, dir: &Path, notes: &mut Vec<String>) -> Vec<Ready> {
    let mut all = Vec::new();
    for program in &args.programs {
        match program.make_ready(dir, args.program_size()) {
            Ok(ready) => all.push(ready),
            Err(why) => notes.push(format!("{} was left out: {why}", program.name())),
        }
    }
    all
}

/// Real pages for the task, in a file that it reads.
fn write_sample(path: &Path, notes: &mut Vec<String>) -> Result<(), Refusal> {
    let failed =
        |error: std::io::Error| Refusal::own(format!("{}: {}", path.display(), plain(&error)));
    let pages: Vec<&Page> = match real::of_python(SAMPLE_OF_PAGES) {
        // Spread over all of the process.
        Ok((pages, _)) => pages.iter().step_by(SAMPLE_OF_PAGES / SAMPLE_PAGES).collect(),
        Err(why) => {
            notes.push(format!(
                "compressible data is made up, because there are no real pages: {why}"
            ));
            real::generated(real::PageKind::Pointers, SAMPLE_PAGES)
                .map_err(failed)?
                .iter()
                .collect()
        }
    };
    let mut file = fs::File::create_new(path).map_err(failed)?;
    pages.iter().try_for_each(|page| file.write_all(&page.0)).map_err(failed)
}
