//! `softswap record`: functions that wait for pages, and the memory that they touch.

mod symbols;
mod code;
mod python;
mod profile;

use crate::control_client::{self, Process};
use crate::output::print;
use crate::output_file::OutputFile;
use crate::refusal::{FAILED, OrRefuse, Refusal};
use clap::{Args, ValueHint};
use code::Code;
use procfs::ProcError;
use procfs::process::MemoryMap;
use profile::{Profile, Weighed};
use python::Functions;
use softswap_engine::api::control_protocol::{Python, Request};
use softswap_engine::api::fault_samples::{Block, FaultSamples, PythonCode};
use softswap_sys::child::SignalQueue;
use softswap_view::flame_graph;
use softswap_view::units::nanoseconds;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(50);
/// Samples per answer at which the sampling rate is halved.
const MANY: usize = 96;
/// Samples per answer below which the sampling rate is doubled.
const FEW: usize = 16;
const STOP_SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
const LAST_ANSWERS: usize = 8;
/// Enough for minutes at the maximum rate.
const MAX_SAMPLES: usize = 1 << 18;

/// Record which functions wait for pages, and for which memory.
///
/// Samples the faults of a program that runs under softswap for some seconds, then prints its
/// functions by the time that they waited, and writes a flame graph. PID is that of a process, or
/// of `softswap run`, which stands for the program that it has started. Ctrl-C stops the recording
/// early and prints the samples up to then.
#[derive(Args)]
#[command(
    after_long_help = "Names of functions come from the symbol tables of the program and its libraries, or from files in
/usr/lib/debug; a function without a symbol is shown as [FILE+OFFSET]. Callers are found by the
unwind tables that compilers write for exceptions. For CPython 3.11 to 3.13, Python functions
replace the interpreter's own, as NAME (FILE:LINE). Functions of other interpreters have names if
the interpreter writes /tmp/perf-PID.map, as `node --perf-basic-prof` does.

Memory in blocks of 1 MiB and more is listed by the function that called malloc or mmap.

Faults are sampled only during this command: a few hundred to 2,000 a second, at a few microseconds
each.

Examples:
  softswap record 4711
  softswap record --seconds 30 --output waits.svg 4711

Exit status: 0; 1 if the program cannot be reached or had no faults, or if the flame graph cannot be
written; 2 for wrong usage."
)]
pub(crate) struct RecordArgs {
    /// The process
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i32::MAX.into()))]
    pid: u32,

    /// How long to record
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,

    /// File for the flame graph [default: softswap-PID.svg]
    #[arg(short, long, value_name = "FILE.svg", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

struct Recording {
    process: Process,
    samples: Vec<Weighed>,
    missed: u64,
    blocks: Vec<Block>,
    /// By the addresses of their code objects.
    codes: BTreeMap<u64, PythonCode>,
    took: Duration,
    has_ended: bool,
}

