//! Failures of a real cluster: no read returns content that was not written. While one copy of each
//! page exists, the program continues; otherwise an error names the lost page within the deadline.

use super::job::{Job, block_on, new_run, same_run};
use super::proxies::{Behaviour, Proxy};
use super::test_cluster::{Node, PASSWORD, TestCluster, eventually, test_cluster};
use rustix::process::Signal;
use softswap_remote::store::{PageStore, StoreError};
use softswap_testkit::random::Random;
use softswap_testkit::waiting::HANG_TIMEOUT;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const PAGES: u64 = 700;
/// Long enough for any failover; no test depends on its duration.
const LONG_DEADLINE: &str = "&deadline=120s";

/// Runs `test` with a job that has written its pages. The job must be able to read them afterwards.
fn with_written_pages(test: impl AsyncFnOnce(&mut TestCluster, &mut Job)) {
    let Some(mut test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.secure_url(LONG_DEADLINE), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        test(&mut test_cluster, &mut job).await;
        job.read_all().await.unwrap();
    });
}

async fn retry(
    is_expected: impl Fn(&StoreError) -> bool,
    mut call: impl AsyncFnMut() -> Result<(), StoreError>,
) {
    let end = Instant::now() + HANG_TIMEOUT;
    while let Err(error) = call().await {
        assert!(is_expected(&error), "{error}");
        assert!(Instant::now() < end, "not within {HANG_TIMEOUT:?}: {error}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn repaired_cluster_serves_all_slots() {
    let Some(mut test_cluster) = test_cluster() else { return };
    test_cluster.primary_nodes().for_each(|node| _ = node.send(&["CLUSTER", "DELSLOTS", "7"]));
    assert!(!test_cluster.is_whole());
    test_cluster.repair();
    assert!(test_cluster.is_whole());
}

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

        // A new helper continues the run of the first one, as after a kill.
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
    assert_eq!(test_cluster.key_count(), 0, "close removes all keys of the run");
}

fn connections(node: &Node, run: u64) -> Vec<String> {
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
        let nodes = || test_cluster.primary_nodes();
        let old_connections: Vec<_> = nodes().map(|node| connections(node, number)).collect();
        assert!(old_connections.iter().all(|ids| !ids.is_empty()), "{old_connections:?}");
        // The first helper stays connected, like a killed one whose writes are still in the
        // server's buffers.
        let mut second = Job::new(&test_cluster.plain_url(""), next).await.unwrap();
        second.written.clone_from(&job.written);
        second.read_all().await.unwrap();
        for (node, old_ids) in nodes().zip(&old_connections) {
            let now = connections(node, number);
            assert!(!now.is_empty() && old_ids.iter().all(|old| !now.contains(old)), "{now:?}");
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
        for node in test_cluster.primary_nodes() {
            for key in node.keys("*:0:0") {
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
    with_written_pages(async |test_cluster, job| {
        let primary = test_cluster.primaries()[0];
        test_cluster.nodes[primary].kill();
        job.work(&mut Random(1), PAGES, 100).await;
    });
}

#[test]
fn stale_copy_after_failover_is_repaired_without_reads() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.secure_url(LONG_DEADLINE), new_run()).await.unwrap();
        job.write(0, 31).await.unwrap();
        let keys = |number: usize| test_cluster.nodes[number].keys("*:0:0");
        let primary =
            test_cluster.primaries().into_iter().find(|number| !keys(*number).is_empty()).unwrap();
        let (node, key) = (&test_cluster.nodes[primary], keys(primary).remove(0));
        let old = format!("old:{}", &key["softswap:".len()..]);
        node.send(&["COPY", &key, &old]);
        job.write(0, 31).await.unwrap();
        // Restore the old copy, as on a replica that missed the last write.
        node.send(&["COPY", &old, &key, "REPLACE"]);
        node.send(&["DEL", &old]);
        let replica = &test_cluster.nodes[test_cluster.replica_of(primary)];
        replica.send(&["CLUSTER", "FAILOVER"]);
        // An extent begins with the generation of its first page.
        eventually("the copy has the second write", || {
            replica.is_primary() && replica.text(&["GETRANGE", &key, "0", "0"]) == "\u{2}"
        });
        job.read_all().await.unwrap();
    });
}

