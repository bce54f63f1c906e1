//! softswap beside the kernel's own swap: the same program, the same limit,
//! the same file system, in turns.
//!
//! A memory control group holds each run to the limit. softswap's may not
//! swap, so the kernel itself proves that the budget is kept; those of the
//! kernel's sides may swap to the one area that is on at that time.

mod content;
mod ground;
mod html;
mod latency;
mod limits;
mod measure;
mod outcome;
mod plan;
mod plots;
mod programs;
mod ratios;
mod session;
pub(super) mod task;
mod walk;
mod watch;
mod whole;

use super::pool::contents as real;
use crate::measure::machine::{Disturbance, Machine, Usage};
use crate::measure::report::Target as Output;
use clap::Args;
use content::SAMPLE_PAGES;
use ground::Ground;
use indicatif::{ProgressBar, ProgressStyle};
use limits::Limits;
use measure::{Cell, ProgramCell};
use plan::{Matter, Pattern, Side};
use programs::{Program, Ready};
use serde_json::{Map, Value};
use session::Means;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::units::parse_size;
use softswap_cli::{library, machine as memory, swapdir, units};
use softswap_engine::door::config::MIN_MEMORY_BYTES;
use softswap_sys::child::SignalQueue;
use softswap_sys::memory::Page;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// More would only take turns.
const MOST_THREADS: u32 = 64;
/// Of so many real pages the sample is taken.
const SAMPLE_OF_PAGES: usize = 4096;
/// Of all pages, those that a hot set has; more where these were less than
/// [`LEAST_HOT_OF_LIMIT`] of what fits.
const HOT_SHARE: f64 = 0.1;
const LEAST_HOT_OF_LIMIT: f64 = 0.3;
/// The kernel's areas are so many times as large as what is to go there, at most.
const AREA_TIMES: u64 = 4;

/// Measure softswap beside the kernel's swap under the same memory limit.
///
/// The sides are softswap, and the kernel's swap on a file, on zram (lz4), and
/// on a file with zswap in front. For each pattern a program fills its working
/// set, walks over it, and compares every page at the end; then whole programs
/// run. Each run is held by a memory control group of the same
/// limit. Without root softswap runs alone, without a group unless one may be
/// made. What is changed on the machine (swap areas, a zram device, zswap's
/// settings, control groups) is put back however the bench ends.
#[derive(Args)]
#[command(after_long_help = "\
The limit is 25 % or 50 % of the working set. Inside it softswap has a budget (--memory) that leaves
room for what it does not manage: 3 MiB and 1/64 of the limit in the first round, later what was seen
in the rounds before, and 1 MiB. Its group may not swap. For the
kernel's sides swappiness and page-cluster are as they are on the machine, but for zswap, whose
page-cluster is 0; the swap file has all its storage ahead and lies beside softswap's. Their areas are
four times as large as what goes there: one that is half full is slower.

The kernel counts zram's packed pages in no group, and zswap's in none of version 1: outside says how
much DRAM these had beyond the limit. softswap_same_dram is softswap with that much more: right after
such a side, its limit is the side's and what was outside at most, pattern by pattern. In groups of
version 2 (settings: cgroup_version) zswap's packed pages are within the limit from Linux 5.19 on, so
softswap_same_dram does not run beside it; outside is then by how much they passed the limit, because
the kernel counts them while it makes room.

A touch reads or writes one word of a page. random_* go anywhere; sequential_* from page to page,
each thread from a place of its own; of hot_set's accesses 90 % go to 10 % of the pages (15 % where half of
them fit), and one in four writes. Each pattern has a process of its own, and a phase there for each
number of threads. A phase lasts a fixed time; before it as many pages are touched as
fit, for four times as long at most. softswap meets kernel_zram on compressible data (pages of a
Python process), kernel_file on incompressible, kernel_zswap on half of each.

