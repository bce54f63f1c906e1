//! The `softswap` command.
//!
//! `run` starts a program with the runtime preloaded and stays as its parent;
//! `stat` and `ctl` ask such a program and tell it; `mkswap` makes a file or
//! device a swap area, `swapon-check` says whether one can serve; `doctor` tries
//! out what this machine allows; `bench` measures, `analyze` examines files and memory.
//! `run` speaks on stderr, the others on stdout, and none of them logs.
//!
//! A library only so that what reads other people's bytes can be fuzzed; the
//! command is all that it is for.
#![forbid(unsafe_code)]

mod analyze;
mod bench;
mod contents;
mod control;
mod ctl;
mod doctor;
mod extents;
mod library;
mod machine;
mod mkswap;
mod pages;
#[doc(hidden)]
pub mod parsers;
mod refusal;
mod run;
mod stat;
mod swapdir;
mod swapon_check;
mod units;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// More memory than DRAM for an unmodified program: the Linux swap path in user space.
#[derive(Parser)]
#[command(name = "softswap", version, about, propagate_version = true, max_term_width = 100)]
#[command(after_long_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  softswap doctor
  softswap run --memory 512M -- python3 analysis.py
  softswap run --memory 25% --swap /mnt/fast:20G --report figures.json -- sort -S 8G big.txt
  softswap stat 4711
  softswap ctl 4711 set io.poll interrupt
  softswap mkswap --label fast /mnt/fast/swapfile
  softswap swapon-check /mnt/fast/swapfile

Exit status of `run`: the program's own, or 128+N where signal N ended it; 2 for a value that
cannot be used, 125 where softswap itself failed, 126 where the program cannot be run, 127 where
it was not found. Of `doctor`: 0 where `run` will work, 1 where not. Of `stat` and `ctl`: 1 where
the process cannot be asked, 2 for a key or a value that there is not. Of `mkswap` and
`swapon-check`: 2 where what was named cannot serve, 1 where writing to it failed. Of
`analyze`: 1 where the file or process cannot be examined.";

#[derive(Subcommand)]
enum Command {
    Run(Box<run::RunArgs>),
    Stat(stat::StatArgs),
    Ctl(ctl::CtlArgs),
    Mkswap(mkswap::MkswapArgs),
    SwaponCheck(swapon_check::SwaponCheckArgs),
    Doctor(doctor::DoctorArgs),
    Bench(bench::BenchArgs),
    Analyze(analyze::AnalyzeArgs),
}

/// Does what the command line asks for.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Stat(args) => stat::stat(&args),
        Command::Ctl(args) => ctl::ctl(&args),
        Command::Mkswap(args) => mkswap::mkswap(&args),
        Command::SwaponCheck(args) => swapon_check::swapon_check(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Analyze(args) => analyze::analyze(&args),
    };
    outcome.unwrap_or_else(|refusal| {
        eprintln!("softswap: {refusal}");
        ExitCode::from(refusal.status)
    })
}

#[cfg(test)]
#[path = "reference_tests.rs"]
mod tests;
