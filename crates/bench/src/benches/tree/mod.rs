//! Two programs that want the same DRAM, one with a hot set, one that streams: with one budget for
//! both, and with half of it for each, in turn.

use super::swap::programs::compiled;
use crate::measure::machine::{Machine, Usage};
use crate::measure::managed_program::{temporary_directory, without_settings};
use crate::measure::report::{Findings, Output};
use crate::measure::sample::{median, over, rotated, variation};
use crate::measure::task_pipe::this_program;
use clap::Args;
use serde::Serialize;
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
struct Figures {
    budget_bytes: u64,
    rows: Vec<Row>,
}

/// Pages a second of the hot set, of the stream and of both, by rounds.
type Rates = [Vec<f64>; 3];

pub(super) fn run(args: &TreeArgs) -> Result<ExitCode, Refusal> {
    let output = Output::open(args.json.as_deref())?;
    output.finish(measure(args))
}

fn measure(args: &TreeArgs) -> Result<Findings<Figures>, Refusal> {
    let dir = temporary_directory()?;
    let program =
        compiled(dir.path(), "pair", include_str!("pair.c"), &[]).map_err(Refusal::own)?;
    let usage = Usage::now();
    let mut rates: [Rates; 2] = Default::default();
    for round in 0..args.rounds as usize {
        for side in rotated(2, round) {
            let (hot, stream) = one_run(args, &program, side == 0)?;
            for (all, rate) in rates[side].iter_mut().zip([hot, stream, hot + stream]) {
                all.push(rate);
            }
        }
    }
    let [shared, halves] = &rates;
    let names = ["hot", "stream", "total"].into_iter().enumerate();
    let ratio = |(at, name): (usize, &str)| {
        (format!("{name}_shared_vs_halves"), over(&shared[at], &halves[at]).into())
    };
    let figures = Figures {
        budget_bytes: u64::from(args.budget) << 20,
        rows: vec![row("shared", shared), row("halves", halves)],
    };
    let machine = Machine::without_device();
    Ok(Findings::new("tree", machine, usage.since(), figures, names.map(ratio).collect()))
}

fn row(budget: &'static str, rates: &Rates) -> Row {
    let [hot_per_s, stream_per_s, total_per_s] = rates.clone().map(median);
    let (total_cov, count) = (variation(&rates[2]), rates[2].len());
    Row { budget, hot_per_s, stream_per_s, total_per_s, total_cov, count }
}

/// Runs both programs at once, with one budget or with half of it each. Returns their rates.
fn one_run(args: &TreeArgs, program: &Path, is_shared: bool) -> Result<(f64, f64), Refusal> {
    let own = this_program()?;
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
        (true, Some(hot), Some(stream)) => Ok((hot, stream)),
        _ => Err(Refusal::own(format!("the two programs failed: {}", output.status))),
    }
}
