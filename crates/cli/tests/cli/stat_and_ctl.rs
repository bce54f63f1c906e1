//! `softswap stat` and `softswap ctl`, without other effects on the program.

use crate::common::{
    UNPRIVILEGED_UID, assert_contains_all, assert_output, copy_binaries, is_root, set_mode,
    std_unprivileged,
};
use crate::support::control_client::{
    Program, WAIT_TIMEOUT, eventually, query, refused, stat, stdout_of, wait_for, wait_until,
};
use crate::support::processes::{send, stat_of};
use crate::support::{Running, Swapped, python, softswap_with};
use serde_json::Value;
use softswap_engine::api::control_protocol::MAX_ANSWER_BYTES;
use softswap_engine::base::stats::{Counter, Tier};
use softswap_sys::control_socket::{self, DIR_VARIABLE};
use std::collections::BTreeSet;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn kill(pid: &str, signal: i32) {
    send(pid.parse().unwrap(), signal);
}

#[test]
fn stat_shows_text_and_json() {
    let program = Program::under_pressure(&[]);
    let pid = program.pid();
    for number in [&pid, &program.supervisor()] {
        let text = stdout_of(&["stat", number]);
        assert!(text.starts_with("softswap: "), "{text}");
        let parts = [
            &format!("hog (pid {pid}) has been running for"),
            "budget     32.0 MiB",
            "peaks      resident",
            "faults                count",
            "touches    of absent pages reach softswap by ",
            "settings",
            "io.poll              auto",
        ];
        assert_contains_all(&text, &parts);
    }
    let first = stat(&pid);
    assert_eq!(first["schema"], 1);
    assert_eq!(first["outcome"]["kind"], "running");
    assert_eq!(first["exit_status"], Value::Null);
    assert_eq!(first["budget_bytes"], 32 << 20);
    assert_eq!(first["settings"]["io.poll"], "auto");
    assert_eq!(first["engine_started"], true);
    // Mappings are only counted with page protection.
    assert_eq!(first["mappings"].is_null(), first["fault_mechanism"] == "userfaultfd");
    let pages_out = first["pages_out"].as_u64();
    assert!(pages_out > Some(0), "{first}");
    assert!(first["program"][0].as_str().unwrap().ends_with("hog"));
    eventually("more evicted pages", || stat(&pid)["pages_out"].as_u64() > pages_out);
}

#[test]
fn repeated_stat_ends_with_program() {
    let program = Program::under_pressure(&[]);
    let mut command = softswap_with(&["stat", &program.pid(), "--json", "--every", "1"]);
    let repeats = Running::start(&mut command);
    let figures = |text: &str| -> Vec<Option<u64>> {
        // The last line may be incomplete.
        let (lines, _) = text.rsplit_once('\n').unwrap_or_default();
        let answers = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        answers.map(|stat| stat["pages_out"].as_u64()).collect()
    };
    wait_until("three answers and more evicted pages", || {
        let so_far = figures(&String::from_utf8(repeats.stdout_so_far()).unwrap());
        let is_enough = so_far.len() >= 3 && so_far.last() > so_far.first();
        if is_enough { Ok(()) } else { Err(format!("{so_far:?}")) }
    });
    program.finish().expect_ok("hog");
    let ended = repeats.finish(WAIT_TIMEOUT);
    ended.expect_success("stat");
    assert_eq!(ended.stderr, "");
    let pages_out = figures(&ended.stdout_text());
    assert!(pages_out.is_sorted(), "{pages_out:?}");
}

#[test]
fn a_program_that_overwrites_its_environment_is_found() {
    let program = Program::script(
        r"
import ctypes, time
first = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), 'environ')[0]
ctypes.memset(first, 0, len(open('/proc/self/environ', 'rb').read()))
assert not open('/proc/self/environ', 'rb').read().strip(b'\0')
print('ready', flush=True)
time.sleep(1000)
",
    );
    let mut stat = softswap_with(&["stat", &program.supervisor()]);
    stat.env(DIR_VARIABLE, program.sockets.path());
    eventually("its figures", || {
        let text = String::from_utf8_lossy(&stat.output().unwrap().stdout).into_owned();
        text.contains("has been running for")
    });
}

