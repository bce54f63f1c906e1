//! `softswap bench` and `softswap analyze`, as a program that `softswap` executes. A library only
//! so that its parsers of untrusted bytes can be fuzzed.
// Not forbidden: the macro that makes nodes of a red-black tree expands to unsafe code.
#![deny(unsafe_code)]

mod measure;
mod pages;
mod analyze;
mod benches;
#[doc(hidden)]
pub mod parsers;

use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// The part of `softswap`'s command line that this program implements.
#[derive(Parser)]
#[command(name = "softswap", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(benches::BenchArgs),
    Analyze(analyze::AnalyzeArgs),
}

/// Returns the command line, from which man pages and completions are generated.
#[doc(hidden)]
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command line: `analyze` with its arguments, or a benchmark's name.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = match Cli::parse_from(command_line(std::env::args_os())).command {
        Command::Bench(args) => benches::bench(&args),
        Command::Analyze(args) => analyze::analyze(&args),
    };
    outcome.unwrap_or_else(|refusal| {
        let _ = writeln!(std::io::stderr(), "softswap: {refusal}");
        ExitCode::from(refusal.status)
    })
}

fn command_line(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let given: Vec<_> = given.skip(1).collect();
    let mut line = vec!["softswap".into()];
    line.extend((given.first().is_none_or(|first| first != "analyze")).then(|| "bench".into()));
    line.extend(given);
    line
}

#[cfg(test)]
#[path = "../../cli/src/reference_tests.rs"]
mod reference_tests;
