//! `bench ablation`: what each mechanism is worth. Pairs of runs, with it and without it.

use super::parse_seconds;
use super::plan::{Data, How, Pattern, Side, of_share};
use super::programs::Program;
use super::ratios::of_threads;
use super::rounds::{self, Cell, Variant, check_size};
use super::runs::{Bench, Work};
use crate::measure::machine::{Machine, Usage};
use crate::measure::report::{Findings, Output};
use crate::measure::sample::{geometric_mean, median};
use crate::measure::task_pipe::signals;
use clap::Args;
use serde::Serialize;
use serde_json::Map;
use softswap_cli::library;
use softswap_cli::refusal::Refusal;
use softswap_cli::swapdir::{self, SwapDir};
use softswap_cli::units::parse_size;
use softswap_engine::door::settings::Config;
use softswap_engine::policy::mechanism::{Mechanism, Without};
use std::path::PathBuf;
use std::process::ExitCode;

/// softswap's swap file, what programs read and what they write, over the largest of all.
const DISK_TIMES: u64 = 4;

/// Measure what each of softswap's mechanisms is worth.
///
/// softswap as it comes and softswap without one mechanism take turns over the
/// patterns and programs of `bench swap`, within the same limit.
#[derive(Args)]
#[command(after_long_help = "\
A cell is a pattern (on data half of which packs) or a program, with a share of its memory and a number
of threads. In each round every cell runs once with the mechanism and once without; either is first in
turn, and both have the same budget. A cell's figure is the median over the rounds of the time without
over the time with: above 1 the mechanism gains. The figure of a mechanism is the geometric mean
over the cells. A cell in which a run failed is left out with a note. One mechanism takes some five minutes.

With --json: {\"schema\": 2, \"bench\": \"ablation\", \"machine\": {...}, \"ratios\": {...}, \"rows\": [{\"mechanism\",
\"work\", \"share_percent\", \"threads\", \"with_s\", \"without_s\", \"count\"}]}. Seconds are of a program, or of
one touch of a pattern. Ratios: without_MECHANISM_vs_with of all cells, WORK_without_MECHANISM_vs_with of
one (_50 for 50 %, nothing for 25 %; _tN for N threads).")]
pub(crate) struct AblationArgs {
    /// What is switched off, one after the other [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = parse_mechanism)]
    mechanisms: Vec<Mechanism>,

    /// How memory is accessed
    #[arg(long, value_name = "PATTERN,...", value_delimiter = ',', value_enum,
          default_values_t = Pattern::ALL)]
    patterns: Vec<Pattern>,

    /// Leave the patterns out
    #[arg(long, conflicts_with = "patterns")]
    no_patterns: bool,

    /// What the pattern program works on
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "128M")]
    working_set: u64,

    /// How long each pattern is measured
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "0.5")]
    seconds: f64,

    /// Whole programs
    #[arg(long, value_name = "PROGRAM,...", value_delimiter = ',', value_enum,
          default_values_t = Program::ALL)]
    programs: Vec<Program>,

    /// Leave the programs out
    #[arg(long, conflicts_with_all = ["programs", "no_patterns"])]
    no_programs: bool,

    /// What the programs take, about
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "96M")]
    program_size: u64,

    /// How much of its memory fits, in percent
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_value = "50",
          value_parser = clap::value_parser!(u32).range(10..=100))]
    shares: Vec<u32>,

    /// Numbers of threads; programs that know of none run with 1 only
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Vec<u32>,

    /// Pairs of runs of each cell
    #[arg(long, value_name = "N", default_value_t = 9,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// The directory for softswap's swap files
    #[arg(long, visible_alias = "dir", value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn parse_mechanism(name: &str) -> Result<Mechanism, String> {
    let without: Without = name.parse().map_err(|bad| format!("{bad}"))?;
    let named = Mechanism::ALL.iter().copied().find(|mechanism| without.has(*mechanism));
    named.ok_or_else(|| "give the name of a mechanism".into())
}

#[derive(Debug, Serialize)]
struct Figures {
    working_set_bytes: u64,
    program_bytes: u64,
    seconds: f64,
    rounds: u32,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    mechanism: &'static str,
    work: &'static str,
    share_percent: u32,
    threads: u32,
    with_s: f64,
    without_s: f64,
    count: usize,
}

