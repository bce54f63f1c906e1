//! The reference tool fio: the same reads of the same file, in the same rounds.
//!
//! fio opens the file through this process's descriptor, so the file needs no name.

use super::meter::{Slice, Target};
use crate::measure::sample::Round;
use serde_json::Value;
use softswap_cli::refusal::plain;
use softswap_engine::store::io::Device;
use std::process::{Command, Stdio};
use std::time::Duration;

pub(super) const DEPTH: usize = 32;
const MAX_SHOWN: usize = 160;

/// softswap's variants with which a job is compared.
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

/// Fails with the reason why fio cannot be used.
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
    pub(super) fn run(&self, target: &Target, time: Duration, seed: u64) -> Result<Slice, String> {
        let mut command = Command::new("fio");
        command
            .args(["--name=softswap", "--output-format=json", "--bs=4k", "--numjobs=1"])
            .args(["--time_based", "--invalidate=0", "--allow_file_create=0"])
            // As softswap reads: random offsets with repetition, another seed in each round.
            .args(["--norandommap", "--randrepeat=1"])
            .args(["--lat_percentiles=1", "--clat_percentiles=0", "--percentile_list=50:99"])
            .arg(format!("--filename={}", target.path_for_other_processes.display()))
            .arg(format!("--size={}", target.bytes))
            .arg(format!("--runtime={}us", time.as_micros()))
            .arg(format!("--randseed={seed}"))
            .arg(format!("--direct={}", u8::from(target.device.describe().direct)))
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

fn slice_of(output: &[u8]) -> Option<Slice> {
    // Warnings may precede the object.
    let start = output.iter().position(|byte| *byte == b'{')?;
    let output: Value = serde_json::from_slice(&output[start..]).ok()?;
    let job = output["jobs"].get(0).filter(|job| job["error"] == 0)?;
    let (of_job, of_read) = (|key: &str| job[key].as_f64(), |key: &str| job["read"][key].as_f64());
    let percentile_us =
        |key: &str| Some(job["read"]["lat_ns"]["percentile"][key].as_f64()? / 1000.0);
    // `usr_cpu` and `sys_cpu` are percent of the run time; `runtime` is in ms.
    let cpu_share = (of_job("usr_cpu")? + of_job("sys_cpu")?) / 100.0;
    let (reads, read_ms) = (of_read("total_ios")?, of_read("runtime")?);
    (reads > 0.0 && read_ms > 0.0).then_some(())?;
    Some(Slice {
        round: Round {
            p50_us: percentile_us("50.000000")?,
            p99_us: percentile_us("99.000000")?,
            count: reads as usize,
        },
        mb_per_s: of_read("io_bytes")? / read_ms / 1000.0,
        cpu_us: cpu_share * of_job("job_runtime")? * 1000.0 / reads,
    })
}
