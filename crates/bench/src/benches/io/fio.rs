//! fio, the reference: the same reads of the same file, in the same rounds.
//!
//! It opens the file by its number in this process, so the file needs no name,
//! and nothing is left behind however either of them ends.

use super::meter::Slice;
use crate::measure::sample::Round;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// fio starts and ends in well under a second; beyond this it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of what fio says when it fails.
const MOST_WORDS: usize = 160;

/// What fio is to do.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) options: &'static [&'static str],
    pub(super) depth: usize,
    pub(super) writes: bool,
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
        Err(error) => Err(softswap_cli::refusal::plain(&error)),
    }
}

/// Runs one job; says in words why it did not work.
pub(super) fn run(job: &Job, run: &Run<'_>) -> Result<Slice, String> {
    let mut child = command(job, run)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| softswap_cli::refusal::plain(&error))?;
    let mut said = Vec::new();
    let in_time = match child.stdout.take() {
        Some(mut stdout) => read_all(&mut stdout, &mut said, run.time + PATIENCE),
        None => false,
    };
    if !in_time {
        let _ = child.kill();
    }
    let ended = child.wait_with_output().map_err(|error| softswap_cli::refusal::plain(&error))?;
    if !in_time {
        return Err("it did not end".into());
    }
    let words = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).split_whitespace().collect::<Vec<_>>().join(" ");
        text.chars().take(MOST_WORDS).collect::<String>()
    };
    if !ended.status.success() {
        return Err(words(&ended.stderr));
    }
    slice_of(job, &said).ok_or_else(|| format!("its output was not understood: {}", words(&said)))
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
        .args(if job.writes { &["--rw=randwrite"][..] } else { &["--rw=randread", "--readonly"] })
        .args(job.options);
    command
}

/// Reads to the end; false when that takes longer than `limit`.
fn read_all(from: &mut (impl Read + std::os::fd::AsFd), to: &mut Vec<u8>, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    let mut chunk = [0; 16 << 10];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return false,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) => match from.read(&mut chunk) {
                Ok(0) => return true,
                Ok(count) => to.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            },
        }
    }
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
    write: Side,
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

fn slice_of(job: &Job, said: &[u8]) -> Option<Slice> {
    // Warnings may stand before the object.
    let start = said.iter().position(|byte| *byte == b'{')?;
    let output: Output = serde_json::from_slice(&said[start..]).ok()?;
    let done = output.jobs.first().filter(|done| done.error == 0)?;
    let side = if job.writes { &done.write } else { &done.read };
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

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Job = Job { options: &[], depth: 1, writes: false };

    fn side(count: u32) -> String {
        format!(
            r#"{{"total_ios": {count}, "io_bytes": {}, "runtime": 500, "short_ios": 0, "lat_ns":
            {{"min": 1, "mean": 40000.5, "percentile": {{"50.000000": 36608, "99.000000": 97792}}}}}}"#,
            count * 4096
        )
    }

    fn output(error: i32, reads: u32) -> String {
        format!(
            r#"fio: a warning
            {{"fio version": "fio-3.33", "jobs": [{{"error": {error}, "usr_cpu": 5.0,
            "sys_cpu": 20.0, "job_runtime": 500, "read": {}, "write": {}}}]}}"#,
            side(reads),
            side(0)
        )
    }

    #[test]
    fn figures_are_taken_from_the_side_that_was_asked_for() {
        let slice = slice_of(&READ, output(0, 1000).as_bytes()).unwrap();
        assert_eq!((slice.round.p50_us, slice.round.p99_us), (36.608, 97.792));
        assert_eq!((slice.round.mean_us, slice.round.count), (40.0005, 1000));
        assert!((slice.cpu_us - 125.0).abs() < 1e-9, "{slice:?}");
        assert!((slice.mb_per_s - 8.192).abs() < 1e-9, "{slice:?}");
        assert!(slice_of(&Job { writes: true, ..READ }, output(0, 1000).as_bytes()).is_none());
    }

    #[test]
    fn failures_and_nonsense_give_no_figures() {
        assert!(slice_of(&READ, output(95, 1000).as_bytes()).is_none());
        assert!(slice_of(&READ, output(0, 0).as_bytes()).is_none());
        assert!(slice_of(&READ, b"fio: bad option").is_none());
        assert!(slice_of(&READ, b"{\"jobs\": []}").is_none());
    }

    #[test]
    fn reads_are_told_to_write_nothing() {
        let run = Run {
            path: Path::new("/some/where"),
            bytes: 1 << 20,
            direct: true,
            time: Duration::from_millis(1),
            seed: 3,
        };
        let shown = |job: &Job| format!("{:?}", command(job, &run));
        let text = shown(&READ);
        for part in ["--readonly", "--rw=randread", "--direct=1", "--runtime=1000us"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(shown(&Job { writes: true, ..READ }).contains("--rw=randwrite"));
    }
}
