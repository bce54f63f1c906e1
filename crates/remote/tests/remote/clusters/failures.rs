//! Failures of a real cluster: no read returns content that was not written. While one copy of each
//! page exists, the program continues; otherwise an error names the lost page within the deadline.

use super::job::{Job, Random, block_on, new_run, same_run};
use super::test_cluster::{PASSWORD, eventually, test_cluster};
use rustix::process::Signal;
use softswap_remote::store::{PageStore, StoreError};
use softswap_testkit::waiting::HANG_TIMEOUT;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const PAGES: u64 = 700;
/// Long enough for any failover; no test depends on its duration.
const LONG_DEADLINE: &str = "&deadline=120s";

#[test]
fn written_pages_round_trip() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let run = new_run();
        let next = same_run(&run);
        let mut job = Job::new(&test_cluster.secure_url(""), run).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        job.work(&mut Random(7), PAGES, 300).await;
        job.read_all().await.unwrap();

        // Another helper continues after this one was killed.
        let written = std::mem::take(&mut job.written);
        drop(job);
        let mut job = Job::new(&test_cluster.secure_url(""), next).await.unwrap();
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
    for primary in test_cluster.primaries() {
        assert_eq!(test_cluster.nodes[primary].number(&["DBSIZE"]), 0, "all of the run is removed");
    }
}

fn connections(node: &super::test_cluster::Node, run: u64) -> Vec<String> {
    let name = format!("name=softswap-{run:016x}-");
    let clients = node.text(&["CLIENT", "LIST"]);
    let own = clients.lines().filter(|line| line.contains(&name));
    own.filter_map(|line| line.split(' ').next()).map(str::to_string).collect()
}

#[test]
fn new_helper_closes_old_connections() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let run = new_run();
        let (number, next) = (run.id, same_run(&run));
        let mut job = Job::new(&test_cluster.plain_url(""), run).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let nodes = || test_cluster.primaries().into_iter().map(|at| &test_cluster.nodes[at]);
        let left: Vec<_> = nodes().map(|node| connections(node, number)).collect();
        assert!(left.iter().all(|numbers| !numbers.is_empty()), "{left:?}");
        // The first helper is still connected, as the writes of a killed one may still be in
        // flight.
        let mut again = Job::new(&test_cluster.plain_url(""), next).await.unwrap();
        again.written.clone_from(&job.written);
        again.read_all().await.unwrap();
        for (node, left) in nodes().zip(&left) {
            let now = connections(node, number);
            assert!(!now.is_empty() && left.iter().all(|old| !now.contains(old)), "{now:?}");
        }
    });
}

#[test]
fn server_memory_overhead_is_small() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.plain_url(""), new_run()).await.unwrap();
        // Page by page, the worst order for the server's allocations.
        for page in [30, 0, 17, 3, 12] {
            job.write(page, 1).await.unwrap();
        }
        job.write(0, 31).await.unwrap();
        let mut found = 0;
        for primary in test_cluster.primaries() {
            let node = &test_cluster.nodes[primary];
            let keys: Vec<String> = redis::from_redis_value(node.send(&["KEYS", "*:0:0"])).unwrap();
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
fn replica_replaces_killed_primary() {
    let Some(mut test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.secure_url(LONG_DEADLINE), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let primary = test_cluster.primaries()[0];
        test_cluster.nodes[primary].kill();
        job.work(&mut Random(1), PAGES, 100).await;
        job.read_all().await.unwrap();
    });
}

#[test]
fn stale_copy_after_failover_is_repaired_without_reads() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.secure_url(LONG_DEADLINE), new_run()).await.unwrap();
        job.write(0, 31).await.unwrap();
        let keys = |number: usize| -> Vec<String> {
            redis::from_redis_value(test_cluster.nodes[number].send(&["KEYS", "*:0:0"])).unwrap()
        };
        let primary =
            test_cluster.primaries().into_iter().find(|number| !keys(*number).is_empty()).unwrap();
        let (node, key) = (&test_cluster.nodes[primary], keys(primary).remove(0));
        let old = format!("old:{}", &key["softswap:".len()..]);
        node.send(&["COPY", &key, &old]);
        job.write(0, 31).await.unwrap();
        // Restores the old copy, as on a replica that missed the last write.
        node.send(&["COPY", &old, &key, "REPLACE"]);
        node.send(&["DEL", &old]);
        let replica = &test_cluster.nodes[test_cluster.replica_of(primary)];
        replica.send(&["CLUSTER", "FAILOVER"]);
        // An extent begins with the generation of its first page.
        wait_for("the copy is of the second write", || {
            replica.is_primary() && replica.text(&["GETRANGE", &key, "0", "0"]) == "\u{2}"
        })
        .await;
        job.read_all().await.unwrap();
    });
}

