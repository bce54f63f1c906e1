//! What a read of a file or device costs by how it is waited for, beside what
//! fio makes of the same reads.
//!
//! All variants read the same bytes in every round, one after the other, each
//! for the same time, and every round begins with another one.

mod fio;
mod measure;
mod outcome;
mod target;

use crate::measure::machine::{Disturbance, Usage};
use crate::measure::report::Target as Output;
use crate::measure::sample::{Samples, rotated};
use clap::Args;
use fio::Job;
use measure::{Meter, Slice};
use softswap_cli::refusal::Refusal;
use softswap_cli::units::parse_size;
use softswap_engine::store::io::poll::mode::Mode;
use softswap_sys::ring::timer_overshoot_ns;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use target::Target;

/// The round that does not count is shorter: it only has to wake everything up.
const WARM_UP: Duration = Duration::from_millis(250);
/// Reads under way at once.
const DEPTHS: [usize; 5] = [2, 4, 8, 16, 32];
/// Writes under way at once.
const WRITE_DEPTHS: [usize; 2] = [1, 32];

/// Measure reads of a file or device by how they are waited for.
///
/// 4 KiB at random places, past the page cache: one at a time, waited for by
/// interrupt, poll, hybrid and auto, then 2 to 32 at once. Without FILE, a file
/// of its own is filled and read; it has no name and is gone when the command
/// ends. What exists is opened for reading only, unless --write.
#[derive(Args)]
#[command(after_long_help = "\
fio is run in the same rounds on the same file where it is installed (Debian: apt-get install fio;
tried with 3.33). For waiting by interrupt: io_uring and psync. For polling: io_uring with hipri
(only on queues that poll), io_uring with sqthread_poll, pvsync2 with hipri. The ratios are to the
one of each kind that was fastest here.

CPU is the user and system time per I/O of the whole process, by fio's own account of its thread
for fio, without the kernel thread that its sqthread_poll keeps busy.

pread is the bare system call in this process: fio is a process of its own, which a machine that
idles between reads may treat better or worse.

Latency at depth 1 is that of the read. softswap waits for N reads together, so depth_N has the
latency of all N; fio keeps N under way and gives each one's own. MB/s and CPU compare as they are.

With --json: {\"schema\": 1, \"bench\": \"io\", \"machine\": {...}, ratios, \"rows\": [{\"variant\", \"by\",
\"depth\", \"mean_us\", \"p50_us\", \"p99_us\", \"mb_per_s\", \"cpu_us\", \"cov\", \"count\"}], \"modes\":
{\"poll\": {\"considered\", \"polled\", \"hit\", \"slept\", \"overslept\"}, ...}}. A ratio a_vs_b is a over b
by p50, the median over the rounds; *_mean by the mean latency. extra_cpu_hybrid_vs_poll is the CPU
that hybrid adds to interrupt over what poll adds. What could not be measured is null.")]
pub(crate) struct IoArgs {
    /// A file or block device to read; a file of its own without
    #[arg(value_name = "FILE")]
    target: Option<PathBuf>,

    /// How much of it, from its start on [default: all; 1G for a file of its own]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,

    /// The directory for a file of its own
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,

    /// Measure writes too, over a file of its own or a device that holds nothing
    ///
    /// Everything on the device is lost. A file that exists, a device with a
    /// file system or a partition table, and one that is mounted or otherwise
    /// in use are refused.
    #[arg(long)]
    write: bool,

    /// Rounds that count, after one that does not
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// How long each variant runs in a round, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = parse_seconds)]
    seconds: Duration,

    /// Leave fio out
    #[arg(long)]
    no_fio: bool,

    /// Measure these variants only (names as in the table), by comma
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give seconds from 0.01 to 60".into()),
    }
}

pub(super) fn run(args: &IoArgs) -> Result<ExitCode, Refusal> {
    let output = Output::open(args.json.as_deref())?;
    let outcome = target::open(args).and_then(|target| measure(&target, args));
    match outcome {
        Ok(outcome) => output.write(&outcome).map(|()| ExitCode::SUCCESS),
        Err(refusal) => {
            output.abandon();
            Err(refusal)
        }
    }
}

/// What a variant does, and what it is compared with.
#[derive(Debug, Clone)]
enum What {
    /// One page at a time.
    Read(Mode),
    /// One page at a time, by the system call alone.
    Pread,
    /// Several at once.
    ReadMany(usize),
    WriteMany(usize),
    /// fio's counterpart of one of the others.
    Fio(FioFor, Job),
}

/// What a job of fio's is the counterpart of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FioFor {
    Interrupt,
    Poll,
    Several,
}

