//! Stress tests of process trees with random kills. `SOFTSWAP_TREE_TURNS` is the number of rounds;
//! `make test-long` uses 1,000.

use crate::support::cgroup::ControlGroup;
use crate::support::control_client::{eventually, stdout_of, wait_until};
use crate::support::processes::{kill, parent};
use crate::support::tree::{BUDGET, BUDGET_BYTES, Tree, bytes, processes};
use crate::support::{LIMIT, compiled, finish, mix64, number, softswap_with};
use std::time::Duration;

fn turns(by_default: u64) -> u64 {
    number("SOFTSWAP_TREE_TURNS", by_default)
}

#[test]
fn process_wakes_during_any_operation() {
    for _ in 0..turns(2) {
        let options = ["run", "-q", "--reserve", "0", "--memory", "192M", "--"];
        let ended = finish(softswap_with(&options).arg(compiled("waking")).arg("192"));
        ended.expect_ok("waking");
        assert_eq!(ended.stdout_text(), "ok waking\n");
    }
}

#[test]
fn tree_with_random_kills_keeps_budget_and_data() {
    const MEMBERS: u64 = 4;
    // The nursery, its members, two children of each member, and the command.
    const MAX_PROCESSES: u64 = 2 + MEMBERS * 3;
    // A member that has just woken may use 8 MiB more.
    let limit_bytes = BUDGET_BYTES + (4 << 20) * MAX_PROCESSES + (8 << 20) * MEMBERS;
    let Some(group) = ControlGroup::or_skip(limit_bytes) else { return };
    let family = compiled("family");
    let members = MEMBERS.to_string();
    let max_kills = 40 + 3 * turns(10);
    let options = ["--only", "nursery", "--members", &members, "--depth", "1", "--seconds", "0"];
    let program = [&[family.to_str().unwrap()][..], &options].concat();
    let mut tree = Tree::start_in(Some(&group), &["--memory", BUDGET], &program);
    let mut random = 1_u64;
    for kills in 0..max_kills {
        random = mix64(random);
        std::thread::sleep(Duration::from_millis(20 + random % 60));
        // The exit of the command or of its child ends the tree.
        let command = tree.running.id();
        let is_member = |pid: &i32| *pid != command && parent(*pid).is_some_and(|it| it != command);
        let member = wait_until("a member", || {
            let stderr = tree.running.stderr_so_far();
            assert!(!tree.running.has_ended(), "ended after {kills} kills: {stderr}");
            let members: Vec<i32> = group.processes().into_iter().filter(is_member).collect();
            let member = members.get(random as usize % members.len().max(1)).copied();
            member.ok_or_else(|| format!("after {kills} kills: {:?}", group.processes()))
        });
        kill(member);
        if let Ok(stat) = tree.try_stat() {
            assert!(bytes(&stat, "granted_bytes") <= BUDGET_BYTES, "{stat}");
        }
    }
    let ended = tree.finish();
    ended.expect_ok("a nursery");
    assert_eq!(group.oom_kills(), 0, "after {max_kills} kills by the test: {}", ended.stderr);
    assert!(!ended.stderr.contains("overwritten"), "{}", ended.stderr);
    eventually("all processes have exited", || group.processes().is_empty());
}

fn forgotten_memory() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let (number, attached) = (1, 6);
    let lines = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(|it| it[attached] == "0").map(|it| it[number].to_string()).collect()
}

#[test]
fn killing_any_process_leaves_nothing() {
    let Some(group) = ControlGroup::or_skip(1 << 30) else { return };
    let swap = tempfile::tempdir().unwrap();
    let (before, mut random) = (forgotten_memory(), 5_u64);
    let script = "for i in 1 2 3; do \"$0\" --mib 24 --seconds 1 & done; wait";
    for _ in 0..turns(6) {
        let options = ["-q", "--memory", "32M", "--swap", swap.path().to_str().unwrap()];
        let tree = Tree::of_hogs(Some(&group), &options, script);
        random = mix64(random);
        std::thread::sleep(Duration::from_millis(random % 600));
        let all = group.processes();
        all.get(random as usize / 600 % all.len().max(1)).into_iter().for_each(|pid| kill(*pid));
        let command = tree.pid();
        drop(tree.running.finish(LIMIT));
        // Without the command, the other processes keep running.
        group.processes().into_iter().for_each(kill);
        eventually("all processes have exited", || group.processes().is_empty());
        // A killed process may have left its group while its socket is open.
        wait_until("`softswap stat` removes the sockets of killed processes", || {
            let mut look = softswap_with(&["stat", &command]);
            let look = look.env("SOFTSWAP_RUNTIME_DIR", tree.sockets.path()).output().unwrap();
            assert!(!look.status.success(), "{command} has ended");
            match std::fs::read_dir(tree.sockets.path()).unwrap().count() {
                0 => Ok(()),
                sockets => Err(format!("{sockets} sockets remain")),
            }
        });
    }
    assert_eq!(std::fs::read_dir(swap.path()).unwrap().count(), 0, "a swap file was left");
    // Other programs may use such memory for a moment.
    wait_until("no System V memory remains", || {
        let mut remaining = forgotten_memory();
        remaining.retain(|it| !before.contains(it));
        if remaining.is_empty() { Ok(()) } else { Err(format!("{remaining:?}")) }
    });
}

#[test]
fn moving_limit_is_kept_or_reported() {
    let [high, low] = ["256M", "32M"];
    let script = "\"$0\" --mib 120 --seconds 0 & \"$0\" --mib 120 --seconds 0 & wait";
    let tree = Tree::of_hogs(None, &["--memory", low], script);
    tree.wait_until_ready(2);
    let run = tree.pid();
    for turn in 0..turns(4) {
        let answer = stdout_of(&["ctl", &run, "set", "memory", high]);
        assert_eq!(answer, format!("memory = {high}\n"));
        std::thread::sleep(Duration::from_millis(mix64(turn) % 400));
        let answer = stdout_of(&["ctl", &run, "set", "memory", low]);
        let is_kept = answer == format!("memory = {low}\n");
        assert!(is_kept || answer.contains("until processes have evicted more; hog, "), "{answer}");
        let stat = wait_until("the tree is within the limit", || {
            let stat = tree.try_stat()?;
            let is_kept = bytes(&stat, "granted_bytes") <= bytes(&stat, "budget_bytes");
            if is_kept { Ok(stat) } else { Err(stat.to_string()) }
        });
        // The hogs exit if their data differs.
        let hogs = processes(&stat).iter().filter(|it| it["name"] == "hog");
        assert_eq!(hogs.count(), 2, "{}", tree.running.stderr_so_far());
    }
    let stat = tree.stat();
    processes(&stat).iter().for_each(|it| kill(bytes(it, "pid") as i32));
    drop(tree.running.finish(LIMIT));
}
