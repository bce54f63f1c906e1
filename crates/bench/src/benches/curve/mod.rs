//! What a report says of other budgets, beside runs within them.

use super::swap::programs::{Program, Ready, compiled};
use crate::measure::machine::{Disturbance, Machine, Usage};
use crate::measure::managed_program::without_settings;
use crate::measure::report::{Output, Report, SCHEMA, lines, ratios_text};
use crate::measure::sample::median;
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::refusal::{Refusal, plain};
use softswap_view::curve::Curve;
use softswap_view::report::Report as RunReport;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Of the budget that the report was made with.
const SHARES: [f64; 4] = [0.75, BASE, 1.5, 2.0];
const BASE: f64 = 1.0;
/// Those of `softswap bench swap` that touch what they have again.
const PROGRAMS: [Program; 4] =
    [Program::NumericSort, Program::Sqlite, Program::HashJoin, Program::GraphWalk];
/// What `touches.c` can do.
const TOUCHES: [&str; 3] = ["random", "zipf", "loop"];
/// Touches of it in a page that it has.
const TOUCHES_PER_PAGE: u64 = 8;

/// Measure whether reports are right about other budgets.
#[derive(Args)]
#[command(after_long_help = "\
Programs: touches at random, by Zipf's law and in a loop, and numeric_sort, sqlite, hash_join and
graph_walk as in `softswap bench swap`, each of so many times the budget as --over-budget says. What
is missing here is left out, and a note says so.

Each round runs a program within 75, 100, 150 and 200 % of the budget; what the report of 100 % says
of the others is compared with them. `stalled_s` is what was waited, `priced_s` what it would have
been if faults of each tier had cost what they did at 100 %, and what was waited besides went by how
many pages came back: a machine is not equally fast all the time.

