//! `softswap bench`: measures softswap, its parts and alternatives in the same run.

mod bounce;
mod faults;
mod io;
pub(crate) mod policy;
mod swap;
mod samefill;
mod library;
mod extents;
mod swap_in;
mod fits;
mod tree;
mod remote;

use crate::measure::report;
use crate::measure::restore as restorer;
use clap::{Args, Subcommand};
use softswap_cli::refusal::Refusal;
use std::path::PathBuf;
use std::process::ExitCode;
use swap::ablation;

/// Measure what softswap costs on this machine.
#[derive(Args)]
#[command(after_long_help = "\
With --json the result is one object with the keys of the tables, and schema (3), bench, and machine.
All ratios are under ratios, as a_vs_b: a over b, the median over the rounds of the ratio within a
round. Other figures are medians over the rounds, too; cov is the coefficient of variation over them,
count the number of rounds or operations. others_cpu_share is the share of CPU time that other programs
used meanwhile, stolen_cpu_share the share that the host of a virtual machine took. null is a value
that could not be measured.

Examples:
  softswap bench faults
  softswap bench io --json io.json")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Bench {
    Ablation(Box<ablation::AblationArgs>),
    Bounce(bounce::BounceArgs),
    Extents(extents::ExtentsArgs),
    Faults(faults::FaultsArgs),
    Fits(fits::FitsArgs),
    Io(io::IoArgs),
    Library(library::LibraryArgs),
    #[command(hide = true)]
    LibraryTask(library::task::LibraryTaskArgs),
    #[command(hide = true)]
    Restorer(restorer::RestorerArgs),
    Policy(policy::PolicyArgs),
    Remote(Box<remote::RemoteArgs>),
    #[command(hide = true)]
    Record(policy::record::RecordArgs),
    Samefill(samefill::SamefillArgs),
    Swap(Box<swap::SwapArgs>),
    SwapIn(swap_in::SwapInArgs),
    #[command(hide = true)]
    SwapTask(swap::task::TaskArgs),
    Tree(tree::TreeArgs),
}

pub(crate) fn bench(args: &BenchArgs) -> Result<ExitCode, Refusal> {
    let json = args.json.as_deref();
    match &args.bench {
        Bench::Ablation(args) => report::write(json, || ablation::measure(args)),
        Bench::Bounce(args) => report::write(json, || bounce::measure(args)),
        Bench::Extents(args) => report::write(json, || extents::measure(args)),
        Bench::Faults(args) => report::write(json, || faults::measure(args)),
        Bench::Fits(args) => report::write(json, || fits::measure(args)),
        Bench::Io(args) => report::write(json, || io::measure(args)),
        Bench::Library(args) => report::write(json, || library::measure(args)),
        Bench::Policy(args) => report::write(json, || policy::measure(args)),
        Bench::Remote(args) => report::write(json, || remote::measure(args)),
        Bench::Samefill(args) => report::write(json, || samefill::measure(args)),
        Bench::Swap(args) => report::write(json, || swap::measure(args)),
        Bench::SwapIn(args) => report::write(json, || swap_in::measure(args)),
        Bench::Tree(args) => report::write(json, || tree::measure(args)),
        Bench::LibraryTask(args) => library::task::run(args),
        Bench::Record(args) => policy::record::run(args),
        Bench::Restorer(_) => restorer::restore(),
        Bench::SwapTask(args) => swap::task::run(args),
    }
}
