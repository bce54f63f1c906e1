//! Memory of other machines: the store beside its client library and `redis-benchmark`, programs
//! with their pages there beside the disk, what a page takes of a server, and the loss of one.

mod step;
mod servers;
mod store;
mod client;
mod redis_benchmark;
mod programs;
mod outcome;

use crate::measure::machine::{Machine, Usage};
use crate::measure::report::Output;
use crate::measure::sample::rotated;
use clap::Args;
use client::Client;
use outcome::{Cell, Found, ProgramCell, RemoteOutcome, Side};
use programs::{Area, OVER_BUDGET, Program};
use servers::Servers;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::swapdir;
use softswap_cli::units::parse_size;
use softswap_remote::WORKERS;
use softswap_remote::cluster::{EXTENT_BYTES, EXTENT_PAGES, STORED_PAGE_BYTES};
use softswap_remote::url::Url;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use step::{Figure, Step};
use store::{Endured, Store};

/// Of each server that is started here, at most.
const SERVER_LIMIT_BYTES: u64 = 2 << 30;
/// How long pages are read and written around the death of a primary, and when it dies.
const LOSS: Duration = Duration::from_secs(8);
const DEATH: Duration = Duration::from_secs(2);

/// Measure a Redis or Valkey cluster as a swap area.
///
/// Without --url a cluster is started on this machine: servers, client and program share its
/// processors, so rates are below what a rack gives, and a network's way is missing.
#[derive(Args)]
#[command(after_long_help = "\
Steps of the store: write_extents and read_extents (31 pages at once), read_pages (single ones), with
--depth of them under way, in pages a second; pages written count once for each copy. write_page and
read_page are the middle times of one page at a time. The client library and redis-benchmark move values
as large, without seals, copies or placement.
With --json: {\"schema\": 2, \"bench\": \"remote\", \"machine\": {...}, \"servers\",
\"server_bytes_for_each_byte_stored\", \"loss_of_a_primary\": {\"longest_read_ms\", \"longest_write_ms\",
\"operations\", \"failed\"}, \"ratios\": {...}, \"rows\": [{\"side\", \"step\", \"pages_per_s\", \"us\", \"cov\",
\"count\"}], \"program_rows\": [{\"area\", \"step\", \"ns\", \"cov\", \"count\"}]}. Ratios: STEP_store_vs_SIDE of
figures, STEP_AREA_vs_disk of a program's times, medians of the rounds'.")]
pub(crate) struct RemoteArgs {
    /// A cluster that is there, instead of one that is started
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// Servers that are started
    #[arg(long, value_name = "N", default_value_t = 3, conflicts_with = "url",
          value_parser = clap::value_parser!(u16).range(2..=64))]
    primaries: u16,

    /// Extents of 31 pages that the store has
    #[arg(long, value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    extents: u32,

    /// Operations under way where they are many
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,

    /// How long a step takes
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,

    /// The programs' budget; they touch four times as much
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    memory: u64,

    /// Touches of each of a program's steps at random
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    touches: u32,

    /// Where the programs' pages go on the disk
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    swap: PathBuf,

    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Rounds of programs; with 0 none is run
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(0..=1000))]
    program_rounds: u32,

    /// Also write one JSON object to FILE; - prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(args: &RemoteArgs) -> Result<ExitCode, Refusal> {
    if !(args.seconds > 0.0 && args.seconds <= 600.0) {
        return Err(Refusal::usage(format!(
            "--seconds {}: give more than 0 and at most 600",
            args.seconds
        )));
    }
    let needed = args.memory.saturating_mul(OVER_BUDGET + 1);
    let dir = swapdir::check("--swap", &args.swap, needed)?;
    let output = Output::open(args.json.as_deref())?;
    let usage = Usage::now();
    output.finish(measure(args).map(|found| {
        let machine = Machine::with_device(&dir.path, dir.file_system);
        RemoteOutcome::new(found, machine, usage.since())
    }))
}

