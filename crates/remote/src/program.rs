//! The command line of `softswap-remote`, which `softswap remote` executes.

use crate::check::{Report, examine};
use crate::helper;
use crate::refusal::Refusal;
use crate::runs::{Lease, StoredRun, collect, list};
use crate::secret::Password;
use crate::simulation::{Found, Settings, simulate};
use crate::size::bytes;
use crate::url::Url;
use clap::{Args, CommandFactory, Parser, Subcommand};
use softswap_sys::file::plain;
use std::io::Write;
use std::process::ExitCode;
use tokio::runtime::Runtime;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
/// Threads of the helper: one seals and copies while another waits for the network.
pub const WORKERS: usize = 2;

/// Memory of other machines: check a cluster, list and remove the pages stored there.
#[derive(Parser)]
#[command(name = "softswap-remote", bin_name = "softswap remote", version, max_term_width = 100)]
#[command(after_long_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  softswap remote check 'rediss://node1:7000,node2:7000?size=20G'
  softswap remote ls redis://job@node1:7000
  softswap remote gc --dry-run redis://job@node1:7000
  softswap remote simulate --servers 50 --clients 100

The password comes from SOFTSWAP_REMOTE_PASSWORD or the file that password-file= names; with
--ask-password from the terminal.

Exit status: 0 if done, 1 if the cluster cannot be used or reached, 2 for a URL or an option that
cannot be used.";

#[derive(Subcommand)]
enum Command {
    /// Check if a cluster can store pages, and how many
    #[command(after_long_help = "\
Examples:
  softswap remote check 'rediss://node1:7000,node2:7000?size=20G'
  softswap remote check --ask-password redis://job@node1:7000")]
    Check(Target),
    /// List the runs that have pages in a cluster
    #[command(after_long_help = "\
Examples:
  softswap remote ls redis://job@node1:7000")]
    Ls(Target),
    /// Remove pages of runs that have exited
    Gc(GcArgs),
    /// Simulate a large cluster with failing servers: lost pages, and duration of reads
    Simulate(SimulateArgs),
    /// Serve the processes of a run (`softswap run` starts this command)
    #[command(hide = true)]
    Serve(ServeArgs),
}

#[derive(Args)]
#[command(after_long_help = "\
Reads and writes arrive at random. A server takes 8 us to read a page and 60 us to write an extent; the
network adds 100 us for the round trip. A client waits 150 ms for a server, then uses the other copy, and
prefers other servers until this one answers again. An extent counts as lost if none of its copies is
known to be complete.

Examples:
  softswap remote simulate --servers 50 --clients 100")]
struct SimulateArgs {
    #[command(flatten)]
    settings: Settings,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ServeArgs {
    /// Descriptor of their request queue
    #[arg(long, value_name = "FD")]
    queue: i32,
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
#[command(after_long_help = "\
Examples:
  softswap remote gc --dry-run redis://job@node1:7000
  softswap remote gc redis://job@node1:7000")]
struct GcArgs {
    #[command(flatten)]
    target: Target,
    /// Remove this run, even if it has a lease: a program that still runs loses its pages
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Print what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// Returns the command line's definition, for man pages and the reference.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

#[must_use]
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = match builder.worker_threads(WORKERS).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return refuse(FAILED, &format!("threads cannot be started: {}", plain(&error)));
        }
    };
    match &command {
        Command::Serve(args) => runtime.block_on(helper::run(args.queue)),
        Command::Simulate(args) => {
            let found = simulate(&args.settings);
            let printed = print(&match args.json {
                true => json("remote-simulation", &found),
                false => simulation_text(&found),
            });
            printed.map_or_else(|why| refuse(FAILED, &why.to_string()), |()| ExitCode::SUCCESS)
        }
        Command::Check(target) => {
            with_url(&runtime, target, async |url| check(url, target.json).await)
        }
        Command::Ls(target) => with_url(&runtime, target, async |url| {
            let runs = list(url).await?;
            print(&match (target.json, runs.as_slice()) {
                (true, runs) => json("remote-runs", &runs),
                (false, []) => "no run of softswap has pages there".into(),
                (false, runs) => runs_text(runs),
            })?;
            Ok(ExitCode::SUCCESS)
        }),
        Command::Gc(args) => with_url(&runtime, &args.target, async |url| gc(url, args).await),
    }
}

