//! Sends commands to the servers that have their slots, those for one server in one go.
//!
//! The client library has a connection to whole clusters as well. It stops all requests while it
//! looks for a server that is gone, those to the others too; here each server is on its own.

use crate::link::{Connector, Helper};
use crate::node::Node;
use crate::refusal::Refusal;
use crate::topology::Topology;
use crate::trouble::Trouble;
use crate::url::{Address, Url};
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, Pipeline, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How often one request may be sent on.
const REDIRECTIONS: usize = 4;
/// Who tells of the cluster has so long, and the others this long after the first.
const TOLD_WITHIN: Duration = Duration::from_secs(2);
const TOLD_AFTER_FIRST: Duration = Duration::from_millis(200);
const TOPOLOGY_BYTES: u64 = 4 << 20;
const ASKED_AT_ONCE: usize = 16;

/// Commands about one slot, to be carried out in their order.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) slot: u16,
    pub(crate) commands: Vec<Cmd>,
    /// What the answers may have in them.
    pub(crate) answer_bytes: u64,
}

pub(crate) type Answer = Result<Vec<Value>, Trouble>;

pub(crate) struct Router {
    connector: Arc<Connector>,
    seeds: Vec<Address>,
    stall: Duration,
    is_single: bool,
    refreshes: AtomicUsize,
    known: Mutex<Known>,
}

struct Known {
    nodes: HashMap<Address, Arc<Node>>,
    topology: Arc<Topology>,
    /// What servers said since about slots that moved.
    moved: HashMap<u16, Address>,
}

