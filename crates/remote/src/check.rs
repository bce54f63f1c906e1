//! Check of a cluster before use. Problems that would lose pages or make them late are refusals.

use crate::cluster::STORED_BYTES_PER_PAGE;
use crate::node::Node;
use crate::placement::{Keys, parse_key};
use crate::refusal::Refusal;
use crate::router::Router;
use crate::scan::{send, unreachable};
use crate::size::bytes;
use crate::store::PAGE_BYTES;
use crate::topology::{SLOTS, Topology};
use crate::url::{Copies, Url};
use redis::{Cmd, FromRedisValue, Value, cmd};
use serde::Serialize;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Median time of a read above which a server is refused, because a hard disk is faster.
pub const SLOWEST_MEDIAN: Duration = Duration::from_millis(10);
/// Reads before the measurement, which are slower because of connections and caches.
const WARM_UP_READS: usize = 10;
const TIMED_READS: usize = 100;
/// Server memory per stored byte: 131,176 bytes for an extent of 127,969, by `MEMORY USAGE`.
const ALLOCATED_FOR_STORED: f64 = 1.03;

#[derive(Clone, Debug, Serialize)]
pub struct Server {
    pub address: String,
    pub version: String,
    pub slots: usize,
    /// Free bytes; `None` if the server does not report it.
    pub room_bytes: Option<u64>,
    pub used_bytes: u64,
    /// `maxmemory`; `None` if the server has no limit.
    pub limit_bytes: Option<u64>,
    pub policy: String,
    pub median_read_us: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub servers: Vec<Server>,
    /// Bytes of pages that fit, with all copies counted.
    pub room_for_pages_bytes: Option<u64>,
    pub refusals: Vec<String>,
    pub warnings: Vec<String>,
}

/// Checks each primary.
///
/// # Errors
/// If no server answers, the servers are not a cluster, or the login fails.
pub async fn examine(url: &Url) -> Result<Report, Refusal> {
    let router = Router::new(url, None)?;
    let until = Instant::now() + url.deadline;
    if let Err(request_error) = router.refresh(until).await {
        let is_no_cluster = request_error.reason().contains("cluster support disabled");
        return Err(match is_no_cluster {
            true => Refusal::new(format!(
                "{} is not part of a cluster, so no server replaces it if it fails: use a \
                 cluster, or single=1&copies=local together with an area on disk",
                request_error.node()
            )),
            false => unreachable(&request_error),
        });
    }
    let topology = router.topology();
    let mut report = Report::default();
    for (member, slots) in topology.primaries() {
        let node = router.node(&member.address);
        examine_one(url, &node, &slots, &mut report).await?;
    }
    check_topology(url, &topology, &mut report);
    check_memory(url, &mut report);
    Ok(report)
}

async fn examine_one(
    url: &Url,
    node: &Node,
    slots: &[u16],
    report: &mut Report,
) -> Result<(), Refusal> {
    let info = Info::of(node).await?;
    check_settings(url, node, &info, report);
    warn_of_persistence(node, &info.text("aof_enabled"), report).await;
    warn_of_full_coverage(url, node, report).await;
    let median = match slots.first() {
        Some(slot) => median_read(node, *slot).await?,
        None => Duration::ZERO,
    };
    if !url.single {
        // Slots in migration require ASKING: check the right to send it.
        send(node, &cmd("ASKING")).await?;
    }
    if median > SLOWEST_MEDIAN {
        report.refusals.push(format!(
            "{} takes {:.1} ms to read a page (median of {TIMED_READS}); above {} ms a disk is \
             faster, so use that, or servers in the same network",
            node.address,
            median.as_secs_f64() * 1e3,
            SLOWEST_MEDIAN.as_millis()
        ));
    }
    let (used_bytes, limit_bytes) = (info.number("used_memory").unwrap_or(0), info.limit_bytes());
    let room_of = limit_bytes.or_else(|| info.number("total_system_memory"));
    report.servers.push(Server {
        address: node.address.to_string(),
        version: info.text("redis_version"),
        slots: slots.len(),
        room_bytes: room_of.map(|limit| limit.saturating_sub(used_bytes)),
        used_bytes,
        limit_bytes,
        policy: info.text("maxmemory_policy"),
        median_read_us: median.as_micros() as u64,
    });
    Ok(())
}

/// The server's answer to `INFO`.
struct Info(HashMap<String, String>);

impl Info {
    async fn of(node: &Node) -> Result<Info, Refusal> {
        let text: String = parsed(node, &cmd("INFO"), "INFO").await?;
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let fields = lines.map(|(name, value)| (name.to_string(), value.trim().to_string()));
        Ok(Info(fields.collect()))
    }

    fn text(&self, name: &str) -> String {
        self.0.get(name).cloned().unwrap_or_default()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.parse().ok()
    }

    fn limit_bytes(&self) -> Option<u64> {
        self.number("maxmemory").filter(|limit| *limit > 0)
    }
}

fn check_settings(url: &Url, node: &Node, info: &Info, report: &mut Report) {
    let address = &node.address;
    if url.single && info.text("cluster_enabled") == "1" {
        report.refusals.push(format!("{address} is part of a cluster: remove single=1"));
    }
    if url.wait_for_replica && info.number("connected_slaves") == Some(0) {
        report.refusals.push(format!(
            "{address} has no replica, and wait=1 waits for one: add a replica, or remove wait=1"
        ));
    }
    let policy = info.text("maxmemory_policy");
    if !policy.is_empty() && policy != "noeviction" {
        report.refusals.push(format!(
            "{address} evicts keys when it is full (maxmemory-policy {policy}), so pages would be \
             lost: set it to noeviction"
        ));
    }
    if info.limit_bytes().is_none() {
        report.warnings.push(format!(
            "{address} has no maxmemory: it can fill all the memory of its machine before it \
             refuses a write"
        ));
    }
}

