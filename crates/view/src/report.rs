//! The report of a run (`softswap run --report`), or of a running program.

use crate::sections::{Areas, Bounce, Mappings, Polling, Pool};
use crate::stall;
use serde::{Deserialize, Serialize};
use softswap_shared::ledger::{Counts, Sizes};
use std::collections::BTreeMap;
use std::time::Duration;

/// Incremented if a key is removed or changes its meaning.
pub const SCHEMA: u32 = 1;

pub(crate) const TIERS: [&str; 6] = ["zero", "staged", "standby", "filled", "pool", "disk"];

/// The report's keys. Fields that an older softswap did not write are empty. Peaks need not
/// coincide.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Present only for a running process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    pub schema: u32,
    pub softswap_version: String,
    pub program: Vec<String>,
    pub outcome: Outcome,
    /// The status, or 128 plus the signal; `null` while the program runs.
    pub exit_status: Option<u8>,
    pub wall_s: f64,
    /// CPU time with all descendants; `null` while the program runs.
    pub cpu_s: Option<f64>,
    /// Excludes the engine's threads; `null` if the program exited before the first sample.
    pub threads_peak: Option<u32>,
    /// If false, the rest is 0.
    pub engine_started: bool,
    pub slept: bool,
    /// Figures of all processes, if they shared one budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<Tree>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmanaged: Option<Unmanaged>,
    /// A code if softswap stopped the program; `null` otherwise.
    pub stop_reason: Option<u64>,
    pub budget_bytes: u64,
    /// Advertised to the program; 0: the machine's; `null` while it runs.
    pub advertised_bytes: Option<u64>,
    /// Budget and swap areas together; `null` while it runs.
    pub usable_bytes: Option<u64>,
    /// Fitted the machine's and the control groups' available memory; `null` while it runs.
    pub largest_budget_bytes: Option<u64>,
    pub budget_peak_bytes: u64,
    /// Charged to the budget at the last sample.
    pub used_bytes: u64,
    pub used_peak_bytes: u64,
    pub fixed_bytes: u64,
    pub metadata_peak_bytes: u64,
    pub mapped_peak_bytes: u64,
    pub resident_peak_bytes: u64,
    pub pool_peak_bytes: u64,
    /// Swap slots at the last sample.
    pub disk_bytes: u64,
    pub disk_peak_bytes: u64,
    pub swap_file_bytes: u64,
    /// `null` if the process exited before the first sample.
    #[serde(alias = "beside")]
    pub outside_budget: Option<OutsideBudget>,
    /// SIGBUS and SIGSYS.
    pub signals_passed_on: u64,
    pub pages_out: u64,
    pub pages_same_filled: u64,
    pub pages_pooled: u64,
    pub pages_incompressible: u64,
    pub pages_written: u64,
    pub pages_read: u64,
    pub pages_read_ahead: u64,
    /// Windows of readahead that their stream has reached or not.
    pub windows_reached: u64,
    pub windows_lost: u64,
    /// Share of evicted pages; `null` if there are none.
    pub same_filled_share: Option<f64>,
    /// Bytes before over bytes after; `null` without compression.
    pub compression_ratio: Option<f64>,
    pub faults: BTreeMap<String, Tier>,
    /// For each tier, pairs of a bucket's lower bound in ns and its nonzero count.
    pub latencies: BTreeMap<String, Vec<(u64, u64)>>,
    /// Refaults from the pool (with same-filled pages), from the disk, and of incompressible pages:
    /// pairs of a distance bucket's lower bound and its count.
    pub returns: BTreeMap<String, Vec<(u64, u64)>>,
    pub bytes_written: u64,
    pub bytes_read: u64,
    /// Sum over all threads.
    pub stalled_ns: u64,
    pub direct_reclaims: u64,
    /// Batches that the program's threads evicted ahead of demand.
    pub reclaimed_ahead: u64,
    pub guarded_calls: u64,
    pub write_errors: u64,
    pub read_errors: u64,
    pub checksum_errors: u64,
    /// Compressed pages in memory that could not be decompressed.
    pub unpack_errors: u64,
    pub uses_io_uring: bool,
    pub uses_direct_io: bool,
    pub is_remote: bool,
    pub uses_move: bool,
    /// "userfaultfd" or "protection"; `null` without an engine.
    pub fault_mechanism: Option<String>,
    /// `null` with userfaultfd.
    pub mappings: Option<Mappings>,
    pub uses_fixed_buffers: bool,
    pub bounce: Bounce,
    pub encrypts: bool,
    /// The kernel may swap the key out.
    pub key_unlocked: bool,
    pub pool: Pool,
    pub areas: Areas,
    pub polling: Polling,
    /// Keys are direction and size: `read_4096` from 4 KiB to below 8 KiB.
    pub transfers: BTreeMap<String, Tier>,
    /// Empty for a running process.
    #[serde(skip_serializing_if = "History::is_empty")]
    pub history: History,
    /// Settings at the start (or now, if running) by their keys in `softswap ctl`.
    pub settings: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// "exited", "killed" or "running".
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal_name: Option<String>,
}