#[test]
fn other_copies_serve_without_primary_and_replica() {
    with_written_pages(async |test_cluster, job| {
        let primary = test_cluster.primaries()[1];
        let replica = test_cluster.replica_of(primary);
        test_cluster.nodes[replica].kill();
        test_cluster.nodes[primary].kill();
        job.read_all().await.unwrap();
        job.work(&mut Random(2), PAGES, 100).await;
    });
}

#[test]
fn lost_copies_are_restored_before_next_loss() {
    with_written_pages(async |test_cluster, job| {
        let primaries = test_cluster.primaries();
        for primary in &primaries {
            let node = &test_cluster.nodes[*primary];
            let before = node.extent_keys().len();
            assert!(before > 0);
            node.send(&["FLUSHALL"]);
            // The upkeep restores the copies that a read finds missing, and the rest.
            job.read(0, 31).await.unwrap();
            eventually("all copies are restored", || node.extent_keys().len() >= before);
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
    });
}

#[test]
fn lost_pages_are_restored_after_extent_write() {
    with_written_pages(async |test_cluster, job| {
        for primary in test_cluster.primaries() {
            test_cluster.nodes[primary].send(&["FLUSHALL"]);
            // One page of each extent: all copies then have their length, but not their pages.
            for first in (0..PAGES).step_by(31) {
                job.write(first, 1).await.unwrap();
            }
            eventually("all copies are equal", || copies_are_equal(test_cluster));
        }
    });
}

#[test]
fn server_with_old_data_is_repaired_without_reads() {
    with_written_pages(async |test_cluster, job| {
        let primary = test_cluster.primaries()[0];
        let replica = test_cluster.replica_of(primary);
        // A running replica could take over.
        test_cluster.nodes[replica].kill();
        test_cluster.nodes[primary].send(&["SAVE"]);
        job.write(0, PAGES / 2).await.unwrap();
        test_cluster.nodes[primary].restart();
        eventually("all copies are equal", || copies_are_equal(test_cluster));
    });
}

#[test]
fn obsolete_copies_of_returning_server_are_removed() {
    with_written_pages(async |test_cluster, job| {
        let primary = test_cluster.primaries()[0];
        let replica = test_cluster.replica_of(primary);
        test_cluster.nodes[primary].send(&["SAVE"]);
        test_cluster.nodes[replica].kill();
        test_cluster.nodes[primary].kill();
        eventually("the other servers have two copies", || copies_are_equal(test_cluster));
        job.write(0, PAGES / 2).await.unwrap();
        test_cluster.nodes[primary].restart();
        assert!(test_cluster.nodes[primary].is_primary());
        eventually("its obsolete copies are removed", || {
            test_cluster.nodes[primary].extent_keys().is_empty()
        });
        assert!(copies_are_equal(test_cluster));
    });
}

fn copies_are_equal(test_cluster: &TestCluster) -> bool {
    let mut copies: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for node in test_cluster.primary_nodes() {
        for key in node.extent_keys() {
            let value = redis::from_redis_value(node.send(&["GET", &key])).unwrap();
            let (_, name) = key.split_once('}').unwrap();
            copies.entry(name.into()).or_default().push(value);
        }
    }
    copies.values().all(|copies| matches!(&copies[..], [one, other] if one == other))
}

#[test]
fn stopped_server_blocks_nothing_and_overwrites_nothing() {
    with_written_pages(async |test_cluster, job| {
        let primary = test_cluster.primaries()[2];
        test_cluster.nodes[primary].signal(Signal::STOP);
        job.work(&mut Random(3), PAGES, 60).await;
        test_cluster.nodes[primary].signal(Signal::CONT);
        job.work(&mut Random(4), PAGES, 60).await;
    });
}

#[test]
fn undeliverable_write_times_out_and_can_be_retried() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let mut job = Job::new(&test_cluster.plain_url("&deadline=2s"), new_run()).await.unwrap();
        // On a slow machine the write of all pages may exceed the deadline.
        retry(StoreError::is_transient, async || job.write(0, PAGES).await).await;
        test_cluster.signal_all(Signal::STOP);
        let late = job.write(0, 64).await.unwrap_err();
        assert!(late.is_transient(), "{late}");
        assert!(late.to_string().contains("within 2s"), "{late}");
        let late = job.read(100, 64).await.unwrap_err();
        assert!(matches!(late, StoreError::Deadline { .. }), "{late}");
        test_cluster.signal_all(Signal::CONT);
        // Servers that were stopped may consider each other dead, and lose writes of that time.
        eventually("the cluster is whole", || test_cluster.is_whole());
        retry(StoreError::is_transient, async || job.write(0, 64).await).await;
        retry(StoreError::is_transient, async || job.read_all().await).await;
    });
}

