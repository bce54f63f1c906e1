//! fio, the reference: the same reads of the same file, in the same rounds.
//!
//! It opens the file by its number in this process, so the file needs no name,
//! and nothing is left behind however either of them ends.

use super::meter::Slice;
use crate::measure::sample::Round;
use serde::Deserialize;
use softswap_cli::refusal::plain;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Characters of an error of fio's that are shown.
const MOST_SHOWN: usize = 160;

/// What fio is to do.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) options: &'static [&'static str],
    pub(super) depth: usize,
}

/// Where and how long.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) path: &'a Path,
    pub(super) bytes: u64,
    pub(super) direct: bool,
    pub(super) time: Duration,
    pub(super) seed: u64,
}

/// What fio there is; why there is none.
pub(super) fn version() -> Result<String, String> {
    match Command::new("fio").arg("--version").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
        }
        Ok(output) => Err(format!("`fio --version` ended with {}", output.status)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err("it is not installed (Debian: apt-get install fio)".into())
        }
        Err(error) => Err(plain(&error)),
    }
}

/// Runs one job, or returns why it failed.
pub(super) fn run(job: &Job, run: &Run<'_>) -> Result<Slice, String> {
    let ended = command(job, run).stdin(Stdio::null()).output().map_err(|error| plain(&error))?;
    let words = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).split_whitespace().collect::<Vec<_>>().join(" ");
        text.chars().take(MOST_SHOWN).collect::<String>()
    };
    if !ended.status.success() {
        return Err(words(&ended.stderr));
    }
    let slice = slice_of(&ended.stdout);
    slice.ok_or_else(|| format!("its output was not understood: {}", words(&ended.stdout)))
}

fn command(job: &Job, run: &Run<'_>) -> Command {
    let mut command = Command::new("fio");
    command
        .args(["--name=softswap", "--output-format=json", "--bs=4k", "--numjobs=1"])
        .args(["--time_based", "--invalidate=0", "--allow_file_create=0"])
        // As ours: other places every round, and none only once.
        .args(["--norandommap", "--randrepeat=1"])
        .args(["--lat_percentiles=1", "--clat_percentiles=0", "--percentile_list=50:99"])
        .arg(format!("--filename={}", run.path.display()))
        .arg(format!("--size={}", run.bytes))
        .arg(format!("--runtime={}us", run.time.as_micros()))
        .arg(format!("--randseed={}", run.seed))
        .arg(format!("--direct={}", u8::from(run.direct)))
        .arg(format!("--iodepth={}", job.depth))
        .args(["--rw=randread", "--readonly"])
        .args(job.options);
    command
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Done>,
}

#[derive(Deserialize)]
struct Done {
    error: i64,
    /// In percent of the job's time.
    usr_cpu: f64,
    sys_cpu: f64,
    /// In ms.
    job_runtime: f64,
    read: Side,
}

#[derive(Deserialize)]
struct Side {
    total_ios: f64,
    io_bytes: f64,
    /// In ms.
    runtime: f64,
    lat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    mean: f64,
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

fn slice_of(said: &[u8]) -> Option<Slice> {
    // Warnings may stand before the object.
    let start = said.iter().position(|byte| *byte == b'{')?;
    let output: Output = serde_json::from_slice(&said[start..]).ok()?;
    let done = output.jobs.first().filter(|done| done.error == 0)?;
    let side = &done.read;
    let percentile = |name: &str| side.lat_ns.percentile.get(name).map(|ns| ns / 1000.0);
    let cpu_share = (done.usr_cpu + done.sys_cpu) / 100.0;
    (side.total_ios > 0.0 && side.runtime > 0.0).then_some(())?;
    Some(Slice {
        round: Round {
            mean_us: side.lat_ns.mean / 1000.0,
            p50_us: percentile("50.000000")?,
            p99_us: percentile("99.000000")?,
            count: side.total_ios as usize,
        },
        mb_per_s: side.io_bytes / side.runtime / 1000.0,
        cpu_us: cpu_share * done.job_runtime * 1000.0 / side.total_ios,
    })
}