#[test]
fn stat_contains_every_report_counter() {
    let program = Program::under_pressure(&[]);
    let [of_tree, of_one] = [program.supervisor(), program.pid()].map(|pid| stat(&pid));
    let report = Swapped::within("32M").run("true", &[] as &[&str]).figures;
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let mut expected = keys(&report);
    // These keys are only in the final report.
    expected.retain(|key| !["history", "machine"].contains(&key.as_str()));
    expected.insert("pid".to_string());
    assert_eq!(keys(&of_one), expected);
    expected.insert("tree".to_string());
    assert_eq!(keys(&of_tree), expected);
}

/// No test here changes these.
const UNCHANGED_SETTINGS: &str = "memory = 32M\npool.limit = auto\n";
const ALL_KEYS: &str = "bounce.peak, codec, io.poll, io.poll_sleep, memory and pool.limit";

/// Leaves out the first setting, a peak whose value varies.
fn settings_after_the_peak(pid: &str) -> String {
    let all = stdout_of(&["ctl", pid, "get"]);
    let (peak, rest) = all.split_once('\n').unwrap();
    let pages: u64 = peak.strip_prefix("bounce.peak = ").unwrap().parse().unwrap();
    assert!(pages > 0);
    rest.to_string()
}

#[test]
fn bounce_peak_is_reset() {
    // An idle program uses few bounce buffers.
    let mut program = Program::script(
        "import os, time\n\
         block = [os.urandom(1 << 20) for _ in range(64)]\n\
         print('ready', flush=True); time.sleep(1000)",
    );
    let pid = program.pid();
    settings_after_the_peak(&pid);
    let before = stat(&pid)["bounce"].clone();
    assert!(
        before["taken"].as_u64() > Some(0) && before["slots"].as_u64() >= before["used"].as_u64()
    );
    let peak_before = before["peak_slots"].as_u64().unwrap();
    wait_until("a lower peak", || {
        stdout_of(&["ctl", &pid, "set", "bounce.peak", "0"]);
        let peak = stdout_of(&["ctl", &pid, "get", "bounce.peak"]);
        let peak: u64 = peak.trim().parse().unwrap();
        if peak < peak_before { Ok(()) } else { Err(format!("{peak} {before}")) }
    });
    refused(&["ctl", &pid, "set", "bounce.peak", "5"], 2, &["bounce.peak: \"5\"", "set to 0"]);
    program.expect_alive();
}

#[test]
fn budget_can_be_lowered_and_raised() {
    let mut program = Program::under_pressure_by_itself();
    let pid = program.pid();
    for limit in ["24M", "96M", "20M"] {
        // While usage is above the new limit, the answer states both.
        let set = stdout_of(&["ctl", &pid, "set", "memory", limit]);
        assert!(set.starts_with(&format!("memory = {limit}")), "{set}");
        eventually("the budget", || {
            let is_kept = stdout_of(&["ctl", &pid, "get", "memory"]) == format!("{limit}\n");
            let [used, budget] = ["used_bytes", "budget_bytes"].map(|it| stat(&pid)[it].as_u64());
            is_kept && used <= budget
        });
    }
    assert_eq!(stat(&pid)["budget_peak_bytes"], 96 << 20);
    refused(&["ctl", &pid, "set", "memory", "1M"], 2, &["memory: 1M is too little", "at least"]);
    refused(&["ctl", &pid, "set", "memory", "50%"], 2, &["memory: \"50%\" is not a size"]);
    program.expect_alive();
}

#[test]
fn pool_can_be_shrunk() {
    let mut program = Program::under_pressure(&["--codec", "zstd"]);
    let pid = program.pid();
    assert_eq!(stdout_of(&["ctl", &pid, "set", "pool.limit", "1M"]), "pool.limit = 1048576B\n");
    eventually("a smaller pool", || {
        let pool = &stat(&pid)["pool"];
        assert_eq!(pool["limit_bytes"], 1 << 20);
        pool["used_bytes"].as_u64().unwrap() <= 1 << 20
    });
    program.expect_alive();
}

