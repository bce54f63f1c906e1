//! Swap areas on a cluster, while the helper and the nodes are killed. Needs `redis-server`.

use crate::common::assert_contains_all;
use crate::support::control_client::wait_until;
use crate::support::processes::{HELPER, child_called, kill, stat_of};
use crate::support::{
    LIMIT, Report, Running, Swapped, TOO_SLOW, disk_dir, finish, plain, python, softswap,
    softswap_with,
};
use crate::test_cluster::{eventually, test_cluster};
use std::ffi::OsString;
use std::process::Command;

const PROGRAM: &str = "
import hashlib, os, random, sys
source = random.Random(7)
blocks = [bytearray(source.randbytes(1 << 20)) for _ in range(40)]
total = hashlib.sha256()
for turn in range(4):
    print('turn', turn, flush=True)
    order = list(range(len(blocks)))
    source.shuffle(order)
    for at in order:
        block = blocks[at]
        total.update(block)
        for byte in range(turn, len(block), 8192):
            block[byte] ^= at + turn
if len(sys.argv) > 1:
    # A child reads what its parent left, and writes its own.
    child = os.fork()
    for at, block in enumerate(blocks):
        total.update(block)
        block[at] ^= 1 if child else 2
    for block in blocks:
        total.update(block)
    if child == 0:
        print(total.hexdigest(), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print(total.hexdigest())
";

fn arguments(more: &[&str]) -> Vec<OsString> {
    ["-c", PROGRAM].iter().chain(more).map(OsString::from).collect()
}

fn swapped(url: &str) -> Swapped {
    Swapped::within("12M").option("--codec=none").swap(url)
}

/// Waits until the program's second round.
fn start(swapped: &Swapped, more: &[&str]) -> Running {
    start_command(&mut swapped.command(python(), &arguments(more)))
}

/// Starts the program again if the cluster was too slow.
fn start_command(command: &mut Command) -> Running {
    let mut running = Running::start(command);
    wait_until("the second round", || {
        // Checked before the output is read, so that output written just before the exit is seen.
        let has_ended = running.has_ended();
        if String::from_utf8_lossy(&running.stdout_so_far()).contains("turn 1") {
            return Ok(());
        }
        let stderr = running.stderr_so_far();
        if has_ended {
            assert!(
                stderr.contains(TOO_SLOW),
                "the program ended before its second round: {stderr}"
            );
            running = Running::start(command);
        }
        Err(stderr)
    });
    running
}

/// Runs the program again if the cluster was too slow.
fn run(swapped: &Swapped, more: &[&str]) -> Report {
    let ended = wait_until("a run", || {
        let ended = finish(&mut swapped.command(python(), &arguments(more)));
        if ended.stderr.contains(TOO_SLOW) { Err(ended.stderr) } else { Ok(ended) }
    });
    swapped.report_of(ended)
}

fn expect_same(report: &Report, what: &str, more: &[&str]) {
    let expected = plain(python(), &arguments(more));
    expected.expect_success("plain");
    report.ended.expect_success(what);
    assert_eq!(report.ended.stdout_text(), expected.stdout_text(), "{what}");
    assert!(report.figure("pages_out") > 5_000, "{what}: {}", report.figures);
    assert_eq!(report.figure("read_errors"), 0, "{what}");
    assert_eq!(report.figure("checksum_errors"), 0, "{what}");
}

#[test]
fn program_and_child_run_on_cluster_and_clean_up() {
    let Some(test_cluster) = test_cluster() else { return };
    let swapped = swapped(&test_cluster.secure_url("&size=256M"));
    let report = run(&swapped, &["fork"]);
    expect_same(&report, "on a cluster", &["fork"]);
    let areas = report.figures["settings"].to_string();
    assert!(areas.contains("rediss://127.0.0.1"), "{areas}");
    let figures = report.figures.to_string();
    assert!(!figures.contains(crate::test_cluster::PASSWORD), "{figures}");
    eventually("all keys are removed", || test_cluster.key_count() == 0);
}

#[test]
fn killed_helper_and_primary_do_not_change_the_result() {
    let Some(mut test_cluster) = test_cluster() else { return };
    let swapped = swapped(&test_cluster.plain_url("&size=256M&deadline=30s"));
    let mut running = start(&swapped, &[]);
    for turn in 1..3 {
        running.wait_for_output(&format!("turn {turn}"));
        let helper = || child_called(running.id(), HELPER);
        eventually("the helper runs", || helper().is_some());
        helper().into_iter().for_each(kill);
    }
    running.wait_for_output("turn 3");
    let primary = test_cluster.primaries()[0];
    test_cluster.nodes[primary].kill();
    let ended = running.finish(LIMIT);
    let restarts = ended.stderr.matches("started again").count();
    let report = swapped.report_of(ended);
    expect_same(&report, "while helpers and a primary are killed", &[]);
    assert!(restarts >= 1, "{}", report.ended.stderr);
}

#[test]
fn nested_run_keeps_pages_and_ends_helpers() {
    let Some(test_cluster) = test_cluster() else { return };
    let url = format!("--swap={}", test_cluster.plain_url("&size=256M"));
    let python = python();
    let inner = ["run", "-q", "--memory", "12M", "--codec=none", &url, "--"];
    let inner = inner.map(OsString::from);
    let program: Vec<OsString> =
        inner.into_iter().chain([python.clone().into()]).chain(arguments(&[])).collect();
    let expected = plain(&python, &arguments(&[]));
    let directory = disk_dir();
    for outer in [format!("--swap={}", directory.path().display()), url] {
        let outer = Swapped::within("24M").option("--codec=none").option(outer);
        let running = start_command(&mut outer.command(softswap(), &program));
        let run = child_called(running.id(), "softswap").expect("the inner run");
        let helper = child_called(run, HELPER).expect("its helper");
        let maps = std::fs::read_to_string(format!("/proc/{helper}/maps")).unwrap_or_default();
        assert!(!maps.contains("libsoftswap.so"), "the helper is in the outer tree: {maps}");
        let ended = running.finish(LIMIT);
        ended.expect_success("within another run");
        assert_eq!(ended.stdout_text(), expected.stdout_text());
        eventually("all keys are removed", || test_cluster.key_count() == 0);
        eventually("the helper exits", || stat_of(helper).is_none());
    }
}

#[test]
fn pages_of_killed_program_and_helper_are_removed() {
    let Some(test_cluster) = test_cluster() else { return };
    let swapped = swapped(&test_cluster.plain_url("&size=256M"));
    let running = start(&swapped, &[]);
    assert!(test_cluster.key_count() > 20);
    let name = python().file_name().expect("a name").to_string_lossy().into_owned();
    let program = child_called(running.id(), &name).expect("the program");
    let helper = child_called(running.id(), HELPER).expect("the helper");
    // If the helper exited after the last check of `run`, only `gc` would remove the keys.
    kill(helper);
    eventually("the helper has exited", || child_called(running.id(), HELPER) != Some(helper));
    kill(program);
    running.finish(LIMIT).expect_failure("a killed program");
    eventually("all keys are removed", || test_cluster.key_count() == 0);
}

#[test]
fn mirrored_cluster_may_be_lost() {
    let Some(mut test_cluster) = test_cluster() else { return };
    let directory = disk_dir();
    let swapped =
        swapped(&test_cluster.plain_url("&size=256M&deadline=2s")).swap(directory.path().display());
    let running = start(&swapped, &["fork"]);
    eventually("the cluster has pages, too", || test_cluster.key_count() > 20);
    test_cluster.nodes.iter_mut().for_each(|node| node.kill());
    let ended = running.finish(LIMIT);
    let report = swapped.report_of(ended);
    expect_same(&report, "while the cluster is lost", &["fork"]);
}

#[test]
fn full_primary_falls_back_to_directory() {
    let Some(test_cluster) = test_cluster() else { return };
    let directory = disk_dir();
    let swapped = swapped(&test_cluster.plain_url("&size=256M&copies=2&pri=5"))
        .swap(directory.path().display());
    let running = start(&swapped, &[]);
    eventually("the cluster has pages", || test_cluster.key_count() > 20);
    let primary = test_cluster.primaries()[0];
    test_cluster.nodes[primary].set("maxmemory", "4mb");
    let ended = running.finish(LIMIT);
    let report = swapped.report_of(ended);
    expect_same(&report, "while a primary is full", &[]);
    assert!(report.figure("write_errors") > 0, "{}", report.figures);
}

#[test]
fn losing_all_servers_stops_program_with_message() {
    let Some(mut test_cluster) = test_cluster() else { return };
    let swapped = swapped(&test_cluster.plain_url("&size=256M&deadline=8s"));
    let running = start(&swapped, &[]);
    test_cluster.nodes.iter_mut().for_each(|node| node.kill());
    let ended = running.finish(LIMIT);
    assert!(!ended.status.success(), "{}", ended.stderr);
    assert_contains_all(&ended.stderr, &["is unavailable", "127.0.0.1:", "softswap:{"]);
}

#[test]
fn single_server_serves_as_mirror() {
    let Some(server) = crate::test_cluster::single_server() else { return };
    let directory = disk_dir();
    let swapped = swapped(&server.url("&size=256M&single=1")).swap(directory.path().display());
    let report = run(&swapped, &[]);
    expect_same(&report, "with a directory", &[]);
    eventually("all keys are removed", || server.node.number(&["DBSIZE"]) == 0);
}

#[test]
fn unusable_cluster_is_rejected_at_start() {
    let refused = |swap: &str, part: &str| {
        let ended = finish(&mut softswap_with(&["run", "--swap", swap, "--", "echo", "started"]));
        assert!(!ended.status.success() && ended.stdout.is_empty(), "{swap}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{swap}: {}", ended.stderr);
        let is_plain = !["hunter2", "os error"].iter().any(|part| ended.stderr.contains(part));
        assert!(is_plain, "{}", ended.stderr);
    };
    refused("redis://user:hunter2@127.0.0.1:1?size=1G", "SOFTSWAP_REMOTE_PASSWORD");
    refused("redis://127.0.0.1:1", "size=");
    refused("redis://127.0.0.1:1?size=1G&copies=local", "--swap");
    refused("redis://127.0.0.1:1?size=1G&single=1", "copies=local");
    refused("redis://127.0.0.1:1?size=1G&deadline=1s", "127.0.0.1:1");
    let Some(test_cluster) = test_cluster() else { return };
    let doctor_at = |options: &str| {
        let url = test_cluster.plain_url(options);
        let output = softswap_with(&["doctor", "--json", "--swap", &url]).output();
        let found: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        let checks = found["checks"].as_array().unwrap();
        let of_cluster = checks.iter().filter(|check| check["name"] == "swap-cluster");
        of_cluster.map(|it| format!("{} {}", it["status"], it["detail"])).collect::<Vec<_>>()
    };
    let doctor = || {
        wait_until("a cluster that is fast enough", || {
            let checks = doctor_at("&size=16M");
            let is_slow = checks.iter().any(|check| check.contains(TOO_SLOW));
            if is_slow { Err(format!("{checks:?}")) } else { Ok(checks) }
        })
    };
    assert!(doctor()[0].starts_with("\"ok\" \"primaries: 3;"), "{:?}", doctor());
    // Settings that `run` refuses before it connects to the cluster.
    let checks = doctor_at("");
    assert!(checks[0].starts_with("\"fatal\"") && checks[0].contains("size="), "{checks:?}");
    let primary = test_cluster.primaries()[0];
    test_cluster.nodes[primary].set("maxmemory-policy", "allkeys-lru");
    refused(&test_cluster.plain_url("&size=16M"), "noeviction");
    let checks = doctor();
    assert!(checks[0].starts_with("\"fatal\"") && checks[0].contains("noeviction"), "{checks:?}");
}
