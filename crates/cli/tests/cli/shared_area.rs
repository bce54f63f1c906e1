//! A named swap area shared by a process tree that execs, forks and loses processes.

use crate::common::Loop;
use crate::support::{LIMIT, Running, Swapped, compiled, mix64, python, softswap};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// Formatted swap file, removed on drop.
struct Area {
    path: PathBuf,
    dir: TempDir,
}

impl Area {
    fn new(mib: u64) -> Area {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory on a disk");
        let path = dir.path().join("swap");
        let file = File::create(&path).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, mib * MIB).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        mkswap(&path);
        Area { path, dir }
    }

    fn swapped(&self, memory: &str) -> Swapped {
        Swapped::within(memory).option(format!("--swap={}", self.path.display()))
    }
}

fn mkswap(path: &Path) {
    let output = Command::new(softswap()).arg("mkswap").arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns arguments of `sh` that run `script` with the path of `hog` as `$0`.
fn shell(script: &str) -> [OsString; 3] {
    ["-c".into(), script.into(), compiled("hog").into_os_string()]
}

fn wait_until(what: &str, running: &Running, holds: impl Fn() -> bool) {
    const WAIT_TIMEOUT: Duration = Duration::from_secs(300);
    let end = Instant::now() + WAIT_TIMEOUT;
    while !holds() {
        let output_of_case = running.stderr_so_far();
        assert!(Instant::now() < end, "not within {WAIT_TIMEOUT:?}: {what}\n{output_of_case}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn has_printed(running: &Running, line: &str) -> bool {
    String::from_utf8_lossy(&running.stdout_so_far()).lines().any(|it| it == line)
}

/// Opens the shared tables of a tree after its first process has printed its PID.
fn tables(running: &Running) -> File {
    wait_until("its number", running, || running.stdout_so_far().contains(&b'\n'));
    let output_of_case = String::from_utf8(running.stdout_so_far()).unwrap();
    let pid = output_of_case.lines().next().unwrap();
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    let (_, number) = environment.split_once("SOFTSWAP_RT_TABLES_FD=").unwrap();
    let number = number.split('\0').next().unwrap();
    let path = format!("/proc/{pid}/fd/{number}");
    File::options().read(true).write(true).open(path).unwrap()
}

/// Returns the number of owned clusters of one area.
fn taken(tables: &File) -> usize {
    const FIRST_CLUSTER_WORD: u64 = 8 + 32 * 5;
    let len = tables.metadata().unwrap().len();
    let mut words = vec![0; (len - FIRST_CLUSTER_WORD * 8) as usize];
    tables.read_exact_at(&mut words, FIRST_CLUSTER_WORD * 8).unwrap();
    words.chunks(8).filter(|word| word.iter().any(|byte| *byte != 0)).count()
}

/// Pipeline stage. Each of three stages uses more than its share.
const STAGE: &str = r"
import hashlib, os, sys
own = [os.urandom(1 << 20) for _ in range(30)]
seals = [hashlib.sha256(block).digest() for block in own]
lines = sys.stdin.read().split() if sys.argv[1] != 'first' else [str(n) for n in range(300_000)]
lines = [hashlib.md5(line.encode()).hexdigest() for line in lines]
assert [hashlib.sha256(block).digest() for block in own] == seals
print('\n'.join(lines if sys.argv[1] != 'last' else [hashlib.md5(''.join(lines).encode()).hexdigest()]))
";

#[test]
fn pipeline_shares_area_with_same_result() {
    let script = format!(
        "p={}; $p -c \"$0\" first | $p -c \"$0\" middle | $p -c \"$0\" last",
        python().display()
    );
    let arguments = ["-c", &script, STAGE];
    let expected = crate::support::plain("sh", &arguments);
    expected.expect_success("a pipeline");
    let area = Area::new(256);
    for swapped in [area.swapped("48M"), area.swapped("24M").per_process()] {
        let ended = Running::start(&mut swapped.command("sh", &arguments)).finish(LIMIT);
        ended.expect_success("a pipeline");
        assert_eq!(ended.stdout_text(), expected.stdout_text());
        // No process ran without a budget.
        assert!(!ended.stderr.contains("without a budget"), "{}", ended.stderr);
    }
}

#[test]
fn large_forked_children_write_to_tree_area() {
    let area = Area::new(768);
    let arguments = ["--mib", "24", "--pressure", "40", "--require-out"];
    area.swapped("16M").run_ok("children", &arguments);
}

#[test]
fn parent_keeps_pages_while_children_are_killed() {
    let area = Area::new(200);
    let arguments = ["--mib", "24", "--pressure", "40", "--only", "some-are-killed"];
    area.swapped("16M").run_ok("children", &arguments);
}

#[test]
fn python_children_have_separate_data() {
    let script = r"
import hashlib, os, time
print(os.getpid(), flush=True)
block = [os.urandom(1 << 20) for _ in range(40)]
digest = lambda blocks: hashlib.sha256(b''.join(blocks)).hexdigest()
before = digest(block)
pids = []
for child in range(4):
    pid = os.fork()
    if pid == 0:
        assert digest(block) == before
        own = [os.urandom(1 << 20) for _ in range(30)]
        first = digest(own)
        for at in range(len(block)): block[at] = own[at % 30][::-1]
        assert digest(own) == first and digest(block[:30]) == digest([b[::-1] for b in own])
        os._exit(0)
    pids.append(pid)
assert digest(block) == before
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids], flush=True)
assert digest(block) == before
del block
print('freed', flush=True)
time.sleep(1000)
";
    let area = Area::new(640);
    let swapped = area.swapped("48M");
    let mut command = swapped.command(python(), &["-c", script]);
    let running = Running::start(&mut command);
    let tables = tables(&running);
    wait_until("its children", &running, || has_printed(&running, "freed"));
    assert!(has_printed(&running, "[0, 0, 0, 0]"), "{}", running.stderr_so_far());
    // The children's clusters are free, and only those of the parent remain.
    wait_until("what they had to come back", &running, || taken(&tables) < 60);
}

#[test]
fn successive_programs_fill_area_without_leak() {
    let area = Area::new(96);
    let script = "echo $$; for i in 1 2 3 4 5; do \"$0\" --mib 100 || exit 1; done; \
                  echo done; sleep 1000";
    let swapped = area.swapped("48M");
    let running = Running::start(&mut swapped.command("sh", &shell(script)));
    let tables = tables(&running);
    wait_until("five programs", &running, || has_printed(&running, "done"));
    wait_until("all to be free", &running, || taken(&tables) == 0);
}

#[test]
fn full_area_stops_one_program_only() {
    let area = Area::new(64);
    let script = "\"$0\" --mib 300; test $? -ne 0 && exec \"$0\" --mib 60";
    let swapped = area.swapped("32M");
    let ended = Running::start(&mut swapped.command("sh", &shell(script))).finish(LIMIT);
    ended.expect_ok("the one that fits");
    let stdout_of = "swap area is full: all of its 64.0 MiB are in use, ";
    assert!(ended.stderr.contains(stdout_of), "{}", ended.stderr);
    assert!(ended.stderr.contains("the rest by other processes of its tree"), "{}", ended.stderr);
}

#[test]
fn child_reads_pages_of_killed_parent() {
    let script = r"
import hashlib, os, signal, sys, time
block = [os.urandom(1 << 20) for _ in range(40)]
def digest():
    whole = hashlib.sha256()
    for part in block: whole.update(part)
    return whole.hexdigest()
before = digest()
more = [os.urandom(1 << 20) for _ in range(20)]
parent = os.getpid()
if os.fork() > 0:
    time.sleep(0.2)
    os.kill(parent, signal.SIGKILL)
while os.getppid() == parent: time.sleep(0.01)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
assert digest() == before
print('ok all of it', flush=True)
os._exit(0)
";
    let area = Area::new(192);
    let flag = area.dir.path().join("filled");
    let shell_script = "echo $$; p=$1 s=$2 f=$3; $p -c \"$s\" \"$f\" & wait $!; \
         for i in 1 2 3; do \"$0\" --mib 70 || exit 1; done; \"$0\" --mib 400; \
         test $? -ne 0 && touch \"$f\"; sleep 1000";
    let arguments: Vec<OsString> = shell(shell_script)
        .into_iter()
        .chain([python().into(), script.into(), flag.into_os_string()])
        .collect();
    let swapped = area.swapped("32M");
    let running = Running::start(&mut swapped.command("sh", &arguments));
    let tables = tables(&running);
    wait_until("the child", &running, || has_printed(&running, "ok all of it"));
    wait_until("all to be free", &running, || taken(&tables) == 0);
    let output_of_case = running.stderr_so_far();
    assert!(output_of_case.contains("swap area is full"), "{output_of_case}");
}

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the descendants of a process, without itself and its direct children.
fn grandchildren(of: i32) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let descends = |pid: i32| {
        let line: Vec<i32> =
            std::iter::successors(Some(pid), |pid| parent(*pid)).take(64).collect();
        line.iter().position(|it| *it == of).is_some_and(|distance| distance > 2)
    };
    all.filter(|pid| descends(*pid)).collect()
}

