//! Parsed report of `softswap run --report`.

use crate::sections::{Areas, Bounce, Mappings, Polling, Pool};
use crate::stall;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Supported schema.
const SCHEMA: u32 = 1;

/// Tiers by increasing cost.
pub(crate) const TIERS: [&str; 6] = ["zero", "staged", "standby", "filled", "pool", "disk"];

/// Fields that the views need. Fields that an older softswap did not write are empty.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Report {
    pub schema: u32,
    pub softswap_version: String,
    pub program: Vec<String>,
    pub outcome: Outcome,
    /// Present only for a running process.
    pub pid: Option<u32>,
    pub wall_s: f64,
    /// CPU time of the program and all that it started.
    pub cpu_s: Option<f64>,
    /// Most threads of the program at a time.
    pub threads_peak: Option<u32>,
    pub engine_started: bool,
    pub slept: bool,
    /// Code of the reason for which softswap stopped the program.
    pub stop_reason: Option<u64>,
    pub tree: Option<Tree>,
    pub unmanaged: Option<Unmanaged>,
    pub budget_bytes: u64,
    /// Memory that the program saw by `--tell`; 0: the machine's.
    pub advertised_bytes: Option<u64>,
    /// Budget and swap areas together.
    pub usable_bytes: Option<u64>,
    pub budget_peak_bytes: u64,
    pub used_peak_bytes: u64,
    pub mapped_peak_bytes: u64,
    pub resident_peak_bytes: u64,
    pub pool_peak_bytes: u64,
    pub disk_peak_bytes: u64,
    pub beside: Option<OutsideBudget>,
    pub pages_out: u64,
    pub pages_same_filled: u64,
    pub pages_pooled: u64,
    pub pages_incompressible: u64,
    pub pages_written: u64,
    pub pages_read: u64,
    pub pages_read_ahead: u64,
    pub same_filled_share: Option<f64>,
    pub compression_ratio: Option<f64>,
    pub faults: BTreeMap<String, Tier>,
    pub latencies: BTreeMap<String, Vec<(u64, u64)>>,
    pub returns: BTreeMap<String, Vec<(u64, u64)>>,
    pub bytes_written: u64,
    pub bytes_read: u64,
    pub stalled_ns: u64,
    pub direct_reclaims: u64,
    pub reclaimed_ahead: u64,
    pub write_errors: u64,
    pub read_errors: u64,
    pub checksum_errors: u64,
    pub unpack_errors: u64,
    pub uses_io_uring: bool,
    pub uses_direct_io: bool,
    pub is_remote: bool,
    pub uses_move: bool,
    pub fault_mechanism: Option<String>,
    pub mappings: Option<Mappings>,
    pub encrypts: bool,
    pub key_unlocked: bool,
    pub bounce: Bounce,
    pub pool: Pool,
    pub areas: Areas,
    pub polling: Polling,
    pub history: History,
    pub settings: BTreeMap<String, String>,
    pub machine: Option<Machine>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Outcome {
    pub kind: String,
    pub status: Option<u8>,
    pub signal: Option<i32>,
    pub signal_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Tier {
    pub count: u64,
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct OutsideBudget {
    pub total_bytes: u64,
    pub anonymous_bytes: u64,
    pub shared_bytes: u64,
    pub file_bytes: u64,
    pub left_by_exec: bool,
}

/// Processes without the runtime.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Unmanaged {
    pub processes: u64,
    pub anonymous_peak_bytes: u64,
    /// Processes with the largest peaks.
    pub largest: Vec<UnmanagedProcess>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct UnmanagedProcess {
    pub pid: u32,
    pub name: String,
    pub anonymous_peak_bytes: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Tree {
    pub budget_bytes: u64,
    pub used_peak_bytes: u64,
    pub processes_peak: usize,
    /// Number of turns that the processes took.
    pub turns: u64,
    pub largest: Vec<Process>,
    pub left_out: LeftOut,
    /// Sum over all processes.
    pub faults_by_tier: BTreeMap<String, u64>,
}

/// Sums of processes that are not listed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LeftOut {
    pub processes: u64,
    pub faults: u64,
    pub stalled_ns: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub granted_bytes: u64,
    pub used_peak_bytes: u64,
    pub faults: u64,
    pub stalled_ns: u64,
}

/// A column for each figure, a row for each sample.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct History {
    pub at_s: Vec<f64>,
    pub budget_bytes: Vec<u64>,
    pub used_bytes: Vec<u64>,
    pub resident_bytes: Vec<u64>,
    pub pool_bytes: Vec<u64>,
    pub pool_pages: Vec<u64>,
    pub disk_bytes: Vec<u64>,
    pub faults: BTreeMap<String, Vec<u64>>,
    pub stalled_ns: Vec<u64>,
    pub bytes_read: Vec<u64>,
    pub bytes_written: Vec<u64>,
    pub tree: Option<TreeHistory>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct TreeHistory {
    pub budget_bytes: Vec<u64>,
    pub used_bytes: Vec<u64>,
    pub resident_bytes: Vec<u64>,
    pub pool_bytes: Vec<u64>,
    pub disk_bytes: Vec<u64>,
    pub processes: Vec<u64>,
    /// Refaults.
    pub faults: Vec<u64>,
    pub faults_by_tier: BTreeMap<String, Vec<u64>>,
    pub stalled_ns: Vec<u64>,
    pub bytes_read: Vec<u64>,
    pub bytes_written: Vec<u64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub dram_bytes: u64,
    pub kernel: String,
}

impl OutsideBudget {
    /// Returns the bytes that the kernel cannot drop: all except clean file pages.
    #[must_use]
    pub fn undroppable_bytes(&self) -> u64 {
        self.anonymous_bytes + self.shared_bytes
    }
}

impl Tree {
    /// Returns the time for which threads of all processes waited for pages.
    #[must_use]
    pub fn stalled_ns(&self) -> u64 {
        self.largest.iter().map(|it| it.stalled_ns).sum::<u64>() + self.left_out.stalled_ns
    }

    /// Returns the refaults of all processes.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.largest.iter().map(|it| it.faults).sum::<u64>() + self.left_out.faults
    }
}

impl Report {
    /// Converts the figures of a run in this process.
    ///
    /// # Panics
    /// If `figures` is not a report: a key has another type.
    #[must_use]
    pub fn of(figures: &impl Serialize) -> Report {
        let read = serde_json::to_value(figures).and_then(serde_json::from_value);
        read.expect("figures are a report")
    }

    /// Parses a report.
    ///
    /// # Errors
    /// If the text is not a report, or has another schema.
    pub fn read(text: &str) -> Result<Report, serde_json::Error> {
        use serde::de::Error;
        let report: Report = serde_json::from_str(text)?;
        match report.schema {
            SCHEMA => Ok(report),
            0 => Err(Error::custom(
                "it has no key `schema`, which every report of `softswap run` has",
            )),
            other => Err(Error::custom(format!(
                "it has schema {other}, and this softswap understands schema {SCHEMA}"
            ))),
        }
    }

    /// Returns the program's name without its directory.
    #[must_use]
    pub fn name(&self) -> &str {
        let first = self.program.first().map_or("", String::as_str);
        first.rsplit('/').next().unwrap_or(first)
    }

    /// Returns the program and its arguments.
    #[must_use]
    pub fn command(&self) -> String {
        let arguments = self.program.iter().skip(1).map(String::as_str);
        std::iter::once(self.name()).chain(arguments).collect::<Vec<_>>().join(" ")
    }

    /// Describes how the program ended.
    #[must_use]
    pub fn ending(&self) -> String {
        match (self.outcome.status, &self.outcome.signal_name) {
            (Some(status), _) => format!("exited with status {status}"),
            (None, Some(signal)) => format!("was ended by {signal}"),
            (None, None) => "was still running".into(),
        }
    }

    /// Returns the time that threads have waited for pages of a tier, computed from the middle of
    /// each bucket.
    #[must_use]
    pub fn waited_ns(&self, tier: &str) -> u64 {
        let buckets = self.latencies.get(tier).map_or(&[][..], Vec::as_slice);
        // A bucket is at most a quarter of an octave wide.
        let of = |(from_ns, count): &(u64, u64)| count.saturating_mul(from_ns + from_ns / 9);
        buckets.iter().map(of).sum()
    }

    /// Returns the faults of a tier.
    #[must_use]
    pub fn faults_of(&self, tier: &str) -> u64 {
        self.faults.get(tier).map_or(0, |tier| tier.count)
    }

    /// Returns the time stalled as a share of the wall time. It may exceed 1 if several threads
    /// waited.
    #[must_use]
    pub fn stalled_share(&self) -> f64 {
        self.share_of_time(self.stalled_ns)
    }

    /// Returns the part of the wall time that is lost to waits for memory. Waits of threads at the
    /// same time count once.
    #[must_use]
    pub fn lost_s(&self) -> f64 {
        let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or_default();
        let polled = Duration::from_nanos(self.polling.wait_cpu_ns);
        let (waited, wall) = (Duration::from_nanos(self.stalled_ns), seconds(self.wall_s));
        let cpu = seconds(self.cpu_s.unwrap_or_default()).saturating_sub(polled);
        stall::share(waited, cpu, wall, self.threads_peak.unwrap_or(1)) * self.wall_s
    }

    /// Returns a stalled time as a share of the wall time.
    #[must_use]
    pub fn share_of_time(&self, stalled_ns: u64) -> f64 {
        match self.wall_s {
            wall_s if wall_s > 0.0 => stalled_ns as f64 / 1e9 / wall_s,
            _ => 0.0,
        }
    }

    /// Returns the time for which threads of the program and its descendants waited for pages.
    #[must_use]
    pub fn stalled_ns_of_all(&self) -> u64 {
        let of_tree = self.tree.as_ref().map_or(0, Tree::stalled_ns);
        let seen = self.history.tree.as_ref().and_then(|tree| tree.stalled_ns.last().copied());
        self.stalled_ns.max(of_tree).max(seen.unwrap_or(0))
    }

    /// Returns the faults of a tier, of the program and its descendants if known.
    #[must_use]
    pub fn faults_of_all(&self, tier: &str) -> u64 {
        let of_tree = self.tree.as_ref().and_then(|tree| tree.faults_by_tier.get(tier));
        self.faults_of(tier).max(of_tree.copied().unwrap_or(0))
    }

    /// Returns the maximum of a figure over the tree's samples, or of the program.
    #[must_use]
    pub fn max_over_tree(&self, of_program: u64, column: fn(&TreeHistory) -> &Vec<u64>) -> u64 {
        let seen = self.history.tree.as_ref().and_then(|tree| column(tree).iter().max());
        of_program.max(seen.copied().unwrap_or(0))
    }

    /// Returns the peak usage of the program, or of it and its descendants.
    #[must_use]
    pub fn used_peak_bytes_of_all(&self) -> u64 {
        let of_tree = self.tree.as_ref().map_or(0, |tree| tree.used_peak_bytes);
        self.used_peak_bytes.max(of_tree)
    }

    /// Returns true if no page of the first process was evicted or faulted in.
    #[must_use]
    pub fn first_was_idle(&self) -> bool {
        self.pages_out == 0 && self.faults.values().all(|tier| tier.count == 0)
    }

    /// Returns true if descendants waited longer than the first process, so that its own figures
    /// mean little.
    #[must_use]
    pub fn is_dominated_by_descendants(&self) -> bool {
        self.tree.is_some() && self.stalled_ns_of_all() > 2 * self.stalled_ns
    }

    /// Returns the number of disk errors and of pages that failed verification.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.write_errors + self.read_errors + self.checksum_errors + self.unpack_errors
    }
}

#[cfg(test)]
mod tests {
    use super::Report;

    #[test]
    fn report_of_other_schema_is_rejected() {
        let read = |text: &str| Report::read(text).map(|report| report.wall_s);
        assert_eq!(read(r#"{"schema": 1, "wall_s": 2.5, "news": {}}"#).ok(), Some(2.5));
        assert!(read(r#"{"schema": 7}"#).unwrap_err().to_string().contains("schema 7"));
        assert!(read("{}").unwrap_err().to_string().contains("no key `schema`"));
        assert!(read("banana").is_err());
    }
}