pub(crate) fn run(args: &AblationArgs) -> Result<ExitCode, Refusal> {
    if !args.no_patterns {
        check_size("--working-set", args.working_set, &args.shares)?;
    }
    if !args.no_programs {
        check_size("--program-size", args.program_size, &args.shares)?;
    }
    let most_bytes = args.working_set.max(args.program_size);
    let dir = swapdir::check("--swap", &args.swap, most_bytes.saturating_mul(DISK_TIMES))?;
    let library = library::find()?;
    let output = Output::open(args.json.as_deref())?;
    output.finish(measure(args, &dir, library))
}

fn measure(
    args: &AblationArgs,
    dir: &SwapDir,
    library: PathBuf,
) -> Result<Findings<Figures>, Refusal> {
    let (usage, signals, mut notes) = (Usage::now(), signals()?, Vec::new());
    let mut sides = vec![Side::Softswap];
    let amount = (args.working_set, args.seconds);
    let mut bench =
        Bench::prepare(&dir.path, 0, &mut sides, library, &signals, amount, &mut notes)?;
    let works = works(args, &bench, &mut notes)?;
    let (mut rows, mut ratios) = (Vec::new(), Map::new());
    let all = if args.mechanisms.is_empty() { Mechanism::ALL } else { &args.mechanisms };
    for mechanism in all {
        let name = mechanism.name();
        let without = Config { without: Without::default().and(*mechanism), ..Config::default() };
        let mut cells = Vec::new();
        for &share_percent in &args.shares {
            let how = How::Limited { side: Side::Softswap, share_percent, beside: None };
            let configs = || [Config::default(), without.clone()];
            let cell = |work: &Work| Cell {
                work: work.clone(),
                variants: configs().map(|config| Variant::new(how, config)).into(),
            };
            cells.extend(works.iter().map(cell));
        }
        bench.run(&mut cells, args.rounds as usize, &mut notes)?;
        let mut gains = Vec::new();
        for cell in &cells {
            let [with, without] = &cell.variants[..] else { continue };
            // What failed is noted, and compared with nothing.
            let count = with.runs.len().min(without.runs.len());
            if count < args.rounds as usize {
                continue;
            }
            let (share_percent, threads) = (with.how.share_percent(), cell.work.threads());
            let gain = without.over(with);
            let suffix = of_share(share_percent) + &of_threads(threads);
            let work = cell.work.name();
            ratios.insert(format!("{work}_without_{name}_vs_with{suffix}"), gain.into());
            gains.push(gain);
            rows.push(Row {
                mechanism: name,
                work,
                share_percent,
                threads,
                with_s: median(with.seconds()),
                without_s: median(without.seconds()),
                count,
            });
        }
        if !gains.is_empty() {
            let mean = geometric_mean(gains.into_iter());
            ratios.insert(format!("without_{name}_vs_with"), mean.into());
        }
    }
    let figures = Figures {
        working_set_bytes: args.working_set,
        program_bytes: args.program_size,
        seconds: args.seconds,
        rounds: args.rounds,
        rows,
    };
    let machine = Machine::with_device(&dir.path, dir.file_system);
    Ok(Findings { notes, ..Findings::new("ablation", machine, usage.since(), figures, ratios) })
}

fn works(
    args: &AblationArgs,
    bench: &Bench<'_>,
    notes: &mut Vec<String>,
) -> Result<Vec<Work>, Refusal> {
    let patterns = if args.no_patterns { &[][..] } else { &args.patterns };
    let programs = if args.no_programs { &[][..] } else { &args.programs };
    let ready = rounds::ready(programs, &bench.testbed.dir, args.program_size, notes);
    let mut works = Vec::new();
    for &threads in &args.threads {
        let data = Data::Mixed;
        works.extend(patterns.iter().map(|&pattern| Work::Pattern { pattern, data, threads }));
        for ready in &ready {
            // A program that knows of no threads runs once.
            let asked = ready.on_threads(threads);
            if let Some(ready) = asked.or_else(|| (threads == 1).then(|| ready.clone())) {
                works.push(bench.program(ready, threads)?);
            }
        }
    }
    Ok(works)
}