#[test]
fn slots_of_randomly_killed_members_are_reclaimed() {
    let area = Area::new(1024);
    let script = format!(
        "echo $$; {} --only nursery --members 4 --depth 1 --seconds 0 || exit 1; echo done; sleep 1000",
        compiled("family").display()
    );
    let swapped = area.swapped("96M");
    let stdout_of = tempfile::tempdir().unwrap();
    let mut command = swapped.command("sh", &shell(&script));
    let running = Running::start(command.env("SOFTSWAP_RUNTIME_DIR", stdout_of.path()));
    let tables = tables(&running);
    let shell: i32 = String::from_utf8(running.stdout_so_far())
        .unwrap()
        .lines()
        .next()
        .unwrap()
        .parse()
        .unwrap();
    const KILLS: u32 = 60;
    let (mut kills, mut random, mut most) = (0, 1_u64, 0);
    let end = Instant::now() + LIMIT;
    while !has_printed(&running, "done") {
        assert!(Instant::now() < end, "{kills} kills: {}", running.stderr_so_far());
        random = mix64(random);
        std::thread::sleep(Duration::from_millis(20 + random % 60));
        most = most.max(taken(&tables));
        let members = grandchildren(shell);
        let member = members.get(random as usize % members.len().max(1));
        if let Some(pid) = member.and_then(|pid| rustix::process::Pid::from_raw(*pid)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            kills += 1;
        }
        if kills == KILLS {
            std::fs::write(stdout_of.path().join("done"), "").unwrap();
        }
        assert!(parent(shell).is_some(), "the family failed: {}", running.stderr_so_far());
    }
    assert!(kills >= KILLS && most > 0, "{kills} kills, {most} clusters");
    wait_until("all to be free", &running, || taken(&tables) == 0);
    let output_of_case = running.stderr_so_far();
    assert!(
        !output_of_case.contains("wrong data") && !output_of_case.contains("internal error"),
        "{output_of_case}"
    );
}

