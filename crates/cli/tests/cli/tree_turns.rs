//! Stress tests of process trees with random kills. `SOFTSWAP_TREE_TURNS` is the number of rounds; `make
//! test-long` uses 1,000.

use crate::support::cgroup::MemoryGroup;
use crate::support::control_client::{stdout_of, wait_for, wait_until};
use crate::support::tree::{BUDGET, BUDGET_BYTES, Tree, bytes, kill, processes};
use crate::support::{LIMIT, Running, compiled, mix64, softswap};
use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

/// Returns the number of rounds: `SOFTSWAP_TREE_TURNS`, or `by_default`.
fn turns(by_default: u64) -> u64 {
    let asked = std::env::var("SOFTSWAP_TREE_TURNS");
    asked.map_or(by_default, |text| text.parse().expect("SOFTSWAP_TREE_TURNS"))
}

#[test]
fn process_wakes_during_any_operation() {
    for _ in 0..turns(2) {
        let mut command = Command::new(softswap());
        command.args(["run", "-q", "--reserve", "0", "--memory", "192M", "--"]);
        let ended = Running::start(command.arg(compiled("waking")).arg("192")).finish(LIMIT);
        ended.expect_ok("waking");
        assert_eq!(ended.stdout_text(), "ok waking\n");
    }
}

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn tree_with_random_kills_keeps_budget_and_data() {
    const MEMBERS: u64 = 4;
    // A nursery, its members, two children of each, and the command.
    const MAX_PROCESSES: u64 = 2 + MEMBERS * 3;
    let group = match MemoryGroup::limited_to(BUDGET_BYTES + (4 << 20) * MAX_PROCESSES) {
        Ok(group) => group,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let family = compiled("family");
    let members = MEMBERS.to_string();
    let max_kills = 40 + 3 * turns(10);
    let options = ["--only", "nursery", "--members", &members, "--depth", "1", "--seconds", "0"];
    let program: Vec<&OsStr> =
        [family.as_os_str()].into_iter().chain(options.map(AsRef::as_ref)).collect();
    let mut tree = Tree::start(group.command(softswap()), &["--memory", BUDGET], &program);
    let mut random = 1_u64;
    for kills in 0..max_kills {
        random = mix64(random);
        std::thread::sleep(std::time::Duration::from_millis(20 + random % 60));
        // Spares the command and its direct child, because their exit ends the tree.
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
        if let Some(stat) = tree.stat() {
            assert!(bytes(&stat, "granted_bytes") <= BUDGET_BYTES, "{stat}");
        }
    }
    let ended = tree.finish();
    ended.expect_ok("a family");
    assert_eq!(group.oom_kills(), 0, "after {max_kills} kills of ours: {}", ended.stderr);
    assert!(!ended.stderr.contains("overwritten"), "{}", ended.stderr);
    wait_for("nobody to be left", || group.processes().is_empty().then_some(()));
}

/// Returns the IDs of System V shared memory segments without attachments.
fn forgotten_memory() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let (number, attached) = (1, 6);
    let lines = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(|it| it[attached] == "0").map(|it| it[number].to_string()).collect()
}

#[test]
fn killing_any_process_leaves_nothing() {
    let group = match MemoryGroup::limited_to(1 << 30) {
        Ok(group) => group,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let swap = tempfile::tempdir().unwrap();
    let (before, mut random) = (forgotten_memory(), 5_u64);
    // The tree consists of the command, a forking shell and hogs.
    let script = "for i in 1 2 3; do \"$0\" --mib 24 --seconds 1 & done; wait";
    for _ in 0..turns(6) {
        let options = ["-q", "--memory", "32M", "--swap", swap.path().to_str().unwrap()];
        let hog = compiled("hog");
        let program = ["sh".as_ref(), "-c".as_ref(), script.as_ref(), hog.as_os_str()];
        let tree = Tree::start(group.command(softswap()), &options, &program);
        random = mix64(random);
        std::thread::sleep(Duration::from_millis(random % 600));
        let all = group.processes();
        all.get(random as usize / 600 % all.len().max(1)).into_iter().for_each(|pid| kill(*pid));
        let command = tree.pid();
        drop(tree.running.finish(LIMIT));
        // If the command was killed, the other processes keep running without it.
        group.processes().into_iter().for_each(kill);
        wait_for("nobody to be left", || group.processes().is_empty().then_some(()));
        let look = Command::new(softswap())
            .args(["stat", &command])
            .env("SOFTSWAP_RUNTIME_DIR", tree.sockets.path())
            .output();
        assert!(!look.unwrap().status.success(), "{command} has ended");
        let sockets = std::fs::read_dir(tree.sockets.path()).unwrap();
        assert_eq!(sockets.count(), 0, "who looks next removes the sockets of the dead");
    }
    assert_eq!(std::fs::read_dir(swap.path()).unwrap().count(), 0, "a swap file has no name");
    let left: Vec<_> = forgotten_memory().into_iter().filter(|it| !before.contains(it)).collect();
    assert!(left.is_empty(), "System V memory: {left:?}");
}

#[test]
fn moving_limit_is_kept_or_reported() {
    let hog = compiled("hog");
    let [high, low] = ["256M", "32M"];
    let script = "\"$0\" --mib 120 --seconds 0 & \"$0\" --mib 120 --seconds 0 & wait";
    let program = ["sh".as_ref(), "-c".as_ref(), script.as_ref(), hog.as_os_str()];
    let tree = Tree::start(Command::new(softswap()), &["--memory", low], &program);
    tree.wait_until_ready(2);
    let run = tree.pid();
    for turn in 0..turns(4) {
        let output_of_case = stdout_of(&["ctl", &run, "set", "memory", high]);
        assert_eq!(output_of_case, format!("memory = {high}\n"));
        std::thread::sleep(Duration::from_millis(mix64(turn) % 400));
        let output_of_case = stdout_of(&["ctl", &run, "set", "memory", low]);
        let is_kept = output_of_case == format!("memory = {low}\n");
        assert!(
            is_kept || output_of_case.contains("until processes have evicted more; hog, "),
            "{output_of_case}"
        );
        let stat = wait_until("the limit to be kept", || {
            let stat = tree.try_stat()?;
            let is_kept = bytes(&stat, "granted_bytes") <= bytes(&stat, "budget_bytes");
            if is_kept { Ok(stat) } else { Err(stat.to_string()) }
        });
        // The hogs compare their data continuously and exit at a difference.
        let hogs = processes(&stat).iter().filter(|it| it["name"] == "hog");
        assert_eq!(hogs.count(), 2, "{}", tree.running.stderr_so_far());
    }
    let stat = tree.answer();
    processes(&stat).iter().for_each(|it| kill(bytes(it, "pid") as i32));
    drop(tree.running.finish(LIMIT));
}
