//! Faults of the cluster or the helper while the program runs.

use super::program::Program;
use super::scene::{Mode, Scene};
use super::ways::Weather;
use crate::bed::PASSWORD;
use crate::support::tree::kill;
use rustix::process::Signal;
use std::thread::sleep;
use std::time::Duration;

/// A fault after which each page still has one good copy. The program must continue.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) needs_ways: bool,
    pub(crate) inject: fn(&mut Scene, &Program),
}

impl Kind {
    pub(crate) fn is_for(&self, mode: Mode) -> bool {
        mode.has_ways() || !self.needs_ways
    }
}

/// A fault that makes both copies of a page unavailable. Without a local area the program must stop with a
/// message. With one it must continue.
pub(crate) struct Loss {
    pub(crate) name: &'static str,
    pub(crate) inject: fn(&mut Scene),
    /// Restores the servers' service, in addition to [`Scene::repair`].
    pub(crate) undo: fn(&mut Scene),
    pub(crate) deadline: &'static str,
    /// The message contains one of these.
    pub(crate) says: &'static [&'static str],
    /// The fault is so short that the program may continue.
    pub(crate) may_go_on: bool,
}

/// Deadline longer than any failover here, so that the result does not depend on its duration.
pub(crate) const PATIENT: &str = "60s";
const OTHER_PASSWORD: &str = "another";

const fn kind(name: &'static str, inject: fn(&mut Scene, &Program)) -> Kind {
    Kind { name, needs_ways: false, inject }
}

const fn on_the_way(name: &'static str, inject: fn(&mut Scene, &Program)) -> Kind {
    Kind { name, needs_ways: true, inject }
}

pub(crate) const KINDS: &[Kind] = &[
    kind("primary killed", |scene, _| {
        let primary = a_primary(scene);
        scene.bed.nodes[primary].kill();
        pause(scene, 50, 4000);
    }),
    kind("primary and replica killed", |scene, _| {
        let primary = a_primary(scene);
        let replica = scene.bed.replica_of(primary);
        for node in [primary, replica] {
            scene.bed.nodes[node].kill();
        }
        pause(scene, 50, 6000);
    }),
    kind("helper killed", |_, program| {
        program.helper().into_iter().for_each(kill);
    }),
    kind("helper and primary killed", |scene, program| {
        let primary = a_primary(scene);
        program.helper().into_iter().for_each(kill);
        scene.bed.nodes[primary].kill();
        pause(scene, 50, 4000);
    }),
    kind("failover", |scene, _| fail_over(scene, &["CLUSTER", "FAILOVER"])),
    kind("takeover", |scene, _| fail_over(scene, &["CLUSTER", "FAILOVER", "TAKEOVER"])),
    kind("slots moved", |scene, _| {
        let from = a_primary(scene);
        let others: Vec<usize> =
            scene.bed.primaries().into_iter().filter(|other| *other != from).collect();
        let to = scene.random.pick(&others);
        let (from, to) = (&scene.bed.nodes[from], &scene.bed.nodes[to]);
        scene.bed.migrate(from, to, &from.used_slots());
    }),
    kind("a server forgets all", |scene, _| {
        let primary = a_primary(scene);
        scene.bed.nodes[primary].ask(&["FLUSHALL"]);
    }),
    kind("primary stands still", |scene, _| {
        let primary = a_primary(scene);
        scene.bed.nodes[primary].signal(Signal::STOP);
        pause(scene, 50, 3000);
        scene.bed.nodes[primary].signal(Signal::CONT);
    }),
    kind("both stand still", |scene, _| {
        let primary = a_primary(scene);
        let replica = scene.bed.replica_of(primary);
        for (node, what) in [(primary, Signal::STOP), (replica, Signal::STOP)] {
            scene.bed.nodes[node].signal(what);
        }
        pause(scene, 50, 5000);
        // Resumes in the worse order: the replica takes over first.
        scene.bed.nodes[replica].signal(Signal::CONT);
        pause(scene, 0, 1500);
        scene.bed.nodes[primary].signal(Signal::CONT);
    }),
    kind("password changed, file too", |scene, _| {
        for (from, to) in [(PASSWORD, OTHER_PASSWORD), (OTHER_PASSWORD, PASSWORD)] {
            change_password(scene, from, to);
            std::fs::write(scene.bed.file("password"), format!("{to}\n")).expect("a file");
            pause(scene, 200, 1000);
        }
    }),
    on_the_way("20 ms more each way", |scene, _| {
        let primary = a_primary(scene);
        let is_everywhere = scene.random.below(2) == 0;
        for (at, way) in scene.ways.iter().enumerate() {
            if is_everywhere || at == primary {
                way.become_weather(Weather::Slow);
            }
        }
        await_strike(scene);
        pause(scene, 500, 2000);
    }),
    on_the_way("losses, broken connections", |scene, _| {
        scene.ways.iter().for_each(|way| way.become_weather(Weather::Lossy));
        await_strike(scene);
        pause(scene, 500, 3000);
    }),
    on_the_way("wrong bytes", |scene, _| {
        let primary = a_primary(scene);
        scene.ways[primary].become_weather(Weather::Lying);
        await_strike(scene);
        pause(scene, 200, 2000);
    }),
];