#[test]
fn overwritten_tables_never_cause_wrong_data() {
    let area = Area::new(256);
    let script = "echo $$; \"$0\" --mib 70 --seconds 0 & \"$0\" --mib 70 --seconds 0; wait";
    let swapped = area.swapped("32M");
    let stdout_of = tempfile::tempdir().unwrap();
    let mut command = swapped.command("sh", &shell(script));
    let running = Running::start(command.env("SOFTSWAP_RUNTIME_DIR", stdout_of.path()));
    let tables = tables(&running);
    wait_until("both", &running, || {
        String::from_utf8_lossy(&running.stdout_so_far()).matches("ready").count() == 2
    });
    let len = tables.metadata().unwrap().len() as usize;
    let garbage: Vec<u8> = (0..len as u64).map(|at| (mix64(at / 3) >> 7) as u8).collect();
    tables.write_all_at(&garbage, 0).unwrap();
    // Both continue for a while and then compare all their data.
    std::thread::sleep(Duration::from_secs(1));
    std::fs::write(stdout_of.path().join("done"), "").unwrap();
    let ended = running.finish(LIMIT);
    // Clusters in use may look free. A process that then reads a foreign page stops.
    assert!(!ended.stderr.contains("internal error"), "{}", ended.stderr);
    let ok = ended.stdout_text().matches("ok hog").count();
    let stopped = ended.stderr.matches("wrong data for slot").count()
        + ended.stderr.matches("could not be read back").count()
        + ended.stderr.matches("is full").count();
    assert!(ok + stopped >= 2, "{ok} ended well\n{}", ended.stderr);
}

#[test]
fn programs_share_device_with_discard() {
    let area = Area::new(128);
    let Some(device) = Loop::over(&area.path) else {
        return eprintln!("skipped: no loop device is to be had");
    };
    let swapped = Swapped::within("48M").option(format!("--swap={},discard=both,pri=3", device.0));
    let script = "\"$0\" --mib 60 & \"$0\" --mib 60; wait $! && exec \"$0\" --mib 90";
    let report = swapped.run("sh", &shell(script));
    report.ended.expect_ok("the last one");
    assert_eq!(report.ended.stdout_text().matches("ok hog").count(), 3);
    assert_eq!(report.figures["areas"]["discard_errors"], 0);
    let check = Command::new(softswap()).args(["swapon-check", &device.0]).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}

#[test]
fn program_without_root_keeps_inherited_area() {
    let is_root = rustix::process::geteuid().is_root();
    let name = OsStr::new("setpriv");
    if !is_root || Command::new(name).arg("--version").output().is_err() {
        return eprintln!("skipped: it takes root, and setpriv");
    }
    let area = Area::new(128);
    // A path that the user may read.
    let hog = tempfile::NamedTempFile::new_in("/var/tmp").unwrap().into_temp_path();
    std::fs::copy(compiled("hog"), &hog).unwrap();
    std::fs::set_permissions(&hog, std::fs::Permissions::from_mode(0o755)).unwrap();
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"].map(OsString::from);
    let program = [hog.as_os_str().to_owned(), "--mib".into(), "90".into()];
    let arguments: Vec<OsString> = user.into_iter().chain(program).collect();
    let swapped = area.swapped("48M").option("--reserve=0");
    let mut command = swapped.command(name, &arguments);
    let ended = Running::start(&mut command).finish(LIMIT);
    if ended.stderr.contains("libsoftswap.so") {
        return eprintln!("skipped: that user cannot read the library: {}", ended.stderr);
    }
    ended.expect_ok("hog, as nobody");
}
