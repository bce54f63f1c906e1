//! Faults of the cluster or the helper while the program runs.

use super::program::Program;
use super::setup::{Mode, Setup};
use crate::proxies::{Behaviour, Proxy};
use crate::support::processes::kill;
use crate::test_cluster::PASSWORD;
use rustix::process::Signal;
use std::thread::sleep;
use std::time::Duration;

/// After the fault each page still has one good copy, so the program must continue.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) needs_proxies: bool,
    pub(crate) inject: fn(&mut Setup, &Program),
}

impl Kind {
    pub(crate) fn is_for(&self, mode: Mode) -> bool {
        mode.uses_proxies() || !self.needs_proxies
    }
}

/// Makes both copies of a page unavailable. The program must stop with a message, unless it has a
/// local area.
pub(crate) struct Loss {
    pub(crate) name: &'static str,
    pub(crate) inject: fn(&mut Setup),
    /// Acts in addition to [`Setup::repair`].
    pub(crate) undo: fn(&mut Setup),
    pub(crate) deadline: &'static str,
    pub(crate) message_parts: &'static [&'static str],
    /// True for a short fault.
    pub(crate) may_continue: bool,
}

/// Longer than any failover here.
pub(crate) const LONG_DEADLINE: &str = "60s";
const OTHER_PASSWORD: &str = "another";

const fn kind(name: &'static str, inject: fn(&mut Setup, &Program)) -> Kind {
    Kind { name, needs_proxies: false, inject }
}

const fn in_transit(name: &'static str, inject: fn(&mut Setup, &Program)) -> Kind {
    Kind { name, needs_proxies: true, inject }
}

pub(crate) const KINDS: &[Kind] = &[
    kind("primary killed", |setup, _| {
        let primary = random_primary(setup);
        setup.test_cluster.nodes[primary].kill();
        pause(setup, 50, 4000);
    }),
    kind("primary and replica killed", |setup, _| {
        let primary = random_primary(setup);
        let replica = setup.test_cluster.replica_of(primary);
        for node in [primary, replica] {
            setup.test_cluster.nodes[node].kill();
        }
        pause(setup, 50, 6000);
    }),
    kind("helper killed", |_, program| {
        program.helper().into_iter().for_each(kill);
    }),
    kind("helper and primary killed", |setup, program| {
        let primary = random_primary(setup);
        program.helper().into_iter().for_each(kill);
        setup.test_cluster.nodes[primary].kill();
        pause(setup, 50, 4000);
    }),
    kind("failover", |setup, _| fail_over(setup, &["CLUSTER", "FAILOVER"])),
    kind("takeover", |setup, _| fail_over(setup, &["CLUSTER", "FAILOVER", "TAKEOVER"])),
    kind("slots moved", |setup, _| {
        let from = random_primary(setup);
        let others: Vec<usize> =
            setup.test_cluster.primaries().into_iter().filter(|other| *other != from).collect();
        let to = setup.random.pick(&others);
        let (from, to) = (&setup.test_cluster.nodes[from], &setup.test_cluster.nodes[to]);
        setup.test_cluster.migrate(from, to, &from.used_slots());
    }),
    kind("a server forgets all", |setup, _| {
        let primary = random_primary(setup);
        setup.test_cluster.nodes[primary].send(&["FLUSHALL"]);
    }),
    kind("primary stands still", |setup, _| {
        let primary = random_primary(setup);
        setup.test_cluster.nodes[primary].signal(Signal::STOP);
        pause(setup, 50, 3000);
        setup.test_cluster.nodes[primary].signal(Signal::CONT);
    }),
    kind("both stand still", |setup, _| {
        let primary = random_primary(setup);
        let replica = setup.test_cluster.replica_of(primary);
        for (node, what) in [(primary, Signal::STOP), (replica, Signal::STOP)] {
            setup.test_cluster.nodes[node].signal(what);
        }
        pause(setup, 50, 5000);
        // The worse order: the replica takes over first.
        setup.test_cluster.nodes[replica].signal(Signal::CONT);
        pause(setup, 0, 1500);
        setup.test_cluster.nodes[primary].signal(Signal::CONT);
    }),
    kind("password changed, file too", |setup, _| {
        for (from, to) in [(PASSWORD, OTHER_PASSWORD), (OTHER_PASSWORD, PASSWORD)] {
            setup.test_cluster.change_password(from, to);
            std::fs::write(setup.test_cluster.file("password"), format!("{to}\n")).expect("a file");
            pause(setup, 200, 1000);
        }
    }),
    in_transit("20 ms more each way", |setup, _| {
        let primary = random_primary(setup);
        let is_everywhere = setup.random.below(2) == 0;
        for (at, proxy) in setup.proxies.iter().enumerate() {
            if is_everywhere || at == primary {
                proxy.set_behaviour(Behaviour::Slow);
            }
        }
        wait_for_fault(setup);
        pause(setup, 500, 2000);
    }),
    in_transit("losses, broken connections", |setup, _| {
        setup.proxies.iter().for_each(|proxy| proxy.set_behaviour(Behaviour::Lossy));
        wait_for_fault(setup);
        pause(setup, 500, 3000);
    }),
    in_transit("wrong bytes", |setup, _| {
        let primary = random_primary(setup);
        setup.proxies[primary].set_behaviour(Behaviour::Lying);
        wait_for_fault(setup);
        pause(setup, 200, 2000);
    }),
];

