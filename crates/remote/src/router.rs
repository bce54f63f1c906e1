//! Sends commands to the servers of their slots, all commands for one server in one batch.
//!
//! The client library's own cluster connection is not used: while it searches for a lost server, it
//! holds back the requests to all others.

use crate::link::{Connector, Helper};
use crate::node::Node;
use crate::refusal::Refusal;
use crate::request_error::RequestError;
use crate::topology::{SLOTS, Topology};
use crate::url::{Address, Url};
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, Pipeline, Value};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

const REDIRECTIONS: usize = 4;
const TOPOLOGY_TIMEOUT: Duration = Duration::from_millis(2200);
/// Timeout of further answers after the first one.
const TOPOLOGY_AFTER_FIRST: Duration = Duration::from_millis(200);
const TOPOLOGY_BYTES: u64 = 4 << 20;
const QUERIES_AT_ONCE: usize = 16;

/// Commands for one slot, executed in order.
pub(crate) struct Request {
    pub(crate) slot: u16,
    pub(crate) commands: Vec<Cmd>,
    /// Limit for the content of the answers, in bytes.
    pub(crate) answer_bytes: u64,
}

pub(crate) type Answer = Result<Vec<Value>, RequestError>;

pub(crate) struct Router {
    connector: Arc<Connector>,
    seeds: Vec<Address>,
    stall: Duration,
    is_single: bool,
    refreshes: AtomicUsize,
    /// Time of the last query for the topology. Locked during a query.
    refreshed: tokio::sync::Mutex<Option<Instant>>,
    known: Mutex<Known>,
}

struct Known {
    nodes: HashMap<Address, Arc<Node>>,
    topology: Arc<Topology>,
    /// Owners according to redirections since `topology` was read.
    moved: HashMap<u16, Address>,
    changed: BTreeSet<u16>,
}

impl Known {
    fn owner(&self, slot: u16) -> Option<&Address> {
        let owner = self.topology.owner(slot).map(|member| &member.address);
        self.moved.get(&slot).or(owner)
    }

    fn learn(&mut self, topology: Topology) {
        let owner = |slot| topology.owner(slot).map(|member| &member.address);
        let is_other = |slot: &u16| self.owner(*slot) != owner(*slot);
        let changed: Vec<u16> = (0..SLOTS as u16).filter(is_other).collect();
        self.changed.extend(changed);
        self.moved.clear();
        self.topology = Arc::new(topology);
    }

    fn learn_move(&mut self, slot: u16, to: Address) {
        if self.owner(slot) != Some(&to) {
            self.changed.insert(slot);
        }
        self.moved.insert(slot, to);
    }
}