#[test]
fn other_copies_serve_without_primary_and_replica() {
    let Some(mut test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.secure_url(LONG_DEADLINE), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let primary = test_cluster.primaries()[1];
        let replica = test_cluster.replica_of(primary);
        test_cluster.nodes[replica].kill();
        test_cluster.nodes[primary].kill();
        job.read_all().await.unwrap();
        // The lost copies get slots on working servers, so writes continue as well.
        job.work(&mut Random(2), PAGES, 100).await;
        job.read_all().await.unwrap();
    });
}

#[test]
fn lost_copies_are_restored_before_next_loss() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.secure_url(LONG_DEADLINE), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let primaries = test_cluster.primaries();
        for primary in &primaries {
            let node = &test_cluster.nodes[*primary];
            let before = extents(node);
            assert!(before > 0);
            node.send(&["FLUSHALL"]);
            // The upkeep restores the copies that a read finds missing, and the rest.
            job.read(0, 31).await.unwrap();
            wait_for("all copies are back", || extents(node) >= before).await;
        }
        job.read_all().await.unwrap();
        for primary in primaries {
            test_cluster.nodes[primary].send(&["FLUSHALL"]);
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
fn lost_pages_are_restored_after_extent_write() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.secure_url(LONG_DEADLINE), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        for primary in test_cluster.primaries() {
            test_cluster.nodes[primary].send(&["FLUSHALL"]);
            // One page of each extent: all copies then have their length, but not their pages.
            for first in (0..PAGES).step_by(31) {
                job.write(first, 1).await.unwrap();
            }
            wait_for("all copies are alike", || copies_are_equal(&test_cluster)).await;
        }
        job.read_all().await.unwrap();
    });
}

#[test]
fn server_with_old_data_is_repaired_without_reads() {
    let Some(mut test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.secure_url(LONG_DEADLINE), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let primary = test_cluster.primaries()[0];
        let replica = test_cluster.replica_of(primary);
        // Otherwise the replica might or might not take over.
        test_cluster.nodes[replica].kill();
        test_cluster.nodes[primary].send(&["SAVE"]);
        job.write(0, PAGES / 2).await.unwrap();
        test_cluster.nodes[primary].restart();
        wait_for("all copies are alike", || copies_are_equal(&test_cluster)).await;
        job.read_all().await.unwrap();
    });
}

#[test]
fn obsolete_copies_of_returning_server_are_removed() {
    let Some(mut test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.secure_url(LONG_DEADLINE), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let primary = test_cluster.primaries()[0];
        let replica = test_cluster.replica_of(primary);
        test_cluster.nodes[primary].send(&["SAVE"]);
        test_cluster.nodes[replica].kill();
        test_cluster.nodes[primary].kill();
        wait_for("the others have everything twice", || copies_are_equal(&test_cluster)).await;
        job.write(0, PAGES / 2).await.unwrap();
        // Usually long enough for the placement to change; copies of an earlier restart are
        // removed, too.
        sleep(Duration::from_secs(3)).await;
        test_cluster.nodes[primary].restart();
        assert!(test_cluster.nodes[primary].is_primary());
        wait_for("what it brought is gone", || extents(&test_cluster.nodes[primary]) == 0).await;
        assert!(copies_are_equal(&test_cluster));
        job.read_all().await.unwrap();
    });
}

