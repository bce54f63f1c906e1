//! The command line of `softswap-remote`, which `softswap remote` hands over to.

use crate::check::{Report, examine};
use crate::helper;
use crate::refusal::Refusal;
use crate::runs::{StoredRun, collect, list};
use crate::secret::Password;
use crate::size::bytes;
use crate::url::Url;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// It cannot be used, or not be done.
const FAILED: u8 = 1;
/// What was given cannot be used.
const USAGE: u8 = 2;

/// Memory of other machines: check a cluster, see and remove what is stored there.
#[derive(Parser)]
#[command(name = "softswap-remote", bin_name = "softswap remote", version, max_term_width = 100)]
#[command(after_long_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  softswap remote check rediss://node1:7000,node2:7000?size=20G
  softswap remote ls redis://job@node1:7000
  softswap remote gc --dry-run redis://job@node1:7000

The password comes from SOFTSWAP_REMOTE_PASSWORD or the file that password-file= names; with
--ask-password from the terminal.

Exit status: 0 where it is done, 1 where the cluster cannot be used or reached, 2 for a URL or an
option that cannot be used.";

#[derive(Subcommand)]
enum Command {
    /// Say whether a cluster is fit to keep pages, and for how many it has room
    Check(Target),
    /// List the runs that have pages there
    Ls(Target),
    /// Remove what runs that are gone have left
    Gc(GcArgs),
    /// Serve the processes of a run: started by `softswap run`
    #[command(hide = true)]
    Serve(ServeArgs),
}

#[derive(Args)]
struct ServeArgs {
    /// Descriptor of the exchange with them
    #[arg(long, value_name = "FD")]
    exchange: i32,
}

#[derive(Args)]
struct Target {
    /// The cluster: rediss://USER@HOST:PORT,HOST:PORT?OPTIONS, or redis:// without TLS
    #[arg(value_name = "URL")]
    url: String,
    /// Ask for the password
    #[arg(long)]
    ask_password: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct GcArgs {
    #[command(flatten)]
    target: Target,
    /// Remove this run, even if it has a lease: a program that still runs loses its pages
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
}

/// What can be asked for: man pages and the reference are made of it.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Does what the command line asks for.
#[must_use]
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return refuse(FAILED, &format!("no threads or descriptors: {error}")),
    };
    let target = match &command {
        Command::Serve(args) => return runtime.block_on(helper::run(args.exchange)),
        Command::Check(target) | Command::Ls(target) => target,
        Command::Gc(args) => &args.target,
    };
    let url = match url_of(target) {
        Ok(url) => url,
        Err(refusal) => return refuse(USAGE, &refusal.to_string()),
    };
    let done = runtime.block_on(async {
        match &command {
            Command::Check(_) => check(&url, target.json).await,
            Command::Ls(_) => list(&url).await.map(|runs| {
                show_runs(&runs, target.json, "nothing of softswap's is stored there");
                ExitCode::SUCCESS
            }),
            Command::Gc(args) => {
                let runs = collect(&url, args.run.as_deref(), args.dry_run).await?;
                show_runs(&runs, target.json, "there is nothing to remove");
                Ok(ExitCode::SUCCESS)
            }
            Command::Serve(args) => Ok(helper::run(args.exchange).await),
        }
    });
    done.unwrap_or_else(|refusal| refuse(FAILED, &refusal.to_string()))
}

fn refuse(status: u8, message: &str) -> ExitCode {
    eprintln!("softswap remote: {message}");
    ExitCode::from(status)
}

fn url_of(target: &Target) -> Result<Url, Refusal> {
    let mut url = Url::parse(&target.url)?;
    if target.ask_password {
        url.password = Password::asked_for(&url.to_string())?;
    }
    Ok(url)
}

async fn check(url: &Url, is_json: bool) -> Result<ExitCode, Refusal> {
    let report = examine(url).await?;
    match is_json {
        true => print_json("remote-check", &report),
        false => show_report(&report),
    }
    Ok(match report.refusals.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(FAILED),
    })
}

fn print_json(what: &str, value: &impl serde::Serialize) {
    println!("{}", serde_json::json!({ "schema": 1, "what": what, "result": value }));
}

fn show_report(report: &Report) {
    let mut rows =
        vec![["server", "version", "slots", "used", "limit", "read of a page"].map(String::from)];
    for server in &report.servers {
        rows.push([
            server.address.clone(),
            server.version.clone(),
            server.slots.to_string(),
            bytes(server.used_bytes),
            server.limit_bytes.map_or("none".into(), bytes),
            format!("{} us", server.median_read_us),
        ]);
    }
    print_table(&rows);
    if let Some(room) = report.room_for_pages_bytes {
        println!("room for {} of pages, copies counted", bytes(room));
    }
    for warning in &report.warnings {
        println!("note: {warning}");
    }
    for refusal in &report.refusals {
        println!("REFUSED: {refusal}");
    }
    if report.refusals.is_empty() {
        println!("it can be used");
    }
}

fn show_runs(runs: &[StoredRun], is_json: bool, nothing: &str) {
    if is_json {
        return print_json("remote-runs", &runs);
    }
    if runs.is_empty() {
        return println!("{nothing}");
    }
    let mut rows = vec![["run", "of", "areas", "extents", "stored", "lease"].map(String::from)];
    for run in runs {
        let (holder, lease) = match &run.lease {
            Some(lease) => (
                format!("{}, process {}", lease.host, lease.pid),
                format!("{} s", lease.seconds_left),
            ),
            None => ("?".into(), "ended".into()),
        };
        let areas = run.areas.len().to_string();
        rows.push([
            run.run.clone(),
            holder,
            areas,
            run.extents.to_string(),
            bytes(run.bytes),
            lease,
        ]);
    }
    print_table(&rows);
}

fn print_table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    for row in rows {
        let cells =
            row.iter().enumerate().map(|(column, cell)| format!("{cell:<0$}", width(column)));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