#[test]
fn setting_takes_effect_immediately() {
    let program = Program::under_pressure(&["--poll", "interrupt"]);
    let pid = program.pid();
    assert_eq!(
        settings_after_the_peak(&pid),
        format!("codec = auto\nio.poll = interrupt\nio.poll_sleep = auto\n{UNCHANGED_SETTINGS}")
    );
    assert_eq!(stdout_of(&["ctl", &pid, "get", "io.poll"]), "interrupt\n");
    let polled = || program.stats().get(Counter::IoPolled);
    assert_eq!(polled(), 0);
    assert_eq!(stdout_of(&["ctl", &pid, "set", "io.poll", "poll"]), "io.poll = poll\n");
    assert_eq!(stdout_of(&["ctl", &pid, "set", "io.poll_sleep", "20us"]), "io.poll_sleep = 20us\n");
    assert_eq!(
        settings_after_the_peak(&pid),
        format!("codec = auto\nio.poll = poll\nio.poll_sleep = 20us\n{UNCHANGED_SETTINGS}")
    );
    assert_contains_all(&stdout_of(&["stat", &pid]), &["io.poll_sleep        20us"]);
    if program.stats().get(Counter::UsesIoUring) == 0 {
        return eprintln!("skipped: polling requires io_uring");
    }
    let read = || program.stats().faults(Tier::Disk);
    let many_reads = read() + 10_000;
    eventually("a polled read", || polled() > 0 || read() > many_reads);
    if polled() == 0 && !is_root() {
        return eprintln!("skipped: the user's limit on locked memory allows no ring for reads");
    }
    stdout_of(&["ctl", &program.supervisor(), "set", "io.poll", "interrupt"]);
    // At most one read was in progress when the setting changed.
    let before = polled();
    assert_ne!(before, 0);
    let wanted_reads = read() + 200;
    eventually("more reads", || read() > wanted_reads);
    assert!(polled() <= before + 1);
}

#[test]
fn codec_can_be_changed_under_load() {
    let mut program = Program::under_pressure(&["--codec", "zstd:3", "--pool", "80%"]);
    let pid = program.pid();
    assert_eq!(stdout_of(&["ctl", &pid, "get", "codec"]), "zstd:3\n");
    let out = || program.stats().get(Counter::PagesOut);
    for codec in ["lz4", "zstd", "none", "zstd:-1", "auto"] {
        let set = stdout_of(&["ctl", &pid, "set", "codec", codec]);
        assert_eq!(set, format!("codec = {codec}\n"));
        assert_eq!(stdout_of(&["ctl", &pid, "get", "codec"]), format!("{codec}\n"));
        let before = out();
        eventually("evicted pages", || out() > before + 500);
    }
    assert_eq!(program.stats().get(Counter::DecompressErrors), 0);
    program.expect_alive();
}

#[test]
fn poll_mode_is_set_per_area() {
    let swap = "--swap=/var/tmp,poll=interrupt";
    let program = Program::under_pressure(&["--poll", "poll", swap, "--swap=/var/tmp"]);
    let pid = program.pid();
    assert_eq!(stdout_of(&["ctl", &pid, "get", "io.poll"]), "0:interrupt 1:poll\n");
    assert_eq!(
        stdout_of(&["ctl", &pid, "set", "io.poll", "0:hybrid"]),
        "io.poll = 0:hybrid 1:poll\n"
    );
    assert_eq!(stdout_of(&["ctl", &pid, "set", "io.poll", "auto"]), "io.poll = auto\n");
    for bad in ["2:auto", ":auto", "x:auto", "0:banana"] {
        let refused = query(&["ctl", &pid, "set", "io.poll", bad]);
        assert!(!refused.status.success(), "{bad}");
    }
    assert_eq!(stdout_of(&["ctl", &pid, "get", "io.poll"]), "auto\n");
}

