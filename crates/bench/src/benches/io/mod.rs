//! What a read of a file or device costs by how it is waited for, beside what
//! fio makes of the same reads.
//!
//! All variants read the same bytes in every round, one after the other, each
//! for the same time, and every round begins with another one.

mod target;
mod meter;
mod fio;

use crate::measure::machine::Usage;
use crate::measure::poll_counts::PollCounts;
use crate::measure::report::{Findings, Output};
use crate::measure::sample::{Round, Samples, median, rotated};
use clap::Args;
use fio::Job;
use meter::{Meter, Slice, Way};
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::refusal::Refusal;
use softswap_cli::units::parse_size;
use softswap_engine::store::io::Device;
use softswap_engine::store::io::poll::mode::Mode;
use softswap_sys::ring::timer_overshoot_ns;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use target::Target;

/// The round that does not count is shorter.
const WARM_UP: Duration = Duration::from_millis(250);
/// Reads under way at once.
const DEPTH: usize = 32;

/// Measure reads of a file or device by how they are waited for.
///
/// 4 KiB at random places, past the page cache: one at a time, waited for by
/// interrupt, poll, hybrid and auto, then 32 at once. Without FILE, a file of its
/// own is filled and read; it has no name and is gone when the command ends. What
/// exists is opened for reading only.
#[derive(Args)]
#[command(after_long_help = "\
fio is run in the same rounds on the same file where it is installed (Debian: apt-get install fio;
tried with 3.33). For waiting by interrupt: io_uring and psync. For polling: io_uring with hipri
(only on queues that poll) and io_uring with sqthread_poll. The ratios are to the one of each kind
that was fastest here.

CPU is the user and system time per I/O of the whole process, by fio's own account of its thread
for fio, without the kernel thread that its sqthread_poll keeps busy.

pread is the bare system call in this process: fio is a process of its own, which a machine that
idles between reads may treat better or worse.

softswap waits for 32 reads together, so depth_32 has the latency of all 32; fio keeps 32 under way
and gives each one's own. MB/s and CPU compare as they are.

With --json: {\"schema\": 2, \"bench\": \"io\", \"machine\": {...}, \"ratios\": {...}, \"rows\": [{\"variant\", \"by\",
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
    let target = target::open(args.target.as_deref(), args.size, &args.swap);
    output.finish(target.and_then(|target| measure(&target, args)))
}

/// What a variant does.
#[derive(Debug, Clone)]
enum What {
    /// One page at a time.
    Read(Mode),
    /// One page at a time, by the system call alone.
    Pread,
    ReadMany,
    /// fio's counterpart of one of the others.
    Fio(FioFor, Job),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FioFor {
    Interrupt,
    Poll,
    Several,
}

#[derive(Debug)]
struct Variant {
    name: String,
    what: What,
    samples: Samples,
    mb_per_s: Vec<f64>,
    cpu_us: Vec<f64>,
}

const IO_URING: &[&str] = &["--ioengine=io_uring", "--registerfiles=1"];
/// fio's ways to read. Its fastest of each kind counts.
const FIO: [(&str, FioFor, &[&str], usize); 5] = [
    ("fio_io_uring", FioFor::Interrupt, IO_URING, 1),
    ("fio_psync", FioFor::Interrupt, &["--ioengine=psync"], 1),
    (
        "fio_io_uring_hipri",
        FioFor::Poll,
        &["--ioengine=io_uring", "--registerfiles=1", "--hipri=1"],
        1,
    ),
    (
        "fio_sqthread_poll",
        FioFor::Poll,
        &["--ioengine=io_uring", "--registerfiles=1", "--sqthread_poll=1"],
        1,
    ),
    ("fio_depth_32", FioFor::Several, IO_URING, DEPTH),
];

impl Variant {
    fn new(name: &str, what: What) -> Variant {
        let (samples, mb_per_s, cpu_us) = Default::default();
        Variant { name: name.into(), what, samples, mb_per_s, cpu_us }
    }