async fn warn_of_full_coverage(url: &Url, node: &Node, report: &mut Report) {
    if let Ok(reply) = config(node, "cluster-require-full-coverage").await
        && reply == "yes"
        && !url.single
    {
        report.warnings.push(format!(
            "{} has cluster-require-full-coverage yes: if one primary and its replicas fail, the \
             other servers stop answering too, and no copy can be read; set it to no",
            node.address
        ));
    }
}

async fn parsed<T: FromRedisValue>(node: &Node, command: &Cmd, name: &str) -> Result<T, Refusal> {
    redis::from_redis_value(send(node, command).await?).map_err(|_| {
        Refusal::new(format!("{}: its answer to {name} cannot be parsed", node.address))
    })
}

async fn config(node: &Node, name: &str) -> Result<String, Refusal> {
    let answer: Vec<String> = parsed(node, cmd("CONFIG").arg("GET").arg(name), "CONFIG").await?;
    Ok(answer.into_iter().nth(1).unwrap_or_default())
}

async fn warn_of_persistence(node: &Node, aof_enabled: &str, report: &mut Report) {
    let saves = config(node, "save").await.unwrap_or_default();
    let how = match (aof_enabled == "1", saves.is_empty()) {
        (true, _) => "appendonly yes",
        (false, false) => "save",
        (false, true) => return,
    };
    report.warnings.push(format!(
        "{} writes its data, and so the pages, to its own disk ({how}), which costs time and \
         space there",
        node.address
    ));
}

async fn median_read(node: &Node, slot: u16) -> Result<Duration, Refusal> {
    // Run 0 never exists and has no lease, so `gc` removes this key if the check cannot.
    let key = Keys { run: 0, area: 0 }.extent(slot, u64::from(std::process::id()));
    debug_assert!(parse_key(&key).is_some());
    send(node, cmd("SET").arg(&key).arg("").arg("EX").arg(60)).await?;
    send(node, cmd("SETRANGE").arg(&key).arg(0).arg(&[7u8; PAGE_BYTES][..])).await?;
    try_rights(node, &key).await?;
    let mut times = Vec::with_capacity(TIMED_READS);
    for number in 0..WARM_UP_READS + TIMED_READS {
        let start = Instant::now();
        match send(node, cmd("GETRANGE").arg(&key).arg(0).arg(PAGE_BYTES - 1)).await? {
            Value::BulkString(page) if page.len() == PAGE_BYTES => {}
            _ => {
                return Err(Refusal::new(format!(
                    "{} returned data that differ from the data stored: the server, or a proxy in \
                     front of it, corrupts data",
                    node.address
                )));
            }
        }
        if number >= WARM_UP_READS {
            times.push(start.elapsed());
        }
    }
    send(node, cmd("UNLINK").arg(&key)).await?;
    times.sort_unstable();
    Ok(times[TIMED_READS / 2])
}

/// Executes each other command of a run and of its upkeep once, to find missing rights.
async fn try_rights(node: &Node, key: &str) -> Result<(), Refusal> {
    for (name, arguments) in [
        ("GET", &[key][..]),
        ("STRLEN", &[key]),
        ("PTTL", &[key]),
        ("SCAN", &["0", "MATCH", key, "COUNT", "1"]),
        ("WAIT", &["0", "1"]),
        ("CLIENT", &["SETNAME", "softswap-check"]),
        ("CLIENT", &["LIST", "TYPE", "pubsub"]),
        ("CLIENT", &["KILL", "ID", "9223372036854775807"]),
    ] {
        send(node, cmd(name).arg(arguments)).await?;
    }
    Ok(())
}

fn check_topology(url: &Url, topology: &Topology, report: &mut Report) {
    let primaries = topology.primaries();
    if url.copies == Copies::Two && primaries.len() < 2 {
        report.refusals.push(format!(
            "two copies need two primaries with hash slots, but {url} has {}: add servers, or use \
             copies=local together with an area on disk",
            primaries.len()
        ));
    }
    let covered: usize = primaries.iter().map(|(_, slots)| slots.len()).sum();
    if covered < SLOTS {
        let missing = SLOTS - covered;
        report.warnings.push(format!("{missing} of {SLOTS} hash slots have no working primary"));
    }
    let host = |index: usize| &primaries[index].0.address.host;
    if url.copies == Copies::Two
        && primaries.len() > 1
        && (1..primaries.len()).all(|index| host(index) == host(0))
    {
        report.warnings.push(format!(
            "all primaries are on {}: if that machine fails, both copies are lost",
            host(0)
        ));
    }
}

/// Extents are distributed evenly, so the primary with the least free memory is the limit.
fn check_memory(url: &Url, report: &mut Report) {
    let copies = url.copies.count() as f64;
    let rooms: Option<Vec<u64>> = report.servers.iter().map(|server| server.room_bytes).collect();
    let Some(least) = rooms.and_then(|rooms| rooms.into_iter().min()) else { return };
    let taken_for_page = STORED_BYTES_PER_PAGE * ALLOCATED_FOR_STORED * copies;
    let room = least as f64 * report.servers.len() as f64 / taken_for_page * PAGE_BYTES as f64;
    let room = room as u64;
    report.room_for_pages_bytes = Some(room);
    if let Some(size) = url.size_bytes
        && size > room
    {
        report.refusals.push(format!(
            "size={} does not fit: the servers can hold {} of pages with their copies; lower \
             size= or raise maxmemory; `softswap remote ls` lists what other runs have stored",
            bytes(size),
            bytes(room)
        ));
    }
}
