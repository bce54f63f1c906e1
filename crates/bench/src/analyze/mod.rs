//! `softswap analyze`: extents of a file, and pages of a program.

mod advice;
pub(crate) mod extents;
mod pages;

use crate::measure::report;
use clap::{Args, Subcommand};
use softswap_cli::refusal::Refusal;
use std::path::PathBuf;
use std::process::ExitCode;

/// Examine a file, or a program's memory.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  softswap analyze pages 4711
  softswap analyze extents --json extents.json /var/lib/vm/disk.img")]
pub(crate) struct AnalyzeArgs {
    #[command(subcommand)]
    subject: Subject,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Subject {
    Extents(extents::ExtentsArgs),
    Pages(pages::PagesArgs),
}

pub(crate) fn analyze(args: &AnalyzeArgs) -> Result<ExitCode, Refusal> {
    let json = args.json.as_deref();
    match &args.subject {
        Subject::Extents(args) => report::write(json, || extents::examine(args)),
        Subject::Pages(args) => report::write(json, || pages::examine(args)),
    }
}
