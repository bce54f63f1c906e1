//! A named swap area shared by a process tree that execs, forks and loses processes.

use crate::common::{Loop, copy_files, is_installed, is_root, set_mode, skip};
use crate::support::control_client::{eventually, stdout_of, try_stat, wait_until};
use crate::support::processes::{all_with, kill, parent, shared_memory};
use crate::support::{
    AreaFile, LIMIT, Running, Swapped, compiled, disk_dir, finish, mix64, plain, python,
};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The script gets the path of `hog` as `$0`.
fn shell(script: &str) -> [OsString; 3] {
    ["-c".into(), script.into(), compiled("hog").into_os_string()]
}

fn first_pid(running: &mut Running) -> i32 {
    running.wait_for_output("\n");
    String::from_utf8_lossy(&running.stdout_so_far()).lines().next().unwrap().parse().unwrap()
}

fn tables(running: &mut Running) -> File {
    let pid = first_pid(running);
    shared_memory(pid, "SOFTSWAP_RT_TABLES_FD=")
}

/// Counts the clusters of one area that processes own.
fn taken(tables: &File) -> usize {
    const FIRST_CLUSTER_WORD: u64 = 8 + 32 * 5;
    let len = tables.metadata().unwrap().len();
    let mut words = vec![0; (len - FIRST_CLUSTER_WORD * 8) as usize];
    tables.read_exact_at(&mut words, FIRST_CLUSTER_WORD * 8).unwrap();
    words.chunks(8).filter(|word| word.iter().any(|byte| *byte != 0)).count()
}

fn wait_until_taken(what: &str, tables: &File, running: &Running, holds: fn(usize) -> bool) {
    wait_until(what, || {
        let taken = taken(tables);
        let is_so = holds(taken).then_some(());
        is_so.ok_or_else(|| format!("{taken} are taken\n{}", running.stderr_so_far()))
    });
}

fn wait_until_all_free(tables: &File, running: &Running) {
    wait_until_taken("all clusters are free", tables, running, |taken| taken == 0);
}

/// Each of three stages of a pipeline uses more than a third of the budget.
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
    let expected = plain("sh", &arguments);
    expected.expect_success("a pipeline");
    let area = AreaFile::new(256);
    for swapped in [area.swapped("48M"), area.swapped("24M").per_process()] {
        let ended = finish(&mut swapped.command("sh", &arguments));
        ended.expect_success("a pipeline");
        assert_eq!(ended.stdout_text(), expected.stdout_text());
        assert!(!ended.stderr.contains("without a budget"), "{}", ended.stderr);
    }
}

#[test]
fn forked_children_write_to_tree_area_and_parent_keeps_pages_of_killed_ones() {
    for (mib, more) in [(768, &["--require-out"][..]), (200, &["--only", "some-are-killed"])] {
        let arguments = [&["--mib", "24", "--pressure", "40"], more].concat();
        eprintln!("an area of {mib} MiB, {}", arguments.join(" "));
        AreaFile::new(mib).swapped("16M").run_ok("children", &arguments);
    }
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
    let area = AreaFile::new(640);
    let swapped = area.swapped("48M");
    let mut running = Running::start(&mut swapped.command(python(), &["-c", script]));
    let tables = tables(&mut running);
    running.wait_for_output("freed\n");
    assert!(running.has_printed("[0, 0, 0, 0]"), "{}", running.stderr_so_far());
    // Only the parent's clusters remain.
    wait_until_taken("the children's clusters are free", &tables, &running, |taken| taken < 60);
}

#[test]
fn successive_programs_fill_area_without_leak() {
    let area = AreaFile::new(96);
    let script = "echo $$; for i in 1 2 3 4 5; do \"$0\" --mib 100 || exit 1; done; \
                  echo done; sleep 1000";
    let swapped = area.swapped("48M");
    let mut running = Running::start(&mut swapped.command("sh", &shell(script)));
    let tables = tables(&mut running);
    running.wait_for_output("done\n");
    wait_until_all_free(&tables, &running);
}

