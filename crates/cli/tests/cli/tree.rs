//! One budget for all processes of a tree.

use crate::common::area::succeeds;
use crate::common::{assert_contains_all, is_root, json_file, skip};
use crate::support::cgroup::ControlGroup;
use crate::support::control_client::{
    program_stat, query, refused, stdout_of, wait_for, wait_until,
};
use crate::support::processes::{kill, shared_memory};
use crate::support::tree::{BUDGET, BUDGET_BYTES, Tree, bytes, processes};
use crate::support::{
    Ended, LIMIT, Running, compiled, plain, python, softswap_with, wait_for_rounds,
};
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::process::Command;

fn finish_hogs(tree: Tree, count: usize) -> Ended {
    let ended = tree.finish();
    assert_eq!(ended.stdout_text().matches("ok hog").count(), count, "{}", ended.stderr);
    ended
}

#[test]
fn two_processes_stay_within_shared_budget() {
    // Outside the budget: 4 MiB for each concurrent process and for the command, and 8 MiB of a
    // process that has just woken.
    let group = ControlGroup::if_possible(BUDGET_BYTES + (4 << 20) * 4 + (8 << 20));
    let tree = Tree::of_two_hogs(group.as_ref());
    let (mut seen, mut looks) = (0, 0);
    wait_for("twenty samples and half of the budget", || {
        let stat = tree.try_stat().ok()?;
        assert!(bytes(&stat, "granted_bytes") <= BUDGET_BYTES, "{stat}");
        assert!(bytes(&stat, "used_bytes") <= BUDGET_BYTES + (8 << 20), "{stat}");
        seen = seen.max(bytes(&stat, "used_bytes"));
        looks += 1;
        (looks >= 20 && seen > BUDGET_BYTES / 2).then_some(())
    });
    tree.wait_until_ready(2);
    let ended = finish_hogs(tree, 2);
    ended.expect_success("two hogs");
    assert!(ended.stderr.contains("  budget     96.0 MiB, at most "), "{}", ended.stderr);
}

const CHILDREN: usize = 8;

fn tree_of_eight(group: Option<&ControlGroup>, memory: &str, script: &str) -> Tree {
    let start = r#"for child in 1 2 3 4 5 6 7 8; do "$0" -c "$1" & done; wait"#;
    let python = python();
    let program = ["sh", "-c", start, python.to_str().unwrap(), script];
    let tree = Tree::start_in(group, &["--memory", memory], &program);
    tree.wait_until_ready(CHILDREN);
    tree
}

/// The budget, or 8 MiB for each process if that is more, and 4 MiB of unmanaged memory for each
/// process, the shell and the command.
#[test]
fn small_processes_stay_within_eight_mib() {
    let limit_bytes = (12 * CHILDREN as u64 + 8) << 20;
    let Some(group) = ControlGroup::or_skip(limit_bytes) else { return };
    let script = r"
import os, time
block = bytearray(os.urandom(1 << 20)) * 12
print('ready', flush=True)
while not os.path.exists(os.environ['SOFTSWAP_RUNTIME_DIR'] + '/done'): time.sleep(0.05)
assert all(block[at] == block[at % (1 << 20)] for at in range(0, len(block), 4096))
print('whole', flush=True)
";
    let tree = tree_of_eight(Some(&group), "32M", script);
    let ended = tree.finish();
    ended.expect_success("small processes");
    assert_eq!(ended.stdout_text().matches("whole").count(), CHILDREN);
}

