//! Whole programs: their pages on the disk, on the cluster alone, and on both.

use super::super::library::task::Told;
use crate::measure::managed_program::without_settings;
use crate::measure::task_pipe::{TaskPipe, this_program};
use softswap_cli::refusal::{Refusal, plain};
use softswap_remote::url::Url;
use softswap_sys::PAGE_SIZE;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the program touches over its budget.
pub(super) const OVER_BUDGET: u64 = 4;

/// Where its pages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Area {
    Disk,
    /// Two copies, nothing on the disk.
    Cluster,
    /// `copies=local`.
    DiskAndCluster,
}

impl Area {
    pub(super) const ALL: [Area; 3] = [Area::Disk, Area::Cluster, Area::DiskAndCluster];

    pub(super) fn name(self) -> &'static str {
        match self {
            Area::Disk => "disk",
            Area::Cluster => "cluster",
            Area::DiskAndCluster => "disk_and_cluster",
        }
    }
}

/// The program, and with what it is run.
pub(super) struct Program {
    pub(super) memory_bytes: u64,
    pub(super) touches: u32,
    pub(super) directory: PathBuf,
    pub(super) url: String,
}

impl Program {
    /// The URL asks for as much as the program touches, and half of it again, if it says nothing.
    pub(super) fn sized(url: &Url, text: &str, memory_bytes: u64) -> String {
        if url.size_bytes.is_some() {
            return text.into();
        }
        let separator = if text.contains('?') { '&' } else { '?' };
        format!("{text}{separator}size={}M", (memory_bytes >> 20) * OVER_BUDGET * 3 / 2)
    }

    /// The ns for a page of each of its steps.
    pub(super) fn run(&self, area: Area, round: usize) -> Result<Told, Refusal> {
        let own = this_program()?;
        let mut command = Command::new(own.with_file_name("softswap"));
        without_settings(&mut command);
        command.args(["run", "--quiet", "--reserve", "0", "--codec", "none"]);
        command.arg(format!("--memory={}", self.memory_bytes));
        if area != Area::Cluster {
            command.arg("--swap").arg(&self.directory);
        }
        if area != Area::Disk {
            command.args(["--swap", &self.url]);
        }
        self.task(&mut command, &own, round);
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Refusal::own(format!("softswap run: {}", plain(&error))))?;
        let mut pipe = TaskPipe::with(child)?;
        let told = pipe.receive_json()?;
        pipe.end()?;
        Ok(told)
    }

    fn task(&self, command: &mut Command, own: &Path, round: usize) {
        command.arg("--").arg(own).args(["library-task", "--place", "run", "--dir"]);
        command.arg(&self.directory);
        let numbers = [
            ("--pages", self.memory_bytes * OVER_BUDGET / PAGE_SIZE as u64),
            ("--touches", u64::from(self.touches)),
            ("--seed", 1000 * (round as u64 + 1)),
            ("--memory", self.memory_bytes),
        ];
        numbers.iter().for_each(|(name, number)| {
            command.args([name, number.to_string().as_str()]);
        });
    }
}