#[test]
fn full_area_stops_one_program_only() {
    let area = AreaFile::new(64);
    let script = "\"$0\" --mib 300; test $? -ne 0 && exec \"$0\" --mib 60";
    let swapped = area.swapped("32M");
    let ended = finish(&mut swapped.command("sh", &shell(script)));
    ended.expect_ok("a program that fits");
    let message = "swap area is full: all of its 64.0 MiB are in use, ";
    assert!(ended.stderr.contains(message), "{}", ended.stderr);
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
readable, writable = os.pipe()
if os.fork() > 0:
    os.read(readable, 1)
    os.kill(parent, signal.SIGKILL)
os.write(writable, b'x')
while os.getppid() == parent: time.sleep(0.01)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
assert digest() == before
print('ok all of it', flush=True)
os._exit(0)
";
    let area = AreaFile::new(192);
    let flag = area.dir.path().join("filled");
    let shell_script = "echo $$; p=$1 s=$2 f=$3; $p -c \"$s\" \"$f\" & wait $!; \
         for i in 1 2 3; do \"$0\" --mib 70 || exit 1; done; \"$0\" --mib 400; \
         test $? -ne 0 && touch \"$f\"; sleep 1000";
    let arguments: Vec<OsString> = shell(shell_script)
        .into_iter()
        .chain([python().into(), script.into(), flag.into_os_string()])
        .collect();
    let swapped = area.swapped("32M");
    let mut running = Running::start(&mut swapped.command("sh", &arguments));
    let tables = tables(&mut running);
    running.wait_for_output("ok all of it\n");
    wait_until_all_free(&tables, &running);
    let stderr = running.stderr_so_far();
    assert!(stderr.contains("swap area is full"), "{stderr}");
}

/// Returns descendants except for children and grandchildren.
fn grandchildren(of: i32) -> Vec<i32> {
    all_with(|stat| {
        let mut line = std::iter::successors(Some(stat.pid), |pid| parent(*pid)).take(64);
        line.position(|it| it == of).is_some_and(|distance| distance > 2)
    })
}

#[test]
fn slots_of_randomly_killed_members_are_reclaimed() {
    let area = AreaFile::new(1024);
    let script = format!(
        "echo $$; {} --only nursery --members 4 --depth 1 --seconds 0 || exit 1; echo done; sleep 1000",
        compiled("family").display()
    );
    let swapped = area.swapped("96M");
    let runtime_dir = tempfile::tempdir().unwrap();
    let mut command = swapped.command("sh", &shell(&script));
    let mut running = Running::start(command.env("SOFTSWAP_RUNTIME_DIR", runtime_dir.path()));
    let (tables, shell) = (tables(&mut running), first_pid(&mut running));
    const KILLS: u32 = 60;
    let (mut kills, mut random, mut most) = (0, 1_u64, 0);
    let end = Instant::now() + LIMIT;
    while !running.has_printed("done") {
        assert!(Instant::now() < end, "{kills} kills: {}", running.stderr_so_far());
        random = mix64(random);
        std::thread::sleep(Duration::from_millis(20 + random % 60));
        most = most.max(taken(&tables));
        let members = grandchildren(shell);
        if let Some(member) = members.get(random as usize % members.len().max(1)) {
            kill(*member);
            kills += 1;
        }
        if kills == KILLS {
            std::fs::write(runtime_dir.path().join("done"), "").unwrap();
        }
        assert!(parent(shell).is_some(), "the family failed: {}", running.stderr_so_far());
    }
    assert!(kills >= KILLS && most > 0, "{kills} kills, {most} clusters");
    wait_until_all_free(&tables, &running);
    let stderr = running.stderr_so_far();
    assert!(!stderr.contains("wrong data") && !stderr.contains("internal error"), "{stderr}");
}