impl Router {
    pub(crate) fn new(url: &Url, helper: Option<Helper>) -> Result<Self, Refusal> {
        let first = url.seeds.first().ok_or_else(|| Refusal::new("no server is named"))?;
        let topology = Arc::new(Topology::single(first.clone()));
        Ok(Self {
            connector: Arc::new(Connector::new(url, helper)?),
            seeds: url.seeds.clone(),
            stall: (url.deadline / 4).min(Duration::from_secs(2)),
            is_single: url.single,
            refreshes: AtomicUsize::new(0),
            known: Mutex::new(Known { nodes: HashMap::new(), topology, moved: HashMap::new() }),
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

    /// Who has a slot, as far as is known.
    pub(crate) fn owner(&self, slot: u16) -> Option<Address> {
        let known = self.known();
        let owner = known.topology.owner(slot).map(|member| &member.address);
        known.moved.get(&slot).or(owner).cloned()
    }

    pub(crate) fn is_in_trouble(&self, slot: u16) -> bool {
        self.owner(slot).is_none_or(|address| self.node(&address).is_in_trouble())
    }

    /// Asks the servers who has what, and believes what most of them say, be one of them late or
    /// lying; of equally many those that know of the latest change.
    pub(crate) async fn refresh(&self, until: Instant) -> Result<(), Trouble> {
        if self.is_single {
            return Ok(());
        }
        let mut asked: FuturesUnordered<_> = self
            .who_may_tell()
            .into_iter()
            .map(|address| async move { self.topology_by(&address, until).await })
            .collect();
        let mut told = Vec::new();
        let mut trouble = None;
        let mut until = until.min(Instant::now() + TOLD_WITHIN);
        while let Ok(Some(answer)) = timeout_at(until, asked.next()).await {
            match answer {
                Ok(topology) => {
                    told.push((topology.signature(), topology));
                    until = until.min(Instant::now() + TOLD_AFTER_FIRST);
                }
                Err(error) => trouble = Some(error),
            }
        }
        drop(asked);
        let say_so = |signature: u64| told.iter().filter(|(other, _)| *other == signature).count();
        let best = told.iter().max_by_key(|(told, topology)| (say_so(*told), topology.epoch));
        let Some(topology) = best.map(|(_, topology)| topology.clone()) else {
            return Err(trouble.unwrap_or_else(|| Trouble::Away {
                node: self.seeds[0].clone(),
                reason: "no server of the cluster answers".into(),
            }));
        };
        let mut known = self.known();
        known.moved.clear();
        known.nodes.retain(|address, _| {
            self.seeds.contains(address)
                || topology.members.iter().any(|member| member.address == *address)
        });
        known.topology = Arc::new(topology);
        Ok(())
    }

    /// Some of all servers, others each time.
    fn who_may_tell(&self) -> Vec<Address> {
        let topology = self.topology();
        let mut all: Vec<Address> = topology.members.iter().map(|m| m.address.clone()).collect();
        all.extend(self.seeds.iter().cloned());
        all.sort();
        all.dedup();
        let count = all.len();
        all.rotate_left(self.refreshes.fetch_add(1, Ordering::Relaxed) % count.max(1));
        all.truncate(ASKED_AT_ONCE);
        all
    }

    async fn topology_by(&self, address: &Address, until: Instant) -> Result<Topology, Trouble> {
        let mut question = redis::pipe();
        question.cmd("CLUSTER").arg("NODES");
        let node = self.node(address);
        let answers = node.ask(&question, TOPOLOGY_BYTES, until).await?;
        let text = match &answers[0] {
            Value::ServerError(error) => return Err(Trouble::from_answer(address, error)),
            value => redis::from_redis_value_ref::<String>(value).ok(),
        };
        text.and_then(|text| Topology::parse(&text, address, self.connector.is_secure()))
            .ok_or_else(|| Trouble::Refused {
                node: address.clone(),
                reason: "CLUSTER NODES is answered with something else".into(),
            })
    }

    /// Sends each request once, on to whom the servers name, and gives their answers in order.
    /// The commands of a request have all been carried out, or its trouble is that of the first
    /// that was not.
    pub(crate) async fn once(&self, requests: &[Request], until: Instant) -> Vec<Answer> {
        let mut answers: Vec<Answer> = requests
            .iter()
            .map(|request| match self.owner(request.slot) {
                Some(to) => Err(Trouble::Moved { to, only_this_time: false }),
                None => Err(Trouble::Nobody { slot: request.slot }),
            })
            .collect();
        for _ in 0..REDIRECTIONS {
            let mut groups: HashMap<Address, Vec<(usize, bool)>> = HashMap::new();
            for (index, answer) in answers.iter().enumerate() {
                if let Err(Trouble::Moved { to, only_this_time }) = answer {
                    groups.entry(to.clone()).or_default().push((index, *only_this_time));
                }
            }
            if groups.is_empty() {
                break;
            }
            let asked = groups.into_iter().map(|(address, group)| async move {
                let got = self.ask_one(&address, requests, &group, until).await;
                (group, got)
            });
            for (group, got) in join_all(asked).await {
                for ((index, _), answer) in group.into_iter().zip(got) {
                    if let Err(Trouble::Moved { to, only_this_time: false }) = &answer {
                        self.known().moved.insert(requests[index].slot, to.clone());
                    }
                    answers[index] = answer;
                }
            }
        }
        answers
    }

    async fn ask_one(
        &self,
        address: &Address,
        requests: &[Request],
        group: &[(usize, bool)],
        until: Instant,
    ) -> Vec<Answer> {
        let mut pipeline = Pipeline::new();
        let mut answer_bytes = 0;
        for (index, is_asking) in group {
            let request = &requests[*index];
            answer_bytes += request.answer_bytes;
            for command in &request.commands {
                if *is_asking {
                    pipeline.cmd("ASKING");
                }
                pipeline.add_command(command.clone());
            }
        }
        let values = match self.node(address).ask(&pipeline, answer_bytes, until).await {
            Ok(values) => values,
            Err(trouble) => return vec![Err(trouble); group.len()],
        };
        let mut values = values.into_iter();
        let one = |(index, is_asking): &(usize, bool)| {
            let mut answers = Vec::new();
            let mut trouble = None;
            for _ in &requests[*index].commands {
                if *is_asking {
                    values.next();
                }
                match values.next() {
                    Some(Value::ServerError(error)) => {
                        trouble.get_or_insert_with(|| Trouble::from_answer(address, &error));
                    }
                    Some(value) => answers.push(value),
                    None => {}
                }
            }
            trouble.map_or(Ok(answers), Err)
        };
        group.iter().map(one).collect()
    }
}