/// Faults of one tier, or transfers of one size; times are `null` if there are none.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tier {
    pub count: u64,
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
}

/// Peaks by field, or current values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutsideBudget {
    pub total_bytes: u64,
    /// `RssAnon` minus the memory charged to the budget.
    pub anonymous_bytes: u64,
    /// `RssShmem`.
    pub shared_bytes: u64,
    /// `RssFile`: code and mapped files.
    pub file_bytes: u64,
    pub left_by_exec: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unmanaged {
    pub processes: u64,
    pub anonymous_peak_bytes: u64,
    pub largest: Vec<UnmanagedProcess>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnmanagedProcess {
    pub pid: u32,
    pub name: String,
    pub anonymous_bytes: u64,
    pub anonymous_peak_bytes: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tree {
    pub budget_bytes: u64,
    pub budget_peak_bytes: u64,
    pub used_peak_bytes: u64,
    pub processes_peak: usize,
    pub turns: u64,
    pub largest: Vec<Process>,
    pub left_out: LeftOut,
    pub faults_by_tier: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftOut {
    pub processes: u64,
    pub faults: u64,
    pub stalled_ns: u64,
    #[serde(skip)]
    pub counts: Counts,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub granted_bytes: u64,
    /// 0 if the process publishes nothing, like a small forked child.
    pub used_bytes: u64,
    pub used_peak_bytes: u64,
    /// Refaults, and the waits for them.
    pub faults: u64,
    pub stalled_ns: u64,
    /// Not in JSON nor on the control socket, which have no space.
    #[serde(skip)]
    pub counts: Counts,
    #[serde(skip)]
    pub sizes: Sizes,
}

/// A row per sample. Counters are cumulative.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    pub at_s: Vec<f64>,
    #[serde(flatten)]
    pub columns: Columns,
    pub pool_pages: Vec<u64>,
    pub faults: BTreeMap<String, Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<TreeHistory>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Columns {
    pub budget_bytes: Vec<u64>,
    pub used_bytes: Vec<u64>,
    pub resident_bytes: Vec<u64>,
    pub pool_bytes: Vec<u64>,
    pub disk_bytes: Vec<u64>,
    pub stalled_ns: Vec<u64>,
    pub bytes_read: Vec<u64>,
    pub bytes_written: Vec<u64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TreeHistory {
    #[serde(flatten)]
    pub columns: Columns,
    pub processes: Vec<u64>,
    pub faults: Vec<u64>,
    pub faults_by_tier: BTreeMap<String, Vec<u64>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    pub dram_bytes: u64,
    pub kernel: String,
}

impl History {
    fn is_empty(&self) -> bool {
        self.at_s.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn with_full_budget(budget_bytes: u64) -> History {
        let columns = Columns {
            budget_bytes: vec![budget_bytes],
            used_bytes: vec![budget_bytes],
            resident_bytes: vec![budget_bytes],
            pool_bytes: vec![0],
            ..Columns::default()
        };
        History { columns, ..History::default() }
    }

    pub(crate) fn whole(&self) -> &Columns {
        self.tree.as_ref().map_or(&self.columns, |tree| &tree.columns)
    }
}

impl OutsideBudget {
    /// The kernel can drop only clean file pages.
    #[must_use]
    pub fn undroppable_bytes(&self) -> u64 {
        self.anonymous_bytes + self.shared_bytes
    }
}

impl Tree {
    #[must_use]
    pub fn stalled_ns(&self) -> u64 {
        self.largest.iter().map(|it| it.stalled_ns).sum::<u64>() + self.left_out.stalled_ns
    }

    #[must_use]
    pub fn faults(&self) -> u64 {
        self.largest.iter().map(|it| it.faults).sum::<u64>() + self.left_out.faults
    }
}

impl Report {
    /// Parses a report.
    ///
    /// # Errors
    /// If the text is not a report, or has another schema.
    pub fn read(text: &str) -> Result<Report, serde_json::Error> {
        use serde::de::Error;
        // serde would read fields from an array.
        if !text.trim_start().starts_with('{') {
            return Err(Error::custom("it is neither a JSON object nor a page of softswap"));
        }
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

    #[must_use]
    pub fn name(&self) -> &str {
        let first = self.program.first().map_or("", String::as_str);
        first.rsplit('/').next().unwrap_or(first)
    }

    #[must_use]
    pub fn command(&self) -> String {
        let arguments = self.program.iter().skip(1).map(String::as_str);
        std::iter::once(self.name()).chain(arguments).collect::<Vec<_>>().join(" ")
    }

    #[must_use]
    pub fn ending(&self) -> String {
        match (self.outcome.status, &self.outcome.signal_name) {
            (Some(status), _) => format!("exited with status {status}"),
            (None, Some(signal)) => format!("was ended by {signal}"),
            (None, None) => "was still running".into(),
        }
    }

    /// Computed from the middle of each bucket.
    #[must_use]
    pub fn waited_ns(&self, tier: &str) -> u64 {
        let buckets = self.latencies.get(tier).map_or(&[][..], Vec::as_slice);
        // A bucket is at most a quarter of an octave wide.
        let of = |(from_ns, count): &(u64, u64)| count.saturating_mul(from_ns + from_ns / 9);
        buckets.iter().map(of).sum()
    }

    #[must_use]
    pub fn faults_of(&self, tier: &str) -> u64 {
        self.faults.get(tier).map_or(0, |tier| tier.count)
    }

    /// May exceed 1 if several threads waited.
    #[must_use]
    pub fn stalled_share(&self) -> f64 {
        self.share_of_time(self.stalled_ns)
    }

    /// Concurrent waits of threads count once.
    #[must_use]
    pub fn lost_s(&self) -> f64 {
        let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or_default();
        let polled = Duration::from_nanos(self.polling.wait_cpu_ns);
        let (waited, wall) = (Duration::from_nanos(self.stalled_ns), seconds(self.wall_s));
        let cpu = seconds(self.cpu_s.unwrap_or_default()).saturating_sub(polled);
        stall::share(waited, cpu, wall, self.threads_peak.unwrap_or(1)) * self.wall_s
    }

    #[must_use]
    pub fn share_of_time(&self, stalled_ns: u64) -> f64 {
        match self.wall_s {
            wall_s if wall_s > 0.0 => stalled_ns as f64 / 1e9 / wall_s,
            _ => 0.0,
        }
    }

    #[must_use]
    pub fn stalled_ns_of_all(&self) -> u64 {
        let of_tree = self.tree.as_ref().map_or(0, Tree::stalled_ns);
        let seen =
            self.history.tree.as_ref().and_then(|tree| tree.columns.stalled_ns.last().copied());
        self.stalled_ns.max(of_tree).max(seen.unwrap_or(0))
    }

    #[must_use]
    pub fn faults_of_all(&self, tier: &str) -> u64 {
        let of_tree = self.tree.as_ref().and_then(|tree| tree.faults_by_tier.get(tier));
        self.faults_of(tier).max(of_tree.copied().unwrap_or(0))
    }

    #[must_use]
    pub fn max_over_tree(&self, of_program: u64, column: fn(&Columns) -> &Vec<u64>) -> u64 {
        let tree = self.history.tree.as_ref();
        let seen = tree.and_then(|tree| column(&tree.columns).iter().max());
        of_program.max(seen.copied().unwrap_or(0))
    }

    #[must_use]
    pub fn used_peak_bytes_of_all(&self) -> u64 {
        let of_tree = self.tree.as_ref().map_or(0, |tree| tree.used_peak_bytes);
        self.used_peak_bytes.max(of_tree)
    }

    /// At most what all processes used, because each also counts inherited pages.
    #[must_use]
    pub fn resident_peak_bytes_of_all(&self) -> u64 {
        let seen = self.max_over_tree(self.resident_peak_bytes, |tree| &tree.resident_bytes);
        match self.tree {
            Some(_) => seen.min(self.used_peak_bytes_of_all()),
            None => seen,
        }
    }

    /// No page of the first process was evicted or faulted in.
    #[must_use]
    pub fn first_was_idle(&self) -> bool {
        self.pages_out == 0 && self.faults.values().all(|tier| tier.count == 0)
    }

    #[must_use]
    pub fn largest_budget(&self) -> Option<u64> {
        let dram_bytes = self.machine.as_ref().map(|machine| machine.dram_bytes);
        self.largest_budget_bytes.or(dram_bytes)
    }

    /// Figures of the first process then mean little.
    #[must_use]
    pub fn is_dominated_by_descendants(&self) -> bool {
        self.tree.is_some() && self.stalled_ns_of_all() > 2 * self.stalled_ns
    }

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
        assert!(read("[1, 2]").unwrap_err().to_string().contains("neither a JSON object"));
    }
}
