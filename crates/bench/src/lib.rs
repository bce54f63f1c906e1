//! `softswap bench` and `softswap analyze`: measurements, in a program of their own
//! beside the command, which hands over to it.
//!
//! A library only so that what reads other people's bytes can be fuzzed; the
//! program is all that it is for.
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
use std::process::ExitCode;

/// The part of `softswap`'s command line that this program does.
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

/// What can be asked for: the man pages and completions are made of it.
#[doc(hidden)]
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Does what the command line asks for: `analyze` and what follows it, or a benchmark's name.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = match Cli::parse_from(command_line(std::env::args_os())).command {
        Command::Bench(args) => benches::bench(&args),
        Command::Analyze(args) => analyze::analyze(&args),
    };
    outcome.unwrap_or_else(|refusal| {
        eprintln!("softswap: {refusal}");
        ExitCode::from(refusal.status)
    })
}

/// The arguments as `softswap` was given them, so that messages and help say what to type.
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
