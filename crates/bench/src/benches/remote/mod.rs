//! Measures other machines' memory as a swap area: the store's operations, programs with pages
//! there or on disk, and server memory per page.

mod servers;
mod store;

use super::library::task::{Place, Task, step_ratios, step_rows};
use crate::measure::machine::Machine;
use crate::measure::options::{InRounds, Named, parse_seconds, within};
use crate::measure::report::Log;
use crate::measure::sample::{Cell, Object, object, take_turns};
use crate::measure::task_pipe::signals;
use clap::{Args, ValueEnum};
use servers::Servers;
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_cli::units::parse_size;
use softswap_remote::WORKERS;
use softswap_remote::url::Url;
use std::ffi::OsString;
use std::time::Duration;
use store::{Step, Store};

const SERVER_LIMIT_BYTES: u64 = 2 << 30;
const OVER_BUDGET: u64 = 4;

/// Measure a Redis or Valkey cluster as a swap area.
///
/// Without --url a cluster is started on this machine: servers, client and program share its
/// processors, so rates are below those of a rack, and the latency of a network is missing.
#[derive(Args)]
#[command(after_long_help = "\
Steps of the store: write_extents and read_extents transfer 31 pages at once, read_pages one.
They have --depth requests in flight. Unit: pages a second; a page written counts once for each copy.
write_page and read_page: median time of one page, with one request in flight.
STEP_AREA_vs_disk: time of a program's step with the area, divided by that with the disk.

Examples:
  softswap bench remote
  softswap bench remote --url 'redis://node1:7000,node2:7000?size=4G'")]
pub(crate) struct RemoteArgs {
    /// A running cluster, instead of one that is started
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// Servers that are started
    #[arg(long, value_name = "N", default_value_t = 3, conflicts_with = "url",
          value_parser = clap::value_parser!(u16).range(3..=64))]
    primaries: u16,

    /// Extents of 31 pages that the store has
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = within(16..=1_000_000))]
    extents: u32,

    /// Concurrent operations, in steps with many
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = within(1..=1024))]
    depth: u32,

    /// How long a step takes
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    seconds: Duration,

    /// The programs' budget; they touch four times as much
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    memory: u64,

    /// Touches of each of a program's steps at random
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = within(1..=100_000_000))]
    touches: u32,

    /// Rounds of programs; with 0 none is run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = within(0..=1000))]
    program_rounds: u32,

    #[command(flatten)]
    common: InRounds<5>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Area {
    Disk,
    /// Two copies on the cluster, nothing on the disk.
    Cluster,
    /// One copy on the disk, one on the cluster (`copies=local`).
    DiskAndCluster,
}

pub(super) fn measure(args: &RemoteArgs) -> Result<Object, Refusal> {
    let dir = args.common.dir(args.memory.saturating_mul(OVER_BUDGET + 1))?;
    let mut log = Log::start();
    let servers = match args.url {
        None => Some(Servers::start(args.primaries, SERVER_LIMIT_BYTES)?),
        Some(_) => None,
    };
    let text = args.url.clone().unwrap_or_else(|| {
        format!("redis://{}", servers.as_ref().map_or(String::new(), Servers::seeds))
    });
    let url = Url::parse(&text).map_err(|refusal| Refusal::usage(refusal.to_string()))?;
    let named = match &servers {
        Some(servers) => {
            format!("{} primaries on this machine, Redis {}", args.primaries, servers.version())
        }
        None => url.to_string(),
    };
    let (rows, server_bytes_for_each_byte_stored) = store_steps(args, &url, servers.as_ref())?;
    let program_rows = program_rows(args, sized(&url, text, args.memory), &mut log)?;
    let figures = object! { servers: named, server_bytes_for_each_byte_stored, rows, program_rows };
    Ok(log.findings("remote", Machine::with_dir(&dir), figures))
}

fn store_steps(
    args: &RemoteArgs,
    url: &Url,
    servers: Option<&Servers>,
) -> Result<(Vec<Object>, Option<f64>), Refusal> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .or_own("the event loop cannot be started")?;
    let before = servers.map(Servers::used_bytes).transpose()?;
    let store = runtime.block_on(Store::fill(url, args.extents.into()))?;
    let after = servers.map(Servers::used_bytes).transpose()?;
    let used = after.zip(before).map(|(after, before)| after.saturating_sub(before));
    let server_bytes = used.map(|used| used as f64 / store.stored_bytes() as f64);
    let cells = take_turns(Step::all(), args.common.rounds, |step, round| {
        let depth = args.depth as usize;
        runtime.block_on(store.measure(*step, depth, args.seconds, round as u64))
    })?;
    runtime.block_on(store.close())?;
    servers.map_or(Ok(()), Servers::empty)?;
    let row = |cell: &Cell<Step, f64>| {
        let (is_latency, middle) = (cell.key.is_latency(), cell.median(f64::clone));
        object! {
            step: cell.key.name(),
            pages_per_s: (!is_latency).then_some(middle),
            us: is_latency.then_some(middle),
            cov: cell.cov(f64::clone),
            count: cell.rounds.len(),
        }
    };
    Ok((cells.iter().map(row).collect(), server_bytes))
}

/// Adds a size of 1.5 times a program's memory to a URL that has none.
fn sized(url: &Url, text: String, memory_bytes: u64) -> String {
    if url.size_bytes.is_some() {
        return text;
    }
    let separator = if text.contains('?') { '&' } else { '?' };
    format!("{text}{separator}size={}M", (memory_bytes >> 20) * OVER_BUDGET * 3 / 2)
}

fn program_rows(args: &RemoteArgs, url: String, log: &mut Log) -> Result<Vec<Object>, Refusal> {
    if args.program_rounds == 0 {
        return Ok(Vec::new());
    }
    let (signals, directory, bytes) = (signals()?, &args.common.swap, args.memory * OVER_BUDGET);
    let cells = take_turns(Area::all(), args.program_rounds, |area, round| {
        let areas: Vec<OsString> = match area {
            Area::Disk => vec![directory.into()],
            Area::Cluster => vec![url.clone().into()],
            Area::DiskAndCluster => vec![directory.into(), url.clone().into()],
        };
        Task::new(Place::Run, bytes, args.touches, round, args.memory, directory.clone())
            .run_swapped(&areas, &signals)
    })?;
    for cell in &cells[1..] {
        let name = |step: &str| format!("{step}_{}_vs_disk", cell.key.name());
        step_ratios((cell, &cells[0]), name, log);
    }
    Ok(step_rows(&cells, |area| object! { area: area.name() }))
}
