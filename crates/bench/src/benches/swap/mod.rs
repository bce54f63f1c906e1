//! softswap beside the kernel's own swap: the same program, the same limit,
//! the same file system, in turns.
//!
//! A memory control group holds each run to the limit. softswap's may not
//! swap, so the kernel itself proves that the budget is kept; those of the
//! kernel's sides may swap to the one area that is on at that time.

pub(super) mod plan;
pub(super) mod limits;
mod latency;
mod page_content;
mod touch;
pub(super) mod task;
mod watch;
pub(super) mod testbed;
pub(crate) mod programs;
pub(super) mod runs;
mod rounds;
mod ratios;
pub(super) mod ablation;

use crate::measure::machine::{Machine, Usage};
use crate::measure::report::{Findings, Output};
use crate::measure::sample::{median, variation};
use crate::measure::task_pipe::signals;
use clap::Args;
use plan::{How, PATTERN_SHARES, PROGRAM_SHARES, Pattern, QUICK_PROGRAM_SHARES, Side, compared};
use programs::Program;
use rounds::{Cell, Variant, check_size};
use runs::{Bench, Run, Work};
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::library;
use softswap_cli::refusal::Refusal;
use softswap_cli::swapdir::{self, SwapDir};
use softswap_cli::units::parse_size;
use softswap_engine::door::settings::Config;
use std::path::PathBuf;
use std::process::ExitCode;

/// What can be asked of softswap's side: the rest is the bench's own.
const SETTINGS: [&str; 6] = ["codec", "pool", "poll", "encrypt", "avoid_move", "without"];
/// The kernel's areas are so many times as large as what is to go there, at most: of an area that
/// is more than half full the kernel frees each page's slot as soon as it is read.
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
such a side, its limit is the side's and what was outside at most. In groups of
version 2 (settings: cgroup_version) zswap's packed pages are within the limit from Linux 5.19 on, so
softswap_same_dram does not run beside it; outside is then by how much they passed the limit, because
the kernel counts them while it makes room.

A touch reads or writes one word of a page. random_* go anywhere; sequential_* from page to page,
each thread from a place of its own; of hot_set's accesses 90 % go to 10 % of the pages (15 % where half of
them fit), and one in four writes. Each pattern and number of threads has a process of its own. It is
measured for a fixed time; before it as many pages are touched as
fit, for four times as long at most. softswap meets kernel_zram on compressible data (pages of a
Python process), kernel_file on incompressible, kernel_zswap on half of each.

With --json: {\"schema\": 2, \"bench\": \"swap\", \"machine\": {...}, \"settings\", \"ratios\": {...}, \"rows\": [{\"side\",
\"data\", \"pattern\", \"threads\", \"touches_per_s\", \"cpu_us\", \"p50_us\", \"p99_us\", and as for programs}],
\"programs\": [{\"side\", \"program\", \"beside\", \"seconds\", \"cpu_seconds\", \"share_percent\", \"cov\",
\"limit_bytes\", \"memory_bytes\", \"peak_bytes\", \"oom_kills\", \"outside_bytes\", \"dram_bytes\",
\"swapped_bytes\", \"count\", \"came_through\"}]}. A side that the kernel kills five times in a row has
not come through and has no other figures. Ratios are medians
over the rounds of what softswap did over what the other did in the same round:
PATTERN_softswap_vs_SIDE of touches a second, with _50 for 50 %, _tN for N threads;
PATTERN_softswap_same_dram_vs_SIDE likewise. PROGRAM_softswap_vs_SIDE and
PROGRAM_softswap_same_dram_vs_SIDE are softswap's time over the other's (_50, _75 likewise), ..._vs_best_kernel over
that of the fastest of the kernel's sides; PROGRAM_SIDE_vs_in_memory and
PROGRAM_cpu_SIDE_vs_in_memory over the program's own as it is, with _100 under softswap with everything
fitting, softswap_same_dram_as_SIDE with the DRAM of that side.")]
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
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,4",
          value_parser = clap::value_parser!(u32).range(1..=64))]
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

    /// What the programs take, about [default: 512M, with --quick 96M]
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

    /// A setting of softswap's side, such as codec=lz4, pool=10% or without=standby; may be
    /// repeated
    #[arg(long, value_name = "NAME=VALUE")]
    softswap: Vec<String>,

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
    /// How softswap is set up.
    fn softswap_config(&self) -> Result<Config, Refusal> {
        let mut config = Config::default();
        for given in &self.softswap {
            let refuse = |why: String| Refusal::usage(format!("--softswap {given}: {why}"));
            let (name, value) = given
                .split_once('=')
                .ok_or_else(|| refuse("give a name and a value, such as codec=lz4".into()))?;
            if !SETTINGS.contains(&name) {
                return Err(refuse(format!("there are {}", SETTINGS.join(", "))));
            }
            config.set(name, value).map_err(refuse)?;
        }
        Ok(config)
    }

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
        self.pick(self.program_size, 512 << 20, 96 << 20)
    }

    fn program_shares(&self) -> &'static [u32] {
        if self.quick { &QUICK_PROGRAM_SHARES } else { &PROGRAM_SHARES }
    }

    /// Of an area of the kernel.
    fn area_bytes(&self) -> u64 {
        let most_bytes = self.working_set().max(self.program_size());
        most_bytes.saturating_mul(AREA_TIMES).next_multiple_of(2 << 20)
    }

    /// What everything may take on the file system: that area if it is a file, softswap's,
    /// what programs read and what they write.
    fn disk_bytes(&self) -> u64 {
        let has_file = |side| matches!(side, &Side::KernelFile | &Side::KernelZswap);
        let areas = 1 + u64::from(self.sides.iter().any(has_file));
        self.area_bytes().saturating_mul(areas)
    }
}

