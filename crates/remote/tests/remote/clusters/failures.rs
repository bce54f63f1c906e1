//! Failures of a real cluster: no read returns content that was not written. While one copy of each
//! page exists, the program continues; otherwise an error names the lost page within the deadline.

use super::bed::{PASSWORD, bed, eventually};
use super::job::{Job, Random, block_on, new_run, same_run};
use rustix::process::Signal;
use softswap_remote::store::{PageStore, StoreError};
use softswap_testkit::waiting::HANG_TIMEOUT;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const PAGES: u64 = 700;
/// Long enough for any failover; no test depends on its duration.
const PATIENT: &str = "&deadline=120s";

#[test]
fn pages_come_back_as_they_were_written() {
    let Some(bed) = bed() else { return };
    block_on(async {
        let run = new_run();
        let next = same_run(&run);
        let mut job = Job::new(&bed.secure_url(""), run).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        job.work(&mut Random(7), PAGES, 300).await;
        job.read_all().await.unwrap();

        // Another helper continues after this one was killed.
        let written = std::mem::take(&mut job.written);
        drop(job);
        let mut job = Job::new(&bed.secure_url(""), next).await.unwrap();
        job.written = written;
        job.read_all().await.unwrap();
        job.cluster.remove(0..100).await.unwrap();
        job.written.retain(|page, _| *page >= 100);
        job.read_all().await.unwrap();
        assert!(matches!(
            job.cluster.read(0, &[1], &mut [[0; 4096]]).await,
            Err(StoreError::Lost { page: 0, .. })
        ));
        job.cluster.close().await.unwrap();
    });
    for primary in bed.primaries() {
        assert_eq!(bed.nodes[primary].number(&["DBSIZE"]), 0, "all of the run is removed");
    }
}

fn connections(node: &super::bed::Node, run: u64) -> Vec<String> {
    let name = format!("name=softswap-{run:016x}-");
    let clients = node.text(&["CLIENT", "LIST"]);
    let own = clients.lines().filter(|line| line.contains(&name));
    own.filter_map(|line| line.split(' ').next()).map(str::to_string).collect()
}

#[test]
fn a_helper_ends_what_the_one_before_it_left_connected() {
    let Some(bed) = bed() else { return };
    block_on(async {
        let run = new_run();
        let (number, next) = (run.id, same_run(&run));
        let mut job = Job::new(&bed.plain_url(""), run).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let nodes = || bed.primaries().into_iter().map(|at| &bed.nodes[at]);
        let left: Vec<_> = nodes().map(|node| connections(node, number)).collect();
        assert!(left.iter().all(|numbers| !numbers.is_empty()), "{left:?}");
        // The first helper is still connected, as the writes of a killed one may still be in
        // flight.
        let mut again = Job::new(&bed.plain_url(""), next).await.unwrap();
        again.written.clone_from(&job.written);
        again.read_all().await.unwrap();
        for (node, left) in nodes().zip(&left) {
            let now = connections(node, number);
            assert!(!now.is_empty() && left.iter().all(|old| !now.contains(old)), "{now:?}");
        }
    });
}

#[test]
fn the_servers_need_little_more_than_what_is_stored() {
    let Some(bed) = bed() else { return };
    block_on(async {
        let mut job = Job::new(&bed.plain_url(""), new_run()).await.unwrap();
        // Page by page, the worst order for the server's allocations.
        for page in [30, 0, 17, 3, 12] {
            job.write(page, 1).await.unwrap();
        }
        job.write(0, 31).await.unwrap();
        let mut found = 0;
        for primary in bed.primaries() {
            let node = &bed.nodes[primary];
            let keys: Vec<String> = redis::from_redis_value(node.ask(&["KEYS", "*:0:0"])).unwrap();
            for key in keys {
                let used = node.number(&["MEMORY", "USAGE", &key]);
                let stored = 31 * 4096;
                println!("{used} bytes for {stored}: {:.3}", used as f64 / f64::from(stored));
                assert!(used <= i64::from(stored) * 115 / 100, "{used} for {stored}");
                found += 1;
            }
        }
        assert_eq!(found, 2, "two copies");
    });
}

