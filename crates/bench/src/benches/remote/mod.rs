//! Memory of other machines: the store, programs with their pages there beside the disk, and what
//! a page takes of a server.

mod step;
mod servers;
mod store;
mod programs;

use super::library::task::{STEPS, Told};
use crate::measure::machine::{Machine, Usage};
use crate::measure::report::{Findings, Output};
use crate::measure::sample::{median, over, rotated, variation};
use clap::Args;
use programs::{Area, OVER_BUDGET, Program};
use serde::Serialize;
use serde_json::Map;
use servers::Servers;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::swapdir;
use softswap_cli::units::parse_size;
use softswap_remote::WORKERS;
use softswap_remote::url::Url;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use step::Step;
use store::Store;

/// Of each server that is started here, at most.
const SERVER_LIMIT_BYTES: u64 = 2 << 30;
/// Measure a Redis or Valkey cluster as a swap area.
///
/// Without --url a cluster is started on this machine: servers, client and program share its
/// processors, so rates are below what a rack gives, and a network's way is missing.
#[derive(Args)]
#[command(after_long_help = "\
Steps of the store: write_extents and read_extents (31 pages at once), read_pages (single ones), with
--depth of them under way, in pages a second; pages written count once for each copy. write_page and
read_page are the middle times of one page at a time.
With --json: {\"schema\": 2, \"bench\": \"remote\", \"machine\": {...}, \"servers\",
\"server_bytes_for_each_byte_stored\",
\"ratios\": {...}, \"rows\": [{\"step\", \"pages_per_s\", \"us\", \"cov\",
\"count\"}], \"program_rows\": [{\"area\", \"step\", \"ns\", \"cov\", \"count\"}]}. Ratios: STEP_AREA_vs_disk of
a program's times, medians of the rounds'.")]
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
    output.finish(measure(args).map(|(figures, programs)| {
        let machine = Machine::with_device(&dir.path, dir.file_system);
        let mut ratios = Map::new();
        if let Some((disk, others)) = programs.split_first() {
            for other in others {
                for (at, step) in STEPS.iter().enumerate() {
                    let key = format!("{step}_{}_vs_disk", other.area.name());
                    ratios.insert(key, over(&other.series(at), &disk.series(at)).into());
                }
            }
        }
        Findings::new("remote", machine, usage.since(), figures, ratios)
    }))
}

#[derive(Debug, Serialize)]
struct Figures {
    servers: String,
    /// Server memory for each byte stored, copies counted.
    server_bytes_for_each_byte_stored: Option<f64>,
    rows: Vec<Row>,
    program_rows: Vec<ProgramRow>,
}

#[derive(Debug, Serialize)]
struct Row {
    step: &'static str,
    pages_per_s: Option<f64>,
    us: Option<f64>,
    cov: f64,
    count: usize,
}

#[derive(Debug, Serialize)]
struct ProgramRow {
    area: &'static str,
    step: &'static str,
    ns: f64,
    cov: f64,
    count: usize,
}

/// The steps of a program with one area, by rounds.
struct ProgramCell {
    area: Area,
    rounds: Vec<Told>,
}

impl ProgramCell {
    fn series(&self, step: usize) -> Vec<f64> {
        self.rounds.iter().map(|told| told[step]).collect()
    }

    fn rows(&self) -> impl Iterator<Item = ProgramRow> {
        STEPS.iter().enumerate().map(|(at, step)| {
            let ns = self.series(at);
            let (cov, count) = (variation(&ns), ns.len());
            ProgramRow { area: self.area.name(), step, ns: median(ns), cov, count }
        })
    }
}

fn measure(args: &RemoteArgs) -> Result<(Figures, Vec<ProgramCell>), Refusal> {
    let servers = match args.url {
        None => Some(Servers::start(args.primaries, SERVER_LIMIT_BYTES)?),
        Some(_) => None,
    };
    let text = args.url.clone().unwrap_or_else(|| {
        format!("redis://{}", servers.as_ref().map_or(String::new(), Servers::seeds))
    });
    let url = Url::parse(&text).map_err(|refusal| Refusal::usage(refusal.to_string()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(|error| Refusal::own(format!("no descriptors: {}", plain(&error))))?;
    let named = match &servers {
        Some(servers) => {
            format!("{} primaries on this machine, Redis {}", args.primaries, servers.version())
        }
        None => url.to_string(),
    };
    let (rows, server_bytes_for_each_byte_stored) =
        runtime.block_on(steps(args, &url, servers.as_ref()))?;
    let programs = programs(args, &url, &text)?;
    let figures = Figures {
        servers: named,
        server_bytes_for_each_byte_stored,
        rows,
        program_rows: programs.iter().flat_map(ProgramCell::rows).collect(),
    };
    Ok((figures, programs))
}

/// All steps of the store, in turn, and the server memory for each byte stored.
async fn steps(
    args: &RemoteArgs,
    url: &Url,
    servers: Option<&Servers>,
) -> Result<(Vec<Row>, Option<f64>), Refusal> {
    let before = servers.map(Servers::used_bytes).transpose()?;
    let store = Store::fill(url, args.extents.into()).await?;
    let mut server_bytes = None;
    if let (Some(servers), Some(before)) = (servers, before) {
        let used = servers.used_bytes()?.saturating_sub(before);
        server_bytes = Some(used as f64 / store.stored_bytes() as f64);
    }
    let mut figures: [Vec<f64>; Step::ALL.len()] = Default::default();
    let how = (args.depth as usize, Duration::from_secs_f64(args.seconds));
    for round in 0..args.rounds as usize {
        for at in rotated(Step::ALL.len(), round) {
            figures[at].push(store.measure(Step::ALL[at], how, round as u64).await?);
        }
    }
    store.close().await?;
    servers.map_or(Ok(()), Servers::empty)?;
    let row = |(step, figures): (Step, Vec<f64>)| {
        let (cov, count, middle) = (variation(&figures), figures.len(), median(figures));
        let (us, rate) = (step.is_latency(), !step.is_latency());
        let (pages_per_s, us) = (rate.then_some(middle), us.then_some(middle));
        Row { step: step.name(), pages_per_s, us, cov, count }
    };
    Ok((Step::ALL.into_iter().zip(figures).map(row).collect(), server_bytes))
}

/// With the disk first.
fn programs(args: &RemoteArgs, url: &Url, text: &str) -> Result<Vec<ProgramCell>, Refusal> {
    let program = Program {
        memory_bytes: args.memory,
        touches: args.touches,
        directory: args.swap.clone(),
        url: Program::sized(url, text, args.memory),
    };
    if args.program_rounds == 0 {
        return Ok(Vec::new());
    }
    let mut cells = Area::ALL.map(|area| ProgramCell { area, rounds: Vec::new() });
    for round in 0..args.program_rounds as usize {
        for at in rotated(cells.len(), round) {
            let told = program.run(cells[at].area, round)?;
            cells[at].rounds.push(told);
        }
    }
    Ok(cells.into())
}
