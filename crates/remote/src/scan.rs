//! All that is stored under our names, as the servers list it.

use crate::node::Node;
use crate::refusal::Refusal;
use crate::router::Router;
use crate::trouble::Trouble;
use redis::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const KEYS_AT_ONCE: usize = 2000;
const ANSWER_BYTES: u64 = 1 << 20;
const EACH_WITHIN: Duration = Duration::from_secs(10);

/// Every primary; an error where one is missing, as a list without it would be wrong.
pub(crate) async fn all_primaries(router: &Router) -> Result<Vec<Arc<Node>>, Refusal> {
    router.refresh(Instant::now() + EACH_WITHIN).await.map_err(|t| unreachable(&t))?;
    let topology = router.topology();
    let failed = topology.members.iter().find(|member| member.is_primary && member.is_failed);
    if let Some(member) = failed {
        return Err(Refusal::new(format!(
            "{} is down: what it has cannot be told; try again when the cluster is whole",
            member.address
        )));
    }
    Ok(topology.primaries().iter().map(|(member, _)| router.node(&member.address)).collect())
}

pub(crate) fn unreachable(trouble: &Trouble) -> Refusal {
    Refusal::new(format!("{}: {}", trouble.node(), trouble.reason()))
}

/// Asks one server for one thing.
pub(crate) async fn ask(node: &Node, command: redis::Cmd) -> Result<Value, Refusal> {
    let mut pipeline = redis::pipe();
    pipeline.add_command(command);
    let until = Instant::now() + EACH_WITHIN;
    let mut answers =
        node.ask(&pipeline, ANSWER_BYTES, until).await.map_err(|trouble| unreachable(&trouble))?;
    match answers.remove(0) {
        Value::ServerError(error) => Err(unreachable(&Trouble::from_answer(&node.address, &error))),
        value => Ok(value),
    }
}

/// The keys of one server that match a pattern, batch after batch; one may come twice.
pub(crate) async fn each_batch(
    node: &Node,
    pattern: &str,
    mut take: impl AsyncFnMut(Vec<String>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut cursor = "0".to_string();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(KEYS_AT_ONCE);
        let answer = ask(node, scan).await?;
        let (next, keys): (String, Vec<String>) = redis::from_redis_value(answer)
            .map_err(|_| Refusal::new(format!("{}: SCAN is answered oddly", node.address)))?;
        if !keys.is_empty() {
            take(keys).await?;
        }
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}