pub(crate) fn record(args: &RecordArgs) -> Result<ExitCode, Refusal> {
    let (process, _) = control_client::query(args.pid, &Request::Sample(0, None))?;
    let before = map_of(process.pid)?;
    let default = || PathBuf::from(format!("softswap-{}.svg", process.pid));
    // Before the file is created, so that a signal cannot leave an empty one.
    let signals = SignalQueue::hold(&STOP_SIGNALS).or_own("cannot block signals")?;
    let path = args.output.clone().unwrap_or_else(default);
    let mut file = OutputFile::open("--output", &path, FAILED, "choose another path")?;
    // With a perf map, Python's trampolines already have the names of its functions.
    let has_perf_map = code::perf_map(process.pid).is_some();
    let python = if has_perf_map { None } else { python::find(process.pid, &before) };
    let time = Duration::from_secs(args.seconds.into());
    let mut recording = collect(process, python, time, &signals)?;
    let Process { pid, name, .. } = &recording.process;
    let took = recording.took.as_secs_f64();
    if recording.samples.is_empty() {
        let why = match recording.has_ended {
            true => format!(
                "exited after {took:.1} s, before a fault was recorded; record it earlier, or run \
                 it longer"
            ),
            false => format!(
                "had no fault in {took:.1} s: all pages that it touched were in memory; record \
                 for longer, or while it is busy"
            ),
        };
        return Err(Refusal::new(FAILED, format!("process {pid} ({name}) {why}")));
    }
    let map = map_of(*pid).ok().filter(|map| !map.is_empty()).unwrap_or(before);
    let codes = std::mem::take(&mut recording.codes).into_values();
    let mut functions = Functions::new(Code::of(*pid, &map), codes);
    let Recording { samples, missed, blocks, .. } = &recording;
    let profile = Profile::of(*pid, name.clone(), took, samples, *missed, blocks, &mut functions);
    let title = format!("Time that {} waited for pages", profile.program);
    let stacks = profile.stacks.iter().cloned();
    let svg = flame_graph::svg(&title, &profile.line(), stacks, nanoseconds);
    file.write(&svg).or_status(FAILED, format!("{}: cannot be written", path.display()))?;
    let mut text = match args.json {
        true => serde_json::to_string_pretty(&profile).map_err(Refusal::own)?,
        false => profile.for_people(),
    };
    if !args.json {
        if recording.has_ended {
            text += &format!("The process exited after {took:.1} s.\n");
        }
        text += &format!("Flame graph: {}", path.display());
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn collect(
    process: Process,
    python: Option<Python>,
    time: Duration,
    stop_signals: &SignalQueue,
) -> Result<Recording, Refusal> {
    let pid = process.pid;
    let start = Instant::now();
    let mut recording = Recording {
        process,
        samples: Vec::new(),
        missed: 0,
        blocks: Vec::new(),
        codes: BTreeMap::new(),
        took: Duration::ZERO,
        has_ended: false,
    };
    let mut every = 1;
    while start.elapsed() < time && recording.samples.len() < MAX_SAMPLES {
        let waited = stop_signals.wait(PAUSE.min(time.saturating_sub(start.elapsed())));
        let received = waited.and_then(|()| stop_signals.next()).ok().flatten();
        if received.is_some_and(|it| STOP_SIGNALS.contains(&it.signal)) {
            break;
        }
        match control_client::query(pid, &Request::Sample(every, python)) {
            Ok((_, body)) => every = recording.add(&body, every),
            Err(refusal) => {
                recording.has_ended = control_client::wait_for_exit(pid);
                match recording.has_ended {
                    true => break,
                    false => return Err(refusal),
                }
            }
        }
    }
    recording.took = start.elapsed();
    for _ in 0..LAST_ANSWERS {
        let before = recording.samples.len();
        let Ok((_, body)) = control_client::query(pid, &Request::Sample(0, python)) else { break };
        recording.add(&body, 0);
        if recording.samples.len() == before {
            break;
        }
    }
    Ok(recording)
}

impl Recording {
    /// Returns the number of faults per sample to request next.
    fn add(&mut self, body: &str, every: u32) -> u32 {
        let FaultSamples { missed, samples, blocks, codes } = FaultSamples::parse(body);
        let count = samples.len();
        // Missed faults can only be attributed if there are samples.
        self.missed += if count > 0 { missed } else { 0 };
        self.samples.extend(profile::weigh(samples, missed));
        self.codes.extend(codes.into_iter().map(|code| (code.address, code)));
        for block in blocks {
            // A known range was freed and allocated again.
            self.blocks.retain(|it| it.range != block.range);
            self.blocks.push(block);
        }
        match count {
            MANY.. => every.saturating_mul(2),
            0..FEW => (every / 2).max(1),
            _ => every,
        }
    }
}

fn map_of(pid: u32) -> Result<Vec<MemoryMap>, Refusal> {
    let process = procfs::process::Process::new(pid as i32);
    let maps = process.and_then(|process| process.maps());
    maps.map(|maps| maps.0).map_err(|error| {
        let unreadable = format!("process {pid}: its memory map cannot be read: {error}");
        let why = match error {
            ProcError::NotFound(_) => format!("process {pid} has exited"),
            ProcError::PermissionDenied(_) => format!("{unreadable}; run this command as root"),
            _ => unreadable,
        };
        Refusal::new(FAILED, why)
    })
}