    /// All that are asked for; `with_fio` where it is there.
    fn chosen(with_fio: bool, only: &[String]) -> Result<Vec<Variant>, Refusal> {
        let modes = Mode::ALL.into_iter();
        let mut all: Vec<Variant> =
            modes.map(|mode| Variant::new(mode.name(), What::Read(mode))).collect();
        all.push(Variant::new("pread", What::Pread));
        all.push(Variant::new("depth_32", What::ReadMany));
        let fio = FIO.into_iter().filter(|_| with_fio);
        all.extend(fio.map(|(name, kind, options, depth)| {
            Variant::new(name, What::Fio(kind, Job { options, depth }))
        }));
        if let Some(unknown) = only.iter().find(|name| !all.iter().any(|v| v.name == **name)) {
            let names: Vec<&str> = all.iter().map(|variant| variant.name.as_str()).collect();
            return Err(Refusal::usage(format!(
                "--only {unknown}: there is no such variant here; choose from {}",
                names.join(", ")
            )));
        }
        all.retain(|variant| only.is_empty() || only.contains(&variant.name));
        Ok(all)
    }

    fn add(&mut self, slice: Slice) {
        self.samples.add_round(slice.round);
        self.mb_per_s.push(slice.mb_per_s);
        self.cpu_us.push(slice.cpu_us);
    }

