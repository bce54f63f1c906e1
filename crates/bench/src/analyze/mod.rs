//! `softswap analyze`: what can be said of a file that pages would go to, and of
//! the pages.

mod advice;
pub(crate) mod extents;
mod pages;

use clap::{Args, Subcommand};
use softswap_cli::refusal::Refusal;
use std::process::ExitCode;

/// Examine a file, or a program's memory.
#[derive(Args)]
pub(crate) struct AnalyzeArgs {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Subcommand)]
enum Subject {
    Extents(extents::ExtentsArgs),
    Pages(pages::PagesArgs),
}

pub(crate) fn analyze(args: &AnalyzeArgs) -> Result<ExitCode, Refusal> {
    match &args.subject {
        Subject::Extents(args) => extents::run(args),
        Subject::Pages(args) => pages::run(args),
    }
}