/// A forked child counts inherited pages, but the tree's peak counts each page once.
#[test]
fn tree_peak_counts_shared_pages_once() {
    let script = r"
import os, time
block = bytearray(os.urandom(1 << 20)) * 80
pids = []
for child in range(3):
    pid = os.fork()
    if pid == 0:
        own = bytearray(b'x') * (4 << 20)
        print('ready', flush=True)
        while not os.path.exists(os.environ['SOFTSWAP_RUNTIME_DIR'] + '/done'): time.sleep(0.05)
        os._exit(0)
    pids.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
";
    let group = ControlGroup::if_possible(1 << 30);
    let python = python();
    let program = [python.to_str().unwrap(), "-c", script];
    let tree = Tree::start_in(group.as_ref(), &["--memory", "128M"], &program);
    tree.wait_until_ready(3);
    let ended = tree.finish();
    ended.expect_success("children that share");
    // 80 MiB, 4 MiB for each child, Python and the engines.
    let used = mib_after("MiB, at most ", &ended);
    assert!(used < 140.0, "{}", ended.stderr);
    if let Some(group_bytes) = group.and_then(|group| group.peak_bytes()) {
        let group_mib = group_bytes as f64 / f64::from(1 << 20);
        assert!(used < group_mib * 1.05, "{group_mib} MiB in the group: {}", ended.stderr);
    }
    assert!(mib_after("  peaks      resident ", &ended) <= used, "{}", ended.stderr);
}

fn mib_after(words: &str, ended: &Ended) -> f64 {
    let line = ended.stderr.lines().find_map(|line| line.split_once(words));
    let number = line.and_then(|(_, rest)| rest.split_once(" MiB")?.0.parse().ok());
    number.unwrap_or_else(|| panic!("no MiB after {words:?}: {}", ended.stderr))
}

/// Small processes hold chunks for a part of their private memory only.
#[test]
fn tree_peak_includes_private_memory_of_small_processes() {
    let script = r"
import os, time
block = bytearray(os.urandom(2 << 20))
print('ready', flush=True)
while not os.path.exists(os.environ['SOFTSWAP_RUNTIME_DIR'] + '/done'): time.sleep(0.05)
";
    let tree = tree_of_eight(None, "64M", script);
    let private_bytes = |process: &Value| -> u64 {
        let path = format!("/proc/{}/smaps_rollup", bytes(process, "pid"));
        let text = std::fs::read_to_string(path).unwrap();
        let kib = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).unwrap();
        kib.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    };
    let stat = tree.stat();
    assert!(processes(&stat).len() >= CHILDREN, "{stat}");
    let all_bytes: u64 = processes(&stat).iter().map(private_bytes).sum();
    wait_for_rounds(tree.running.id(), 20);
    let ended = tree.finish();
    ended.expect_success("small processes");
    let (used, all) = (mib_after("MiB, at most ", &ended), all_bytes as f64 / f64::from(1 << 20));
    assert!(used > all * 0.95, "{all} MiB of private memory: {}", ended.stderr);
}

#[test]
fn pipeline_of_five_gives_same_result() {
    let script = "seq 1 400000 | rev | sort -S 200M | uniq -c | sort -n -S 200M | md5sum";
    let expected = plain("sh", &["-c", script]);
    let tree = Tree::start(&["-q", "--memory", "64M"], &["sh", "-c", script]);
    let ended = tree.running.finish(LIMIT);
    ended.expect_success("a pipeline");
    assert_eq!(ended.stdout_text(), expected.stdout_text());
}

/// A process may lock a quarter of the budget, even while its share is small.
#[test]
fn share_grows_for_locked_memory() {
    if !is_root() {
        return skip("other users may lock only a little memory");
    }
    let script = r"
import ctypes, mmap
block = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(block))
library = ctypes.CDLL(None, use_errno=True)
lock = lambda mib: library.mlock(ctypes.c_void_p(address), ctypes.c_size_t(mib << 20))
print(lock(60), lock(64), ctypes.get_errno())
";
    let ended = Tree::of_script(&["--awake", "--memory", "248M"], script).running.finish(LIMIT);
    ended.expect_success("a program that locks memory");
    // ENOMEM: 64 MiB are more than a quarter.
    assert_eq!(ended.stdout_text(), "0 -1 12\n");
}

