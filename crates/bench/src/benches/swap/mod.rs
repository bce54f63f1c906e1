//! `bench swap`: compares softswap with the kernel's swap, with the same program and file system.
//!
//! A memory cgroup limits each run. softswap's cgroup may not use kernel swap; the others may use
//! the only active swap area.

pub(crate) mod programs;
pub(super) mod plan;
pub(super) mod limits;
pub(super) mod task;
pub(super) mod testbed;
mod runs;
mod rounds;
pub(super) mod ablation;

use crate::measure::machine::Machine;
use crate::measure::options::{Named, parse_seconds, within};
use crate::measure::report::Log;
use crate::measure::sample::{Object, object};
use crate::measure::task_pipe::signals;
use clap::Args;
use plan::{
    Data, PATTERN_SHARES, PROGRAM_SHARES, QUICK_PROGRAM_SHARES, RunKind, Side, WorkOptions,
    compared,
};
use rounds::{Cell, Variant, check_size};
use runs::{Bench, Run, Work};
use softswap_cli::refusal::Refusal;
use softswap_cli::swapdir;
use std::path::PathBuf;
use std::time::Duration;

/// Area size over the largest memory. If an area is more than half full, the kernel frees the slot
/// of each page that it reads.
const AREA_TIMES: u64 = 4;

/// Compare softswap with the kernel's swap under the same memory limit.
///
/// The sides are softswap, and the kernel's swap on a file, on zram (lz4), and on a file with zswap
/// in front; `protection` is softswap with page protection. For each pattern a program fills its
/// working set, touches it, and compares every page at the end; then whole programs run. A memory
/// control group of the same limit holds each run. Without root softswap runs alone, without a
/// group unless the user may create one. Changes to the machine (swap areas, a zram device, zswap's
/// settings, control groups) are undone however the bench exits.
#[derive(Args)]
#[command(after_long_help = "\
The limit is 25 % or 50 % of the working set. softswap's budget (--memory) is the limit less an
allowance for unmanaged memory: 3 MiB plus 1/64 of the limit in the first round, then the measured
amount plus 1 MiB. softswap's group may not use the kernel's swap. The
kernel's sides run with the machine's swappiness and page-cluster (0 for zswap). Their swap file is
preallocated, in softswap's directory. Their areas are four times as large as the data swapped there,
because a half-full area is slower.

The kernel charges zram's compressed pages to no group, and zswap's to none of version 1.
outside_bytes is the DRAM that these pages use beyond the limit. softswap_same_dram is softswap with
that much more DRAM, run right after such a side. In groups of version 2 (settings: cgroup_version) the
limit includes zswap's compressed pages from Linux 5.19 on. Then softswap_same_dram does not run for
zswap, and outside_bytes is the excess over the limit during reclaim.

A touch reads or writes one word of a page. random_* touch any page; sequential_* touch pages in order,
each thread from its own start; hot_set touches 10 % of the pages (15 % if half of them fit) in 90 % of
its accesses, and one access in four writes. Each pattern and number of threads has its own process. It
is measured for a fixed time, after as many touches as pages fit, for at most four times as long.
kernel_zram is compared on compressible data (pages of a Python process), kernel_file on
incompressible data, kernel_zswap on half of each.

If the kernel kills a side five times in a row, its came_through is false, and it has no other figures.

Ratios, with _50 or _75 for the share of memory in percent and _tN for N threads:
  PATTERN_softswap_vs_SIDE              touches per second
  PATTERN_softswap_same_dram_vs_SIDE    the same, with the same DRAM
  PROGRAM_softswap_vs_SIDE              time of the program
  PROGRAM_softswap_same_dram_vs_SIDE    the same, with the same DRAM
  PROGRAM_softswap_vs_best_kernel       time, compared with the fastest of the kernel's sides
  PROGRAM_SIDE_vs_in_memory             time, compared with a run without a limit
  PROGRAM_cpu_SIDE_vs_in_memory         CPU time, likewise
In the last two _100 is softswap with a budget that everything fits in, and
softswap_same_dram_as_SIDE is softswap with the DRAM of SIDE.

Examples:
  softswap bench swap --quick
  sudo softswap bench swap --no-programs --threads 1 --json swap.json")]
