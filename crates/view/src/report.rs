//! A report of `softswap run --report`, read again.

use crate::sections::{Areas, Bounce, Mappings, Polling, Pool};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The schema that is understood.
const SCHEMA: u32 = 1;

/// The tiers in the order in which they cost more.
pub(crate) const TIERS: [&str; 6] = ["zero", "staged", "standby", "filled", "pool", "disk"];

/// What views need of it. What an older softswap did not write is empty.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Report {
    pub schema: u32,
    pub softswap_version: String,
    pub program: Vec<String>,
    pub outcome: Outcome,
    /// Only of a running process.
    pub pid: Option<u32>,
    pub wall_s: f64,
    pub engine_started: bool,
    pub slept: bool,
    /// Why softswap ended the program, by the engine's number.
    pub stop_reason: Option<u64>,
    pub tree: Option<Tree>,
    pub unmanaged: Option<Unmanaged>,
    pub budget_bytes: u64,
    pub budget_peak_bytes: u64,
    pub used_peak_bytes: u64,
    pub mapped_peak_bytes: u64,
    pub resident_peak_bytes: u64,
    pub pool_peak_bytes: u64,
    pub disk_peak_bytes: u64,
    pub beside: Option<Beside>,
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
pub struct Beside {
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
    /// Those with the largest peaks.
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
    pub largest: Vec<Process>,
    pub left_out: LeftOut,
    /// Of all of them.
    pub faults_by_tier: BTreeMap<String, u64>,
}

/// Processes of which there are only sums.
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
    /// Those that brought something back.
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

impl Beside {
    /// Returns the bytes that the kernel cannot drop: all but clean pages of files.
    #[must_use]
    pub fn undroppable_bytes(&self) -> u64 {
        self.anonymous_bytes + self.shared_bytes
    }
}

impl Tree {
    /// Time for which threads of all of them waited for pages.
    #[must_use]
    pub fn stalled_ns(&self) -> u64 {
        self.largest.iter().map(|it| it.stalled_ns).sum::<u64>() + self.left_out.stalled_ns
    }

    /// Faults of all of them that brought something back.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.largest.iter().map(|it| it.faults).sum::<u64>() + self.left_out.faults
    }
}

impl Report {
    /// Reads the figures of a run in this process.
    ///
    /// # Panics
    /// If they are no report: `figures` has another type for a key.
    #[must_use]
    pub fn of(figures: &impl Serialize) -> Report {
        let read = serde_json::to_value(figures).and_then(serde_json::from_value);
        read.expect("figures are a report")
    }

    /// Reads a report.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(text: &str) -> Result<Report, serde_json::Error> {
        use serde::de::Error;
        let report: Report = serde_json::from_str(text)?;
        match report.schema {
            SCHEMA => Ok(report),
            0 => Err(Error::custom("it has no `schema`, as a report of `softswap run` has")),
            other => Err(Error::custom(format!(
                "it has schema {other}, and this softswap understands schema {SCHEMA}"
            ))),
        }
    }

    /// The program's name, without where it lies.
    #[must_use]
    pub fn name(&self) -> &str {
        let first = self.program.first().map_or("", String::as_str);
        first.rsplit('/').next().unwrap_or(first)
    }

    /// The program and its arguments.
    #[must_use]
    pub fn command(&self) -> String {
        let arguments = self.program.iter().skip(1).map(String::as_str);
        std::iter::once(self.name()).chain(arguments).collect::<Vec<_>>().join(" ")
    }

    /// How it ended, in words.
    #[must_use]
    pub fn ending(&self) -> String {
        match (self.outcome.status, &self.outcome.signal_name) {
            (Some(status), _) => format!("exited with status {status}"),
            (None, Some(signal)) => format!("was ended by {signal}"),
            (None, None) => "was still running".into(),
        }
    }

    /// Time that threads have waited for pages of a tier, by the middle of each bucket.
    #[must_use]
    pub fn waited_ns(&self, tier: &str) -> u64 {
        let buckets = self.latencies.get(tier).map_or(&[][..], Vec::as_slice);
        // A bucket ends a quarter of an octave further on, at most.
        let of = |(from_ns, count): &(u64, u64)| count.saturating_mul(from_ns + from_ns / 9);
        buckets.iter().map(of).sum()
    }

    /// Faults of a tier.
    #[must_use]
    pub fn faults_of(&self, tier: &str) -> u64 {
        self.faults.get(tier).map_or(0, |tier| tier.count)
    }

    /// Of how much time the program's threads waited, if one of them was busy all the time: more
    /// than one may have waited at once.
    #[must_use]
    pub fn stalled_share(&self) -> f64 {
        self.share_of_time(self.stalled_ns)
    }

    /// So much waiting as a share of the time.
    #[must_use]
    pub fn share_of_time(&self, stalled_ns: u64) -> f64 {
        match self.wall_s {
            wall_s if wall_s > 0.0 => stalled_ns as f64 / 1e9 / wall_s,
            _ => 0.0,
        }
    }

    /// Time for which threads of the program, and of all that it started, waited for pages.
    #[must_use]
    pub fn stalled_ns_of_all(&self) -> u64 {
        let of_tree = self.tree.as_ref().map_or(0, Tree::stalled_ns);
        let seen = self.history.tree.as_ref().and_then(|tree| tree.stalled_ns.last().copied());
        self.stalled_ns.max(of_tree).max(seen.unwrap_or(0))
    }

    /// Faults of a tier, of the program and of all that it started, where that is known.
    #[must_use]
    pub fn faults_of_all(&self, tier: &str) -> u64 {
        let of_tree = self.tree.as_ref().and_then(|tree| tree.faults_by_tier.get(tier));
        self.faults_of(tier).max(of_tree.copied().unwrap_or(0))
    }

    /// The largest of a figure that has been seen of the tree, or what it was of the program.
    #[must_use]
    pub fn most_of_all(&self, of_program: u64, column: fn(&TreeHistory) -> &Vec<u64>) -> u64 {
        let seen = self.history.tree.as_ref().and_then(|tree| column(tree).iter().max());
        of_program.max(seen.copied().unwrap_or(0))
    }

    /// The most that was used by the program, or by it and all that it started.
    #[must_use]
    pub fn used_peak_bytes_of_all(&self) -> u64 {
        let of_tree = self.tree.as_ref().map_or(0, |tree| tree.used_peak_bytes);
        self.used_peak_bytes.max(of_tree)
    }

    /// Whether nothing of the first process left DRAM, or came back.
    #[must_use]
    pub fn first_did_nothing(&self) -> bool {
        self.pages_out == 0 && self.faults.values().all(|tier| tier.count == 0)
    }

    /// Whether it started others that waited for more than it did: what it had itself says little.
    #[must_use]
    pub fn is_about_others(&self) -> bool {
        self.tree.is_some() && self.stalled_ns_of_all() > 2 * self.stalled_ns
    }

    /// What failed on the disk, or came back as something else.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.write_errors + self.read_errors + self.checksum_errors + self.unpack_errors
    }
}

#[cfg(test)]
mod tests {
    use super::Report;

    #[test]
    fn a_report_of_another_schema_is_refused() {
        let read = |text: &str| Report::read(text).map(|report| report.wall_s);
        assert_eq!(read(r#"{"schema": 1, "wall_s": 2.5, "news": {}}"#).ok(), Some(2.5));
        assert!(read(r#"{"schema": 7}"#).unwrap_err().to_string().contains("schema 7"));
        assert!(read("{}").unwrap_err().to_string().contains("no `schema`"));
        assert!(read("banana").is_err());
    }
}
