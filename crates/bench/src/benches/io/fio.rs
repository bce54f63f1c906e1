//! The reference tool fio: the same reads of the same file, in the same rounds.
//!
//! fio opens the file through this process's descriptor, so the file needs no name.

use super::meter::Slice;
use super::target::Target;
use crate::measure::sample::Round;
use serde::Deserialize;
use softswap_cli::refusal::plain;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Number of concurrent reads of the variants with several.
pub(super) const DEPTH: usize = 32;
/// Maximum number of characters shown of fio's error messages.
const MAX_SHOWN: usize = 160;

/// Kind of softswap's variants with which a job is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Interrupt,
    Poll,
    Several,
}

#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    options: &'static str,
    pub(super) depth: usize,
}

const fn job(name: &'static str, kind: Kind, options: &'static str, depth: usize) -> Job {
    Job { name, kind, options, depth }
}

/// fio's configurations. The fastest of each kind is the reference.
pub(super) const JOBS: [Job; 5] = [
    job("fio_io_uring", Kind::Interrupt, "--ioengine=io_uring --registerfiles=1", 1),
    job("fio_psync", Kind::Interrupt, "--ioengine=psync", 1),
    job("fio_io_uring_hipri", Kind::Poll, "--ioengine=io_uring --registerfiles=1 --hipri=1", 1),
    job(
        "fio_sqthread_poll",
        Kind::Poll,
        "--ioengine=io_uring --registerfiles=1 --sqthread_poll=1",
        1,
    ),
    job("fio_depth_32", Kind::Several, "--ioengine=io_uring --registerfiles=1", DEPTH),
];

/// Returns the version of fio, or the reason why it cannot be used.
pub(super) fn version() -> Result<String, String> {
    match Command::new("fio").arg("--version").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
        }
        Ok(output) => Err(format!("`fio --version` exited with {}", output.status)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err("it is not installed (Debian: apt-get install fio)".into())
        }
        Err(error) => Err(plain(&error)),
    }
}

impl Job {
    pub(super) fn run(
        &self,
        target: &Target,
        direct: bool,
        time: Duration,
        seed: u64,
    ) -> Result<Slice, String> {
        let mut command = Command::new("fio");
        command
            .args(["--name=softswap", "--output-format=json", "--bs=4k", "--numjobs=1"])
            .args(["--time_based", "--invalidate=0", "--allow_file_create=0"])
            // As softswap reads: random offsets, drawn with repetition, and another seed in each
            // round.
            .args(["--norandommap", "--randrepeat=1"])
            .args(["--lat_percentiles=1", "--clat_percentiles=0", "--percentile_list=50:99"])
            .arg(format!("--filename={}", target.path_for_other_processes.display()))
            .arg(format!("--size={}", target.bytes))
            .arg(format!("--runtime={}us", time.as_micros()))
            .arg(format!("--randseed={seed}"))
            .arg(format!("--direct={}", u8::from(direct)))
            .arg(format!("--iodepth={}", self.depth))
            .args(["--rw=randread", "--readonly"])
            .args(self.options.split(' '))
            .stdin(Stdio::null());
        let output = command.output().map_err(|error| plain(&error))?;
        let words = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            text.chars().take(MAX_SHOWN).collect::<String>()
        };
        if !output.status.success() {
            return Err(words(&output.stderr));
        }
        let slice = slice_of(&output.stdout);
        slice.ok_or_else(|| format!("fio's output could not be parsed: {}", words(&output.stdout)))
    }
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Done>,
}

#[derive(Deserialize)]
struct Done {
    error: i64,
    /// CPU time in percent of the job's run time.
    usr_cpu: f64,
    sys_cpu: f64,
    /// Run time of the job, in ms.
    job_runtime: f64,
    read: Reads,
}

#[derive(Deserialize)]
struct Reads {
    total_ios: f64,
    io_bytes: f64,
    /// Run time of the reads, in ms.
    runtime: f64,
    lat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    mean: f64,
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

fn slice_of(output: &[u8]) -> Option<Slice> {
    // Warnings may precede the object.
    let start = output.iter().position(|byte| *byte == b'{')?;
    let output: Output = serde_json::from_slice(&output[start..]).ok()?;
    let done = output.jobs.first().filter(|done| done.error == 0)?;
    let read = &done.read;
    let percentile = |name: &str| read.lat_ns.percentile.get(name).map(|ns| ns / 1000.0);
    let cpu_share = (done.usr_cpu + done.sys_cpu) / 100.0;
    (read.total_ios > 0.0 && read.runtime > 0.0).then_some(())?;
    Some(Slice {
        round: Round {
            mean_us: read.lat_ns.mean / 1000.0,
            p50_us: percentile("50.000000")?,
            p99_us: percentile("99.000000")?,
            count: read.total_ios as usize,
        },
        mb_per_s: read.io_bytes / read.runtime / 1000.0,
        cpu_us: cpu_share * done.job_runtime * 1000.0 / read.total_ios,
    })
}
