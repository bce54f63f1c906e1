//! What the runs were made with and how quiet it was: told alike by each comparison.

use super::args::SwapArgs;
use crate::measure::machine::{Disturbance, Machine};
use crate::measure::report::SCHEMA;
use serde::Serialize;
use softswap_cli::units;

/// The first keys of the JSON object, and the head of the table.
#[derive(Debug, Serialize)]
pub(super) struct Conditions {
    pub(super) schema: u32,
    pub(super) bench: &'static str,
    pub(super) machine: Machine,
    pub(super) working_set_bytes: u64,
    pub(super) program_bytes: u64,
    pub(super) seconds: f64,
    pub(super) rounds: u32,
    #[serde(flatten)]
    pub(super) disturbance: Disturbance,
}

impl Conditions {
    /// Of `bench swap` with these arguments.
    pub(super) fn of(args: &SwapArgs, machine: Machine, disturbance: Disturbance) -> Conditions {
        Conditions {
            schema: SCHEMA,
            bench: "swap",
            machine,
            working_set_bytes: args.working_set(),
            program_bytes: args.program_size(),
            seconds: args.seconds(),
            rounds: args.rounds(),
            disturbance,
        }
    }

    /// What a table begins with: the machine, the sizes, and how many `rounds` there were.
    pub(super) fn heading(&self, rounds: &str) -> String {
        format!(
            "{}\n{} for the patterns, {} for the programs, {} {rounds}\n",
            self.machine.line(),
            units::bytes(self.working_set_bytes),
            units::bytes(self.program_bytes),
            self.rounds
        )
    }
}
