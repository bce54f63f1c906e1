//! Enumeration of softswap's keys on the servers.

use crate::node::Node;
use crate::refusal::Refusal;
use crate::request_error::RequestError;
use crate::router::Router;
use redis::{Pipeline, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const KEYS_AT_ONCE: usize = 2000;
const ANSWER_BYTES: u64 = 1 << 20;
const EACH_WITHIN: Duration = Duration::from_secs(10);

/// Returns every primary. Fails if one is missing, because a list without it would be wrong.
pub(crate) async fn all_primaries(router: &Router) -> Result<Vec<Arc<Node>>, Refusal> {
    primaries_but(0, router).await.map(|(nodes, _)| nodes)
}

/// Returns the primaries, and true if any is missing. Fails if more than `max_missing` are.
pub(crate) async fn primaries_but(
    max_missing: usize,
    router: &Router,
) -> Result<(Vec<Arc<Node>>, bool), Refusal> {
    router.refresh(Instant::now() + EACH_WITHIN).await.map_err(|t| unreachable(&t))?;
    let topology = router.topology();
    let missing = topology.missing_primaries();
    if let Some(member) = missing.get(max_missing) {
        return Err(Refusal::new(format!(
            "{} is down, so its runs are unknown; try again when all primaries are up",
            member.address
        )));
    }
    let nodes = topology.primaries().iter().map(|(it, _)| router.node(&it.address)).collect();
    Ok((nodes, !missing.is_empty()))
}

pub(crate) fn unreachable(request_error: &RequestError) -> Refusal {
    let (node, reason) = (request_error.node(), request_error.reason());
    Refusal::new(match request_error {
        RequestError::Unreachable { .. } => format!(
            "{node} cannot be reached: {reason}; start its server, or correct the address, and \
             check that no firewall blocks the port"
        ),
        _ => format!("{node}: {reason}"),
    })
}

pub(crate) async fn send(node: &Node, command: &redis::Cmd) -> Result<Value, Refusal> {
    let mut pipeline = redis::pipe();
    pipeline.add_command(command.clone());
    Ok(send_all(node, &pipeline, ANSWER_BYTES).await?.remove(0))
}

/// No command may fail. `contents_bytes` limits the content of all answers.
pub(crate) async fn send_all(
    node: &Node,
    commands: &Pipeline,
    contents_bytes: u64,
) -> Result<Vec<Value>, Refusal> {
    let sent = node.send(commands, contents_bytes, Instant::now() + EACH_WITHIN).await;
    let answers = sent.map_err(|request_error| unreachable(&request_error))?;
    let refused = answers.iter().find_map(|answer| match answer {
        Value::ServerError(error) => Some(RequestError::from_answer(&node.address, error)),
        _ => None,
    });
    refused.map_or(Ok(answers), |request_error| Err(unreachable(&request_error)))
}

pub(crate) struct Batches<'a> {
    node: &'a Node,
    pattern: &'a str,
    cursor: Option<String>,
}

impl<'a> Batches<'a> {
    pub(crate) fn of(node: &'a Node, pattern: &'a str) -> Self {
        Self { node, pattern, cursor: Some("0".into()) }
    }

    /// Returns the next batch, which may be empty. A key may occur twice.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<String>>, Refusal> {
        let Some(cursor) = self.cursor.take() else { return Ok(None) };
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(self.pattern).arg("COUNT").arg(KEYS_AT_ONCE);
        let answer = send(self.node, &scan).await?;
        let (next, keys): (String, Vec<String>) =
            redis::from_redis_value(answer).map_err(|_| {
                Refusal::new(format!("{}: its answer to SCAN cannot be parsed", self.node.address))
            })?;
        self.cursor = Some(next).filter(|next| next != "0");
        Ok(Some(keys))
    }
}
