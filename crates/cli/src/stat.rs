//! `softswap stat`: figures of a running program.

use crate::control_client::{self, Process};
use crate::discover::TreeCollector;
use crate::output::print;
use crate::refusal::{FAILED, Refusal};
use crate::run::figures::gather;
use crate::run::outside_budget::outside_budget;
use crate::tree_report::TreeReport;
use clap::Args;
use serde::Serialize;
use softswap_engine::api::control_protocol::{Request, Snapshot};
use softswap_engine::base::stats::Counter;
use softswap_view::report::{Outcome, Report};
use softswap_view::units::visible;
use softswap_view::{metrics, summary};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Print the figures of a program that runs under softswap.
///
/// PID is that of a process, or of `softswap run`: then the figures are those of
/// the tree of processes, and of the program that it has started. Users see
/// their own programs, and root sees all.
#[derive(Args)]
#[command(after_long_help = "\
The figures are those of the closing summary, up to now. With --json they are those of `softswap run
--report`, with `pid` and `settings` added, and the current `outside_budget`; `outcome` has `kind`
\"running\", `exit_status` is null. For the PID of `softswap run` there is also `tree`; if its
program is asleep, there are only `tree` and `pid`. --every costs less than repeated commands.

Examples:
  softswap stat 4711
  softswap stat --every 5 4711

Exit status: 0 if the program has answered, 1 if it cannot be reached, 2 for wrong usage.")]
pub(crate) struct StatArgs {
    /// The process
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i32::MAX.into()))]
    pid: u32,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Print metrics of the whole tree, in the format of Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,

    /// Print again at this interval in seconds until the process has exited; with --json, one line
    /// each time
    #[arg(long, value_name = "SECONDS", conflicts_with = "prometheus",
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    every: Option<u32>,
}

pub(crate) fn stat(args: &StatArgs) -> Result<ExitCode, Refusal> {
    let mut text = read_figures(args)?;
    let mut due = Instant::now();
    while print(&text)? {
        let Some(seconds) = args.every else { break };
        due += Duration::from_secs(seconds.into());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        text = match read_figures(args) {
            Ok(text) => text,
            Err(_) if control_client::wait_for_exit(args.pid) => break,
            Err(refusal) => return Err(refusal),
        };
    }
    Ok(ExitCode::SUCCESS)
}

fn read_figures(args: &StatArgs) -> Result<String, Refusal> {
    if args.prometheus {
        let tree = TreeCollector::new().with_latencies().tree_of(args.pid)?;
        return Ok(metrics::text(&[tree]));
    }
    let (process, body) = control_client::query(args.pid, &Request::Stat)?;
    let Some(tree) = TreeReport::parse(&body) else {
        return format_figures(&figures_of(&process, &body)?, None, args);
    };
    let tree = TreeStat { pid: process.pid, tree };
    let program = control_client::query_program_of(&process, &Request::Stat);
    match program.map(|(program, body)| figures_of(&program, &body)) {
        Some(Ok(stat)) => format_figures(&stat, Some(&tree), args),
        // The program sleeps or has just exited.
        _ if args.json => json(&tree, args),
        _ => Ok(tree.tree.for_people(tree.pid)),
    }
}

fn figures_of(process: &Process, body: &str) -> Result<Report, Refusal> {
    let pid = process.pid;
    let snapshot = Snapshot::parse(body)
        .map_err(|error| Refusal::new(FAILED, format!("process {pid}: {error}")))?;
    let figures = gather(
        process.command(),
        Outcome { kind: "running".into(), ..Outcome::default() },
        snapshot.uptime,
        snapshot.stats.get(Counter::BudgetBytes),
        &snapshot.stats,
        outside_budget(pid, &snapshot.stats),
    );
    let settings = snapshot.settings.iter().map(|(key, value)| (visible(key), visible(value)));
    Ok(Report { pid: Some(pid), settings: settings.collect(), ..figures })
}

fn format_figures(
    stat: &Report,
    tree: Option<&TreeStat>,
    args: &StatArgs,
) -> Result<String, Refusal> {
    #[derive(Serialize)]
    struct Whole<'a> {
        #[serde(flatten)]
        stat: &'a Report,
        #[serde(skip_serializing_if = "Option::is_none")]
        tree: Option<&'a TreeReport>,
    }
    if args.json {
        return json(&Whole { stat, tree: tree.map(|it| &it.tree) }, args);
    }
    let tree = tree.map_or_else(String::new, |it| it.tree.for_people(it.pid));
    Ok(tree + &for_people(stat))
}

/// On one line if the output is repeated.
fn json(it: &impl Serialize, args: &StatArgs) -> Result<String, Refusal> {
    let text = match args.every {
        Some(_) => serde_json::to_string(it),
        None => serde_json::to_string_pretty(it),
    };
    text.map_err(Refusal::own)
}

#[derive(Serialize)]
struct TreeStat {
    pid: u32,
    tree: TreeReport,
}

fn for_people(stat: &Report) -> String {
    let mut out = summary::text(stat, true);
    out.push_str("  settings\n");
    for (key, value) in &stat.settings {
        let _ = writeln!(out, "    {key:<20} {value}");
    }
    out
}
