//! `softswap stat`: how a running program fares.

use crate::control_client::{self, visible};
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
/// PID is the program's, or that of `softswap run`; each program that it
/// starts in turn has figures of its own. Your own programs can be asked, and
/// all by root.
#[derive(Args)]
#[command(after_long_help = "\
The figures are those of the closing summary, so far. With --json they are those of `softswap run
--report`, with `pid` and `settings` added, and `beside` as it is now; `outcome` has `kind` \"running\", `exit_status` is null.

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
    let pid = process.pid;
    if let Some(tree) = TreeReport::parse(&body) {
        return print_tree(pid, tree, args.json);
    }
    let snapshot = Snapshot::parse(&body)
        .map_err(|error| Refusal::new(FAILED, format!("process {pid}: {error}")))?;
    let budget_bytes = snapshot.stats.get(Counter::BudgetBytes);
    let outcome = Outcome::Running { pid };
    let figures = Figures::gather(
        process.command(),
        outcome,
        (snapshot.uptime, budget_bytes),
        &snapshot.stats,
        Beside::of(pid, &snapshot.stats),
    );
    let settings = snapshot.settings.iter().map(|(key, value)| (visible(key), visible(value)));
    let stat = Stat { pid, figures, settings: settings.collect() };
    let text = if args.json {
        serde_json::to_string_pretty(&stat).map_err(|error| Refusal::own(error.to_string()))?
    } else {
        for_people(&stat)
    };
    // A reader that has gone away has read enough.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct TreeStat {
    pid: u32,
    tree: TreeReport,
}

fn print_tree(pid: u32, tree: TreeReport, as_json: bool) -> Result<ExitCode, Refusal> {
    let text = if as_json {
        serde_json::to_string_pretty(&TreeStat { pid, tree })
            .map_err(|error| Refusal::own(error.to_string()))?
    } else {
        tree.for_people(pid)
    };
    // A reader that has gone away has read enough.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
    Ok(ExitCode::SUCCESS)
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