const fn loss(name: &'static str, says: &'static [&'static str], inject: fn(&mut Scene)) -> Loss {
    Loss { name, inject, undo: |_| (), deadline: PATIENT, says, may_go_on: false }
}

const LATE: &[&str] = &["did not complete the request within", "did not answer in time"];
const FULL: &[&str] = &["has no space", "has no slot", "swap space"];

pub(crate) const LOSSES: &[Loss] = &[
    loss("all servers forget", &["is lost"], |scene| {
        for primary in scene.bed.primaries() {
            scene.bed.nodes[primary].ask(&["FLUSHALL"]);
        }
    }),
    loss("two servers forget", &["is lost"], |scene| {
        // Primaries with the most keys. After copies were moved, a primary may have none.
        let mut primaries = scene.bed.primaries();
        primaries.sort_by_key(|at| -scene.bed.nodes[*at].number(&["DBSIZE"]));
        for primary in &primaries[..2] {
            scene.bed.nodes[*primary].ask(&["FLUSHALL"]);
        }
    }),
    Loss {
        deadline: "4s",
        ..loss("all servers killed", LATE, |scene| {
            scene.bed.nodes.iter_mut().for_each(|node| node.kill());
        })
    },
    Loss {
        deadline: "4s",
        ..loss("all servers stand still", LATE, |scene| {
            scene.bed.nodes.iter().for_each(|node| node.signal(Signal::STOP));
        })
    },
    loss("memory full", FULL, fill),
    Loss {
        may_go_on: true,
        ..loss("memory full for a moment", FULL, |scene| {
            fill(scene);
            pause(scene, 50, 2000);
            set_maximum(scene, "268435456");
        })
    },
    Loss {
        deadline: "4s",
        undo: |scene| change_password(scene, OTHER_PASSWORD, PASSWORD),
        ..loss("password changed", &["assword"], |scene| {
            change_password(scene, PASSWORD, OTHER_PASSWORD);
        })
    },
];

fn a_primary(scene: &mut Scene) -> usize {
    let primaries = scene.bed.primaries();
    scene.random.pick(&primaries)
}

fn pause(scene: &mut Scene, least: u64, most: u64) {
    sleep(scene.random.milliseconds(least, most));
}

/// Waits until a proxy has delayed, dropped or altered data, but at most 2 s: the program may send
/// no requests.
fn await_strike(scene: &Scene) {
    let struck = || scene.ways.iter().map(super::ways::Way::struck).sum::<u64>();
    let before = struck();
    for _ in 0..200 {
        if struck() > before {
            return;
        }
        sleep(Duration::from_millis(10));
    }
}

fn fail_over(scene: &mut Scene, command: &[&str]) {
    let primary = a_primary(scene);
    let replica = scene.bed.replica_of(primary);
    scene.bed.nodes[replica].ask(command);
    pause(scene, 0, 1000);
}

fn set_maximum(scene: &Scene, bytes: &str) {
    for primary in scene.bed.primaries() {
        scene.bed.nodes[primary].set("maxmemory", bytes);
    }
}

/// Sets a memory limit below the servers' usage.
fn fill(scene: &mut Scene) {
    set_maximum(scene, "1000000");
}

fn change_password(scene: &mut Scene, from: &str, to: &str) {
    for node in &scene.bed.nodes {
        node.ask_as(from, &["CONFIG", "SET", "masterauth", to]);
        node.ask_as(from, &["CONFIG", "SET", "requirepass", to]);
        node.ask_as(to, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
}
