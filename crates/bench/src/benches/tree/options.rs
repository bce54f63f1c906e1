//! Options of the benchmark.

use crate::measure::options::{InRounds, parse_seconds};
use clap::{Args, ValueEnum};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Load {
    /// Two programs with a shared budget, and with half of it for each
    Pair,
    /// Four random readers
    Readers,
    /// make with a C++ compiler
    Make,
    /// Eight numeric sorts by worker processes in Python
    Workers,
    /// A pipeline of two GNU sorts
    Sorts,
}

/// Compare processes that take turns with processes that do not, in one budget.
#[derive(Args)]
#[command(after_long_help = "\
Each process of a load needs three quarters of the budget. A load runs with --turns off and auto, and
one process after the other (serial).

In the load pair one program reads pages at random in three quarters of the budget, the other one
after the other in one and a half times as much. Both count pages a second, in the second half of
their time. The budget is shared, or each has a half (halves).")]
pub(crate) struct TreeArgs {
    /// Only these loads, by name with commas between
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(super) loads: Vec<Load>,

    /// The budget of all processes together, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 400,
          value_parser = clap::value_parser!(u32).range(32..=1_048_576))]
    pub(super) budget: u32,

    /// How long a run of pair takes
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub(super) seconds: Duration,

    #[command(flatten)]
    pub(super) common: InRounds<5>,
}