/// Returns true if every extent has two equal copies.
fn copies_are_equal(test_cluster: &super::test_cluster::TestCluster) -> bool {
    let mut copies: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for primary in test_cluster.primaries() {
        for key in extent_keys(&test_cluster.nodes[primary]) {
            let value =
                redis::from_redis_value(test_cluster.nodes[primary].send(&["GET", &key])).unwrap();
            let (_, name) = key.split_once('}').unwrap();
            copies.entry(name.into()).or_default().push(value);
        }
    }
    copies.values().all(|copies| matches!(&copies[..], [one, other] if one == other))
}

fn extent_keys(node: &super::test_cluster::Node) -> Vec<String> {
    let keys: Vec<String> = redis::from_redis_value(node.send(&["KEYS", "*"])).unwrap();
    let is_extent = |key: &String| !key.ends_with("lease") && !key.ends_with("placement");
    keys.into_iter().filter(is_extent).collect()
}

fn extents(node: &super::test_cluster::Node) -> usize {
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
fn stopped_server_blocks_nothing_and_overwrites_nothing() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.secure_url(LONG_DEADLINE), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let primary = test_cluster.primaries()[2];
        test_cluster.nodes[primary].signal(Signal::STOP);
        job.work(&mut Random(3), PAGES, 60).await;
        test_cluster.nodes[primary].signal(Signal::CONT);
        job.work(&mut Random(4), PAGES, 60).await;
        job.read_all().await.unwrap();
    });
}

#[test]
fn undeliverable_write_times_out_and_can_be_retried() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.plain_url("&deadline=2s"), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        for node in &test_cluster.nodes {
            node.signal(Signal::STOP);
        }
        let late = job.write(0, 64).await.unwrap_err();
        assert!(late.is_transient(), "{late}");
        assert!(late.to_string().contains("within 2s"), "{late}");
        let late = job.read(100, 64).await.unwrap_err();
        assert!(matches!(late, StoreError::Deadline { .. }), "{late}");
        for node in &test_cluster.nodes {
            node.signal(Signal::CONT);
        }
        // Servers that were stopped may consider each other dead, and then lose the writes of this
        // moment.
        wait_for("the cluster is whole", || test_cluster.is_whole()).await;
        for tries in 0.. {
            match job.write(0, 64).await {
                Ok(()) => break,
                Err(error) => assert!(error.is_transient() && tries < 80, "{error}"),
            }
        }
        for tries in 0.. {
            match job.read_all().await {
                Ok(()) => break,
                Err(error) => assert!(error.is_transient() && tries < 80, "{error}"),
            }
        }
    });
}

#[test]
fn copies_leave_unwritable_server() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.secure_url(LONG_DEADLINE), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let node = &test_cluster.nodes[test_cluster.primaries()[1]];
        node.set("min-replicas-to-write", "5");
        job.work(&mut Random(11), PAGES, 100).await;
        job.read_all().await.unwrap();
        node.set("min-replicas-to-write", "0");
        // The obsolete copies are removed.
        wait_for("each extent is there twice", || {
            let primaries = test_cluster.primaries().into_iter();
            let keys: Vec<String> =
                primaries.flat_map(|at| extent_keys(&test_cluster.nodes[at])).collect();
            let of = |key: &String| key.rsplit(':').next().map(str::to_string);
            keys.len() == 2 * keys.iter().filter_map(of).collect::<BTreeSet<_>>().len()
        })
        .await;
        job.read_all().await.unwrap();
    });
}

#[test]
fn wait_option_requires_replica() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut waiting =
            Job::new(&test_cluster.plain_url("&deadline=8s&wait=1"), new_run()).await.unwrap();
        let mut other = Job::new(&test_cluster.plain_url(LONG_DEADLINE), new_run()).await.unwrap();
        waiting.write(0, 64).await.unwrap();
        let replicas: Vec<usize> = test_cluster
            .primaries()
            .into_iter()
            .map(|primary| test_cluster.replica_of(primary))
            .collect();
        for replica in &replicas {
            test_cluster.nodes[*replica].signal(Signal::STOP);
        }
        other.write(0, 64).await.unwrap();
        let late = waiting.write(0, 64).await.unwrap_err();
        assert!(late.to_string().contains("no replica has it"), "{late}");
        // A primary without replicas still serves reads.
        other.read_all().await.unwrap();
        for replica in &replicas {
            test_cluster.nodes[*replica].signal(Signal::CONT);
        }
        wait_for("the cluster is whole", || test_cluster.is_whole()).await;
        for tries in 0.. {
            match waiting.write(0, 128).await {
                Ok(()) => break,
                Err(error) => assert!(error.is_transient() && tries < 20, "{error}"),
            }
        }
        waiting.read_all().await.unwrap();
    });
}

