//! `bench ablation`: the benefit of each mechanism, by runs with and without it.

use super::plan::{Data, RunKind, Side, WorkOptions, suffix};
use super::rounds::{Cell, check_size, variant};
use super::runs::{Bench, Work};
use crate::measure::machine::Machine;
use crate::measure::options::{InRounds, parse_seconds, within};
use crate::measure::report::Log;
use crate::measure::sample::{Object, geometric_mean, object};
use crate::measure::task_pipe::signals;
use clap::Args;
use softswap_cli::refusal::Refusal;
use softswap_engine::api::settings::Config;
use softswap_engine::policy::mechanism::{Mechanism, Without};
use std::time::Duration;

/// Disk space for swap and the programs' files, as a multiple of the largest memory.
const DISK_TIMES: u64 = 4;

/// Measure the benefit of each of softswap's mechanisms.
///
/// softswap with all mechanisms and softswap without one take turns over the patterns and programs
/// of `bench swap`, within the same limit.
#[derive(Args)]
#[command(after_long_help = "\
A cell is a pattern (on data of which half compresses) or a program, with a share of its memory and a number
of threads. In each round every cell runs once with and once without the mechanism, in alternating order,
with the same budget. Its figure is the median of time without / time with: above 1 the mechanism helps.
The figure of a mechanism is the geometric mean over the cells. A cell in which a run failed is left out
with a note. One mechanism takes some five minutes.

Seconds are of a program, or of one touch of a pattern. Ratios: without_MECHANISM_vs_with of all cells,
WORK_without_MECHANISM_vs_with of one (_50 for 50 %, nothing for 25 %; _tN for N threads).

Examples:
  softswap bench ablation --mechanisms standby,readahead --no-programs")]
pub(crate) struct AblationArgs {
    /// Mechanisms to switch off, one after the other [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = parse_mechanism)]
    mechanisms: Vec<Mechanism>,

    #[command(flatten)]
    work: WorkOptions,

    /// How long each pattern is measured
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "0.5")]
    seconds: Duration,

    /// How much of its memory fits, in percent
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_value = "50",
          value_parser = within(10..=100))]
    shares: Vec<u32>,

    /// Numbers of threads; programs without an option for threads run with 1 only
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1",
          value_parser = within(1..=64))]
    threads: Vec<u32>,

    #[command(flatten)]
    common: InRounds<9>,
}

fn parse_mechanism(name: &str) -> Result<Mechanism, String> {
    let without: Without = name.parse().map_err(|bad| format!("{bad}"))?;
    let named = Mechanism::ALL.iter().copied().find(|mechanism| without.has(*mechanism));
    named.ok_or_else(|| "give the name of a mechanism".into())
}

pub(crate) fn measure(args: &AblationArgs) -> Result<Object, Refusal> {
    let working_set_bytes = args.work.working_set.unwrap_or(128 << 20);
    let program_bytes = args.work.program_size.unwrap_or(96 << 20);
    if !args.work.patterns().is_empty() {
        check_size("--working-set", working_set_bytes, &args.shares)?;
    }
    if !args.work.programs().is_empty() {
        check_size("--program-size", program_bytes, &args.shares)?;
    }
    let most_bytes = working_set_bytes.max(program_bytes);
    let dir = args.common.dir(most_bytes.saturating_mul(DISK_TIMES))?;
    let (mut log, signals, mut sides) = (Log::start(), signals()?, vec![Side::Softswap]);
    let mut bench = Bench::prepare(&dir.path, 0, &mut sides, &signals, &mut log.notes)?;
    bench.working_set_bytes = working_set_bytes;
    bench.seconds = args.seconds.as_secs_f64();
    let works = works(args, &bench, program_bytes, &mut log.notes)?;
    let mut rows = Vec::new();
    let all = if args.mechanisms.is_empty() { Mechanism::ALL } else { &args.mechanisms };
    for mechanism in all {
        rows.extend(without(*mechanism, args, &mut bench, &works, &mut log)?);
    }
    let (seconds, rounds) = (bench.seconds, args.common.rounds);
    let figures = object! { working_set_bytes, program_bytes, seconds, rounds, rows };
    Ok(log.findings("ablation", Machine::with_dir(&dir), figures))
}

fn without(
    mechanism: Mechanism,
    args: &AblationArgs,
    bench: &mut Bench<'_>,
    works: &[Work],
    log: &mut Log,
) -> Result<Vec<Object>, Refusal> {
    let (name, rounds) = (mechanism.name(), args.common.rounds);
    let config = Config { without: Without::default().and(mechanism), ..Config::default() };
    let mut cells = Vec::new();
    for &share_percent in &args.shares {
        let run_kind = RunKind::limited(Side::Softswap, share_percent, None);
        let variants = || vec![variant(run_kind, &Config::default()), variant(run_kind, &config)];
        cells.extend(works.iter().map(|work| Cell { work: work.clone(), variants: variants() }));
    }
    bench.run(&mut cells, rounds, &mut log.notes)?;
    let (mut rows, mut gains) = (Vec::new(), Vec::new());
    for cell in &cells {
        let [with, without] = &cell.variants[..] else { continue };
        let count = with.rounds.len().min(without.rounds.len());
        if count < rounds as usize {
            continue;
        }
        let (share_percent, threads) = (with.key.run_kind.share_percent(), cell.work.threads());
        let (work, gain) = (cell.work.name(), without.ratio_to(with, |ran| ran.seconds));
        let suffix = suffix(share_percent, threads);
        log.ratio(format!("{work}_without_{name}_vs_with{suffix}"), gain);
        gains.push(gain);
        let with_s = with.median(|ran| ran.seconds);
        let without_s = without.median(|ran| ran.seconds);
        rows.push(
            object! { mechanism: name, work, share_percent, threads, with_s, without_s, count },
        );
    }
    if !gains.is_empty() {
        log.ratio(format!("without_{name}_vs_with"), geometric_mean(&gains));
    }
    Ok(rows)
}

fn works(
    args: &AblationArgs,
    bench: &Bench<'_>,
    program_bytes: u64,
    notes: &mut Vec<String>,
) -> Result<Vec<Work>, Refusal> {
    let ready = bench.ready(args.work.programs(), program_bytes, notes);
    let mut works = Vec::new();
    for &threads in &args.threads {
        let pattern = |&pattern| Work::Pattern { pattern, data: Data::Mixed, threads };
        works.extend(args.work.patterns().iter().map(pattern));
        for ready in &ready {
            // Without an option for threads, run only with one.
            let parallel = ready.on_threads(threads);
            if let Some(ready) = parallel.or_else(|| (threads == 1).then(|| ready.clone())) {
                works.push(bench.program(ready, threads)?);
            }
        }
    }
    Ok(works)
}