fn measure(args: &RemoteArgs) -> Result<Found, Refusal> {
    let servers = match args.url {
        None => Some(Servers::start(args.primaries, SERVER_LIMIT_BYTES)?),
        Some(_) => None,
    };
    let text = match (&args.url, &servers) {
        (Some(url), _) => url.clone(),
        (None, servers) => {
            format!("redis://{}", servers.as_ref().map_or(String::new(), Servers::seeds))
        }
    };
    let url = Url::parse(&text).map_err(|refusal| Refusal::usage(refusal.to_string()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(|error| Refusal::own(format!("no descriptors: {}", plain(&error))))?;
    let mut found = Found {
        cells: Vec::new(),
        programs: Vec::new(),
        server_bytes: None,
        loss: None,
        servers: match &servers {
            Some(servers) => {
                format!("{} primaries on this machine, Redis {}", args.primaries, servers.version())
            }
            None => url.to_string(),
        },
        notes: Vec::new(),
    };
    if servers.is_none() {
        found.notes.push(
            "only the store is measured: redis-benchmark takes passwords in its arguments, and \
             what others have stored there is left alone"
                .into(),
        );
    }
    runtime.block_on(figures(args, &url, servers.as_ref(), &mut found))?;
    programs(args, &url, &text, &mut found)?;
    if let Some(servers) = servers {
        found.loss = Some(runtime.block_on(loss(args, &url, servers))?);
    }
    Ok(found)
}

/// All steps of all sides, in turn.
async fn figures(
    args: &RemoteArgs,
    url: &Url,
    servers: Option<&Servers>,
    found: &mut Found,
) -> Result<(), Refusal> {
    let before = servers.map(Servers::used_bytes).transpose()?;
    let store = Store::fill(url, args.extents.into()).await?;
    if let (Some(servers), Some(before)) = (servers, before) {
        let used = servers.used_bytes()?.saturating_sub(before);
        found.server_bytes = Some(used as f64 / store.stored_bytes() as f64);
    }
    let sizes = [EXTENT_BYTES, STORED_PAGE_BYTES];
    let client = match servers {
        Some(servers) => Some(Client::fill(&servers.ports(), sizes, EXTENT_PAGES).await?),
        None => None,
    };
    let sides = if servers.is_some() { &Side::ALL[..] } else { &Side::ALL[..1] };
    let mut cells = Vec::new();
    for step in Step::ALL {
        cells.extend(sides.iter().map(|side| Cell { side: *side, step, figures: Vec::new() }));
    }
    let time = Duration::from_secs_f64(args.seconds);
    for round in 0..args.rounds as usize {
        for at in rotated(cells.len(), round) {
            let (side, step) = (cells[at].side, cells[at].step);
            let how = (args.depth as usize, time);
            let figure: Figure = match (side, &client, servers) {
                (Side::Client, Some(client), _) => client.measure(step, how, round as u64).await?,
                (Side::RedisBenchmark, _, Some(servers)) => {
                    let pages = step.pages(EXTENT_PAGES);
                    let value_bytes = sizes[usize::from(pages == 1)];
                    let how = (step.depth(how.0), args.seconds);
                    redis_benchmark::measure(&servers.ports(), step, how, (value_bytes, pages))?
                }
                _ => store.measure(step, how, round as u64).await?,
            };
            cells[at].figures.push(figure);
        }
    }
    found.cells = cells;
    store.close().await?;
    servers.map_or(Ok(()), Servers::empty)
}

fn programs(args: &RemoteArgs, url: &Url, text: &str, found: &mut Found) -> Result<(), Refusal> {
    let program = Program {
        memory_bytes: args.memory,
        touches: args.touches,
        directory: args.swap.clone(),
        url: Program::sized(url, text, args.memory),
    };
    if args.program_rounds == 0 {
        return Ok(());
    }
    let cell = |area| ProgramCell { area, rounds: Vec::new() };
    let mut cells: Vec<_> = Area::ALL.into_iter().map(cell).collect();
    for round in 0..args.program_rounds as usize {
        for at in rotated(cells.len(), round) {
            let told = program.run(cells[at].area, round)?;
            cells[at].rounds.push(told);
        }
    }
    found.programs = cells;
    Ok(())
}

/// Reads and writes while a primary dies.
async fn loss(args: &RemoteArgs, url: &Url, mut servers: Servers) -> Result<Endured, Refusal> {
    let store = Store::fill(url, args.extents.into()).await?;
    let death = std::thread::spawn(move || {
        std::thread::sleep(DEATH);
        servers.kill_one();
        servers
    });
    let endured = store.endure((args.depth as usize, LOSS)).await;
    // They end with the last of them.
    drop(death.join());
    endured
}