#[test]
fn unknown_keys_and_bad_values_change_nothing() {
    let program = Program::under_pressure(&["--poll", "hybrid"]);
    let pid = program.pid();
    let long = "x".repeat(1000);
    for (arguments, parts) in [
        (vec!["get", "io.pol"], vec!["\"io.pol\"", ALL_KEYS]),
        (vec!["get", ""], vec!["is empty or contains control characters", "ctl --help"]),
        (vec!["set", "io.pol", "poll"], vec!["\"io.pol\"", ALL_KEYS]),
        (vec!["set", "codec", "snappy"], vec!["codec: \"snappy\"", "zstd:LEVEL"]),
        (vec!["set", "codec", "zstd:99"], vec!["codec: \"zstd:99\"", "from -5 to 9"]),
        (vec!["set", "io.poll", "banana"], vec!["io.poll: \"banana\"", "poll, hybrid or auto"]),
        (vec!["set", "io.poll", ""], vec!["io.poll: \"\"", "poll, hybrid or auto"]),
        (vec!["set", "io.poll_sleep", "-5us"], vec!["io.poll_sleep: \"-5us\"", "at most 100ms"]),
        (vec!["set", "io.poll_sleep", "101ms"], vec!["\"101ms\"", "at most 100ms"]),
        (
            vec!["set", "io.poll", "auto\nset io.poll auto"],
            vec!["contains control characters", "ctl --help"],
        ),
        (vec!["set", "io.poll", &long], vec!["longer than 256 bytes"]),
        (vec!["set", "pool.limit", "81%"], vec!["pool.limit: \"81%\"", "from 0% to 80%"]),
        (vec!["set", "io.poll"], vec!["VALUE"]),
        (vec!["drop"], vec!["drop"]),
    ] {
        refused(&[&["ctl", &pid], &arguments[..]].concat(), 2, &parts);
    }
    assert_eq!(
        settings_after_the_peak(&pid),
        format!("codec = auto\nio.poll = hybrid\nio.poll_sleep = auto\n{UNCHANGED_SETTINGS}")
    );
}

#[test]
fn unreachable_processes_are_distinguished() {
    for pid in ["0", "-1", "banana", "99999999999"] {
        refused(&["stat", pid], 2, &[pid]);
    }
    refused(&["stat", "2147483647"], 1, &["2147483647", "no such process"]);
    let ourselves = std::process::id().to_string();
    refused(&["stat", &ourselves], 1, &[&ourselves, "not managed", "softswap run"]);
    refused(&["ctl", &ourselves, "get"], 1, &[&ourselves, "not managed", "softswap run"]);
    let script = "sleep 1000 & echo child $!; echo ready; wait";
    let mut plain = Program::start(&["--children", "plain"], Path::new("/bin/sh"), &["-c", script]);
    let child = plain.wait_for_line("child");
    eventually("the child's exec", || stdout_of(&["stat", &plain.pid()]).contains("sh (pid"));
    let figures = |pid: &str| stat_of(pid.parse().unwrap());
    eventually("another program", || figures(&child).is_some_and(|it| it.comm == "sleep"));
    refused(&["stat", &child], 1, &["(sleep) is not managed"]);
    let stopped = plain.pid();
    kill(&stopped, libc::SIGSTOP);
    eventually("its stop", || figures(&stopped).is_some_and(|it| it.state == 'T'));
    refused(&["stat", &stopped], 1, &["is stopped", "kill -CONT"]);
    kill(&stopped, libc::SIGCONT);
}

#[test]
fn only_owner_and_root_may_query() {
    if !is_root() {
        return refused(&["stat", "1"], 1, &["process 1", "belongs to uid 0", "as root"]);
    }
    let program = Program::under_pressure(&[]);
    let binaries = tempfile::tempdir().unwrap();
    copy_binaries(binaries.path());
    let output = std_unprivileged(binaries.path()).args(["stat", &program.pid()]).output().unwrap();
    assert_output(&output, 1, &["belongs to uid 0", "as that user, or as root"]);

    let (swap, sockets) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [&swap, &sockets] {
        chown(dir.path(), Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID)).unwrap();
    }
    let mut command = std_unprivileged(binaries.path());
    command.args(["run", "-q", "--awake", "--memory", "32M", "--reserve", "0", "--swap"]);
    command.arg(swap.path()).args(["--", "sleep", "1000"]).env(DIR_VARIABLE, sockets.path());
    let theirs = Running::start(&mut command);
    let pid = theirs.id().to_string();
    eventually("an answer to root", || {
        String::from_utf8(query(&["stat", &pid]).stdout).unwrap().contains("sleep (pid")
    });
    let own =
        std_unprivileged(binaries.path()).args(["ctl", &pid, "get", "io.poll"]).output().unwrap();
    assert_eq!(own.stdout, b"auto\n", "{}", String::from_utf8_lossy(&own.stderr));
}

#[test]
fn process_with_unreadable_memory_map_is_reported() {
    let binaries = tempfile::tempdir().unwrap();
    copy_binaries(binaries.path());
    // PR_SET_DUMPABLE 0: the user may not read the memory map.
    let script = "import ctypes, os, subprocess, sys\n\
                  ctypes.CDLL(None).prctl(4, 0)\n\
                  sys.exit(subprocess.call([sys.argv[1], 'stat', str(os.getpid())]))";
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(binaries.path().join("softswap")).current_dir("/");
    if is_root() {
        command.uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID);
    }
    let parts = ["its memory map is not readable", "probably not managed", "softswap run"];
    assert_output(&command.output().unwrap(), 1, &parts);
}

