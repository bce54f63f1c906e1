//! The `softswap` command.
//!
//! `run` starts a program with the runtime preloaded and remains its parent. `stat` and `ctl` query
//! and control such a program. `bench`, `analyze` and `remote` call separate programs.
//!
//! `run` prints to standard error, the other commands to standard output.
//!
//! The library exists for `softswap-bench`, and for fuzzing the parsers of untrusted input.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod refusal;
#[doc(hidden)]
pub use softswap_view::units;
#[doc(hidden)]
pub mod output_file;
#[doc(hidden)]
pub mod swapdir;
#[doc(hidden)]
pub mod library;
#[doc(hidden)]
pub mod machine;
#[doc(hidden)]
pub mod control_client;

mod output;
mod tree_report;
mod tree_peaks;
mod swapon_raw;
mod run;
mod discover;
mod stat;
mod populate;
mod ctl;
mod top;
mod export;
mod record;
mod reports;
mod mkswap;
mod swapon_check;
mod doctor;
mod jupyter;
mod hints;
mod bench;

#[doc(hidden)]
pub mod parsers;

use clap::{CommandFactory, Parser, Subcommand};
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
  softswap top
  softswap record 4711 --seconds 10
  softswap mkswap --label fast /mnt/fast/swapfile
  softswap swapon-check /mnt/fast/swapfile

Exit status of `run`: the program's own, or 128+N if signal N killed it; 2 for a value that
cannot be used, 125 if softswap itself failed, 126 if the program cannot be run, 127 if it was not
found. Of `doctor`: 0 if `run` can work, 1 if not. Of `stat`, `ctl`, `record` and `top`: 1 if the
process does not answer, 2 for an unknown key or an invalid value. Of `mkswap` and `swapon-check`:
2 if the path cannot be used, 1 if writing to it failed. Of `analyze`: 1 if the file or process
cannot be examined.";

#[derive(Subcommand)]
enum Command {
    Run(Box<run::RunArgs>),
    Stat(stat::StatArgs),
    Ctl(ctl::CtlArgs),
    Top(top::TopArgs),
    Export(export::ExportArgs),
    Record(record::RecordArgs),
    Report(reports::ReportArgs),
    Advise(reports::AdviseArgs),
    Mkswap(mkswap::MkswapArgs),
    SwaponCheck(swapon_check::SwaponCheckArgs),
    Doctor(doctor::DoctorArgs),
    Jupyter(jupyter::JupyterArgs),
    /// Measure what softswap costs on this machine
    Bench(bench::OtherProgram),
    /// Examine a file, or a program's memory
    Analyze(bench::OtherProgram),
    /// Check a cluster for pages, list and remove the pages stored there
    Remote(bench::OtherProgram),
}

/// Returns the command line's definition, from which man pages and completions are generated.
#[doc(hidden)]
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| hints::exit::<Cli>(error));
    let outcome = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Stat(args) => stat::stat(&args),
        Command::Ctl(args) => ctl::ctl(&args),
        Command::Top(args) => top::top(&args),
        Command::Export(args) => export::export(&args),
        Command::Record(args) => record::record(&args),
        Command::Report(args) => reports::report(&args),
        Command::Advise(args) => reports::advise(&args),
        Command::Mkswap(args) => mkswap::mkswap(&args),
        Command::SwaponCheck(args) => swapon_check::swapon_check(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Jupyter(args) => jupyter::jupyter(&args),
        Command::Bench(args) => args.exec(bench::BENCH, None),
        Command::Analyze(args) => args.exec(bench::BENCH, Some("analyze")),
        Command::Remote(args) => args.exec(bench::REMOTE, None),
    };
    outcome.unwrap_or_else(|refusal| {
        output::print_message(&format!("softswap: {}", output::lines(&refusal.to_string())));
        ExitCode::from(refusal.status)
    })
}

#[cfg(test)]
mod reference_table_tests;
#[cfg(test)]
mod reference_tests;

#[cfg(test)]
mod tests {
    use super::command;
    use super::reference_tests::{names, section};
    use clap::Arg;
    use softswap_engine::api::live_settings::LIVE_SETTINGS;

    #[test]
    fn reference_lists_variable_of_every_run_option() {
        let part = section("softswap run").unwrap();
        let cli = command();
        let run = cli.find_subcommand("run").unwrap();
        for long in run.get_arguments().filter_map(Arg::get_long) {
            let variable = format!("SOFTSWAP_{}", long.replace('-', "_").to_ascii_uppercase());
            assert!(names(part, &variable), "{variable} is missing in docs/reference.md");
        }
    }

    #[test]
    fn reference_lists_every_setting() {
        let part = section("softswap ctl").unwrap();
        for setting in &LIVE_SETTINGS {
            let row = format!("\n| `{}` |", setting.key);
            assert!(part.contains(&row), "{} is missing in docs/reference.md", setting.key);
        }
    }
}