#[test]
fn copies_leave_unwritable_server() {
    with_written_pages(async |test_cluster, job| {
        let node = &test_cluster.nodes[test_cluster.primaries()[1]];
        node.set("min-replicas-to-write", "5");
        job.work(&mut Random(11), PAGES, 100).await;
        job.read_all().await.unwrap();
        node.set("min-replicas-to-write", "0");
        eventually("each extent has two copies", || {
            let keys: Vec<String> =
                test_cluster.primary_nodes().flat_map(Node::extent_keys).collect();
            let of = |key: &String| key.rsplit(':').next().map(str::to_string);
            keys.len() == 2 * keys.iter().filter_map(of).collect::<BTreeSet<_>>().len()
        });
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
        let replicas: Vec<&Node> =
            test_cluster.nodes.iter().filter(|node| !node.is_primary()).collect();
        replicas.iter().for_each(|replica| replica.signal(Signal::STOP));
        other.write(0, 64).await.unwrap();
        let late = waiting.write(0, 64).await.unwrap_err();
        assert!(late.to_string().contains("no replica confirmed the write"), "{late}");
        other.read_all().await.unwrap();
        replicas.iter().for_each(|replica| replica.signal(Signal::CONT));
        eventually("the cluster is whole", || test_cluster.is_whole());
        retry(StoreError::is_transient, async || waiting.write(0, 128).await).await;
        waiting.read_all().await.unwrap();
    });
}

#[test]
fn slot_migration_never_colocates_copies() {
    with_written_pages(async |test_cluster, job| {
        let primaries = test_cluster.primaries();
        let (from, to) = (&test_cluster.nodes[primaries[0]], &test_cluster.nodes[primaries[1]]);
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
        // Once copies on the same server are separated, either server may lose its data.
        eventually("copies are apart", || test_cluster.colocated_extents() == 0);
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
        test_cluster.set_maxmemory("1000000");
        let full = job.write(100, 200).await.unwrap_err();
        assert!(matches!(full, StoreError::Full { .. }), "{full}");
        job.read_all().await.unwrap();
        test_cluster.set_maxmemory("268435456");
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
        test_cluster.change_password(PASSWORD, "another");
        let refused = job.write(0, 10).await.unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("password") && !text.contains(PASSWORD), "{text}");
        std::fs::write(test_cluster.file("password"), "another\n").unwrap();
        retry(|_| true, async || job.write(0, 10).await).await;
        job.read_all().await.unwrap();
        test_cluster.change_password("another", PASSWORD);
    });
    eventually("the cluster is whole", || test_cluster.is_whole());
}

#[test]
fn corrupting_proxy_never_causes_wrong_data() {
    let Some(test_cluster) = test_cluster() else { return };
    block_on(async {
        let node = &test_cluster.nodes[test_cluster.primaries()[0]];
        let proxy = Proxy::to(node.port, 99);
        let uses_proxy =
            |node: &Node| node.text(&["CLUSTER", "NODES"]).contains(&format!(":{}@", proxy.port));
        node.announce(Some(proxy.port));
        eventually("all servers use the proxy", || test_cluster.nodes.iter().all(uses_proxy));
        let mut job = Job::new(&test_cluster.plain_url(LONG_DEADLINE), new_run()).await.unwrap();
        job.write(0, PAGES).await.unwrap();
        proxy.set_behaviour(Behaviour::Lying);
        // A server with wrong answers is read less often, so the number of rounds is unknown.
        for round in 0.. {
            job.read_all().await.unwrap();
            if round >= 10 && proxy.altered_chunks() > 10 {
                break;
            }
            assert!(round < 2000, "only {} corrupted answers", proxy.altered_chunks());
        }
        proxy.set_behaviour(Behaviour::Fair);
        job.work(&mut Random(6), PAGES, 100).await;
        job.read_all().await.unwrap();
        node.announce(None);
        eventually("all servers connect directly", || !test_cluster.nodes.iter().any(uses_proxy));
    });
}
