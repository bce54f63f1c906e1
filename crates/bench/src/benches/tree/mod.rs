//! Two programs that want the same DRAM, one with a hot set, one that streams: with one budget for
//! both, and with half of it for each, in turn.

use super::swap::programs::compiled;
use crate::measure::machine::{Disturbance, Machine, Usage};
use crate::measure::managed_program::without_settings;
use crate::measure::report::{Output, Report, SCHEMA, lines, ratios_text};
use crate::measure::sample::{median, variation};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::refusal::{Refusal, plain};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Measure what one budget for two programs gains over half of it for each.
#[derive(Args)]
#[command(after_long_help = "\
One program reads pages at random in three quarters of the budget, the other one after the other in
one and a half times as much. Both count pages a second, in the second half of their time.

With --json: {\"schema\": 2, \"bench\": \"tree\", \"machine\": {...}, budget_bytes, \"ratios\": {...},
\"rows\": [{\"budget\", \"hot_per_s\", \"stream_per_s\", \"total_per_s\", \"total_cov\", \"count\"}]}.
budget is shared or halves. Ratios: total_shared_vs_halves, hot_shared_vs_halves,
stream_shared_vs_halves, the median over the rounds of a round's two rates.")]
pub(crate) struct TreeArgs {
    /// The budget of both together, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(32..=1_048_576))]
    budget: u32,

    /// How long a run takes
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Where pages go
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Pages a second.
#[derive(Debug, Clone, Copy)]
struct Rates {
    hot: f64,
    stream: f64,
}

impl Rates {
    fn total(self) -> f64 {
        self.hot + self.stream
    }
}

/// One of them.
type Of = fn(Rates) -> f64;

#[derive(Debug, Serialize)]
struct Row {
    budget: &'static str,
    hot_per_s: f64,
    stream_per_s: f64,
    total_per_s: f64,
    total_cov: f64,
    count: usize,
}

#[derive(Debug, Serialize)]
struct TreeOutcome {
    schema: u32,
    bench: &'static str,
    machine: Machine,
    #[serde(flatten)]
    disturbance: Disturbance,
    budget_bytes: u64,
    ratios: Map<String, Value>,
    rows: Vec<Row>,
    notes: Vec<String>,
}

pub(super) fn run(args: &TreeArgs) -> Result<ExitCode, Refusal> {
    let output = Output::open(args.json.as_deref())?;
    output.finish(measure(args))
}

fn measure(args: &TreeArgs) -> Result<TreeOutcome, Refusal> {
    let dir = tempfile::tempdir()
        .map_err(|error| Refusal::own(format!("no temporary directory: {}", plain(&error))))?;
    let program =
        compiled(dir.path(), "pair", include_str!("pair.c"), &[]).map_err(Refusal::own)?;
    let usage = Usage::now();
    let mut rates: [Vec<Rates>; 2] = Default::default();
    for round in 0..args.rounds as usize {
        for side in [round % 2, 1 - round % 2] {
            rates[side].push(one_run(args, &program, side == 0)?);
        }
    }
    let [shared, halves] = &rates;
    let mut ratios = Map::new();
    let each: [(&str, Of); 3] =
        [("total", Rates::total), ("hot", |it| it.hot), ("stream", |it| it.stream)];
    for (name, of) in each {
        let pairs = shared.iter().zip(halves);
        let ratio = median(pairs.map(|(shared, halves)| of(*shared) / of(*halves)).collect());
        ratios.insert(format!("{name}_shared_vs_halves"), ratio.into());
    }
    Ok(TreeOutcome {
        schema: SCHEMA,
        bench: "tree",
        machine: Machine::without_device(),
        disturbance: usage.since(),
        budget_bytes: u64::from(args.budget) << 20,
        ratios,
        rows: vec![row("shared", shared), row("halves", halves)],
        notes: Vec::new(),
    })
}

fn row(budget: &'static str, rates: &[Rates]) -> Row {
    let of = |of: Of| rates.iter().map(|rates| of(*rates)).collect::<Vec<_>>();
    let totals = of(Rates::total);
    Row {
        budget,
        hot_per_s: median(of(|it| it.hot)),
        stream_per_s: median(of(|it| it.stream)),
        total_cov: variation(&totals),
        count: totals.len(),
        total_per_s: median(totals),
    }
}

/// Both programs at once, with one budget, or with half of it each.
fn one_run(args: &TreeArgs, program: &Path, is_shared: bool) -> Result<Rates, Refusal> {
    let own = std::env::current_exe()
        .map_err(|error| Refusal::own(format!("cannot tell where softswap is: {error}")))?;
    let (budget, seconds) = (args.budget, args.seconds);
    let memory = match is_shared {
        true => format!("--memory={budget}M"),
        false => format!("--memory-per-process={}M", budget / 2),
    };
    let [hot, stream] = [budget / 4 * 3, budget / 2 * 3];
    let script = format!(
        "\"$0\" hot {hot} {seconds} & \"$0\" stream {stream} {seconds}; s=$?; wait $! && exit $s"
    );
    let mut command = Command::new(own.with_file_name("softswap"));
    without_settings(&mut command);
    command.args(["run", "--quiet", "--reserve", "0", "--swap"]).arg(&args.swap);
    command.args([&memory, "--", "sh", "-c", &script]);
    command.arg(program).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command
        .output()
        .map_err(|error| Refusal::own(format!("softswap run: {}", plain(&error))))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
    };
    match (output.status.success(), rate("hot"), rate("stream")) {
        (true, Some(hot), Some(stream)) => Ok(Rates { hot, stream }),
        _ => Err(Refusal::own(format!("the two programs failed: {}", output.status))),
    }
}

impl Report for TreeOutcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.machine.line());
        text += &format!(
            "{:<10}{:>12}{:>12}{:>12}{:>9}\n",
            "budget", "hot /s", "stream /s", "total /s", "CoV"
        );
        for row in &self.rows {
            text += &format!(
                "{:<10}{:>12.0}{:>12.0}{:>12.0}{:>7.1} %\n",
                row.budget,
                row.hot_per_s,
                row.stream_per_s,
                row.total_per_s,
                row.total_cov * 100.0
            );
        }
        let notes = ratios_text(&self.ratios) + &lines(&self.notes);
        format!("{text}\n{}\n\n{notes}", self.disturbance)
    }
}