    fn row(&self) -> Row {
        let figures = self.samples.figures();
        let (by, depth) = match &self.what {
            What::Fio(_, job) => ("fio", job.depth),
            What::ReadMany => ("softswap", DEPTH),
            What::Read(_) | What::Pread => ("softswap", 1),
        };
        Row {
            variant: self.name.clone(),
            by,
            depth,
            mean_us: figures.mean_us,
            p50_us: figures.p50_us,
            p99_us: figures.p99_us,
            mb_per_s: median(self.mb_per_s.clone()),
            cpu_us: median(self.cpu_us.clone()),
            cov: figures.cov,
            count: figures.count,
        }
    }
}

#[derive(Debug, Serialize)]
struct Figures {
    target: String,
    bytes: u64,
    rounds: u32,
    seconds: f64,
    /// Its version; `null` if it was left out.
    fio: Option<String>,
    io_uring: bool,
    direct: bool,
    /// Polled reads ask the device itself (IOPOLL).
    device_polling: bool,
    timer_overshoot_us: f64,
    /// The estimate that hybrid arrived at.
    hybrid_overshoot_us: f64,
    rows: Vec<Row>,
    modes: BTreeMap<&'static str, PollCounts>,
}

#[derive(Debug, Serialize)]
struct Row {
    variant: String,
    by: &'static str,
    depth: usize,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    mb_per_s: f64,
    cpu_us: f64,
    cov: f64,
    count: usize,
}

fn measure(target: &Target, args: &IoArgs) -> Result<Findings<Figures>, Refusal> {
    let facts = target.device.describe();
    let mut notes = target.notes.clone();
    let fio_version = if args.no_fio { Err("--no-fio".to_string()) } else { fio::version() };
    if let Err(why) = &fio_version {
        notes.push(format!("fio was left out: {why}"));
    }
    if !facts.direct {
        notes.push("no O_DIRECT here: reads come from the page cache".into());
    }
    if !facts.io_uring {
        notes.push("no io_uring here: every read waits by interrupt".into());
    }
    let mut variants = Variant::chosen(fio_version.is_ok(), &args.only)?;
    let mut meter = Meter::new(target)?;
    let (usage, mut overshoots_ns) = (Usage::now(), Vec::new());
    for round in 0..=args.rounds as usize {
        overshoots_ns.push(timer_overshoot_ns() as f64);
        let time = if round == 0 { args.seconds.min(WARM_UP) } else { args.seconds };
        let mut failed = Vec::new();
        for index in rotated(variants.len(), round).collect::<Vec<_>>() {
            let variant = &mut variants[index];
            let seed = (round * 1000 + index) as u64;
            let slice = match &variant.what {
                What::Read(mode) => meter.read(*mode, time, seed)?,
                What::Pread => meter.pread(time, seed)?,
                What::ReadMany => meter.read_many(DEPTH, time, seed)?,
                What::Fio(_, job) => {
                    let (path, bytes, direct) =
                        (&target.path_for_others, target.bytes, facts.direct);
                    match fio::run(job, &fio::Run { path, bytes, direct, time, seed }) {
                        Ok(slice) => slice,
                        Err(why) => {
                            failed.push((index, why));
                            continue;
                        }
                    }
                }
            };
            if round > 0 {
                variant.add(slice);
            }
        }
        // What failed once has no figure for this round, and so none at all.
        failed.sort();
        for (index, why) in failed.into_iter().rev() {
            notes.push(format!("{} was left out: {why}", variants.remove(index).name));
        }
    }
    for kind in [FioFor::Interrupt, FioFor::Poll] {
        if let Some(best) = best_fio(&variants, kind) {
            let kind = format!("{kind:?}").to_lowercase();
            notes.push(format!("fio's fastest for {kind}: {}", best.name));
        }
    }
    let overshoot_ns = meter.ways[Mode::Hybrid as usize].polling.overshoot_ns() as f64;
    let of_way = |Way { mode, stats, .. }: &Way| (mode.name(), PollCounts::of(stats));
    let figures = Figures {
        target: target.name.clone(),
        bytes: target.bytes,
        rounds: args.rounds,
        seconds: args.seconds.as_secs_f64(),
        fio: fio_version.ok(),
        io_uring: facts.io_uring,
        direct: facts.direct,
        device_polling: facts.device_polling,
        timer_overshoot_us: median(overshoots_ns) / 1000.0,
        hybrid_overshoot_us: overshoot_ns / 1000.0,
        rows: variants.iter().map(Variant::row).collect(),
        modes: meter.ways.iter().map(of_way).collect(),
    };
    let (machine, ratios) = (target.machine.clone(), ratios(&variants));
    Ok(Findings { notes, ..Findings::new("io", machine, usage.since(), figures, ratios) })
}

fn best_fio(variants: &[Variant], kind: FioFor) -> Option<&Variant> {
    let of_kind = |variant: &&Variant| matches!(variant.what, What::Fio(of, _) if of == kind);
    let p50 = |variant: &Variant| variant.samples.figures().p50_us;
    variants.iter().filter(of_kind).min_by(|one, other| p50(one).total_cmp(&p50(other)))
}

fn ratios(variants: &[Variant]) -> Map<String, Value> {
    let find = |name: &str| variants.iter().find(|variant| variant.name == name);
    let (interrupt, poll, hybrid) = (find("interrupt"), find("poll"), find("hybrid"));
    let latencies = [
        ("latency_interrupt_vs_poll", interrupt, poll),
        ("latency_hybrid_vs_poll", hybrid, poll),
        ("latency_auto_vs_poll", find("auto"), poll),
        ("latency_interrupt_vs_pread", interrupt, find("pread")),
        ("latency_softswap_vs_fio_interrupt", interrupt, best_fio(variants, FioFor::Interrupt)),
        ("latency_softswap_vs_fio_poll", poll, best_fio(variants, FioFor::Poll)),
    ];
    let mut ratios = Map::new();
    for (key, one, other) in latencies {
        let ratio = |figure: fn(&Round) -> f64| {
            one.zip(other).map(|(one, other)| one.samples.over(&other.samples, figure))
        };
        ratios.insert(key.into(), ratio(|round| round.p50_us).into());
        ratios.insert(format!("{key}_mean"), ratio(|round| round.mean_us).into());
    }
    let cpu_us = |of: Option<&Variant>| of.map_or(f64::NAN, |v| median(v.cpu_us.clone()));
    let extra = |of| cpu_us(of) - cpu_us(interrupt);
    // Without extra CPU time of poll there is no ratio.
    let share = Some(extra(hybrid) / extra(poll)).filter(|_| extra(poll) > 0.0);
    ratios.insert("extra_cpu_hybrid_vs_poll".into(), share.into());
    ratios
}
