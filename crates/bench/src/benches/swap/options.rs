//! Options that select patterns and programs.

use super::plan::Pattern;
use super::programs::Program;
use crate::measure::options::Named;
use clap::Args;
use softswap_cli::units::parse_size;

#[derive(Args)]
pub(crate) struct WorkOptions {
    /// How memory is accessed
    #[arg(long, value_name = "PATTERN,...", value_delimiter = ',', value_enum,
          default_values_t = Pattern::all())]
    patterns: Vec<Pattern>,

    /// Leave the patterns out
    #[arg(long, conflicts_with = "patterns")]
    no_patterns: bool,

    /// Working set of the pattern program [default: 128M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) working_set: Option<u64>,

    /// Whole programs
    #[arg(long, value_name = "PROGRAM,...", value_delimiter = ',', value_enum,
          default_values_t = Program::all())]
    programs: Vec<Program>,

    /// Leave the programs out
    #[arg(long, conflicts_with_all = ["programs", "no_patterns"])]
    no_programs: bool,

    /// Approximate size of the programs [default: 512M; of `bench ablation` 96M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) program_size: Option<u64>,
}

impl WorkOptions {
    pub(super) fn patterns(&self) -> &[Pattern] {
        if self.no_patterns { &[] } else { &self.patterns }
    }

    pub(super) fn programs(&self) -> &[Program] {
        if self.no_programs { &[] } else { &self.programs }
    }
}