#[derive(Debug, Serialize)]
struct Figures {
    working_set_bytes: u64,
    program_bytes: u64,
    seconds: f64,
    rounds: u32,
    /// Of the machine, as they were meanwhile.
    settings: Map<String, Value>,
    /// Of softswap.
    oom_kills: u64,
    /// Of the kernel's sides, in runs that were repeated or left out.
    kernel_oom_kills: u64,
    within_limits: bool,
    rows: Vec<PatternRow>,
    programs: Vec<ProgramRow>,
}

#[derive(Debug, Serialize)]
struct PatternRow {
    side: &'static str,
    data: &'static str,
    pattern: &'static str,
    threads: u32,
    touches_per_s: f64,
    cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
    #[serde(flatten)]
    held: Held,
}

#[derive(Debug, Serialize)]
struct ProgramRow {
    /// `in_memory`: as it is.
    side: &'static str,
    program: &'static str,
    /// Whose DRAM softswap was given.
    beside: Option<&'static str>,
    seconds: f64,
    cpu_seconds: f64,
    #[serde(flatten)]
    held: Held,
}

/// What runs were held to, and what the kernel said of their groups.
#[derive(Debug, Serialize)]
struct Held {
    share_percent: u32,
    cov: f64,
    limit_bytes: Option<u64>,
    /// softswap's budget within it.
    memory_bytes: Option<u64>,
    peak_bytes: Option<u64>,
    oom_kills: u64,
    outside_bytes: u64,
    /// In all: in the group and outside.
    dram_bytes: Option<u64>,
    swapped_bytes: u64,
    count: usize,
    came_through: bool,
}

impl Held {
    fn of(variant: &Variant, rounds: usize) -> Held {
        let most = |figure: fn(&Run) -> Option<u64>| variant.runs.iter().filter_map(figure).max();
        let is_ours = variant.how.side() == Some(Side::Softswap);
        Held {
            share_percent: variant.how.share_percent(),
            cov: variation(&variant.seconds()),
            limit_bytes: most(|ran| Some(ran.limits?.limit_bytes)),
            memory_bytes: most(|ran| Some(ran.limits?.memory_bytes)).filter(|_| is_ours),
            peak_bytes: most(|ran| ran.bounds.peak_bytes),
            oom_kills: variant.kills,
            outside_bytes: most(|ran| Some(ran.bounds.outside_bytes)).unwrap_or(0),
            dram_bytes: most(|ran| Some(ran.bounds.peak_bytes? + ran.bounds.outside_bytes)),
            swapped_bytes: most(|ran| Some(ran.bounds.swapped_bytes)).unwrap_or(0),
            count: variant.runs.len(),
            came_through: variant.runs.len() == rounds,
        }
    }
}

pub(super) fn run(args: &SwapArgs) -> Result<ExitCode, Refusal> {
    check_size("--working-set", args.working_set(), &PATTERN_SHARES)?;
    check_size("--program-size", args.program_size(), args.program_shares())?;
    let softswap = args.softswap_config()?;
    let dir = swapdir::check("--swap", &args.swap, args.disk_bytes())?;
    let library = library::find()?;
    let output = Output::open(args.json.as_deref())?;
    output.finish(measure(args, &dir, library, &softswap))
}