async fn gc(url: &Url, args: &GcArgs) -> Result<ExitCode, Refusal> {
    let runs = collect(url, args.run.as_deref(), args.dry_run).await?;
    print(&match (args.target.json, runs.as_slice()) {
        (true, runs) => json("remote-runs", &runs),
        (false, []) => match list(url).await?.len() {
            0 => "there is nothing to remove".into(),
            count => format!(
                "there is nothing to remove: {count} runs have pages in the cluster, and their \
                 leases have not expired. `softswap remote ls` lists them, and --run RUN removes \
                 one despite its lease"
            ),
        },
        (false, runs) => runs_text(runs),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn with_url(
    runtime: &Runtime,
    target: &Target,
    work: impl AsyncFnOnce(&Url) -> Result<ExitCode, Refusal>,
) -> ExitCode {
    let url = match url_of(target) {
        Ok(url) => url,
        Err(refusal) => return refuse(USAGE, &refusal.to_string()),
    };
    let done = runtime.block_on(work(&url));
    done.unwrap_or_else(|refusal| refuse(FAILED, &refusal.to_string()))
}

fn refuse(status: u8, message: &str) -> ExitCode {
    // Ignore errors: a closed pipe must not change the exit status.
    let _ = writeln!(std::io::stderr(), "softswap remote: {message}");
    ExitCode::from(status)
}

fn url_of(target: &Target) -> Result<Url, Refusal> {
    let mut url = Url::parse(&target.url)?;
    if target.ask_password {
        url.password = Password::prompted(&url.to_string())?;
    }
    Ok(url)
}

async fn check(url: &Url, is_json: bool) -> Result<ExitCode, Refusal> {
    let report = examine(url).await?;
    print(&match is_json {
        true => json("remote-check", &report),
        false => report_text(&report),
    })?;
    Ok(if report.refusals.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn print(text: &str) -> Result<(), Refusal> {
    let mut stdout = std::io::stdout();
    let written = stdout.write_all(format!("{}\n", text.trim_end()).as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Refusal::new(format!("standard output cannot be written: {}", plain(&error))))
        }
        _ => Ok(()),
    }
}

fn json(what: &str, value: &impl serde::Serialize) -> String {
    serde_json::json!({ "schema": 1, "what": what, "result": value }).to_string()
}

fn report_text(report: &Report) -> String {
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
    let mut lines = table(&rows);
    let room = report.room_for_pages_bytes.map(bytes);
    lines.extend(room.map(|room| format!("space for {room} of pages, after replication")));
    lines.extend(report.warnings.iter().map(|warning| format!("note: {warning}")));
    lines.extend(report.refusals.iter().map(|refusal| format!("REFUSED: {refusal}")));
    if report.refusals.is_empty() {
        lines.push("the cluster can be used".into());
    }
    lines.join("\n")
}

fn simulation_text(found: &Found) -> String {
    let mut rows =
        vec![["", "count", "p50 us", "p99 us", "p99.9 us", "longest us"].map(String::from)];
    for (name, it) in [("reads", found.reads), ("writes", found.writes)] {
        let us = [it.p50_us, it.p99_us, it.p999_us, it.longest_us].map(|us| format!("{us:.0}"));
        let [p50, p99, p999, longest] = us;
        rows.push([name.into(), it.count.to_string(), p50, p99, p999, longest]);
    }
    let mut lines = table(&rows);
    lines.push(format!(
        "{} extents lost, {} reads timed out, {} writes failed",
        found.lost_extents, found.late_reads, found.failed_writes
    ));
    lines.push(format!(
        "{} copies restored, the last after {:.1} s; servers busy {:.0} % of the time",
        found.repaired_copies,
        found.longest_repair_s,
        found.busy_share * 100.0
    ));
    lines.join("\n")
}

fn runs_text(runs: &[StoredRun]) -> String {
    let mut rows = vec![["run", "of", "areas", "extents", "stored", "lease"].map(String::from)];
    for run in runs {
        let holder = |lease: &Lease| format!("{}, process {}", lease.host, lease.pid);
        let [areas, extents] = [run.areas.len() as u64, run.extents].map(|count| count.to_string());
        let lease = run.lease.as_ref();
        let left = lease.map_or("expired".into(), |lease| format!("{} s", lease.seconds_left));
        let holder = lease.map_or("?".into(), holder);
        rows.push([run.run.clone(), holder, areas, extents, bytes(run.bytes), left]);
    }
    table(&rows).join("\n")
}

fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let line = |row: &[String; COLUMNS]| {
        let cells =
            row.iter().enumerate().map(|(column, cell)| format!("{cell:<0$}", width(column)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect()
}