#[test]
fn overwritten_tables_never_cause_wrong_data() {
    let area = AreaFile::new(256);
    let script = "echo $$; \"$0\" --mib 70 --seconds 0 & \"$0\" --mib 70 --seconds 0; wait";
    let swapped = area.swapped("32M");
    let runtime_dir = tempfile::tempdir().unwrap();
    let mut command = swapped.command("sh", &shell(script));
    let mut running = Running::start(command.env("SOFTSWAP_RUNTIME_DIR", runtime_dir.path()));
    let tables = tables(&mut running);
    eventually("both", || {
        String::from_utf8_lossy(&running.stdout_so_far()).matches("ready").count() == 2
    });
    let len = tables.metadata().unwrap().len() as usize;
    let garbage: Vec<u8> = (0..len as u64).map(|at| (mix64(at / 3) >> 7) as u8).collect();
    tables.write_all_at(&garbage, 0).unwrap();
    // The programs may stop before.
    for _ in 0..10 {
        let mut first = None;
        wait_until("a process faults 2,000 times", || {
            let stat = match try_stat(&running.id().to_string()) {
                Err(_) if running.has_ended() => return Ok(()),
                stat => stat?,
            };
            let processes = stat["tree"]["processes"].as_array().ok_or_else(|| stat.to_string())?;
            let most = processes.iter().filter_map(|it| it["faults"].as_u64()).max();
            let most = most.ok_or_else(|| stat.to_string())?;
            let is_enough = most >= *first.get_or_insert(most) + 2_000;
            is_enough.then_some(()).ok_or_else(|| stat.to_string())
        });
    }
    std::fs::write(runtime_dir.path().join("done"), "").unwrap();
    let ended = running.finish(LIMIT);
    // Clusters in use may look free, and be overwritten. A process stops if it reads such a page.
    assert!(!ended.stderr.contains("internal error"), "{}", ended.stderr);
    let ok = ended.stdout_text().matches("ok hog").count();
    let stopped = ended.stderr.matches("wrong data for slot").count()
        + ended.stderr.matches("could not be read back").count()
        + ended.stderr.matches("is full").count();
    assert!(ok + stopped >= 2, "{ok} ended well\n{}", ended.stderr);
}

#[test]
fn programs_share_device_with_discard() {
    let area = AreaFile::new(128);
    let Some(device) = Loop::over(&area.path) else { return skip("no loop device is available") };
    let swapped = Swapped::within("48M").swap(format_args!("{},discard=both,pri=3", device.0));
    let script = "\"$0\" --mib 60 & \"$0\" --mib 60; wait $! && exec \"$0\" --mib 90";
    let report = swapped.run("sh", &shell(script));
    report.ended.expect_ok("hogs on a loop device");
    assert_eq!(report.ended.stdout_text().matches("ok hog").count(), 3);
    assert_eq!(report.figures["areas"]["discard_errors"], 0);
    stdout_of(&["swapon-check", &device.0]);
}

#[test]
fn program_without_root_keeps_inherited_area() {
    let name = OsStr::new("setpriv");
    if !is_root() || !is_installed("setpriv") {
        return skip("root and setpriv are required");
    }
    let area = AreaFile::new(128);
    let dir = disk_dir();
    set_mode(dir.path(), 0o755);
    copy_files(&[compiled("hog")], dir.path());
    let hog = dir.path().join("hog");
    set_mode(&hog, 0o755);
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"].map(OsString::from);
    let program = [hog.as_os_str().to_owned(), "--mib".into(), "90".into()];
    let arguments: Vec<OsString> = user.into_iter().chain(program).collect();
    let swapped = area.swapped("48M").option("--reserve=0");
    let ended = finish(&mut swapped.command(name, &arguments));
    if ended.stderr.contains("libsoftswap.so") {
        return skip(&format!("that user cannot read the library: {}", ended.stderr));
    }
    ended.expect_ok("hog as an unprivileged user");
}