With --json: {\"schema\": 1, \"bench\": \"swap\", \"machine\": {...}, \"settings\", figures, \"rows\": [{\"side\",
\"data\", \"share_percent\", \"pattern\", \"threads\", \"touches_per_s\", \"cov\", \"cpu_us\", \"p50_us\",
\"p99_us\", \"count\"}], \"sessions\": [{\"side\", \"data\", \"share_percent\", \"limit_bytes\",
\"memory_bytes\", \"fill_mb_per_s\", \"peak_bytes\", \"oom_kills\", \"outside_bytes\", \"dram_bytes\",
\"swapped_bytes\", \"count\", \"came_through\"}], \"programs\": [{\"program\", \"side\", \"beside\", \"share_percent\",
\"seconds\", \"cpu_seconds\", \"cov\", \"slowdown\", \"cpu_ratio\", \"limit_bytes\", \"peak_bytes\",
\"oom_kills\", \"outside_bytes\", \"dram_bytes\", \"count\", \"came_through\"}], \"faults\", \"touches\"}. A side
that the kernel kills five times in a row has not come through and has no other figures. Figures are medians
over the rounds of what softswap did over what the other did in the same round:
PATTERN_softswap_vs_SIDE of touches a second, with _50 for 50 %, _tN for N threads;
PATTERN_softswap_same_dram_vs_SIDE likewise. PROGRAM_softswap_vs_SIDE and
PROGRAM_softswap_same_dram_vs_SIDE are softswap's time over the other's (_50, _75 likewise), ..._vs_best_kernel over
that of the fastest of the kernel's sides; PROGRAM_at_100 over the program's own with
everything fitting.")]
pub(crate) struct SwapArgs {
    /// Who swaps; softswap is compared with the others
    #[arg(long, value_name = "SIDE,...", value_delimiter = ',', value_enum,
          default_values_t = Side::ALL)]
    sides: Vec<Side>,

    /// How memory is accessed
    #[arg(long, value_name = "PATTERN,...", value_delimiter = ',', value_enum,
          default_values_t = Pattern::ALL)]
    patterns: Vec<Pattern>,

    /// Leave the patterns out
    #[arg(long, conflicts_with = "patterns")]
    no_patterns: bool,

    /// Numbers of threads to try
    #[arg(long, value_name = "N,...", default_value = "1,4", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_THREADS)))]
    threads: Vec<u32>,

    /// What the pattern program works on [default: 128M, with --quick 64M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    working_set: Option<u64>,

    /// How long each pattern is measured [default: 0.5, with --quick 0.04]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<f64>,

    /// Whole programs
    #[arg(long, value_name = "PROGRAM,...", value_delimiter = ',', value_enum,
          default_values_t = Program::ALL)]
    programs: Vec<Program>,

    /// Leave the programs out
    #[arg(long, conflicts_with = "programs")]
    no_programs: bool,

    /// What the programs take, about [default: 96M, with --quick 32M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    program_size: Option<u64>,

    /// Rounds [default: 5, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// Less of everything, to see that it works
    #[arg(long)]
    quick: bool,

    /// The directory for softswap's swap files and the kernel's
    #[arg(long, visible_alias = "dir", value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Also write a page with tables and plots to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Damage a page, which must be noticed; for tests
    #[arg(long, hide = true)]
    damage: bool,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("give between 0.01 and 60 seconds".into()),
    }
}

impl SwapArgs {
    fn pick<T>(&self, asked: Option<T>, usual: T, quick: T) -> T {
        asked.unwrap_or(if self.quick { quick } else { usual })
    }

    fn rounds(&self) -> u32 {
        self.pick(self.rounds, 5, 1)
    }

    fn working_set(&self) -> u64 {
        self.pick(self.working_set, 128 << 20, 64 << 20)
    }

    fn program_size(&self) -> u64 {
        // Less would compare how programs start and end.
        self.pick(self.program_size, 96 << 20, 32 << 20)
    }

    fn seconds(&self) -> f64 {
        self.pick(self.seconds, 0.5, 0.04)
    }

    /// How much of its memory fits in a program's limit, in percent.
    fn program_shares(&self) -> &'static [u32] {
        if self.quick { &plan::QUICK_PROGRAM_SHARES } else { &plan::PROGRAM_SHARES }
    }

    /// What the largest of all takes.
    fn most_bytes(&self) -> u64 {
        self.working_set().max(self.program_size())
    }

    /// An area of the kernel's: of one that is more than half full the kernel takes
    /// each page's slot back as soon as it is read, and must write it again.
    fn area_bytes(&self) -> u64 {
        self.most_bytes().saturating_mul(AREA_TIMES).next_multiple_of(2 << 20)
    }

    /// What everything may take on the file system: that area if it is a file, softswap's,
    /// what programs read and what they write.
    fn disk_bytes(&self) -> u64 {
        let has_file = |side| matches!(side, &Side::KernelFile | &Side::KernelZswap);
        let file_bytes = if self.sides.iter().any(has_file) { self.area_bytes() } else { 0 };
        file_bytes.saturating_add(self.most_bytes().saturating_mul(4))
    }
}

/// Everything that was found.
struct Found {
    cells: Vec<Cell>,
    programs: Vec<ProgramCell>,
    disturbance: Disturbance,
    /// As they were meanwhile.
    settings: Map<String, Value>,
    notes: Vec<String>,
}