pub(crate) struct SwapArgs {
    /// Implementations of swapping; softswap is compared with the others
    #[arg(long, value_name = "SIDE,...", value_delimiter = ',', value_enum,
          default_values_t = Side::USUAL)]
    sides: Vec<Side>,

    #[command(flatten)]
    work: WorkOptions,

    /// Numbers of threads to try
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,4",
          value_parser = within(1..=64))]
    threads: Vec<u32>,

    /// How long each pattern is measured [default: 0.5, with --quick 0.04]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<Duration>,

    /// Rounds [default: 5, with --quick 1]
    #[arg(long, value_name = "N", value_parser = within(1..=1000))]
    rounds: Option<u32>,

    /// A quick test of the benchmark itself: 64M, and programs of 96M at 50 %
    #[arg(long)]
    quick: bool,

    /// The directory for softswap's swap files and the kernel's
    #[arg(long, visible_alias = "dir", value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,

    /// Damage a page, which the comparison must detect; for tests
    #[arg(long, hide = true)]
    damage: bool,
}

impl SwapArgs {
    fn pick<T>(&self, asked: Option<T>, usual: T, quick: T) -> T {
        asked.unwrap_or(if self.quick { quick } else { usual })
    }

    fn rounds(&self) -> u32 {
        self.pick(self.rounds, 5, 1)
    }

    fn working_set(&self) -> u64 {
        self.pick(self.work.working_set, 128 << 20, 64 << 20)
    }

    fn program_size(&self) -> u64 {
        // Start and exit would dominate with smaller programs.
        self.pick(self.work.program_size, 512 << 20, 96 << 20)
    }

    fn program_shares(&self) -> &'static [u32] {
        if self.quick { &QUICK_PROGRAM_SHARES } else { &PROGRAM_SHARES }
    }

    fn area_bytes(&self) -> u64 {
        let most_bytes = self.working_set().max(self.program_size());
        most_bytes.saturating_mul(AREA_TIMES).next_multiple_of(2 << 20)
    }

    /// Sums the kernel's area if it is a file, softswap's swap file, and the programs' files.
    fn disk_bytes(&self) -> u64 {
        let has_file = |side| matches!(side, &Side::KernelFile | &Side::KernelZswap);
        let areas = 1 + u64::from(self.sides.iter().any(has_file));
        self.area_bytes().saturating_mul(areas)
    }
}

fn memory_columns(variant: &Variant, rounds: usize) -> Object {
    let most = |figure: fn(&Run) -> Option<u64>| variant.rounds.iter().filter_map(figure).max();
    let is_ours = variant.key.run_kind.is_softswap();
    object! {
        share_percent: variant.key.run_kind.share_percent(),
        cov: variant.cov(|ran| ran.seconds),
        limit_bytes: most(|ran| Some(ran.limits?.limit_bytes)),
        memory_bytes: most(|ran| Some(ran.limits?.memory_bytes)).filter(|_| is_ours),
        peak_bytes: most(|ran| ran.bounds.peak_bytes),
        oom_kills: variant.key.kills,
        outside_bytes: most(|ran| Some(ran.bounds.outside_bytes)).unwrap_or(0),
        dram_bytes: most(|ran| Some(ran.bounds.peak_bytes? + ran.bounds.outside_bytes)),
        swapped_bytes: most(|ran| Some(ran.bounds.swapped_bytes)).unwrap_or(0),
        count: variant.rounds.len(),
        came_through: variant.rounds.len() == rounds,
    }
}

pub(super) fn measure(args: &SwapArgs) -> Result<Object, Refusal> {
    check_size("--working-set", args.working_set(), &PATTERN_SHARES)?;
    check_size("--program-size", args.program_size(), args.program_shares())?;
    let dir = swapdir::check("--swap", &args.swap, args.disk_bytes())?;
    let (mut log, signals, mut sides) = (Log::start(), signals()?, args.sides.clone());
    let mut bench =
        Bench::prepare(&dir.path, args.area_bytes(), &mut sides, &signals, &mut log.notes)?;
    bench.working_set_bytes = args.working_set();
    bench.seconds = args
        .pick(args.seconds, Duration::from_millis(500), Duration::from_millis(40))
        .as_secs_f64();
    bench.damage = args.damage;
    let mut cells = pattern_cells(args, &bench, &sides);
    cells.extend(program_cells(args, &bench, &sides, &mut log.notes)?);
    bench.run(&mut cells, args.rounds(), &mut log.notes)?;
    rounds::add_ratios(&cells, args.rounds() as usize, &mut log);
    let figures = figures(args, &bench, &cells);
    Ok(log.findings("swap", Machine::with_dir(&dir), figures))
}