#[test]
fn process_with_new_uid_rejects_old_uid() {
    if !is_root() {
        return eprintln!("skipped: only root can change the user");
    }
    let mut program = Program::script(&format!(
        "import os, time; print('ready', flush=True)\n\
         while not os.path.exists(os.environ['{DIR_VARIABLE}'] + '/go'): time.sleep(0.01)\n\
         os.setresuid({UNPRIVILEGED_UID}, {UNPRIVILEGED_UID}, {UNPRIVILEGED_UID})\n\
         print('changed', flush=True); time.sleep(1000)"
    ));
    let pid = program.pid();
    std::fs::write(program.sockets.path().join("go"), "").unwrap();
    program.wait_for_line("changed");
    assert_contains_all(&stdout_of(&["stat", &pid]), &["running"]);
    // File modes alone do not admit a peer: the process also checks its UID.
    set_mode(program.sockets.path(), 0o755);
    set_mode(&program.socket(), 0o666);
    let mut other = Command::new("python3");
    other.uid(1).gid(1).current_dir("/").arg("-c").arg(format!(
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('{}')\n\
         s.sendall(b'softswap 1 set io.poll poll\\n'); print(s.recv(1000).decode())",
        program.socket().display()
    ));
    // A program waits only briefly for a request.
    let answer = wait_until("an answer", || {
        let output = other.output().unwrap();
        let answer = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if answer.trim().is_empty() { Err(errors) } else { Ok(answer) }
    });
    assert!(
        answer.starts_with("denied it belongs to uid 65534, and the request came from uid 1"),
        "{answer}"
    );
    assert_eq!(stdout_of(&["ctl", &pid, "get", "io.poll"]), "auto\n");
}

#[test]
fn exiting_programs_remove_their_socket_first() {
    let script =
        "for i in 1 2 3 4 5 6 7 8; do sh -c 'exit 0'; /bin/true; done; echo ready; sleep 1000";
    let program = Program::start(&[], Path::new("/bin/sh"), &["-c", script]);
    // The shell has a socket, and `sleep` once it runs.
    let names = program.names();
    assert!(names.len() <= 2 && names.contains(&format!("{}.sock", program.pid())), "{names:?}");
}

#[test]
fn stale_socket_is_removed() {
    let program = Program::under_pressure(&[]);
    let (pid, path) = (program.pid(), program.socket());
    let Program { running, sockets, .. } = program;
    // The program dies with `softswap run`, so neither removes the socket.
    kill(&running.id().to_string(), libc::SIGKILL);
    running.finish(WAIT_TIMEOUT);
    assert!(path.exists());
    std::fs::write(sockets.path().join("1.note"), "not a socket").unwrap();
    let mut stat = softswap_with(&["stat", &pid]);
    stat.env(DIR_VARIABLE, sockets.path());
    eventually("the socket is removed", || {
        stat.output().unwrap();
        !path.exists() && !Path::new("/proc").join(&pid).exists()
    });
    assert_output(&stat.output().unwrap(), 1, &[&pid, "no such process"]);
    assert!(sockets.path().join("1.note").exists());
}

#[test]
fn misbehaving_clients_are_harmless() {
    let mut program = Program::under_pressure(&[]);
    let (pid, path) = (program.pid(), program.socket());
    let silent: Vec<_> =
        (0..5).map(|_| control_socket::connect(&path, WAIT_TIMEOUT).unwrap()).collect();
    assert_contains_all(&stdout_of(&["stat", &pid]), &["running"]);
    let short = Duration::from_secs(10);
    for garbage in [
        &b"\n"[..],
        b"\0\0\0\0\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"softswap 1 set io.poll\xff poll\n",
        b"softswap 2 stat\n",
        &[b'x'; 255],
        &vec![b'x'; 8 << 20],
    ] {
        let client = control_socket::connect(&path, WAIT_TIMEOUT).unwrap();
        // The peer may already have closed the connection.
        let _ = client.write_all(garbage, short);
        let answer = client.read_to_end(MAX_ANSWER_BYTES, WAIT_TIMEOUT).unwrap_or_default();
        assert!(answer.is_empty() || answer.starts_with(b"error "), "{garbage:.20?}");
    }
    for _ in 0..20 {
        let client = control_socket::connect(&path, WAIT_TIMEOUT).unwrap();
        let _ = client.write_all(b"softswap 1 stat\n", WAIT_TIMEOUT);
    }
    drop(silent);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..5).for_each(|_| drop(stdout_of(&["stat", &pid]))));
        }
    });
    assert_eq!(stdout_of(&["ctl", &pid, "get", "io.poll"]), "auto\n");
    program.expect_alive();
}