pub(super) fn run(args: &SwapArgs) -> Result<ExitCode, Refusal> {
    check(args)?;
    let dir = swapdir::check("--swap", &args.swap, args.disk_bytes())?;
    let library = library::find()?;
    let output = Output::open(args.json.as_deref())?;
    let page = html::Page::open(args.html.as_deref());
    let found = page.and_then(|page| Ok((page, measure(args, &dir.path, library)?)));
    match found {
        Ok((page, found)) => {
            let machine = Machine::with_device(&dir.path, dir.file_system);
            let outcome = outcome::SwapOutcome::new(found, args, machine);
            page.write(&outcome)?;
            output.write(&outcome).map(|()| ExitCode::SUCCESS)
        }
        Err(refusal) => {
            output.abandon();
            Err(refusal)
        }
    }
}

fn check(args: &SwapArgs) -> Result<(), Refusal> {
    for (name, bytes, shares) in [
        ("--working-set", args.working_set(), plan::PATTERN_SHARES.as_slice()),
        ("--program-size", args.program_size(), args.program_shares()),
    ] {
        let smallest = shares.iter().copied().min().unwrap_or(100);
        if Limits::first(bytes * u64::from(smallest) / 100).memory_bytes < MIN_MEMORY_BYTES {
            return Err(Refusal::usage(format!(
                "{name} {}: too little: within {smallest} % of it the engine needs at least {}; \
                 ask for 64M or more",
                units::bytes(bytes),
                units::bytes(MIN_MEMORY_BYTES)
            )));
        }
        // The kernel's packed pages, and the program as it is, take DRAM too.
        let (available_bytes, needed_bytes) = (memory::available().bytes, bytes.saturating_mul(2));
        if available_bytes < needed_bytes {
            return Err(Refusal::usage(format!(
                "{name} {}: needs {}, but only {} are available; ask for less",
                units::bytes(bytes),
                units::bytes(needed_bytes),
                units::bytes(available_bytes)
            )));
        }
    }
    Ok(())
}

fn measure(args: &SwapArgs, under: &Path, library: PathBuf) -> Result<Found, Refusal> {
    let usage = Usage::now();
    let signals = SignalQueue::hold(&[])
        .map_err(|error| Refusal::own(format!("cannot hold signals: {}", plain(&error))))?;
    let (mut sides, mut notes) = (args.sides.clone(), Vec::new());
    let mut ground = Ground::prepare(under, args.area_bytes(), &mut sides, &mut notes)?;
    let sample = ground.dir.join("sample");
    write_sample(&sample, &mut notes)?;
    // So that the first side to load it does not have to account for it.
    fs::read(&library).map_err(|e| Refusal::own(format!("{}: {e}", library.display())))?;
    let means = Means { signals: &signals, library, sample, damage: args.damage };
    let ready = if args.no_programs { Vec::new() } else { ready(args, &ground.dir, &mut notes) };

    let progress = progress(args, &sides, ground.counts_zswap(), ready.len());
    let cells = measure::patterns(args, &mut ground, &means, &sides, &progress, &mut notes)?;
    let programs =
        measure::programs(args, &mut ground, &means, &sides, &ready, &progress, &mut notes)?;
    progress.finish_and_clear();
    let (settings, disturbance) = (ground.settings(), usage.since());
    Ok(Found { cells, programs, disturbance, settings, notes })
}

fn progress(args: &SwapArgs, sides: &[Side], counts_zswap: bool, programs: usize) -> ProgressBar {
    let sets = if args.no_patterns { Vec::new() } else { Matter::sets(sides, counts_zswap) };
    let runs = sets.concat().len() + programs * measure::ways(args, sides, counts_zswap);
    let bar = ProgressBar::new(runs as u64 * u64::from(args.rounds()));
    let style = ProgressStyle::with_template("{bar:30} {eta} to go  {msg}");
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

fn ready(args: &SwapArgs, dir: &Path, notes: &mut Vec<String>) -> Vec<Ready> {
    let mut all = Vec::new();
    for program in &args.programs {
        match program.make_ready(dir, args.program_size()) {
            Ok(ready) => all.push(ready),
            Err(why) => notes.push(format!("{} was left out: {why}", program.name())),
        }
    }
    all
}

/// Real pages for the task, in a file that it reads.
fn write_sample(path: &Path, notes: &mut Vec<String>) -> Result<(), Refusal> {
    let failed =
        |error: std::io::Error| Refusal::own(format!("{}: {}", path.display(), plain(&error)));
    let pages: Vec<&Page> = match real::of_python(SAMPLE_OF_PAGES) {
        // Spread over all of the process.
        Ok((pages, _)) => pages.iter().step_by(SAMPLE_OF_PAGES / SAMPLE_PAGES).collect(),
        Err(why) => {
            notes.push(format!(
                "compressible data is made up, because there are no real pages: {why}"
            ));
            real::generated(real::Kind::Pointers, SAMPLE_PAGES).map_err(failed)?.iter().collect()
        }
    };
    let mut file = fs::File::create_new(path).map_err(failed)?;
    pages.iter().try_for_each(|page| file.write_all(&page.0)).map_err(failed)
}