#[test]
fn a_killed_primary_is_followed_by_its_replica() {
    let Some(mut bed) = bed() else { return };
    block_on(async {
        let mut job = Job::new(&bed.secure_url(PATIENT), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let primary = bed.primaries()[0];
        bed.nodes[primary].kill();
        job.work(&mut Random(1), PAGES, 100).await;
        job.read_all().await.unwrap();
    });
}

#[test]
fn a_copy_that_a_takeover_left_stale_is_brought_up_to_date_unread() {
    let Some(bed) = bed() else { return };
    block_on(async {
        let mut job = Job::new(&bed.secure_url(PATIENT), new_run()).await.unwrap();
        job.write(0, 31).await.unwrap();
        let keys = |number: usize| -> Vec<String> {
            redis::from_redis_value(bed.nodes[number].ask(&["KEYS", "*:0:0"])).unwrap()
        };
        let primary = bed.primaries().into_iter().find(|number| !keys(*number).is_empty()).unwrap();
        let (node, key) = (&bed.nodes[primary], keys(primary).remove(0));
        let old = format!("old:{}", &key["softswap:".len()..]);
        node.ask(&["COPY", &key, &old]);
        job.write(0, 31).await.unwrap();
        // Restores the old copy, as on a replica that missed the last write.
        node.ask(&["COPY", &old, &key, "REPLACE"]);
        node.ask(&["DEL", &old]);
        let replica = &bed.nodes[bed.replica_of(primary)];
        replica.ask(&["CLUSTER", "FAILOVER"]);
        // An extent begins with the generation of its first page.
        wait_for("the copy is of the second write", || {
            replica.is_primary() && replica.text(&["GETRANGE", &key, "0", "0"]) == "\u{2}"
        })
        .await;
        job.read_all().await.unwrap();
    });
}

#[test]
fn without_a_primary_and_its_replica_the_other_copies_serve() {
    let Some(mut bed) = bed() else { return };
    block_on(async {
        let mut job = Job::new(&bed.secure_url(PATIENT), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let primary = bed.primaries()[1];
        let replica = bed.replica_of(primary);
        bed.nodes[replica].kill();
        bed.nodes[primary].kill();
        job.read_all().await.unwrap();
        // The lost copies get slots on working servers, so writes continue as well.
        job.work(&mut Random(2), PAGES, 100).await;
        job.read_all().await.unwrap();
    });
}

#[test]
fn what_one_server_forgets_is_brought_back_before_the_next_forgets() {
    let Some(bed) = bed() else { return };
    block_on(async {
        let mut job = Job::new(&bed.secure_url(PATIENT), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let primaries = bed.primaries();
        for primary in &primaries {
            let node = &bed.nodes[*primary];
            let before = extents(node);
            assert!(before > 0);
            node.ask(&["FLUSHALL"]);
            // The upkeep restores the copies that a read finds missing, and the rest.
            job.read(0, 31).await.unwrap();
            wait_for("all copies are back", || extents(node) >= before).await;
        }
        job.read_all().await.unwrap();
        for primary in primaries {
            bed.nodes[primary].ask(&["FLUSHALL"]);
        }
        // Fails well before the deadline, because no server is missing.
        let lost = job.read_all().await.unwrap_err();
        let StoreError::Lost { keys, nodes, .. } = &lost else { panic!("{lost}") };
        assert_eq!((keys.len(), nodes.len()), (2, 2));
        let text = lost.to_string();
        assert!(keys.iter().all(|key| text.contains(key)), "{text}");
        assert!(nodes.iter().all(|node| text.contains(node)), "{text}");
        job.write(0, PAGES).await.unwrap();
        job.read_all().await.unwrap();
    });
}

#[test]
fn what_a_server_forgot_comes_back_though_a_write_made_the_extent_whole() {
    let Some(bed) = bed() else { return };
    block_on(async {
        let mut job = Job::new(&bed.secure_url(PATIENT), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        for primary in bed.primaries() {
            bed.nodes[primary].ask(&["FLUSHALL"]);
            // One page of each extent: all copies then have their length, but not their pages.
            for first in (0..PAGES).step_by(31) {
                job.write(first, 1).await.unwrap();
            }
            wait_for("all copies are alike", || are_alike(&bed)).await;
        }
        job.read_all().await.unwrap();
    });
}

#[test]
fn a_server_that_comes_back_as_it_was_before_is_brought_up_to_date_unread() {
    let Some(mut bed) = bed() else { return };
    block_on(async {
        let mut job = Job::new(&bed.secure_url(PATIENT), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let primary = bed.primaries()[0];
        let replica = bed.replica_of(primary);
        // Otherwise the replica might or might not take over.
        bed.nodes[replica].kill();
        bed.nodes[primary].ask(&["SAVE"]);
        job.write(0, PAGES / 2).await.unwrap();
        bed.nodes[primary].restart();
        wait_for("all copies are alike", || are_alike(&bed)).await;
        job.read_all().await.unwrap();
    });
}

#[test]
fn what_a_server_brings_back_after_its_copies_have_moved_is_removed() {
    let Some(mut bed) = bed() else { return };
    block_on(async {
        let mut job = Job::new(&bed.secure_url(PATIENT), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let primary = bed.primaries()[0];
        let replica = bed.replica_of(primary);
        bed.nodes[primary].ask(&["SAVE"]);
        bed.nodes[replica].kill();
        bed.nodes[primary].kill();
        wait_for("the others have everything twice", || are_alike(&bed)).await;
        job.write(0, PAGES / 2).await.unwrap();
        // Usually long enough for the placement to change; copies of an earlier restart are
        // removed, too.
        sleep(Duration::from_secs(3)).await;
        bed.nodes[primary].restart();
        assert!(bed.nodes[primary].is_primary());
        wait_for("what it brought is gone", || extents(&bed.nodes[primary]) == 0).await;
        assert!(are_alike(&bed));
        job.read_all().await.unwrap();
    });
}

/// Returns true if every extent has two equal copies.
fn are_alike(bed: &super::bed::Bed) -> bool {
    let mut copies: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for primary in bed.primaries() {
        for key in extent_keys(&bed.nodes[primary]) {
            let value = redis::from_redis_value(bed.nodes[primary].ask(&["GET", &key])).unwrap();
            let (_, name) = key.split_once('}').unwrap();
            copies.entry(name.into()).or_default().push(value);
        }
    }
    copies.values().all(|copies| matches!(&copies[..], [one, other] if one == other))
}

fn extent_keys(node: &super::bed::Node) -> Vec<String> {
    let keys: Vec<String> = redis::from_redis_value(node.ask(&["KEYS", "*"])).unwrap();
    let is_extent = |key: &String| !key.ends_with("lease") && !key.ends_with("placement");
    keys.into_iter().filter(is_extent).collect()
}

fn extents(node: &super::bed::Node) -> usize {
    extent_keys(node).len()
}

async fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + HANG_TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {HANG_TIMEOUT:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn a_server_that_stands_still_holds_nobody_up_and_overwrites_nothing() {
    let Some(bed) = bed() else { return };
    block_on(async {
        let mut job = Job::new(&bed.secure_url(PATIENT), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let primary = bed.primaries()[2];
        bed.nodes[primary].signal(Signal::STOP);
        job.work(&mut Random(3), PAGES, 60).await;
        bed.nodes[primary].signal(Signal::CONT);
        job.work(&mut Random(4), PAGES, 60).await;
        job.read_all().await.unwrap();
    });
}

#[test]
fn a_write_that_cannot_arrive_says_so_in_time_and_may_be_tried_again() {
    let Some(bed) = bed() else { return };
    block_on(async {
        let mut job = Job::new(&bed.plain_url("&deadline=2s"), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        for node in &bed.nodes {
            node.signal(Signal::STOP);
        }
        let late = job.write(0, 64).await.unwrap_err();
        assert!(late.is_passing(), "{late}");
        assert!(late.to_string().contains("within 2s"), "{late}");
        let late = job.read(100, 64).await.unwrap_err();
        assert!(matches!(late, StoreError::Deadline { .. }), "{late}");
        for node in &bed.nodes {
            node.signal(Signal::CONT);
        }
        // Servers that were stopped may consider each other dead, and then lose the writes of this
        // moment.
        wait_for("the cluster is whole", || bed.is_whole()).await;
        for tries in 0.. {
            match job.write(0, 64).await {
                Ok(()) => break,
                Err(error) => assert!(error.is_passing() && tries < 80, "{error}"),
            }
        }
        for tries in 0.. {
            match job.read_all().await {
                Ok(()) => break,
                Err(error) => assert!(error.is_passing() && tries < 80, "{error}"),
            }
        }
    });
}

#[test]
fn copies_leave_a_server_that_takes_no_writes() {
    let Some(bed) = bed() else { return };
    block_on(async {
        let mut job = Job::new(&bed.secure_url(PATIENT), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let node = &bed.nodes[bed.primaries()[1]];
        node.set("min-replicas-to-write", "5");
        job.work(&mut Random(11), PAGES, 100).await;
        job.read_all().await.unwrap();
        node.set("min-replicas-to-write", "0");
        // The obsolete copies are removed.
        wait_for("each extent is there twice", || {
            let primaries = bed.primaries().into_iter();
            let keys: Vec<String> = primaries.flat_map(|at| extent_keys(&bed.nodes[at])).collect();
            let of = |key: &String| key.rsplit(':').next().map(str::to_string);
            keys.len() == 2 * keys.iter().filter_map(of).collect::<BTreeSet<_>>().len()
        })
        .await;
        job.read_all().await.unwrap();
    });
}

#[test]
fn with_wait_a_page_is_written_once_a_replica_has_it() {
    let Some(bed) = bed() else { return };
    block_on(async {
        let mut waiting = Job::new(&bed.plain_url("&deadline=8s&wait=1"), new_run()).await.unwrap();
        let mut other = Job::new(&bed.plain_url(PATIENT), new_run()).await.unwrap();
        waiting.write(0, 64).await.unwrap();
        let replicas: Vec<usize> =
            bed.primaries().into_iter().map(|primary| bed.replica_of(primary)).collect();
        for replica in &replicas {
            bed.nodes[*replica].signal(Signal::STOP);
        }
        other.write(0, 64).await.unwrap();
        let late = waiting.write(0, 64).await.unwrap_err();
        assert!(late.to_string().contains("no replica has it"), "{late}");
        // A primary without replicas still serves reads.
        other.read_all().await.unwrap();
        for replica in &replicas {
            bed.nodes[*replica].signal(Signal::CONT);
        }
        wait_for("the cluster is whole", || bed.is_whole()).await;
        for tries in 0.. {
            match waiting.write(0, 128).await {
                Ok(()) => break,
                Err(error) => assert!(error.is_passing() && tries < 20, "{error}"),
            }
        }
        waiting.read_all().await.unwrap();
    });
}

#[test]
fn slots_that_move_take_no_two_copies_to_one_server() {
    let Some(bed) = bed() else { return };
    block_on(async {
        let mut job = Job::new(&bed.secure_url(PATIENT), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let primaries = bed.primaries();
        let (from, to) = (&bed.nodes[primaries[0]], &bed.nodes[primaries[1]]);
        // Half of the slots with pages, while the program continues.
        let half: Vec<u16> = from.used_slots().into_iter().step_by(2).collect();
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| bed.migrate(from, to, &half));
            tokio::task::block_in_place(|| {
                let handle = tokio::runtime::Handle::current();
                let mut random = Random(5);
                while !moving.is_finished() {
                    handle.block_on(job.work(&mut random, PAGES, 5));
                }
            });
        });
        // Copies that came together are separated again: then either server may lose everything.
        wait_for("copies are apart", || bed.together() == 0).await;
        to.ask(&["FLUSHALL"]);
        job.read_all().await.unwrap();
        bed.migrate(to, from, &half);
    });
}

#[test]
fn a_full_server_is_told_from_a_broken_one() {
    let Some(bed) = bed() else { return };
    block_on(async {
        let mut job = Job::new(&bed.secure_url(""), new_run()).await.unwrap();
        job.write(0, 100).await.unwrap();
        for primary in bed.primaries() {
            bed.nodes[primary].set("maxmemory", "1000000");
        }
        let full = job.write(100, 200).await.unwrap_err();
        assert!(matches!(full, StoreError::Full { .. }), "{full}");
        job.read_all().await.unwrap();
        for primary in bed.primaries() {
            bed.nodes[primary].set("maxmemory", "268435456");
        }
        job.write(100, 200).await.unwrap();
        job.read_all().await.unwrap();
    });
}

#[test]
fn a_changed_password_is_named_and_read_anew() {
    let Some(bed) = bed() else { return };
    block_on(async {
        let mut job = Job::new(&bed.secure_url(""), new_run()).await.unwrap();
        job.write(0, 100).await.unwrap();
        let change = |from: &str, to: &str| {
            for node in &bed.nodes {
                node.ask_as(from, &["CONFIG", "SET", "masterauth", to]);
                node.ask_as(from, &["CONFIG", "SET", "requirepass", to]);
                node.ask_as(to, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            }
        };
        change(PASSWORD, "another");
        let refused = job.write(0, 10).await.unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("password") && !text.contains(PASSWORD), "{text}");
        // Connections work again as soon as the file has the right password.
        std::fs::write(bed.file("password"), "another\n").unwrap();
        let end = Instant::now() + HANG_TIMEOUT;
        loop {
            match job.write(0, 10).await {
                Ok(()) => break,
                Err(error) => assert!(Instant::now() < end, "not within {HANG_TIMEOUT:?}: {error}"),
            }
            sleep(Duration::from_millis(50)).await;
        }
        job.read_all().await.unwrap();
        change("another", PASSWORD);
    });
    eventually("the cluster is whole", || bed.is_whole());
}

#[test]
fn a_proxy_that_lies_is_never_believed() {
    let Some(bed) = bed() else { return };
    block_on(async {
        let node = &bed.nodes[bed.primaries()[0]];
        let lies = super::liar::Liar::start(node.port).await;
        node.announce(Some(lies.port));
        wait_for("all know the proxy", || {
            let knows = |node: &super::bed::Node| {
                node.text(&["CLUSTER", "NODES"]).contains(&format!(":{}@", lies.port))
            };
            bed.nodes.iter().all(knows)
        })
        .await;
        let mut job = Job::new(&bed.plain_url(PATIENT), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        lies.begin();
        // A server with wrong answers is read less often, so the number of rounds is unknown.
        for round in 0.. {
            job.read_all().await.unwrap();
            if round >= 10 && lies.told() > 10 {
                break;
            }
            assert!(round < 2000, "only {} lies", lies.told());
        }
        lies.end();
        job.work(&mut Random(6), PAGES, 100).await;
        job.read_all().await.unwrap();
        node.announce(None);
        wait_for("all know the server again", || {
            let knows = |node: &super::bed::Node| {
                node.text(&["CLUSTER", "NODES"]).contains(&format!(":{}@", lies.port))
            };
            !bed.nodes.iter().any(knows)
        })
        .await;
    });
}