#[test]
fn chunks_of_killed_process_are_reclaimed() {
    let tree = Tree::of_two_hogs(None);
    tree.wait_until_ready(2);
    let stat = tree.stat();
    let all = processes(&stat).len();
    let hog = processes(&stat).iter().find(|it| it["name"] == "hog").unwrap();
    kill(bytes(hog, "pid") as i32);
    tree.wait_for_answer("the other process has its share", |stat| {
        processes(stat).len() == all - 1 && max_granted(stat) > BUDGET_BYTES * 3 / 4
    });
    finish_hogs(tree, 1);
}

#[test]
fn forked_child_has_own_share() {
    let script = r"
import os, sys, time
block = bytearray(os.urandom(1 << 20)) * 24
if os.fork() == 0:
    before = bytes(block)
    for at in range(0, len(block), 4096): block[at] ^= 255
    for at in range(0, len(block), 4096): assert block[at] == before[at] ^ 255
    print('ready', flush=True)
    while not os.path.exists(os.environ['SOFTSWAP_RUNTIME_DIR'] + '/done'): time.sleep(0.05)
    os._exit(0)
print('child', os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
";
    let tree = Tree::of_script(&["-q", "--memory", "128M"], script);
    tree.wait_until_ready(1);
    let stat = tree.stat();
    assert_eq!(processes(&stat).len(), 2, "{stat}");
    assert!(bytes(&stat, "granted_bytes") <= 128 << 20, "{stat}");
    let ended = tree.finish();
    ended.expect_success("fork");
    assert!(ended.stdout_text().ends_with("child 0\n"), "{}", ended.stdout_text());
}

#[test]
fn children_of_sleeping_parent_share_its_budget() {
    // The parent uses half of the budget, so the children's inherited pages do not fit.
    let script = r"
import os, time
block = bytearray(os.urandom(1 << 20)) * 50
pids = []
for child in range(3):
    pid = os.fork()
    if pid == 0:
        for at in range(0, len(block), 4096): block[at] ^= 255
        own = [bytearray(os.urandom(1 << 20)) for _ in range(60)]
        print('ready', flush=True)
        while not os.path.exists(os.environ['SOFTSWAP_RUNTIME_DIR'] + '/done'): time.sleep(0.05)
        assert len(set(map(bytes, own))) == 60
        assert all(block[at] ^ 255 == block[1 << 20 | at] ^ 255 for at in range(0, 1 << 20, 4096))
        os._exit(0)
    pids.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids], flush=True)
";
    let tree = Tree::of_script(&["-q", "--memory", BUDGET], script);
    tree.wait_until_ready(3);
    tree.wait_for_answer("the tree is within the budget", |stat| {
        bytes(stat, "used_bytes") <= BUDGET_BYTES + BUDGET_BYTES / 10
    });
    let ended = tree.finish();
    ended.expect_success("three children");
    assert!(ended.stdout_text().ends_with("[0, 0, 0]\n"), "{}", ended.stdout_text());
    assert_eq!(ended.stderr, "");
}

fn max_granted(stat: &Value) -> u64 {
    processes(stat).iter().map(|it| bytes(it, "granted_bytes")).max().unwrap_or(0)
}

/// Does not depend on the demand of other processes.
const MIN_SHARE_BYTES: u64 = 8 << 20;

/// [`start_second`] starts another one.
fn tree_of_first_hog(mib: u32) -> Tree {
    let script = format!(
        "\"$0\" --mib {mib} --seconds 0 & \
         until [ -e \"$SOFTSWAP_RUNTIME_DIR/seen\" ]; do sleep 0.1; done; \
         \"$0\" --mib 90 --seconds 0; wait"
    );
    let tree = Tree::of_hogs(None, &["--memory", BUDGET], &script);
    tree.wait_until_ready(1);
    tree
}

fn start_second(tree: &Tree) {
    std::fs::write(tree.sockets.path().join("seen"), "").unwrap();
}