/// A row in the making.
#[derive(Debug)]
struct Variant {
    name: String,
    what: What,
    samples: Samples,
    mb_per_s: Vec<f64>,
    cpu_us: Vec<f64>,
}

impl Variant {
    fn new(name: impl Into<String>, what: What) -> Variant {
        let name = name.into();
        Variant { name, what, samples: Samples::default(), mb_per_s: vec![], cpu_us: vec![] }
    }

    fn fio(name: impl Into<String>, counterpart: FioFor, job: Job) -> Variant {
        Variant::new(name, What::Fio(counterpart, job))
    }

    fn depth(&self) -> usize {
        match &self.what {
            What::Read(_) | What::Pread => 1,
            What::ReadMany(depth) | What::WriteMany(depth) => *depth,
            What::Fio(_, job) => job.depth,
        }
    }

    fn add(&mut self, slice: Slice) {
        self.samples.add_round(slice.round);
        self.mb_per_s.push(slice.mb_per_s);
        self.cpu_us.push(slice.cpu_us);
    }
}

/// fio's ways to do single reads. Its fastest of each kind counts.
const FIO_SINGLE: [(&str, FioFor, &[&str]); 5] = [
    ("fio_io_uring", FioFor::Interrupt, &["--ioengine=io_uring", "--registerfiles=1"]),
    ("fio_psync", FioFor::Interrupt, &["--ioengine=psync"]),
    (
        "fio_io_uring_hipri",
        FioFor::Poll,
        &["--ioengine=io_uring", "--registerfiles=1", "--hipri=1"],
    ),
    (
        "fio_sqthread_poll",
        FioFor::Poll,
        &["--ioengine=io_uring", "--registerfiles=1", "--sqthread_poll=1"],
    ),
    ("fio_pvsync2_hipri", FioFor::Poll, &["--ioengine=pvsync2", "--hipri=1"]),
];
const FIO_SEVERAL: &[&str] = &["--ioengine=io_uring", "--registerfiles=1"];

/// Everything that is to be measured, each of fio's beside its counterpart.
fn variants(writes: bool, with_fio: bool) -> Vec<Variant> {
    let mut all: Vec<Variant> =
        Mode::ALL.into_iter().map(|mode| Variant::new(mode.name(), What::Read(mode))).collect();
    all.push(Variant::new("pread", What::Pread));
    let job = |options, depth, writes| Job { options, depth, writes };
    if with_fio {
        all.extend(FIO_SINGLE.map(|(name, counterpart, options)| {
            Variant::fio(name, counterpart, job(options, 1, false))
        }));
    }
    for depth in DEPTHS {
        all.push(Variant::new(format!("depth_{depth}"), What::ReadMany(depth)));
        if with_fio {
            let job = job(FIO_SEVERAL, depth, false);
            all.push(Variant::fio(format!("fio_depth_{depth}"), FioFor::Several, job));
        }
    }
    for depth in WRITE_DEPTHS.into_iter().filter(|_| writes) {
        all.push(Variant::new(format!("write_{depth}"), What::WriteMany(depth)));
        if with_fio {
            let job = job(FIO_SEVERAL, depth, true);
            all.push(Variant::fio(format!("fio_write_{depth}"), FioFor::Several, job));
        }
    }
    all
}

