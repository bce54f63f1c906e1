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
pub(crate) mod programs;
mod program_run;
mod args;
mod conditions;
mod rounds;
mod ratios;
mod prepare;
pub(super) mod setups;
mod outcome;
mod plots;
mod html;
mod plot_files;
pub(super) mod library;

pub(crate) use args::SwapArgs;

use crate::measure::machine::{Machine, Usage};
use crate::measure::report::Output;
use html::HtmlFile;
use indicatif::ProgressBar;
use outcome::{Found, SwapOutcome};
use plan::{Case, Side};
use plot_files::PlotDir;
use setups::sweep;
use softswap_cli::library as runtime_library;
use softswap_cli::refusal::Refusal;
use softswap_cli::swapdir;
use softswap_cli::swapdir::SwapDir;
use softswap_engine::door::settings::Config;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(super) fn run(args: &SwapArgs) -> Result<ExitCode, Refusal> {
    check(args)?;
    let softswap = args.softswap_config()?;
    let dir = swapdir::check("--swap", &args.swap, args.disk_bytes())?;
    let library = runtime_library::find()?;
    let output = Output::open(args.json.as_deref())?;
    if args.sweep {
        return output.finish(sweep::measure(args, &dir, library));
    }
    output.finish(measured_and_drawn(args, &dir, (library, softswap)))
}

/// Measures, and draws what was found where that is asked for.
fn measured_and_drawn(
    args: &SwapArgs,
    dir: &SwapDir,
    (library, softswap): (PathBuf, Config),
) -> Result<SwapOutcome, Refusal> {
    let page = HtmlFile::open(args.html.as_deref())?;
    let plot_dir = PlotDir::open(args.plots.as_deref())?;
    let found = measure(args, &dir.path, (library, softswap))?;
    let machine = Machine::with_device(&dir.path, dir.file_system);
    let outcome = SwapOutcome::new(found, args, machine);
    let plots = plots::all(&outcome)
        .map_err(|error| Refusal::own(format!("the plots could not be drawn: {error}")))?;
    page.write(&outcome, &plots)?;
    plot_dir.write(&plots)?;
    Ok(outcome)
}

fn check(args: &SwapArgs) -> Result<(), Refusal> {
    let pattern_shares = if args.sweep { args.program_shares() } else { &plan::PATTERN_SHARES };
    prepare::check_size("--working-set", args.working_set(), pattern_shares)?;
    prepare::check_size("--program-size", args.program_size(), args.program_shares())
}

fn measure(
    args: &SwapArgs,
    under: &Path,
    (library, softswap): (PathBuf, Config),
) -> Result<Found, Refusal> {
    let usage = Usage::now();
    let signals = prepare::signals()?;
    let (mut sides, mut notes) = (args.sides.clone(), Vec::new());
    let place = (under, args.area_bytes());
    let (mut testbed, mut context) =
        prepare::prepare(place, &mut sides, library, softswap, &signals, &mut notes)?;
    context.damage = args.damage;
    let ready = prepare::ready(args.programs(), &testbed.dir, args.program_size(), &mut notes);

    let progress = progress(args, &sides, testbed.counts_zswap(), ready.len());
    let cells = rounds::patterns(args, &mut testbed, &context, &sides, &progress, &mut notes)?;
    let programs =
        rounds::programs(args, &mut testbed, &context, &sides, &ready, &progress, &mut notes)?;
    progress.finish_and_clear();
    let (settings, disturbance) = (testbed.settings(), usage.since());
    Ok(Found { cells, programs, disturbance, settings, notes })
}

fn progress(args: &SwapArgs, sides: &[Side], counts_zswap: bool, programs: usize) -> ProgressBar {
    let sets =
        if args.patterns().is_empty() { Vec::new() } else { Case::sets(sides, counts_zswap) };
    let runs = sets.concat().len() + programs * rounds::ways(args, sides, counts_zswap);
    prepare::progress(runs * args.rounds() as usize)
}