const fn loss(
    name: &'static str,
    message_parts: &'static [&'static str],
    inject: fn(&mut Setup),
) -> Loss {
    Loss { name, inject, undo: |_| (), deadline: LONG_DEADLINE, message_parts, may_continue: false }
}

const LATE: &[&str] = &["did not complete the request within", "did not answer in time"];
const FULL: &[&str] = &["has no space", "has no slot", "swap space"];

pub(crate) const LOSSES: &[Loss] = &[
    loss("all servers forget", &["is lost"], |setup| {
        setup.test_cluster.primary_nodes().for_each(|node| _ = node.send(&["FLUSHALL"]));
    }),
    loss("two servers forget", &["is lost"], |setup| {
        // The primaries with the most keys. After copies were moved, a primary may have none.
        let mut primaries = setup.test_cluster.primaries();
        primaries.sort_by_key(|at| -setup.test_cluster.nodes[*at].number(&["DBSIZE"]));
        for primary in &primaries[..2] {
            setup.test_cluster.nodes[*primary].send(&["FLUSHALL"]);
        }
    }),
    Loss {
        deadline: "4s",
        ..loss("all servers killed", LATE, |setup| {
            setup.test_cluster.nodes.iter_mut().for_each(|node| node.kill());
        })
    },
    Loss {
        deadline: "4s",
        ..loss("all servers stand still", LATE, |setup| {
            setup.test_cluster.signal_all(Signal::STOP);
        })
    },
    loss("memory full", FULL, fill),
    Loss {
        may_continue: true,
        ..loss("memory full for a moment", FULL, |setup| {
            fill(setup);
            pause(setup, 50, 2000);
            setup.test_cluster.set_maxmemory("268435456");
        })
    },
    Loss {
        deadline: "4s",
        undo: |setup| setup.test_cluster.change_password(OTHER_PASSWORD, PASSWORD),
        ..loss("password changed", &["assword"], |setup| {
            setup.test_cluster.change_password(PASSWORD, OTHER_PASSWORD);
        })
    },
];

fn random_primary(setup: &mut Setup) -> usize {
    let primaries = setup.test_cluster.primaries();
    setup.random.pick(&primaries)
}

fn pause(setup: &mut Setup, least: u64, most: u64) {
    sleep(setup.random.milliseconds(least, most));
}

/// Waits at most 2 s: the program may send no requests.
fn wait_for_fault(setup: &Setup) {
    let altered_chunks = || setup.proxies.iter().map(Proxy::altered_chunks).sum::<u64>();
    let before = altered_chunks();
    for _ in 0..200 {
        if altered_chunks() > before {
            return;
        }
        sleep(Duration::from_millis(10));
    }
}

fn fail_over(setup: &mut Setup, command: &[&str]) {
    let primary = random_primary(setup);
    let replica = setup.test_cluster.replica_of(primary);
    setup.test_cluster.nodes[replica].send(command);
    pause(setup, 0, 1000);
}

/// Sets a limit below the servers' usage.
fn fill(setup: &mut Setup) {
    setup.test_cluster.set_maxmemory("1000000");
}