fn measure(
    args: &SwapArgs,
    dir: &SwapDir,
    library: PathBuf,
    softswap: &Config,
) -> Result<Findings<Figures>, Refusal> {
    let (usage, signals, mut notes) = (Usage::now(), signals()?, Vec::new());
    let mut sides = args.sides.clone();
    let seconds = args.pick(args.seconds, 0.5, 0.04);
    let amount = (args.working_set(), seconds);
    let mut bench = Bench::prepare(
        &dir.path,
        args.area_bytes(),
        &mut sides,
        library,
        &signals,
        amount,
        &mut notes,
    )?;
    bench.damage = args.damage;
    let mut cells = pattern_cells(args, &bench, &sides, softswap);
    cells.extend(program_cells(args, &bench, &sides, softswap, &mut notes)?);
    let rounds = args.rounds() as usize;
    bench.run(&mut cells, rounds, &mut notes)?;

    let (mut rows, mut programs) = (Vec::new(), Vec::new());
    for cell in &cells {
        for variant in &cell.variants {
            let (side, held) = (variant.how.name(), Held::of(variant, rounds));
            let seconds = median(variant.seconds());
            let cpu_seconds = median(variant.of(|ran| ran.cpu_seconds));
            match &cell.work {
                Work::Pattern { pattern, data, threads } => rows.push(PatternRow {
                    side,
                    data: data.name(),
                    pattern: pattern.name(),
                    threads: *threads,
                    touches_per_s: 1.0 / seconds,
                    cpu_us: cpu_seconds * 1e6,
                    p50_us: median(variant.of(|ran| ran.p50_us)),
                    p99_us: median(variant.of(|ran| ran.p99_us)),
                    held,
                }),
                Work::Program { ready, .. } => {
                    let beside = variant.how.beside().map(Side::name);
                    let program = ready.program.name();
                    programs.push(ProgramRow { side, program, beside, seconds, cpu_seconds, held });
                }
            }
        }
    }
    let kills = |ours: bool| {
        let variants = cells.iter().flat_map(|cell| &cell.variants);
        let of = variants.filter(|variant| (variant.how.side() == Some(Side::Softswap)) == ours);
        of.map(|variant| variant.kills).sum()
    };
    let mut helds = rows.iter().map(|row| &row.held).chain(programs.iter().map(|row| &row.held));
    let is_within = |held: &Held| {
        held.peak_bytes.zip(held.limit_bytes).is_none_or(|(peak, limit)| peak <= limit)
    };
    let figures = Figures {
        working_set_bytes: args.working_set(),
        program_bytes: args.program_size(),
        seconds,
        rounds: args.rounds(),
        settings: bench.testbed.settings(),
        oom_kills: kills(true),
        kernel_oom_kills: kills(false),
        within_limits: helds.all(is_within),
        rows,
        programs,
    };
    let machine = Machine::with_device(&dir.path, dir.file_system);
    let ratios = ratios::of(&cells, rounds);
    Ok(Findings { notes, ..Findings::new("swap", machine, usage.since(), figures, ratios) })
}

/// softswap with each of the others on the content that it is meant for.
fn pattern_cells(
    args: &SwapArgs,
    bench: &Bench<'_>,
    sides: &[Side],
    softswap: &Config,
) -> Vec<Cell> {
    let has_ours = sides.contains(&Side::Softswap);
    let rivals = sides.iter().filter_map(|side| Some((Some(*side), side.data()?)));
    let mut rivals: Vec<_> = rivals.collect();
    if rivals.is_empty() {
        rivals.extend(plan::Data::ALL.map(|data| (None, data)));
    }
    let patterns = if args.no_patterns { &[][..] } else { &args.patterns };
    let mut cells = Vec::new();
    for share_percent in PATTERN_SHARES {
        for &(rival, data) in &rivals {
            let hows = compared(has_ours, rival, share_percent, bench.testbed.counts_zswap());
            for &pattern in patterns {
                cells.extend(args.threads.iter().map(|threads| {
                    let variant = |how: &How| Variant::new(*how, softswap.clone());
                    let work = Work::Pattern { pattern, data, threads: *threads };
                    Cell { work, variants: hows.iter().map(variant).collect() }
                }));
            }
        }
    }
    cells
}

/// Each program as it is, with everything fitting, and on all sides with each share of its memory.
fn program_cells(
    args: &SwapArgs,
    bench: &Bench<'_>,
    sides: &[Side],
    softswap: &Config,
    notes: &mut Vec<String>,
) -> Result<Vec<Cell>, Refusal> {
    let (has_ours, counts_zswap) = (sides.contains(&Side::Softswap), bench.testbed.counts_zswap());
    let mut hows = vec![How::Plain];
    hows.extend(has_ours.then_some(How::Roomy));
    for &share_percent in args.program_shares() {
        hows.extend(compared(has_ours, None, share_percent, counts_zswap));
        for rival in sides.iter().filter(|side| **side != Side::Softswap) {
            let all = compared(has_ours, Some(*rival), share_percent, counts_zswap);
            hows.extend(all.into_iter().skip(usize::from(has_ours)));
        }
    }
    let programs = if args.no_programs { &[][..] } else { &args.programs };
    let ready = rounds::ready(programs, &bench.testbed.dir, args.program_size(), notes);
    let cell = |ready| {
        let variant = |how: &How| Variant::new(*how, softswap.clone());
        Ok(Cell { work: bench.program(ready, 1)?, variants: hows.iter().map(variant).collect() })
    };
    ready.into_iter().map(cell).collect()
}
