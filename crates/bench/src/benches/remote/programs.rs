//! Whole programs with pages on disk, on the cluster alone, and on both.

use crate::benches::library::task::{Place, StepTimes, Task};
use crate::measure::managed_program::softswap_run;
use clap::ValueEnum;
use softswap_cli::refusal::Refusal;
use softswap_remote::url::Url;
use softswap_sys::child::SignalQueue;
use std::path::PathBuf;

/// Touched memory divided by the budget.
pub(super) const OVER_BUDGET: u64 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Area {
    Disk,
    /// Two copies on the cluster, nothing on the disk.
    Cluster,
    /// One copy on the disk, one on the cluster (`copies=local`).
    DiskAndCluster,
}

pub(super) struct Program {
    pub(super) memory_bytes: u64,
    pub(super) touches: u32,
    pub(super) directory: PathBuf,
    pub(super) url: String,
}

impl Program {
    /// Adds a size to a URL that has none: 1.5 times the memory that the program touches.
    pub(super) fn sized(url: &Url, text: &str, memory_bytes: u64) -> String {
        if url.size_bytes.is_some() {
            return text.into();
        }
        let separator = if text.contains('?') { '&' } else { '?' };
        format!("{text}{separator}size={}M", (memory_bytes >> 20) * OVER_BUDGET * 3 / 2)
    }

    /// Runs the program and returns the time of each step in ns per page.
    pub(super) fn run(
        &self,
        area: Area,
        round: usize,
        signals: &SignalQueue,
    ) -> Result<StepTimes, Refusal> {
        let mut command = softswap_run()?;
        if area != Area::Cluster {
            command.arg("--swap").arg(&self.directory);
        }
        if area != Area::Disk {
            command.args(["--swap", &self.url]);
        }
        let (bytes, dir) = (self.memory_bytes * OVER_BUDGET, self.directory.clone());
        let task = Task::new(Place::Run, bytes, self.touches, round, self.memory_bytes, dir);
        task.run_swapped(command, signals)
    }
}