#[test]
fn forked_child_does_not_affect_socket() {
    let script = format!(
        "import os, stat, sys, time
parent = os.getpid()
while not os.path.exists(os.environ['{DIR_VARIABLE}'] + f'/{{parent}}.sock'): time.sleep(0.01)
def is_socket(fd):
    try: return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError: return False
def sockets(): return [fd for fd in range(1 << 16) if is_socket(fd)]
assert not sockets(), 'the program sees the socket'
for leave in (sys.exit, os._exit):
    pid = os.fork()
    if pid == 0:
        if sockets(): os._exit(9)
        leave(0)
    assert os.waitpid(pid, 0)[1] == 0
pid = os.fork()
if pid == 0:
    os.write(1, f'child {{os.getpid()}}\\n'.encode())
    time.sleep(1000)
# In one write each: an unbuffered `print` makes several.
os.write(1, b'ready\\n')
time.sleep(1000)"
    );
    for faults in ["auto", "protection"] {
        let options = ["--faults", faults];
        let mut program = Program::start(&options, &python(), &["-c", script.as_str()]);
        let child = program.wait_for_line("child");
        let pid = program.pid();
        assert!(program.socket().exists(), "the socket was removed when a child exited");
        refused(&["stat", &child], 1, &[&child, "forked", &format!("process {pid}")]);
        let (path, child_lives) = (program.socket(), Path::new("/proc").join(&child));
        kill(&pid, libc::SIGKILL);
        program.running.finish(WAIT_TIMEOUT);
        assert!(child_lives.exists() && !path.exists(), "the child must not keep the socket open");
        kill(&child, libc::SIGKILL);
    }
}

fn answer_of(pid: &str) -> String {
    wait_for("an answer", || {
        let output = query(&["stat", pid]);
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    })
}

#[test]
fn started_programs_have_own_sockets() {
    let mut program = Program::script(
        "import os, subprocess, time\n\
         child = subprocess.Popen(['sleep', '1000'])\n\
         print('child', child.pid, flush=True)\n\
         print('ready', flush=True)\n\
         child.wait()",
    );
    let child = program.wait_for_line("child");
    let text = answer_of(&child);
    assert!(text.contains(&format!("sleep (pid {child})")), "{text}");
    stdout_of(&["ctl", &child, "set", "io.poll", "poll"]);
    assert_eq!(stdout_of(&["ctl", &program.pid(), "get", "io.poll"]), "auto\n");
}

#[test]
fn socket_survives_exec() {
    let script = "until [ -S \"$SOFTSWAP_RUNTIME_DIR/$$.sock\" ]; do sleep 0.01; done; \
         exec \"$0\" -c 'import time; print(\"ready\", flush=True); time.sleep(1000)'";
    let python = python();
    let arguments = ["-c", script, python.to_str().unwrap()];
    let program = Program::start(&[], Path::new("/bin/sh"), &arguments);
    let text = answer_of(&program.pid());
    assert!(text.contains("python"), "{text}");
    assert_eq!(program.names().len(), 1);
}

#[test]
fn program_descriptors_are_unaffected() {
    let program = Program::script(&format!(
        "import os, time
os.closerange(3, 1 << 16)
first = os.open('/dev/null', os.O_RDONLY)
os.close(first)
print('ready', flush=True)
rounds = 0
while not os.path.exists(os.environ['{DIR_VARIABLE}'] + '/done'):
    fd = os.open('/dev/null', os.O_RDONLY)
    assert fd == first, (fd, first)
    os.close(fd)
    rounds += 1
print('rounds', rounds)"
    ));
    let pid = program.pid();
    for _ in 0..30 {
        stdout_of(&["stat", &pid]);
    }
    program.finish().expect_success("a program that checks its descriptor numbers");
}
