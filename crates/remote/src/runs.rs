//! Runs that have pages on a cluster, and the removal of those without a lease.

use crate::cluster::unlink;
use crate::placement::{EXTENT_BYTES, Kind, parse_key};
use crate::refusal::Refusal;
use crate::router::Router;
use crate::scan::{Batches, all_primaries, send};
use crate::url::Url;
use redis::{Value, cmd};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

const PATTERN: &str = "softswap:{*}:*";

/// One run's part of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoredRun {
    /// 16 hexadecimal digits.
    pub run: String,
    pub areas: BTreeSet<u16>,
    /// Extents of 31 pages; copies count separately.
    pub extents: u64,
    /// Size of their values, without the server's overhead.
    pub bytes: u64,
    /// The run's lease; `None` if it has ended, so `gc` removes the run.
    pub lease: Option<Lease>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lease {
    pub host: String,
    pub pid: u64,
    /// Time until the end, unless it is renewed.
    pub seconds_left: u64,
}

/// Lists all runs.
///
/// # Errors
/// If a primary does not answer: the list would lack its part.
pub async fn list(url: &Url) -> Result<Vec<StoredRun>, Refusal> {
    list_by(&Router::new(url, None)?).await
}

async fn list_by(router: &Router) -> Result<Vec<StoredRun>, Refusal> {
    let nodes = all_primaries(router).await?;
    let mut runs: BTreeMap<u64, StoredRun> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for node in &nodes {
        let mut batches = Batches::of(node, PATTERN);
        while let Some(keys) = batches.next().await? {
            for key in keys {
                let Some((run, kind)) = parse_key(&key) else { continue };
                let stored = runs.entry(run).or_default();
                stored.run = format!("{run:016x}");
                if let Kind::Extent { area, .. } = kind
                    && seen.insert(key)
                {
                    stored.areas.insert(area);
                    stored.extents += 1;
                    stored.bytes += EXTENT_BYTES as u64;
                }
            }
        }
    }
    // Leases last: every run whose pages were found had taken a lease before.
    for node in &nodes {
        let mut leases = Vec::new();
        let mut batches = Batches::of(node, "softswap:{*}:*:lease");
        while let Some(keys) = batches.next().await? {
            leases.extend(keys);
        }
        for key in leases {
            let Some((run, Kind::Lease)) = parse_key(&key) else { continue };
            let mut time_left = cmd("PTTL");
            time_left.arg(&key);
            let mut get = cmd("GET");
            get.arg(&key);
            let (Value::Int(milliseconds), Value::BulkString(holder)) =
                (send(node, time_left).await?, send(node, get).await?)
            else {
                continue;
            };
            let holder: serde_json::Value = serde_json::from_slice(&holder).unwrap_or_default();
            let lease = Lease {
                host: holder["host"].as_str().unwrap_or("?").to_string(),
                pid: holder["pid"].as_u64().unwrap_or(0),
                seconds_left: milliseconds.max(0) as u64 / 1000,
            };
            let stored = runs.entry(run).or_default();
            stored.run = format!("{run:016x}");
            stored.lease = Some(lease);
        }
    }
    Ok(runs.into_values().collect())
}

/// Removes the pages of runs without a lease, or of one named run even if it has a lease. Returns
/// what was removed, or with `only_look` what would be.
///
/// # Errors
/// If a primary does not answer, because it may have a lease; if the named run does not exist.
pub async fn collect(
    url: &Url,
    named: Option<&str>,
    only_look: bool,
) -> Result<Vec<StoredRun>, Refusal> {
    let router = Router::new(url, None)?;
    let runs = list_by(&router).await?;
    let gone: Vec<StoredRun> = match named {
        None => runs.into_iter().filter(|run| run.lease.is_none()).collect(),
        Some(name) => runs.into_iter().filter(|run| run.run == name).collect(),
    };
    if let (Some(name), []) = (named, gone.as_slice()) {
        return Err(Refusal::new(format!(
            "there is no run {name} on {url}; `softswap remote ls` lists them"
        )));
    }
    if only_look || gone.is_empty() {
        return Ok(gone);
    }
    let names: BTreeSet<&str> = gone.iter().map(|run| run.run.as_str()).collect();
    let mut removed = Ok(());
    for node in all_primaries(&router).await? {
        let mut batches = Batches::of(&node, PATTERN);
        while let Some(keys) = batches.next().await? {
            let is_gone = |key: &String| {
                parse_key(key)
                    .is_some_and(|(run, _)| names.contains(format!("{run:016x}").as_str()))
            };
            removed = removed.and(unlink(&node, keys.into_iter().filter(is_gone)).await);
        }
    }
    removed.map(|()| gone)
}
