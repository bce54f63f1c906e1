//! The cluster under fault injection, and checks of the copies that it stores.

use super::program::Program;
use super::ways::{Way, Weather};
use crate::bed::{Bed, Node, PASSWORD, eventually};
use crate::support::mix64;
use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::time::Duration;

/// Storage and connection of a program's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// Two copies, over TLS.
    Secure,
    /// Two copies, through faulty proxies.
    Proxied,
    /// One copy in addition to a local area, through faulty proxies.
    Beside,
}

impl Mode {
    pub(crate) const ALL: [Mode; 3] = [Mode::Proxied, Mode::Beside, Mode::Secure];

    pub(crate) fn has_ways(self) -> bool {
        self != Mode::Secure
    }
}

/// Pseudo-random numbers, reproducible from the seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix64(self.0) % limit
    }

    pub(crate) fn milliseconds(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most - least + 1))
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

/// For each extent, by its name without slot: node, key, and digest of the value.
type Extents = BTreeMap<String, Vec<(usize, String, String)>>;

pub(crate) struct Scene {
    pub(crate) bed: MutexGuard<'static, Bed>,
    pub(crate) ways: Vec<Way>,
    pub(crate) random: Random,
    pub(crate) mode: Mode,
}

impl Scene {
    pub(crate) fn new(bed: MutexGuard<'static, Bed>, seed: u64) -> Scene {
        let ways = bed.nodes.iter().map(|node| Way::to(node.port, seed)).collect();
        Scene { bed, ways, random: Random(mix64(seed)), mode: Mode::Secure }
    }

    /// Repairs and empties the cluster for a program in `mode`.
    pub(crate) fn begin(&mut self, mode: Mode) {
        self.mode = mode;
        self.repair();
        self.bed.forget();
    }

    /// Makes all servers run and reachable. Keeps their data.
    pub(crate) fn repair(&mut self) {
        self.ways.iter().for_each(|way| way.become_weather(Weather::Fair));
        self.bed.repair();
        let port = |way: &Way| self.mode.has_ways().then_some(way.port);
        let announced: Vec<u16> = (self.ways.iter().zip(&self.bed.nodes))
            .map(|(way, node)| port(way).unwrap_or(node.port))
            .collect();
        for (node, way) in self.bed.nodes.iter().zip(&self.ways) {
            node.announce(port(way));
        }
        let knows_all = |node: &Node| {
            let told = node.text(&["CLUSTER", "NODES"]);
            announced.iter().all(|port| told.contains(&format!(":{port}@")))
        };
        eventually("all know how each is reached", || self.bed.nodes.iter().all(knows_all));
    }

    pub(crate) fn url(&self, deadline: &str) -> String {
        let options = format!("&size=256M&deadline={deadline}");
        if !self.mode.has_ways() {
            return self.bed.secure_url(&options);
        }
        let password = self.bed.file("password");
        std::fs::write(&password, format!("{PASSWORD}\n")).expect("a file");
        let seeds: Vec<String> =
            self.ways.iter().map(|way| format!("127.0.0.1:{}", way.port)).collect();
        format!("redis://{}?password-file={}{options}", seeds.join(","), password.display())
    }

    /// Lists the extents. Returns `None` if a primary does not answer: on a busy machine a node may briefly
    /// consider another one failed.
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
        for primary in self.bed.primaries() {
            let told = self.bed.nodes[primary].try_ask(&["EVAL", script, "0"])?;
            let told: Vec<String> = redis::from_redis_value(told).expect("keys and digests");
            for [key, digest] in told.as_chunks().0 {
                let name = key.split_once('}').map_or(key.as_str(), |(_, name)| name);
                extents.entry(name.into()).or_default().push((
                    primary,
                    key.clone(),
                    digest.clone(),
                ));
            }
        }
        Some(extents)
    }

    /// Returns the reason why not every extent has two equal copies on two primaries, or `None`.
    fn what_is_not_intact(&self) -> Option<String> {
        let Some(extents) = self.extents() else { return Some("a primary does not tell".into()) };
        let is_intact = |copies: &&Vec<(usize, String, String)>| {
            let [(first, _, digest), rest @ ..] = &copies[..] else { return false };
            rest.iter().any(|it| it.0 != *first) && rest.iter().all(|it| it.2 == *digest)
        };
        let wrong = extents.iter().find(|(_, copies)| !is_intact(copies));
        match wrong {
            Some((name, copies)) => Some(format!("{name}: {copies:?}")),
            None => extents.is_empty().then(|| "nothing is stored".into()),
        }
    }

    /// Stops the program until every extent has two equal copies again.
    pub(crate) fn await_two_copies(&self, program: &mut Program) {
        program.hold();
        let mut why = None;
        let settled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("two copies of everything", || {
                why = self.what_is_not_intact();
                why.is_none()
            });
        }));
        if let Err(panic) = settled {
            println!("not intact: {}", why.unwrap_or_default());
            std::panic::resume_unwind(panic);
        }
        program.let_go();
    }

    pub(crate) fn is_empty(&self) -> bool {
        let keys = |at: usize| self.bed.nodes[at].number(&["DBSIZE"]);
        self.bed.primaries().into_iter().map(keys).sum::<i64>() == 0
    }
}
