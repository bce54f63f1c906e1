//! `bench ablation`: what each mechanism is worth. Pairs of runs, with it and without it.

use super::super::args::parse_seconds;
use super::super::conditions::Conditions;
use super::super::plan::{Data, Pattern, Side};
use super::super::prepare;
use super::super::programs::Program;
use super::bootstrap::{interval, mean_of_medians};
use super::trials::{Amount, Cell, Timed, Trials};
use crate::measure::machine::{Machine, Usage};
use crate::measure::report::{Output, Report, SCHEMA, lines};
use crate::measure::sample::median;
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
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
over the cells; its interval is the bootstrap's, 95 %, from the rounds of each cell, and the same for the
same times. A cell in which a run failed is left out with a note. One mechanism takes some five minutes.

With --json: {\"schema\": 2, \"bench\": \"ablation\", \"machine\": {...}, \"ratios\": {...}, \"rows\": [{\"mechanism\",
\"low\", \"high\", \"gains_most\", \"loses_most\", \"cells\": [{\"work\", \"share_percent\", \"threads\", \"with_s\",
\"without_s\", \"count\"}]}]}. Seconds are of a program, or of one touch of a pattern. Ratios:
without_MECHANISM_vs_with of all cells, WORK_without_MECHANISM_vs_with of one (_50 for 50 %, nothing
for 25 %; _tN for N threads).")]
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
struct CellRow {
    work: String,
    share_percent: u32,
    threads: u32,
    with_s: f64,
    without_s: f64,
    count: usize,
}

/// A mechanism over all cells.
#[derive(Debug, Serialize)]
struct Row {
    mechanism: &'static str,
    low: f64,
    high: f64,
    /// The cells that are slowest and fastest without it.
    gains_most: String,
    loses_most: String,
    cells: Vec<CellRow>,
    /// These are among the ratios in JSON: of all, and of the two cells.
    #[serde(skip)]
    over: [f64; 3],
}

impl Row {
    /// Of cells that came through; nothing where none did. Also their ratios.
    fn new(mechanism: Mechanism, timed: &[Timed<'_>]) -> Option<(Row, Map<String, Value>)> {
        let pairs: Vec<Vec<f64>> = timed.iter().map(|cell| times(&cell.seconds)).collect();
        let medians: Vec<f64> = pairs.iter().map(|pairs| median(pairs.clone())).collect();
        let [loses, gains] = extremes(&medians)?;
        let name = mechanism.name();
        let key = |cell: &Cell| format!("{}_without_{name}_vs_with{}", cell.name(), cell.suffix());
        let all = mean_of_medians(&pairs);
        let mut ratios = Map::new();
        ratios.insert(format!("without_{name}_vs_with"), all.into());
        let of_cells = timed.iter().zip(&medians);
        ratios.extend(of_cells.map(|(timed, times)| (key(timed.cell), (*times).into())));
        let [low, high] = interval(&pairs);
        let row = Row {
            mechanism: name,
            low,
            high,
            gains_most: timed[gains].cell.described(),
            loses_most: timed[loses].cell.described(),
            cells: timed.iter().map(cell_row).collect(),
            over: [all, medians[gains], medians[loses]],
        };
        Some((row, ratios))
    }
}

/// How many times as long it took without the mechanism, by rounds.
fn times(seconds: &[Vec<f64>]) -> Vec<f64> {
    let [with, without] = seconds else { return Vec::new() };
    with.iter().zip(without).map(|(with, without)| without / with).collect()
}

/// Where the smallest and the largest are.
fn extremes(values: &[f64]) -> Option<[usize; 2]> {
    let all = || values.iter().enumerate();
    let (least, _) = all().min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let (most, _) = all().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    Some([least, most])
}

fn cell_row(timed: &Timed<'_>) -> CellRow {
    let of = |at: usize| median(timed.seconds[at].clone());
    let Cell { share_percent, threads, .. } = *timed.cell;
    let count = timed.seconds[0].len();
    CellRow {
        work: timed.cell.name(),
        share_percent,
        threads,
        with_s: of(0),
        without_s: of(1),
        count,
    }
}

#[derive(Debug, Serialize)]
struct AblationOutcome {
    #[serde(flatten)]
    conditions: Conditions,
    ratios: Map<String, Value>,
    rows: Vec<Row>,
    notes: Vec<String>,
}

pub(crate) fn run(args: &AblationArgs) -> Result<ExitCode, Refusal> {
    if !args.no_patterns {
        prepare::check_size("--working-set", args.working_set, &args.shares)?;
    }
    if !args.no_programs {
        prepare::check_size("--program-size", args.program_size, &args.shares)?;
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
) -> Result<AblationOutcome, Refusal> {
    let (usage, signals, mut notes) = (Usage::now(), prepare::signals()?, Vec::new());
    let mut sides = vec![Side::Softswap];
    let (place, config) = ((dir.path.as_path(), 0), Config::default());
    let (mut testbed, mut context) =
        prepare::prepare(place, &mut sides, library, config, &signals, &mut notes)?;
    let programs = if args.no_programs { &[] } else { args.programs.as_slice() };
    let patterns = if args.no_patterns { &[] } else { args.patterns.as_slice() };
    let ready = prepare::ready(programs, &testbed.dir, args.program_size, &mut notes);
    let amount = Amount {
        rounds: args.rounds as usize,
        working_set_bytes: args.working_set,
        phase_seconds: args.seconds,
    };
    let mut trials = Trials { testbed: &mut testbed, context: &mut context, amount };
    let cells = trials.cells((patterns, &[Data::Mixed]), &ready, &args.shares, &args.threads)?;
    let (mut rows, mut ratios) = (Vec::new(), Map::new());
    let all = if args.mechanisms.is_empty() { Mechanism::ALL } else { &args.mechanisms };
    for mechanism in all {
        let without = Config { without: Without::default().and(*mechanism), ..Config::default() };
        let setups = [
            ("with all mechanisms".to_string(), Config::default()),
            (format!("without {}", mechanism.name()), without),
        ];
        let mut timed = trials.measure(&cells, &setups, &mut notes)?;
        // What failed is told of, and compared with nothing.
        timed.retain(|cell| cell.seconds.iter().all(|all| all.len() == amount.rounds));
        let Some((row, more)) = Row::new(*mechanism, &timed) else { continue };
        rows.push(row);
        ratios.extend(more);
    }
    Ok(AblationOutcome {
        conditions: Conditions {
            schema: SCHEMA,
            bench: "ablation",
            machine: Machine::with_device(&dir.path, dir.file_system),
            working_set_bytes: args.working_set,
            program_bytes: args.program_size,
            seconds: args.seconds,
            rounds: args.rounds,
            disturbance: usage.since(),
        },
        ratios,
        rows,
        notes,
    })
}

impl Report for AblationOutcome {
    fn table(&self) -> String {
        let mut text = self.conditions.heading("pairs of each cell");
        text += &format!(
            "\n{:<18}{:>13}{:>16}  {:<46}{}\n",
            "mechanism", "without/with", "95 % interval", "gains most", "loses most"
        );
        for row in &self.rows {
            let Row { mechanism, low, high, gains_most, loses_most, over, .. } = row;
            let [all, gains, loses] = over;
            let interval = format!("{low:.3}..{high:.3}");
            let gains_most = format!("{gains:.2} {gains_most}");
            text += &format!(
                "{mechanism:<18}{all:>13.3}{interval:>16}  {gains_most:<46}{loses:.2} {loses_most}\n"
            );
        }
        text + &format!("\n{}\n{}", self.conditions.disturbance, lines(&self.notes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_without_over_with_in_the_same_round() {
        let times = times(&[vec![2.0, 4.0], vec![3.0, 4.0]]);
        assert_eq!(times, [1.5, 1.0]);
    }

    #[test]
    fn the_cells_that_gain_and_lose_most_are_found() {
        assert_eq!(extremes(&[1.0, 0.7, 1.4, 1.1]), Some([1, 2]));
        assert_eq!(extremes(&[]), None);
    }

    #[test]
    fn every_mechanism_can_be_named_and_no_other() {
        for mechanism in Mechanism::ALL {
            assert_eq!(parse_mechanism(mechanism.name()), Ok(*mechanism));
        }
        assert!(parse_mechanism("steam").unwrap_err().contains("standby"));
        assert!(parse_mechanism("").is_err());
    }
}