/// Each process gets half of an equal share or more, even if the other one gains more.
#[test]
fn later_process_gets_its_share() {
    let tree = tree_of_first_hog(90);
    start_second(&tree);
    tree.wait_for_answer("two shares", |stat| {
        let hogs = processes(stat).iter().filter(|it| it["name"] == "hog");
        let shares: Vec<_> = hogs.map(|it| bytes(it, "granted_bytes")).collect();
        let [one, other] = shares[..] else { return false };
        one.min(other) >= BUDGET_BYTES / 4 - (2 << 20)
    });
    tree.wait_until_ready(2);
    finish_hogs(tree, 2);
}

#[test]
fn sleeping_process_is_woken_by_request() {
    let tree = tree_of_first_hog(60);
    let sleeps = |hog: &Value| !query(&["stat", &hog["pid"].to_string()]).status.success();
    let stat = tree.stat();
    let first = &processes(&stat)[0];
    assert!(sleeps(first), "{stat}");
    let had_by_first = bytes(first, "granted_bytes");
    start_second(&tree);
    tree.wait_for_answer("both are awake and have a share", |stat| {
        assert!(bytes(stat, "granted_bytes") <= BUDGET_BYTES, "{stat}");
        let hogs = processes(stat).iter().filter(|it| it["name"] == "hog");
        let (one, others): (Vec<_>, Vec<_>) = hogs.partition(|it| it["pid"] == first["pid"]);
        let ([one], [other]) = (&one[..], &others[..]) else { return false };
        let has_share = bytes(other, "granted_bytes") > BUDGET_BYTES - had_by_first
            && bytes(one, "granted_bytes") >= MIN_SHARE_BYTES;
        has_share && !sleeps(one) && !sleeps(other)
    });
    finish_hogs(tree, 2);
}

#[test]
fn sleeping_process_is_woken_by_lower_limit() {
    let script = "\"$0\" --mib 60 --seconds 0 & wait";
    let tree = Tree::of_hogs(None, &["--memory", BUDGET], script);
    tree.wait_until_ready(1);
    let stat = tree.stat();
    assert!(max_granted(&stat) >= 60 << 20, "{stat}");
    let set = stdout_of(&["ctl", &tree.pid(), "set", "memory", "24M"]);
    assert!(set.starts_with("memory = 24M"), "{set}");
    tree.wait_for_answer("the process is within the limit", |stat| max_granted(stat) <= 24 << 20);
    let stderr = finish_hogs(tree, 1).stderr;
    assert!(stderr.contains("  budget     24.0 MiB (96.0 MiB once), at most "), "{stderr}");
}

#[test]
fn single_sleeping_process_has_no_thread() {
    let script = "exec \"$0\" --mib 60 --seconds 0";
    let tree = Tree::of_hogs(None, &["--memory", BUDGET], script);
    tree.wait_until_ready(1);
    let stat = tree.stat();
    let pid = bytes(&processes(&stat)[0], "pid");
    assert_eq!(std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count(), 1);
    let ended = tree.finish();
    assert_eq!(ended.stderr, "");
}

#[test]
fn tree_limit_can_be_lowered_and_raised() {
    let tree = Tree::of_two_hogs(None);
    tree.wait_until_ready(2);
    let run = tree.pid();
    for (limit, bytes_then) in [("48M", 48 << 20), ("80M", 80 << 20)] {
        let set = stdout_of(&["ctl", &run, "set", "memory", limit]);
        assert!(set.starts_with(&format!("memory = {limit}")), "{set}");
        tree.wait_for_answer(&format!("the tree uses the limit of {limit}"), |stat| {
            assert_eq!(bytes(stat, "budget_bytes"), bytes_then);
            let granted = bytes(stat, "granted_bytes");
            granted <= bytes_then && granted > bytes_then * 3 / 4
        });
    }
    assert_eq!(stdout_of(&["ctl", &run, "get", "memory"]), "80M\n");
    refused(&["ctl", &run, "set", "memory", "2M"], 2, &["too small", "8.0 MiB"]);
    refused(&["ctl", &run, "set", "memory", "5X"], 2, &["memory 5X: not a size", "512M"]);
    // Other settings belong to a program, here to the sleeping shell.
    refused(&["ctl", &run, "set", "codec", "lz4"], 1, &["is asleep"]);
    let stat = tree.stat();
    let one = bytes(&processes(&stat)[0], "pid").to_string();
    assert_eq!(stdout_of(&["ctl", &one, "set", "codec", "lz4"]), "codec = lz4\n");
    refused(&["ctl", &one, "set", "memory", "64M"], 2, &["shares the budget of its tree"]);
    finish_hogs(tree, 2);
}