impl Router {
    pub(crate) fn new(url: &Url, helper: Option<Helper>) -> Result<Self, Refusal> {
        let first = url.seeds.first().ok_or_else(|| Refusal::new("the URL names no server"))?;
        let topology = Arc::new(Topology::single(first.clone()));
        Ok(Self {
            connector: Arc::new(Connector::new(url, helper)?),
            seeds: url.seeds.clone(),
            stall: (url.deadline / 4).min(Duration::from_secs(2)),
            is_single: url.single,
            refreshes: AtomicUsize::new(0),
            refreshed: tokio::sync::Mutex::default(),
            known: Mutex::new(Known {
                nodes: HashMap::new(),
                topology,
                moved: HashMap::new(),
                changed: BTreeSet::new(),
            }),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.known().topology)
    }

    pub(crate) fn node(&self, address: &Address) -> Arc<Node> {
        let mut known = self.known();
        if let Some(node) = known.nodes.get(address) {
            return Arc::clone(node);
        }
        let node = Node::new(address.clone(), Arc::clone(&self.connector), self.stall);
        let node = Arc::new(node);
        known.nodes.insert(address.clone(), Arc::clone(&node));
        node
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<Address> {
        self.known().owner(slot).cloned()
    }

    /// Returns the slots whose owner changed since the last call, even temporarily: a temporary
    /// owner may have acknowledged writes that the other owners lack.
    pub(crate) fn take_changed(&self) -> BTreeSet<u16> {
        std::mem::take(&mut self.known().changed)
    }

    pub(crate) fn has_problem(&self, slot: u16) -> bool {
        self.owner(slot).is_none_or(|address| self.node(&address).has_problem())
    }

    pub(crate) fn takes_writes(&self, slot: u16) -> bool {
        !self.is_unreachable(slot) && !self.is_unwritable(slot)
    }

    pub(crate) fn is_unwritable(&self, slot: u16) -> bool {
        self.owner(slot).is_some_and(|address| self.node(&address).is_unwritable())
    }

    pub(crate) fn note_written(&self, slot: u16) {
        self.owner(slot).into_iter().for_each(|address| self.node(&address).note_written());
    }

    pub(crate) fn is_unreachable(&self, slot: u16) -> bool {
        self.owner(slot).is_none_or(|address| self.node(&address).is_unreachable())
    }

    pub(crate) fn writable_topology(&self) -> Topology {
        let mut topology = (*self.topology()).clone();
        for member in &mut topology.members {
            member.is_unwritable = self.node(&member.address).is_persistently_unwritable();
        }
        topology
    }

    /// Accepts the most frequent answer, because one may be late or wrong.
    pub(crate) async fn refresh(&self, until: Instant) -> Result<(), RequestError> {
        if self.is_single {
            return Ok(());
        }
        let begun = Instant::now();
        let Ok(mut refreshed) = timeout_at(until, self.refreshed.lock()).await else {
            return Err(self.no_server_answers());
        };
        // Another task has queried the topology since this query began.
        if refreshed.is_some_and(|at| at >= begun) {
            return Ok(());
        }
        self.query_topology(until).await?;
        *refreshed = Some(Instant::now());
        Ok(())
    }

    fn no_server_answers(&self) -> RequestError {
        let reason = "no server of the cluster answers".into();
        RequestError::Unreachable { node: self.seeds[0].clone(), reason }
    }

    async fn query_topology(&self, until: Instant) -> Result<(), RequestError> {
        let mut queries: FuturesUnordered<_> = self
            .servers_to_query()
            .into_iter()
            .map(|address| async move { self.topology_by(&address, until).await })
            .collect();
        let mut answers = Vec::new();
        let mut request_error = None;
        let mut until = until.min(Instant::now() + TOPOLOGY_TIMEOUT);
        while let Ok(Some(answer)) = timeout_at(until, queries.next()).await {
            match answer {
                Ok(topology) => {
                    answers.push((topology.signature(), topology));
                    until = until.min(Instant::now() + TOPOLOGY_AFTER_FIRST);
                }
                Err(error) => request_error = Some(error),
            }
        }
        drop(queries);
        let votes =
            |signature: u64| answers.iter().filter(|(other, _)| *other == signature).count();
        let best =
            answers.iter().max_by_key(|(answers, topology)| (votes(*answers), topology.epoch));
        let Some(topology) = best.map(|(_, topology)| topology.clone()) else {
            return Err(request_error.unwrap_or_else(|| self.no_server_answers()));
        };
        let mut known = self.known();
        known.nodes.retain(|address, _| {
            self.seeds.contains(address)
                || topology.members.iter().any(|member| member.address == *address)
        });
        known.learn(topology);
        Ok(())
    }

    fn servers_to_query(&self) -> Vec<Address> {
        let topology = self.topology();
        let mut all: Vec<Address> = topology.members.iter().map(|m| m.address.clone()).collect();
        all.extend(self.seeds.iter().cloned());
        all.sort();
        all.dedup();
        let count = all.len();
        all.rotate_left(self.refreshes.fetch_add(1, Ordering::Relaxed) % count.max(1));
        all.truncate(QUERIES_AT_ONCE);
        all
    }

    async fn topology_by(
        &self,
        address: &Address,
        until: Instant,
    ) -> Result<Topology, RequestError> {
        let mut question = redis::pipe();
        question.cmd("CLUSTER").arg("NODES");
        let node = self.node(address);
        let answers = node.send(&question, TOPOLOGY_BYTES, until).await?;
        let text = match &answers[0] {
            Value::ServerError(error) => {
                let request_error = RequestError::from_answer(address, error);
                record_service(&node, Some(&request_error));
                return Err(request_error);
            }
            value => redis::from_redis_value_ref::<String>(value).ok(),
        };
        text.and_then(|text| Topology::parse(&text, address, self.connector.is_secure()))
            .ok_or_else(|| RequestError::Refused {
                node: address.clone(),
                reason: "its answer to CLUSTER NODES cannot be parsed".into(),
            })
    }

    /// Sends each request once and follows redirections. An answer is the first error, if any.
    pub(crate) async fn once(&self, requests: Vec<Request>, until: Instant) -> Vec<Answer> {
        let mut answers: Vec<Answer> = requests
            .iter()
            .map(|request| match self.owner(request.slot) {
                Some(to) => Err(RequestError::Moved { to, only_this_time: false }),
                None => Err(RequestError::NoOwner { slot: request.slot }),
            })
            .collect();
        let mut pending: Vec<(usize, Request)> = requests.into_iter().enumerate().collect();
        for _ in 0..REDIRECTIONS {
            let mut groups: HashMap<Address, Vec<Sent>> = HashMap::new();
            for (index, request) in pending.drain(..) {
                if let Err(RequestError::Moved { to, only_this_time }) = &answers[index] {
                    let sent = Sent { index, request, is_asking: *only_this_time };
                    groups.entry(to.clone()).or_default().push(sent);
                }
            }
            if groups.is_empty() {
                break;
            }
            let sent = groups
                .into_iter()
                .map(|(address, group)| async move { self.send_one(&address, group, until).await });
            for (index, request, answer) in join_all(sent).await.into_iter().flatten() {
                match &answer {
                    Err(RequestError::Moved { to, only_this_time: false }) => {
                        self.known().learn_move(request.slot, to.clone());
                    }
                    Err(RequestError::Unwritable { node, reason }) => {
                        self.node(node).note_unwritable(reason);
                    }
                    _ => {}
                }
                answers[index] = answer;
                pending.push((index, request));
            }
        }
        answers
    }

    /// Copies commands back only into redirected requests: commands are long, redirections rare.
    async fn send_one(
        &self,
        address: &Address,
        mut group: Vec<Sent>,
        until: Instant,
    ) -> Vec<(usize, Request, Answer)> {
        let mut pipeline = Pipeline::new();
        let mut answer_bytes = 0;
        let mut counts = Vec::with_capacity(group.len());
        for Sent { request, is_asking, .. } in &mut group {
            answer_bytes += request.answer_bytes;
            counts.push(request.commands.len());
            for command in request.commands.drain(..) {
                if *is_asking {
                    pipeline.cmd("ASKING");
                }
                pipeline.add_command(command);
            }
        }
        let node = self.node(address);
        let mut values = match node.send(&pipeline, answer_bytes, until).await {
            Ok(values) => Ok(values.into_iter()),
            Err(request_error) => Err(request_error),
        };
        let mut commands = pipeline.cmd_iter();
        let one = |(sent, count): (Sent, usize)| {
            let Sent { index, mut request, is_asking } = sent;
            let own: Vec<&Cmd> = commands.by_ref().take(count << u8::from(is_asking)).collect();
            let answer = match &mut values {
                Ok(values) => answer_of(address, values.by_ref().take(own.len()), is_asking),
                Err(request_error) => Err(request_error.clone()),
            };
            if matches!(answer, Err(RequestError::Moved { .. })) {
                let skipped = usize::from(is_asking);
                let own = own.into_iter().skip(skipped).step_by(1 + skipped);
                request.commands = own.cloned().collect();
            }
            record_service(&node, answer.as_ref().err());
            (index, request, answer)
        };
        group.into_iter().zip(counts).map(one).collect()
    }
}

fn record_service(node: &Node, request_error: Option<&RequestError>) {
    match request_error {
        // A missing answer was already recorded by the code that waited for it.
        Some(RequestError::Unreachable { .. } | RequestError::NoOwner { .. }) => {}
        Some(RequestError::Busy { reason, .. } | RequestError::Refused { reason, .. }) => {
            node.note_idle(reason);
        }
        // The server executed at least a part of the request, or knows which server does.
        Some(
            RequestError::Unwritable { .. }
            | RequestError::Full { .. }
            | RequestError::Moved { .. },
        )
        | None => node.note_served(),
    }
}

struct Sent {
    index: usize,
    request: Request,
    /// The server executes each command only after ASKING.
    is_asking: bool,
}

fn answer_of(address: &Address, values: impl Iterator<Item = Value>, is_asking: bool) -> Answer {
    let skipped = usize::from(is_asking);
    let mut answers = Vec::new();
    let mut request_error = None;
    for value in values.skip(skipped).step_by(1 + skipped) {
        match value {
            Value::ServerError(error) => {
                request_error.get_or_insert_with(|| RequestError::from_answer(address, &error));
            }
            value => answers.push(value),
        }
    }
    request_error.map_or(Ok(answers), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_owner_is_recorded() {
        let address = |port| Address { host: "h".into(), port };
        let all_to = |port| Topology::single(address(port));
        let mut known = Known {
            nodes: HashMap::new(),
            topology: Arc::new(all_to(1)),
            moved: HashMap::new(),
            changed: BTreeSet::new(),
        };
        known.learn(all_to(1));
        known.learn_move(5, address(1));
        assert!(known.changed.is_empty());
        known.learn_move(5, address(2));
        assert_eq!(known.owner(5), Some(&address(2)));
        assert_eq!(std::mem::take(&mut known.changed), [5].into());
        // Most servers do not know of the move yet.
        known.learn(all_to(1));
        assert_eq!(known.owner(5), Some(&address(1)));
        assert_eq!(std::mem::take(&mut known.changed), [5].into());
        known.learn(all_to(2));
        known.learn(all_to(1));
        assert_eq!((known.owner(5), known.changed.len()), (Some(&address(1)), SLOTS));
    }
}