#[test]
fn slot_migration_never_colocates_copies() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.secure_url(LONG_DEADLINE), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        let primaries = test_cluster.primaries();
        let (from, to) = (&test_cluster.nodes[primaries[0]], &test_cluster.nodes[primaries[1]]);
        // Half of the slots with pages, while the program continues.
        let half: Vec<u16> = from.used_slots().into_iter().step_by(2).collect();
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| test_cluster.migrate(from, to, &half));
            tokio::task::block_in_place(|| {
                let handle = tokio::runtime::Handle::current();
                let mut random = Random(5);
                while !moving.is_finished() {
                    handle.block_on(job.work(&mut random, PAGES, 5));
                }
            });
        });
        // Copies that came together are separated again: then either server may lose everything.
        wait_for("copies are apart", || test_cluster.colocated_extents() == 0).await;
        to.send(&["FLUSHALL"]);
        job.read_all().await.unwrap();
        test_cluster.migrate(to, from, &half);
    });
}

#[test]
fn full_server_is_distinguished_from_broken() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.secure_url(""), new_run()).await.unwrap();
        job.write(0, 100).await.unwrap();
        for primary in test_cluster.primaries() {
            test_cluster.nodes[primary].set("maxmemory", "1000000");
        }
        let full = job.write(100, 200).await.unwrap_err();
        assert!(matches!(full, StoreError::Full { .. }), "{full}");
        job.read_all().await.unwrap();
        for primary in test_cluster.primaries() {
            test_cluster.nodes[primary].set("maxmemory", "268435456");
        }
        job.write(100, 200).await.unwrap();
        job.read_all().await.unwrap();
    });
}

#[test]
fn changed_password_is_reported_and_reread() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.secure_url(""), new_run()).await.unwrap();
        job.write(0, 100).await.unwrap();
        let change = |from: &str, to: &str| {
            for node in &test_cluster.nodes {
                node.send_as(from, &["CONFIG", "SET", "masterauth", to]);
                node.send_as(from, &["CONFIG", "SET", "requirepass", to]);
                node.send_as(to, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            }
        };
        change(PASSWORD, "another");
        let refused = job.write(0, 10).await.unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("password") && !text.contains(PASSWORD), "{text}");
        // Connections work again as soon as the file has the right password.
        std::fs::write(test_cluster.file("password"), "another\n").unwrap();
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
    eventually("the cluster is whole", || test_cluster.is_whole());
}

#[test]
fn corrupting_proxy_never_causes_wrong_data() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let node = &test_cluster.nodes[test_cluster.primaries()[0]];
        let corruptions = super::corrupting_proxy::CorruptingProxy::start(node.port).await;
        node.announce(Some(corruptions.port));
        wait_for("all know the proxy", || {
            let knows = |node: &super::test_cluster::Node| {
                node.text(&["CLUSTER", "NODES"]).contains(&format!(":{}@", corruptions.port))
            };
            test_cluster.nodes.iter().all(knows)
        })
        .await;
        let mut job = Job::new(&test_cluster.plain_url(LONG_DEADLINE), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        corruptions.begin();
        // A server with wrong answers is read less often, so the number of rounds is unknown.
        for round in 0.. {
            job.read_all().await.unwrap();
            if round >= 10 && corruptions.corruption_count() > 10 {
                break;
            }
            assert!(round < 2000, "only {} lies", corruptions.corruption_count());
        }
        corruptions.end();
        job.work(&mut Random(6), PAGES, 100).await;
        job.read_all().await.unwrap();
        node.announce(None);
        wait_for("all know the server again", || {
            let knows = |node: &super::test_cluster::Node| {
                node.text(&["CLUSTER", "NODES"]).contains(&format!(":{}@", corruptions.port))
            };
            !test_cluster.nodes.iter().any(knows)
        })
        .await;
    });
}