fn figures(args: &SwapArgs, bench: &Bench<'_>, cells: &[Cell]) -> Object {
    let (mut rows, mut programs) = (Vec::new(), Vec::new());
    let variants = || cells.iter().flat_map(|cell| cell.variants.iter().map(move |v| (cell, v)));
    for (cell, variant) in variants() {
        let side = variant.key.run_kind.name();
        let seconds = variant.median(|ran| ran.seconds);
        let cpu_seconds = variant.median(|ran| ran.cpu_seconds);
        let (to, mut row) = match &cell.work {
            Work::Pattern { pattern, data, threads } => (
                &mut rows,
                object! {
                    side,
                    data: data.name(),
                    pattern: pattern.name(),
                    threads,
                    touches_per_s: 1.0 / seconds,
                    cpu_us: cpu_seconds * 1e6,
                    p50_us: variant.median(|ran| ran.p50_us),
                    p99_us: variant.median(|ran| ran.p99_us),
                },
            ),
            Work::Program { ready, .. } => {
                let same_dram_as = variant.key.run_kind.same_dram_as.map(|side| side.name());
                (
                    &mut programs,
                    object! { side, program: ready.name, same_dram_as, seconds, cpu_seconds },
                )
            }
        };
        row.extend(memory_columns(variant, args.rounds() as usize));
        to.push(row);
    }
    let kills = |ours: bool| {
        let of = variants().filter(|(_, variant)| variant.key.run_kind.is_softswap() == ours);
        of.map(|(_, variant)| variant.key.kills).sum::<u64>()
    };
    let is_within = |ran: &Run| {
        ran.limits.is_none_or(|limits| ran.bounds.peak_bytes <= Some(limits.limit_bytes))
    };
    let within_limits = variants().flat_map(|(_, variant)| &variant.rounds).all(is_within);
    object! {
        working_set_bytes: args.working_set(),
        program_bytes: args.program_size(),
        seconds: bench.seconds,
        rounds: args.rounds(),
        settings: bench.testbed.settings(),
        oom_kills: kills(true),
        // OOM kills of the kernel's sides, in runs that were repeated or dropped.
        kernel_oom_kills: kills(false),
        within_limits,
        rows,
        programs,
    }
}

fn pattern_cells(args: &SwapArgs, bench: &Bench<'_>, sides: &[Side]) -> Vec<Cell> {
    let has_ours = sides.contains(&Side::Softswap);
    let rivals = sides.iter().filter_map(|side| Some((Some(*side), side.data()?)));
    let mut rivals: Vec<_> = rivals.collect();
    if rivals.is_empty() {
        rivals.extend(Data::all().into_iter().map(|data| (None, data)));
    }
    let mut cells = Vec::new();
    for share_percent in PATTERN_SHARES {
        for &(rival, data) in &rivals {
            let run_kinds = compared(has_ours, rival, share_percent, bench.testbed.counts_zswap());
            for &pattern in args.work.patterns() {
                cells.extend(args.threads.iter().map(|&threads| {
                    Cell::new(Work::Pattern { pattern, data, threads }, &run_kinds)
                }));
            }
        }
    }
    cells
}

/// Returns each program without a limit, under softswap with everything resident, and on all sides
/// with each share of its memory.
fn program_cells(
    args: &SwapArgs,
    bench: &Bench<'_>,
    sides: &[Side],
    notes: &mut Vec<String>,
) -> Result<Vec<Cell>, Refusal> {
    let (has_ours, counts_zswap) = (sides.contains(&Side::Softswap), bench.testbed.counts_zswap());
    let mut run_kinds = vec![RunKind::PLAIN];
    run_kinds.extend(has_ours.then_some(RunKind::UNLIMITED));
    for &share_percent in args.program_shares() {
        run_kinds.extend(compared(has_ours, None, share_percent, counts_zswap));
        for rival in sides.iter().filter(|side| **side != Side::Softswap) {
            let all = compared(has_ours, Some(*rival), share_percent, counts_zswap);
            run_kinds.extend(all.into_iter().skip(usize::from(has_ours)));
        }
    }
    let cell = |ready| Ok(Cell::new(bench.program(ready, 1)?, &run_kinds));
    let ready = bench.ready(args.work.programs(), args.program_size(), notes);
    ready.into_iter().map(cell).collect()
}
