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

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoredRun {
    /// 16 hexadecimal digits.
    pub run: String,
    pub areas: BTreeSet<u16>,
    /// Extents of 31 pages; copies count separately.
    pub extents: u64,
    /// Size of the extents' values, without the server's overhead.
    pub bytes: u64,
    /// The run's lease. `None` if it has expired; then `gc` removes the run.
    pub lease: Option<Lease>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lease {
    pub host: String,
    pub pid: u64,
    pub seconds_left: u64,
}

/// Lists all runs.
///
/// # Errors
/// If a primary does not answer, because the list would lack its runs.
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
    // Read the leases last. A run takes its lease before it stores pages, so a run that was found
    // above without a lease has lost it.
    for node in &nodes {
        let mut leases = Vec::new();
        let mut batches = Batches::of(node, "softswap:{*}:*:lease");
        while let Some(keys) = batches.next().await? {
            leases.extend(keys);
        }
        for key in leases {
            let Some((run, Kind::Lease)) = parse_key(&key) else { continue };
            let time_left = send(node, cmd("PTTL").arg(&key)).await?;
            let holder = send(node, cmd("GET").arg(&key)).await?;
            let (Value::Int(milliseconds), Value::BulkString(holder)) = (time_left, holder) else {
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

/// Removes the runs without a lease, or a named one, and returns them. `dry_run` removes nothing.
///
/// # Errors
/// If a primary does not answer, because it may store a lease, or if the named run does not exist.
pub async fn collect(
    url: &Url,
    named: Option<&str>,
    dry_run: bool,
) -> Result<Vec<StoredRun>, Refusal> {
    let router = Router::new(url, None)?;
    let runs = list_by(&router).await?;
    let is_selected = |run: &StoredRun| named.map_or(run.lease.is_none(), |name| run.run == name);
    let selected: Vec<StoredRun> = runs.into_iter().filter(is_selected).collect();
    if let (Some(name), []) = (named, selected.as_slice()) {
        return Err(Refusal::new(format!(
            "there is no run {name} on {url}; `softswap remote ls` lists the runs"
        )));
    }
    if dry_run || selected.is_empty() {
        return Ok(selected);
    }
    let names: BTreeSet<&str> = selected.iter().map(|run| run.run.as_str()).collect();
    let mut removed = Ok(());
    for node in all_primaries(&router).await? {
        let mut batches = Batches::of(&node, PATTERN);
        while let Some(keys) = batches.next().await? {
            let name = |key: &String| parse_key(key).map(|(run, _)| format!("{run:016x}"));
            let is_selected =
                |key: &String| name(key).is_some_and(|name| names.contains(name.as_str()));
            removed = removed.and(unlink(&node, keys.into_iter().filter(is_selected)).await);
        }
    }
    removed.map(|()| selected)
}
