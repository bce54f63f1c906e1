//! `softswap bench`: what softswap costs on this machine, beside what its
//! parts cost, measured in the same run.

mod bounce;
mod extents;
mod faults;
mod io;
pub(crate) mod policy;
mod pool;
mod samefill;
mod seal;
mod slots;
mod swap;
mod swap_in;
mod fits;
mod curve;
mod tree;
mod remote;

use crate::measure::restore::process as restorer;
use clap::{Args, Subcommand};
use softswap_cli::refusal::Refusal;
use std::process::ExitCode;
use swap::setups::ablation;

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
    Curve(curve::CurveArgs),
    Extents(extents::ExtentsArgs),
    Faults(faults::FaultsArgs),
    Fits(fits::FitsArgs),
    Io(io::IoArgs),
    Library(swap::library::LibraryArgs),
    #[command(hide = true)]
    LibraryTask(swap::library::task::LibraryTaskArgs),
    #[command(hide = true)]
    Restorer(restorer::RestorerArgs),
    Policy(policy::PolicyArgs),
    Pool(pool::PoolArgs),
    Remote(Box<remote::RemoteArgs>),
    #[command(hide = true)]
    Record(policy::record::RecordArgs),
    Samefill(samefill::SamefillArgs),
    Seal(seal::SealArgs),
    Slots(slots::SlotsArgs),
    Swap(Box<swap::SwapArgs>),
    SwapIn(swap_in::SwapInArgs),
    #[command(hide = true)]
    SwapInTask(swap_in::task::TaskArgs),
    #[command(hide = true)]
    SwapTask(swap::task::TaskArgs),
    Tree(tree::TreeArgs),
}

pub(crate) fn bench(args: &BenchArgs) -> Result<ExitCode, Refusal> {
    match &args.bench {
        Bench::Ablation(args) => ablation::run(args),
        Bench::Bounce(args) => bounce::run(args),
        Bench::Curve(args) => curve::run(args),
        Bench::Extents(args) => extents::run(args),
        Bench::Faults(args) => faults::run(args),
        Bench::Fits(args) => fits::run(args),
        Bench::Io(args) => io::run(args),
        Bench::Library(args) => swap::library::run(args),
        Bench::LibraryTask(args) => swap::library::task::run(args),
        Bench::Policy(args) => policy::run(args),
        Bench::Pool(args) => pool::run(args),
        Bench::Record(args) => policy::record::run(args),
        Bench::Remote(args) => remote::run(args),
        Bench::Restorer(args) => restorer::restore(args),
        Bench::Samefill(args) => samefill::run(args),
        Bench::Seal(args) => seal::run(args),
        Bench::Slots(args) => slots::run(args),
        Bench::Swap(args) => swap::run(args),
        Bench::SwapIn(args) => swap_in::run(args),
        Bench::SwapInTask(args) => swap_in::task::run(args),
        Bench::SwapTask(args) => swap::task::run(args),
        Bench::Tree(args) => tree::run(args),
    }
}