With --json: {\"schema\": 2, \"bench\": \"curve\", \"machine\": {...}, budget_bytes, program_bytes,
\"ratios\": {...}, \"rows\": [{\"program\", \"share\", \"predicted_s\", \"stalled_s\", \"priced_s\",
\"count\"}]}. Ratios: PROGRAM_PERCENT_predicted_vs_stalled and ..._predicted_vs_priced, the median
over the rounds. What a report says nothing of, or has no price for, is null.")]
pub(crate) struct CurveArgs {
    /// The budget, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(16..=1_048_576))]
    budget: u32,

    /// What a program takes, over the budget
    #[arg(long, value_name = "TIMES", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(3..=64))]
    over_budget: u32,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Only these programs, by name with commas between
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    programs: Vec<String>,

    /// Where pages go
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

struct Candidate {
    name: &'static str,
    path: PathBuf,
    arguments: Vec<OsString>,
}

/// What one round found for one share, in seconds.
struct Found {
    predicted_s: Option<f64>,
    stalled_s: f64,
    priced_s: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Row {
    program: &'static str,
    share: f64,
    predicted_s: Option<f64>,
    stalled_s: f64,
    priced_s: Option<f64>,
    count: usize,
}

#[derive(Debug, Serialize)]
struct CurveOutcome {
    schema: u32,
    bench: &'static str,
    machine: Machine,
    #[serde(flatten)]
    disturbance: Disturbance,
    budget_bytes: u64,
    program_bytes: u64,
    ratios: Map<String, Value>,
    rows: Vec<Row>,
    notes: Vec<String>,
}

pub(super) fn run(args: &CurveArgs) -> Result<ExitCode, Refusal> {
    let output = Output::open(args.json.as_deref())?;
    output.finish(measure(args))
}

fn measure(args: &CurveArgs) -> Result<CurveOutcome, Refusal> {
    let dir = tempfile::tempdir_in(&args.swap).map_err(|error| {
        Refusal::usage(format!("--swap {}: {}", args.swap.display(), plain(&error)))
    })?;
    let budget_bytes = u64::from(args.budget) << 20;
    let program_bytes = budget_bytes * u64::from(args.over_budget);
    let mut notes = Vec::new();
    let names = || TOUCHES.into_iter().chain(PROGRAMS.map(Program::name));
    if let Some(unknown) = args.programs.iter().find(|name| !names().any(|known| known == *name)) {
        let known = names().collect::<Vec<_>>().join(", ");
        let why = format!("--programs {unknown}: there is no such program; there are {known}");
        return Err(Refusal::usage(why));
    }
    let candidates = candidates(args, program_bytes, dir.path(), &mut notes);
    let usage = Usage::now();
    let (mut rows, mut ratios) = (Vec::new(), Map::new());
    for candidate in &candidates {
        let mut rounds = Vec::new();
        for round in 0..args.rounds as usize {
            rounds.push(one_round(candidate, args, dir.path(), round)?);
        }
        for (at, share) in SHARES.into_iter().enumerate() {
            let found: Vec<&Found> = rounds.iter().map(|round| &round[at]).collect();
            let name = format!("{}_{:.0}", candidate.name, share * 100.0);
            // Of its own budget a report knows what it was.
            if share != BASE {
                let over = |of: fn(&Found) -> Option<f64>| {
                    middle(found.iter().map(|it| Some(it.predicted_s? / of(it)?)))
                };
                let stalled = over(|it| Some(it.stalled_s));
                ratios.insert(format!("{name}_predicted_vs_stalled"), stalled.into());
                ratios.insert(format!("{name}_predicted_vs_priced"), over(|it| it.priced_s).into());
            }
            rows.push(Row {
                program: candidate.name,
                share,
                predicted_s: middle(found.iter().map(|it| it.predicted_s)),
                stalled_s: median(found.iter().map(|it| it.stalled_s).collect()),
                priced_s: middle(found.iter().map(|it| it.priced_s)),
                count: found.len(),
            });
        }
    }
    Ok(CurveOutcome {
        schema: SCHEMA,
        bench: "curve",
        machine: Machine::without_device(),
        disturbance: usage.since(),
        budget_bytes,
        program_bytes,
        ratios,
        rows,
        notes,
    })
}

/// The median of those that there are, if there is one for each round.
fn middle(all: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    all.collect::<Option<Vec<f64>>>().map(median)
}

/// What is to be run and can be.
fn candidates(
    args: &CurveArgs,
    program_bytes: u64,
    dir: &Path,
    notes: &mut Vec<String>,
) -> Vec<Candidate> {
    let is_wanted =
        |name: &str| args.programs.is_empty() || args.programs.iter().any(|n| n == name);
    let mut all = Vec::new();
    let mut add = |name: &'static str, made: Result<Candidate, String>| match made {
        Ok(candidate) => all.push(candidate),
        Err(why) => notes.push(format!("{name} is left out: {why}")),
    };
    let touches = compiled(dir, "touches", include_str!("touches.c"), &[]);
    for name in TOUCHES.into_iter().filter(|name| is_wanted(name)) {
        let count = program_bytes / softswap_sys::PAGE_SIZE as u64 * TOUCHES_PER_PAGE;
        let mib = (program_bytes >> 20).to_string();
        let arguments = vec![name.into(), mib.into(), count.to_string().into()];
        add(name, touches.clone().map(|path| Candidate { name, path, arguments }));
    }
    for program in PROGRAMS.into_iter().filter(|program| is_wanted(program.name())) {
        let made = program.make_ready(dir, program_bytes);
        let name = program.name();
        let as_candidate = |Ready { path, arguments, .. }| Candidate { name, path, arguments };
        add(name, made.map(as_candidate));
    }
    all
}

/// The program within all budgets, in another order each time.
fn one_round(
    candidate: &Candidate,
    args: &CurveArgs,
    dir: &Path,
    round: usize,
) -> Result<Vec<Found>, Refusal> {
    let mut reports: Vec<Option<RunReport>> = SHARES.map(|_| None).into();
    for step in 0..SHARES.len() {
        let at = (step + round) % SHARES.len();
        reports[at] = Some(one_run(candidate, args, dir, SHARES[at])?);
    }
    let reports: Vec<RunReport> = reports.into_iter().flatten().collect();
    let base = &reports[1];
    let curve = Curve::of(base);
    let found = SHARES.into_iter().zip(&reports).map(|(share, report)| {
        let predicted = curve.as_ref().map(|curve| curve.at(share)).filter(|it| it.is_known);
        Found {
            predicted_s: predicted.map(|point| point.stalled_ns / 1e9),
            stalled_s: report.stalled_ns as f64 / 1e9,
            priced_s: priced_ns(report, base).map(|ns| ns / 1e9),
        }
    });
    Ok(found.collect())
}

/// What a run would have waited if faults of each tier had cost what they did in another one, and
/// what was waited besides had gone by how many pages came back. `None` where that one has no price
/// for what came from the disk.
fn priced_ns(report: &RunReport, base: &RunReport) -> Option<f64> {
    const POOL: &[&str] = &["pool"];
    const DISK: &[&str] = &["disk", "standby"];
    const TIERS: [&[&str]; 5] = [&["zero"], &["staged"], &["filled"], POOL, DISK];
    let sum = |of: &dyn Fn(&str) -> u64, tiers: &[&str]| {
        tiers.iter().map(|tier| of(tier)).sum::<u64>() as f64
    };
    let count = |report: &RunReport, tiers| sum(&|tier| report.faults_of(tier), tiers);
    let waited = |tiers| sum(&|tier| base.waited_ns(tier), tiers);
    if count(base, DISK) == 0.0 && count(report, DISK) > 0.0 {
        return None;
    }
    let price = |tiers| waited(tiers) / count(base, tiers).max(1.0);
    let priced: f64 = TIERS.iter().map(|tiers| count(report, tiers) * price(tiers)).sum();
    let besides = base.stalled_ns as f64 - TIERS.iter().map(|tiers| waited(tiers)).sum::<f64>();
    let back = |report| count(report, POOL) + count(report, DISK);
    Some(priced + besides.max(0.0) * back(report) / back(base).max(1.0))
}

fn one_run(
    candidate: &Candidate,
    args: &CurveArgs,
    dir: &Path,
    share: f64,
) -> Result<RunReport, Refusal> {
    let own = std::env::current_exe()
        .map_err(|error| Refusal::own(format!("cannot tell where softswap is: {error}")))?;
    let name = candidate.name;
    let report = dir.join("report.json");
    // That of the run before must not be taken for this one's.
    let _ = std::fs::remove_file(&report);
    let mut command = Command::new(own.with_file_name("softswap"));
    without_settings(&mut command);
    command.args(["run", "--quiet", "--reserve", "0", "--swap"]).arg(&args.swap);
    command.arg(format!("--memory={}K", (f64::from(args.budget) * 1024.0 * share) as u64));
    command.arg("--report").arg(&report).arg("--").arg(&candidate.path).args(&candidate.arguments);
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .status()
        .map_err(|error| Refusal::own(format!("softswap run: {}", plain(&error))))?;
    if !status.success() {
        return Err(Refusal::own(format!("{name} failed: {status}")));
    }
    let text = std::fs::read_to_string(&report)
        .map_err(|error| Refusal::own(format!("the report of {name}: {}", plain(&error))))?;
    RunReport::read(&text)
        .map_err(|error| Refusal::own(format!("the report of {name} cannot be read: {error}")))
}

impl Report for CurveOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.machine.line());
        text += &format!(
            "{:<14}{:>7}{:>13}{:>11}{:>11}\n",
            "program", "budget", "predicted s", "stalled s", "priced s"
        );
        for row in &self.rows {
            let shown = |it: Option<f64>| it.map_or("-".into(), |it| format!("{it:.2}"));
            let (predicted, priced) = (shown(row.predicted_s), shown(row.priced_s));
            text += &format!(
                "{:<14}{:>5.0} %{predicted:>13}{:>11.2}{priced:>11}\n",
                row.program,
                row.share * 100.0,
                row.stalled_s
            );
        }
        let notes = ratios_text(&self.ratios) + &lines(&self.notes);
        format!("{text}\n{}\n\n{notes}", self.disturbance)
    }
}
