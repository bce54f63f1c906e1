//! `softswap analyze`: what can be said of a file that pages would go to.

mod extents;
mod outcome;

use crate::refusal::Refusal;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Examine a file.
#[derive(Args)]
pub(crate) struct AnalyzeArgs {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Subcommand)]
enum Subject {
    Extents(extents::ExtentsArgs),
}

pub(crate) fn analyze(args: &AnalyzeArgs) -> Result<ExitCode, Refusal> {
    match &args.subject {
        Subject::Extents(args) => extents::run(args),
    }
}
