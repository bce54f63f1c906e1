//! `softswap stat`: how a running program fares.

use crate::control_client::{self, Process, visible};
use crate::look::Looker;
use crate::refusal::{FAILED, Refusal};
use crate::run::beside::Beside;
use crate::run::figures::{Figures, Outcome};
use crate::run::summary;
use crate::tree_report::TreeReport;
use clap::Args;
use serde::Serialize;
use softswap_engine::base::stats::Counter;
use softswap_engine::door::control_protocol::{Request, Snapshot};
use softswap_view::metrics;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

/// Print the figures of a program that runs under softswap.
///
/// PID is a process's, or that of `softswap run`: then the figures are those of
/// the tree of processes, and of the program that it has started. Your own
/// programs can be asked, and all by root.
#[derive(Args)]
#[command(after_long_help = "\
The figures are those of the closing summary, so far. With --json they are those of `softswap run
--report`, with `pid` and `settings` added, and `beside` as it is now; `outcome` has `kind` \"running\", `exit_status` is null; `tree` is there where `softswap run`
was asked, and alone with `pid` where its program sleeps.

Exit status: 0 when the program has answered, 1 when it cannot be asked, 2 for wrong usage.")]
pub(crate) struct StatArgs {
    /// The process
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i32::MAX.into()))]
    pid: u32,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Print metrics of the whole tree, as Prometheus reads them
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

#[derive(Serialize)]
struct Stat {
    pid: u32,
    #[serde(flatten)]
    figures: Figures,
    settings: BTreeMap<String, String>,
}

pub(crate) fn stat(args: &StatArgs) -> Result<ExitCode, Refusal> {
    if args.prometheus {
        let tree = Looker::new().with_latencies().tree_of(args.pid)?;
        // A reader that has gone away has read enough.
        let _ = std::io::stdout().write_all(metrics::text(&[tree]).as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    let (process, body) = control_client::ask(args.pid, &Request::Stat)?;
    let Some(tree) = TreeReport::parse(&body) else {
        return print(&Stat::of(&process, &body)?, None, args.json);
    };
    let tree = TreeStat { pid: process.pid, tree };
    let program = control_client::ask_program_of(&process, &Request::Stat);
    match program.map(|(program, body)| Stat::of(&program, &body)) {
        Some(Ok(stat)) => print(&stat, Some(&tree), args.json),
        // It sleeps, or has just ended.
        _ => print_tree(&tree, args.json),
    }
}

impl Stat {
    fn of(process: &Process, body: &str) -> Result<Stat, Refusal> {
        let pid = process.pid;
        let snapshot = Snapshot::parse(body)
            .map_err(|error| Refusal::new(FAILED, format!("process {pid}: {error}")))?;
        let budget_bytes = snapshot.stats.get(Counter::BudgetBytes);
        let figures = Figures::gather(
            process.command(),
            Outcome::Running { pid },
            (snapshot.uptime, budget_bytes),
            &snapshot.stats,
            Beside::of(pid, &snapshot.stats),
        );
        let settings = snapshot.settings.iter().map(|(key, value)| (visible(key), visible(value)));
        Ok(Stat { pid, figures, settings: settings.collect() })
    }
}

/// The figures of a process, and of its tree where that was asked.
fn print(stat: &Stat, tree: Option<&TreeStat>, as_json: bool) -> Result<ExitCode, Refusal> {
    #[derive(Serialize)]
    struct Whole<'a> {
        #[serde(flatten)]
        stat: &'a Stat,
        #[serde(skip_serializing_if = "Option::is_none")]
        tree: Option<&'a TreeReport>,
    }
    if as_json {
        return print_json(&Whole { stat, tree: tree.map(|it| &it.tree) });
    }
    let tree = tree.map_or_else(String::new, |it| it.tree.for_people(it.pid));
    Ok(print_text(&(tree + &for_people(stat))))
}

fn print_json(it: &impl Serialize) -> Result<ExitCode, Refusal> {
    let text = serde_json::to_string_pretty(it).map_err(|error| Refusal::own(error.to_string()))?;
    Ok(print_text(&text))
}

fn print_text(text: &str) -> ExitCode {
    // A reader that has gone away has read enough.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
    ExitCode::SUCCESS
}

#[derive(Serialize)]
struct TreeStat {
    pid: u32,
    tree: TreeReport,
}

fn print_tree(tree: &TreeStat, as_json: bool) -> Result<ExitCode, Refusal> {
    match as_json {
        true => print_json(tree),
        false => Ok(print_text(&tree.tree.for_people(tree.pid))),
    }
}

fn for_people(stat: &Stat) -> String {
    let mut out = summary::text(&stat.figures);
    out.push_str("  settings\n");
    for (key, value) in &stat.settings {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "    {key:<20} {value}");
    }
    out
}
