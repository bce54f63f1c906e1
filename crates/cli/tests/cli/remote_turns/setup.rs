//! The cluster under fault injection, and checks of the copies that it stores.

use super::program::Program;
use crate::proxies::{Behaviour, Proxy};
use crate::support::mix64;
use crate::test_cluster::{Node, TestCluster, eventually};
use softswap_testkit::random::Random;
use std::collections::BTreeMap;
use std::sync::MutexGuard;

/// Storage and connection of a program's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// Two copies, over TLS.
    Secure,
    /// Two copies, through faulty proxies.
    Proxied,
    /// One copy in addition to a local area, through faulty proxies.
    OutsideBudget,
}

impl Mode {
    pub(crate) const ALL: [Mode; 3] = [Mode::Proxied, Mode::OutsideBudget, Mode::Secure];

    pub(crate) fn uses_proxies(self) -> bool {
        self != Mode::Secure
    }
}

/// The copies of each extent, by its name without slot: node, key, digest of the value.
type Extents = BTreeMap<String, Vec<(usize, String, String)>>;

pub(crate) struct Setup {
    pub(crate) test_cluster: MutexGuard<'static, TestCluster>,
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) random: Random,
    pub(crate) mode: Mode,
}

impl Setup {
    pub(crate) fn new(test_cluster: MutexGuard<'static, TestCluster>, seed: u64) -> Setup {
        let proxies = test_cluster.nodes.iter().map(|node| Proxy::to(node.port, seed)).collect();
        Setup { test_cluster, proxies, random: Random(mix64(seed)), mode: Mode::Secure }
    }

    pub(crate) fn begin(&mut self, mode: Mode) {
        self.mode = mode;
        self.repair();
        self.test_cluster.forget();
    }

    /// Keeps the servers' data.
    pub(crate) fn repair(&mut self) {
        self.proxies.iter().for_each(|proxy| proxy.set_behaviour(Behaviour::Fair));
        self.test_cluster.repair();
        let port = |proxy: &Proxy| self.mode.uses_proxies().then_some(proxy.port);
        let announced: Vec<u16> = (self.proxies.iter().zip(&self.test_cluster.nodes))
            .map(|(proxy, node)| port(proxy).unwrap_or(node.port))
            .collect();
        for (node, proxy) in self.test_cluster.nodes.iter().zip(&self.proxies) {
            node.announce(port(proxy));
        }
        let knows_all = |node: &Node| {
            let known_nodes = node.text(&["CLUSTER", "NODES"]);
            announced.iter().all(|port| known_nodes.contains(&format!(":{port}@")))
        };
        eventually("all nodes know the addresses of all nodes", || {
            self.test_cluster.nodes.iter().all(knows_all)
        });
    }

    pub(crate) fn url(&self, deadline: &str) -> String {
        let options = format!("&size=256M&deadline={deadline}");
        match self.mode.uses_proxies() {
            true => self.test_cluster.url_to(self.proxies.iter().map(|it| it.port), &options),
            false => self.test_cluster.secure_url(&options),
        }
    }

    /// `None`: a primary does not answer. On a busy machine a node may consider another one failed.
    fn extents(&self) -> Option<Extents> {
        let script = "local all = {} \
             for _, key in ipairs(redis.call('KEYS', 'softswap:*')) do \
               if not key:find('lease$') and not key:find('placement$') then \
                 all[#all + 1] = key \
                 all[#all + 1] = redis.sha1hex(redis.call('GET', key)) \
               end \
             end \
             return all";
        let mut extents = Extents::new();
        for primary in self.test_cluster.primaries() {
            let reply = self.test_cluster.nodes[primary].try_send(&["EVAL", script, "0"])?;
            let keys_and_digests: Vec<String> =
                redis::from_redis_value(reply).expect("keys and digests");
            for [key, digest] in keys_and_digests.as_chunks().0 {
                let name = key.split_once('}').map_or(key.as_str(), |(_, name)| name);
                let copy = (primary, key.clone(), digest.clone());
                extents.entry(name.into()).or_default().push(copy);
            }
        }
        Some(extents)
    }

    /// `None` if every extent has two equal copies on two primaries.
    fn missing_redundancy(&self) -> Option<String> {
        let Some(extents) = self.extents() else { return Some("a primary does not answer".into()) };
        let is_intact = |copies: &&Vec<(usize, String, String)>| {
            let [(first, _, digest), rest @ ..] = &copies[..] else { return false };
            rest.iter().any(|it| it.0 != *first) && rest.iter().all(|it| it.2 == *digest)
        };
        let wrong = extents.iter().find(|(_, copies)| !is_intact(copies));
        match wrong {
            Some((name, copies)) => Some(format!("{name}: {copies:?}")),
            None => extents.is_empty().then(|| "no extent is stored".into()),
        }
    }

    /// Stops the program meanwhile.
    pub(crate) fn await_two_copies(&self, program: &mut Program) {
        program.hold();
        let mut why = None;
        let settled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("two copies of each extent", || {
                why = self.missing_redundancy();
                why.is_none()
            });
        }));
        if let Err(panic) = settled {
            println!("not intact: {}", why.unwrap_or_default());
            std::panic::resume_unwind(panic);
        }
        program.release();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.test_cluster.key_count() == 0
    }
}
