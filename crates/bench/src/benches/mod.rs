//! `softswap bench`: what softswap costs on this machine, beside what its
//! parts cost, measured in the same run.

mod bounce;
pub(crate) mod extents;
mod faults;
mod io;
pub(crate) mod policy;
mod swap;
mod samefill;
mod library;
mod swap_in;
mod fits;
mod tree;
mod remote;

use crate::measure::restore::process as restorer;
use clap::{Args, Subcommand};
use softswap_cli::refusal::Refusal;
use std::process::ExitCode;
use swap::ablation;

/// Measure what softswap costs on this machine.
#[derive(Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
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
    match &args.bench {
        Bench::Ablation(args) => ablation::run(args),
        Bench::Bounce(args) => bounce::run(args),
        Bench::Extents(args) => extents::run(args),
        Bench::Faults(args) => faults::run(args),
        Bench::Fits(args) => fits::run(args),
        Bench::Io(args) => io::run(args),
        Bench::Library(args) => library::run(args),
        Bench::LibraryTask(args) => library::task::run(args),
        Bench::Policy(args) => policy::run(args),
        Bench::Record(args) => policy::record::run(args),
        Bench::Remote(args) => remote::run(args),
        Bench::Restorer(args) => restorer::restore(args),
        Bench::Samefill(args) => samefill::run(args),
        Bench::Swap(args) => swap::run(args),
        Bench::SwapIn(args) => swap_in::run(args),
        Bench::SwapTask(args) => swap::task::run(args),
        Bench::Tree(args) => tree::run(args),
    }
}