/// Everything that was found.
struct Found {
    variants: Vec<Variant>,
    fio_version: Option<String>,
    timer_overshoot_ns: Vec<f64>,
    disturbance: Disturbance,
    notes: Vec<String>,
}

fn measure(target: &Target, args: &IoArgs) -> Result<outcome::IoOutcome, Refusal> {
    let mut notes = Vec::new();
    let fio_version = if args.no_fio { Err("--no-fio".to_string()) } else { fio::version() };
    if let Err(why) = &fio_version {
        notes.push(format!("fio was left out: {why}"));
    }
    let variants = chosen(variants(args.write, fio_version.is_ok()), &args.only)?;
    let mut meter = Meter::new(target)?;
    let usage = Usage::now();
    let mut found = Found {
        variants,
        fio_version: fio_version.ok(),
        timer_overshoot_ns: Vec::new(),
        disturbance: usage.since(),
        notes,
    };
    for round in 0..=args.rounds as usize {
        found.timer_overshoot_ns.push(timer_overshoot_ns() as f64);
        let time = if round == 0 { args.seconds.min(WARM_UP) } else { args.seconds };
        let mut failed = Vec::new();
        let order: Vec<usize> = rotated(found.variants.len(), round).collect();
        for index in order {
            let variant = &mut found.variants[index];
            let seed = (round * 1000 + index) as u64;
            let slice = match &variant.what {
                What::Read(mode) => meter.read(*mode, time, seed)?,
                What::Pread => meter.pread(time, seed)?,
                What::ReadMany(depth) => meter.read_many(*depth, time, seed)?,
                What::WriteMany(depth) => meter.write_many(*depth, time, seed)?,
                What::Fio(_, job) => match run_fio(job, target, time, seed) {
                    Ok(slice) => slice,
                    Err(why) => {
                        failed.push((index, why));
                        continue;
                    }
                },
            };
            if round > 0 {
                variant.add(slice);
            }
        }
        // What failed once has no figure for this round, and so none at all.
        for (index, why) in failed.into_iter().rev() {
            let gone = found.variants.remove(index);
            found.notes.push(format!("{} was left out: {why}", gone.name));
        }
    }
    found.disturbance = usage.since();
    Ok(outcome::IoOutcome::new(found, &meter, target, args))
}

/// Those that were asked for; all where none was.
fn chosen(all: Vec<Variant>, only: &[String]) -> Result<Vec<Variant>, Refusal> {
    if let Some(unknown) = only.iter().find(|name| !all.iter().any(|v| v.name == **name)) {
        let names: Vec<&str> = all.iter().map(|variant| variant.name.as_str()).collect();
        return Err(Refusal::usage(format!(
            "--only {unknown}: there is no such variant here; choose from {}",
            names.join(", ")
        )));
    }
    let wanted = |variant: &Variant| only.is_empty() || only.contains(&variant.name);
    Ok(all.into_iter().filter(wanted).collect())
}

fn run_fio(job: &Job, target: &Target, time: Duration, seed: u64) -> Result<Slice, String> {
    use softswap_engine::store::io::Device;
    let direct = target.device.describe().direct;
    let path = &target.path_for_others;
    fio::run(job, &fio::Run { path, bytes: target.bytes, direct, time, seed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_has_its_own_name_and_depth() {
        let all = variants(true, true);
        let mut names: Vec<_> = all.iter().map(|variant| variant.name.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
        for variant in &all {
            let last = variant.name.rsplit('_').next().unwrap();
            if let Ok(depth) = last.parse::<usize>() {
                assert_eq!(variant.depth(), depth, "{}", variant.name);
            }
        }
    }

    #[test]
    fn nothing_is_written_unless_asked_for() {
        let writes = |variant: &Variant| match &variant.what {
            What::WriteMany(_) => true,
            What::Fio(_, job) => job.writes,
            _ => false,
        };
        assert!(!variants(false, true).iter().any(writes));
        assert_eq!(variants(true, true).iter().filter(|variant| writes(variant)).count(), 4);
    }

    #[test]
    fn times_are_bounded() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "61", "NaN", "x"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
