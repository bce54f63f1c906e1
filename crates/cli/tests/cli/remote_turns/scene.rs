//! The cluster that things happen to, and what is known of the copies that it has.

use super::program::Program;
use super::ways::{Way, Weather};
use crate::bed::{Bed, Node, PASSWORD, eventually};
use crate::support::mix64;
use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::time::Duration;

/// How a program has its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// In two copies, by TLS.
    Secure,
    /// In two copies, by ways that things happen to.
    Proxied,
    /// In one copy beside a directory, by such ways.
    Beside,
}

impl Mode {
    pub(crate) const ALL: [Mode; 3] = [Mode::Proxied, Mode::Beside, Mode::Secure];

    pub(crate) fn has_ways(self) -> bool {
        self != Mode::Secure
    }
}

/// Numbers that look random, and the same again for the same seed.
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

/// For each slot-less name of an extent: who has it, by which key, and a digest of what is there.
type Extents = BTreeMap<String, Vec<(usize, String, String)>>;

pub(crate) struct Scene {
    pub(crate) bed: MutexGuard<'static, Bed>,
    /// To each server.
    pub(crate) ways: Vec<Way>,
    pub(crate) random: Random,
    pub(crate) mode: Mode,
}

impl Scene {
    pub(crate) fn new(bed: MutexGuard<'static, Bed>, seed: u64) -> Scene {
        let ways = bed.nodes.iter().map(|node| Way::to(node.port, seed)).collect();
        Scene { bed, ways, random: Random(mix64(seed)), mode: Mode::Secure }
    }

    /// Whole and empty, for a program that has its pages like this.
    pub(crate) fn begin(&mut self, mode: Mode) {
        self.mode = mode;
        self.repair();
        self.bed.forget();
    }

    /// All servers run and can be reached, with what they have.
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

    /// For a program in this mode.
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

    /// `None` where a primary does not tell: on a machine that is busy with other things one may
    /// take another for dead for a moment.
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

    /// Why not all that is stored is there twice, on two primaries, and alike.
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

    /// Holds the program until both copies of everything are there and alike again.
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

    /// Nothing of the run is left on any primary.
    pub(crate) fn is_empty(&self) -> bool {
        let keys = |at: usize| self.bed.nodes[at].number(&["DBSIZE"]);
        self.bed.primaries().into_iter().map(keys).sum::<i64>() == 0
    }
}
