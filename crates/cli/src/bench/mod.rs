//! `softswap bench`: what softswap costs on this machine, beside what its
//! parts cost, measured in the same run.

mod faults;
mod machine;
mod report;
mod sample;
mod stage;

use crate::refusal::Refusal;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Measure what softswap costs on this machine.
#[derive(Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    Faults(faults::FaultsArgs),
}

pub(crate) fn bench(args: &BenchArgs) -> Result<ExitCode, Refusal> {
    match &args.bench {
        Bench::Faults(args) => faults::run(args),
    }
}