#[test]
fn auto_budget_shrinks_for_another_program() {
    const GROUP_BYTES: u64 = 640 << 20;
    const LEFT_BYTES: u64 = 256 << 20;
    let Some(group) = ControlGroup::or_skip(GROUP_BYTES) else { return };
    let hog = compiled("hog");
    let program = [hog.to_str().unwrap(), "--mib", "400", "--seconds", "0"];
    let options = ["--memory", "auto:16M-600M"];
    let mut tree = Tree::start_in(Some(&group), &options, &program);
    tree.wait_until_ready(1);
    // Other load on this machine may have lowered the budget briefly.
    tree.wait_for_answer("the tree has its budget", |stat| {
        bytes(stat, "budget_bytes") > LEFT_BYTES
    });
    // The speed of the shrinking is not guaranteed.
    let script = r"
import os, sys, time
group, limit, wanted, seen = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
files = [group + '/memory.usage_in_bytes', group + '/memory.current']
used = next(name for name in files if os.path.exists(name))
def room():
    stat = dict(line.split() for line in open(group + '/memory.stat'))
    files = int(stat['inactive_file']) + int(stat['active_file'])
    return limit - int(open(used).read()) + files
taken = []
while len(taken) << 23 < wanted:
    while room() < 3 << 23: time.sleep(0.02)
    taken.append(bytearray(1 << 23))
    for at in range(0, 1 << 23, 4096): taken[-1][at] = 1
print('taken', flush=True)
while not os.path.exists(seen): time.sleep(0.02)
";
    let directory = group.dir().to_string_lossy();
    let wanted = (GROUP_BYTES - LEFT_BYTES).to_string();
    let seen = tree.sockets.path().join("seen");
    let arguments =
        ["-c", script, &directory, &GROUP_BYTES.to_string(), &wanted, seen.to_str().unwrap()];
    let mut command = group.command(python());
    let mut other = Running::start(command.args(arguments));
    other.wait_for_line("taken");
    tree.wait_for_answer("a lower budget", |stat| bytes(stat, "budget_bytes") < LEFT_BYTES);
    std::fs::write(&seen, "").unwrap();
    other.finish(LIMIT).expect_success("the program that allocated memory");
    let set = |to| {
        let answer = query(&["ctl", &tree.pid(), "set", "memory", to]);
        [answer.stdout, answer.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    let [stdout, stderr] = set("99999G");
    assert!(stdout.starts_with("memory = "), "{stdout}");
    let parts = ["note: memory 99999G is too large for the", &directory, "set memory 5"];
    assert_contains_all(&stderr, &parts);
    let [stdout, stderr] = set("100M");
    assert!(stdout.starts_with("memory = 100M") && stderr.is_empty(), "{stdout}{stderr}");
    assert_contains_all(&stdout_of(&["ctl", &tree.pid(), "set", "memory", "auto"]), &["M (auto)"]);
    // The hog exits if its data differs.
    assert!(!tree.running.has_ended() && group.oom_kills() == 0);
}

#[test]
fn programs_start_with_fully_granted_budget() {
    let script = "\"$0\" --mib 90 --seconds 0 & i=0; while [ $i -lt 100 ]; do \
                  /bin/true || exit 1; i=$((i+1)); done; echo started; \
                  touch \"$SOFTSWAP_RUNTIME_DIR/done\"; wait";
    let report = tempfile::tempdir().unwrap();
    let place = format!("--report={}", report.path().join("report").display());
    let tree = Tree::of_hogs(None, &["--memory", "64M", &place], script);
    let ended = tree.running.finish(LIMIT);
    ended.expect_success("many programs");
    assert!(ended.stdout_text().contains("started\n"), "{}", ended.stdout_text());
    let report = json_file(&report.path().join("report"));
    assert_eq!(bytes(&report, "budget_bytes"), 64 << 20);
    let largest = &report["tree"]["largest"];
    assert!(largest[0]["name"] == "hog" && bytes(&largest[0], "pid") > 0, "{report}");
}

#[test]
fn overwritten_ledger_is_reported_once_per_process() {
    let tree = Tree::of_two_hogs(None);
    tree.wait_until_ready(2);
    let stat = tree.stat();
    let pid = bytes(&processes(&stat)[0], "pid");
    let page = shared_memory(pid as i32, "SOFTSWAP_RT_LEDGER_FD=");
    let garbage: Vec<u8> = (0..1_u32 << 18).map(|at| ((at * 37) >> 3) as u8).collect();
    page.write_all_at(&garbage, 0).unwrap();
    wait_until("both processes have reported the overwritten ledger", || {
        let stderr = tree.running.stderr_so_far();
        let is_reported = stderr.matches("has been overwritten: process ").count() >= 2;
        is_reported.then_some(()).ok_or(stderr)
    });
    let ended = finish_hogs(tree, 2);
    // The shell reports nothing.
    let messages = ended.stderr.matches("has been overwritten: process ").count();
    assert_eq!(messages, 2, "{}", ended.stderr);
}

#[test]
fn per_process_budget_is_separate() {
    let script = "exec \"$0\" --mib 64 --seconds 0";
    let options = ["-q", "--memory-per-process", "32M"];
    let tree = Tree::of_hogs(None, &options, script);
    tree.wait_until_ready(1);
    let stat = program_stat(&tree.pid());
    assert_eq!((&stat["tree"], bytes(&stat, "budget_bytes")), (&Value::Null, 32 << 20));
    tree.finish().expect_success("hog");
    let both = ["run", "--memory", "64M", "--memory-per-process", "32M", "--", "true"];
    assert_eq!(softswap_with(&both).output().unwrap().status.code(), Some(2));
}

#[test]
fn forked_child_runs_with_full_inherited_pool() {
    // One access across page boundaries touches two pages.
    let script = "
import os, hashlib
texts = [str(number) * 6 for number in range(800_000)]
child = os.fork()
joined = hashlib.sha256(''.join(texts).encode()).hexdigest()
if child == 0:
    print(joined, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(joined)
";
    let expected = plain(python(), &["-c", script]);
    expected.expect_success("plain");
    for memory in ["32M", "40M", "64M"] {
        let options = ["-q", "--memory", memory];
        let ended = Tree::of_script(&options, script).running.finish(LIMIT);
        ended.expect_success(memory);
        assert_eq!(ended.stdout_text(), expected.stdout_text(), "{memory}");
    }
}

#[test]
fn process_in_another_pid_namespace_keeps_budget() {
    let unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork"];
    if !succeeds(Command::new(unshare[0]).args(&unshare[1..]).arg("true")) {
        return skip("PID namespaces are not available");
    }
    let script = "
import os, threading
assert os.getpid() == 1
other = threading.Thread(target=lambda: sum(range(3_000_000)))
other.start()
texts = [str(number) * 4 for number in range(1_500_000)]
other.join()
assert all(text == str(number) * 4 for number, text in enumerate(texts))
print([int(line.split()[1]) for line in open('/proc/self/status') if 'RssAnon' in line][0])
";
    let python = python();
    let program: Vec<&str> =
        unshare.into_iter().chain([python.to_str().unwrap(), "-c", script]).collect();
    let ended = Tree::start(&["-q", "--memory", "64M"], &program).running.finish(LIMIT);
    ended.expect_success("the program in another namespace");
    let kib: u64 = ended.stdout_text().trim().parse().unwrap();
    assert!(kib < 80 << 10, "{kib} KiB of 64 MiB");
}
