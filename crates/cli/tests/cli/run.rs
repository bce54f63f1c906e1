//! `run` passes on the program's input, output, signals, stops and exit status, and prints notes.
//! Needs the runtime library, which `cargo build --workspace` builds.

use crate::common::terminal::{START_JOB, TYPE_AT_READY};
use crate::common::{json_file, run, std_run};
use crate::support::control_client::{WAIT_TIMEOUT, eventually, wait_until};
use crate::support::processes::{send, stat_of};
use crate::support::{LIMIT, Running, Swapped, python, wait_for_rounds};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

fn shell(dir: &Path, text: &str) -> std::process::Command {
    let mut command = std_run(dir);
    command.args(["--quiet", "--", "sh", "-c", text]);
    command
}

fn start(dir: &Path, text: &str) -> (Child, BufReader<ChildStdout>, String) {
    begin(&mut shell(dir, text))
}

fn begin(command: &mut std::process::Command) -> (Child, BufReader<ChildStdout>, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let line = next_line(&mut out);
    (child, out, line)
}

fn next_line(out: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    line.trim().to_string()
}

fn pid_of(child: &Child) -> i32 {
    child.id() as i32
}

fn state(pid: i32) -> Option<char> {
    stat_of(pid).map(|stat| stat.state)
}

fn await_state(pid: i32, what: &str, reached: impl Fn(Option<char>) -> bool) {
    wait_until(&format!("process {pid} is {what}"), || match state(pid) {
        state if reached(state) => Ok(()),
        state => Err(format!("{state:?}")),
    });
}

/// Waits until the process has handled its pending SIGCHLD and sleeps again.
fn await_attention(pid: i32) {
    let process = procfs::process::Process::new(pid).unwrap();
    wait_until("softswap has waited for its children", || {
        let status = process.status().unwrap();
        let is_pending = (status.shdpnd | status.sigpnd) >> (libc::SIGCHLD - 1) & 1 == 1;
        match state(pid) {
            Some('S' | 'T') if !is_pending => Ok(()),
            state => Err(format!("{state:?}\n{status:?}")),
        }
    });
}

#[test]
fn exit_status_is_the_programs() {
    let dir = tempfile::tempdir().unwrap();
    for status in [0, 1, 42, 127, 255] {
        run(dir.path()).args(["-q", "sh", "-c", &format!("exit {status}")]).assert().code(status);
    }
}

#[test]
fn termination_signal_is_propagated() {
    let dir = tempfile::tempdir().unwrap();
    for (name, number) in
        [("TERM", libc::SIGTERM), ("KILL", libc::SIGKILL), ("SEGV", libc::SIGSEGV)]
    {
        let status = shell(dir.path(), &format!("kill -{name} $$")).status().unwrap();
        assert_eq!(status.signal(), Some(number));
        assert!(!status.core_dumped(), "softswap must not dump a core file");
    }
}

#[test]
fn arguments_streams_and_name_pass_through() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path())
        .args(["--", "sh", "-c", "cat; echo \"$0:$#:$2\" >&2; exit 3", "name", "-x", "a  b"])
        .write_stdin("in")
        .assert()
        .code(3)
        .stdout("in")
        .get_output()
        .clone();
    assert!(output.stderr.starts_with(b"name:2:a  b\n"), "{output:?}");
    let output = shell(dir.path(), "readlink /proc/self/cwd").output().unwrap();
    let here = std::env::current_dir().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), here.to_str().unwrap());
}

#[test]
fn signals_sent_to_softswap_reach_the_program_once() {
    let dir = tempfile::tempdir().unwrap();
    for signal in [
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGABRT,
        libc::SIGPROF,
    ] {
        let (mut child, mut out, ready) = start(dir.path(), &counts(&signal.to_string()));
        assert_eq!(ready, "ready");
        send(pid_of(&child), signal);
        assert_eq!(next_line(&mut out), "got", "signal {signal}");
        send(pid_of(&child), libc::SIGALRM);
        assert_eq!(child.wait().unwrap().code(), Some(1), "signal {signal}");
    }
}

const RECEIVE: &str = "import signal; signal.pthread_sigmask(0, {10}); print('ready', flush=True); \
     import ctypes; info = (ctypes.c_int * 32)(); mask = ctypes.c_ulong(1 << 9); \
     ctypes.CDLL(None).sigwaitinfo(ctypes.byref(mask), info); print('value', info[6])";
const QUEUE: &str = "import ctypes, sys; \
     ctypes.CDLL(None).sigqueue(int(sys.argv[1]), 10, ctypes.c_void_p(4711))";

#[test]
fn value_of_signal_reaches_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let receive = format!("exec python3 -c \"{RECEIVE}\"");
    let (mut child, mut out, ready) = start(dir.path(), &receive);
    assert_eq!(ready, "ready");
    let id = child.id().to_string();
    let sent = std::process::Command::new("python3").args(["-c", QUEUE, &id]).status().unwrap();
    assert!(sent.success());
    assert_eq!(next_line(&mut out), "value 4711");
    assert!(child.wait().unwrap().success());
}

#[test]
fn ignored_sigpipe_and_closed_streams_are_inherited() {
    let dir = tempfile::tempdir().unwrap();
    let print = "grep -E 'SigIgn|SigBlk' /proc/self/status; \
                 for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] && echo $fd; done";
    for before in ["trap '' PIPE", "trap - PIPE", "exec <&-", "exec 2>&-"] {
        let output = |command: &mut std::process::Command| {
            let output = command.output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let plain =
            output(std::process::Command::new("sh").args(["-c", &format!("{before}; {print}")]));
        let inner = shell(dir.path(), print);
        let words = [inner.get_program()].into_iter().chain(inner.get_args());
        let mut outer = std::process::Command::new("sh");
        outer.args(["-c", &format!("{before}; exec \"$@\""), "sh"]).args(words);
        for (name, value) in inner.get_envs() {
            value.map(|value| outer.env(name, value));
        }
        assert_eq!(output(&mut outer), plain, "{before}");
    }
}

#[test]
fn group_signal_of_program_is_delivered_once() {
    use std::os::unix::process::CommandExt;
    let dir = tempfile::tempdir().unwrap();
    // The second sender still exists when softswap reads the signal.
    let other = "sh -c 'trap \"\" USR1; kill -USR1 0; echo got; exec sleep 1000' &";
    for (sender, end) in [("kill -USR1 0; echo got;", ""), (other, "kill $!;")] {
        let text = format!(
            "n=0 m=0; trap 'n=$((n+1))' USR1; trap 'm=$((m+1))' ALRM; echo ready; \
             for i in 1 2 3; do {sender} {}; {end} done; exit $n",
            wait_while("$m -lt $i")
        );
        let (mut child, mut out, _) = begin(shell(dir.path(), &text).process_group(0));
        for _ in 0..3 {
            assert_eq!(next_line(&mut out), "got", "{sender}");
            send(pid_of(&child), libc::SIGALRM);
        }
        assert_eq!(child.wait().unwrap().code(), Some(3), "{sender}");
    }
}

/// The code waits at most about 300 s.
fn wait_while(test: &str) -> String {
    format!("t=0; while [ {test} ] && [ $t -lt 30000 ]; do sleep 0.01; t=$((t+1)); done")
}

/// The script exits with the number of signals at SIGALRM. softswap forwards signals in order.
fn counts(signal: &str) -> String {
    format!(
        "n=0 m=0; trap 'n=$((n+1))' {signal}; trap 'm=1' ALRM; echo ready; {}; echo got; {}; exit $n",
        wait_while("$n -eq 0"),
        wait_while("$m -eq 0")
    )
}

/// Types Ctrl-C on its own terminal, and prints the output.
const TERMINAL: &str = r#"
import os, pty, signal, sys
pid, master = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
said = type_at_ready(master, b"\x03", lambda: os.kill(pid, signal.SIGALRM))
print(said.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

#[test]
fn terminal_interrupt_is_delivered_once() {
    let dir = tempfile::tempdir().unwrap();
    let inner = shell(dir.path(), &counts("INT"));
    let mut outer = std::process::Command::new("python3");
    outer
        .args(["-c", &[TYPE_AT_READY, TERMINAL].concat()])
        .arg(inner.get_program())
        .args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    let output = outer.output().unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(stdout.trim_end().ends_with(" 1"), "{stdout}{stderr}");
}

#[test]
fn forwarded_fatal_signal_kills_softswap_too() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, _out, _) = start(dir.path(), "echo ready; exec sleep 1000");
    send(pid_of(&child), libc::SIGTERM);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
}

#[test]
fn stopping_program_by_pid_does_not_stop_softswap() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, _out, pid) = start(dir.path(), "echo $$; kill -STOP $$; exit 9");
    let program = pid.parse().unwrap();
    await_state(program, "stopped", |state| state == Some('T'));
    await_attention(pid_of(&child));
    send(program, libc::SIGCONT);
    await_state(pid_of(&child), "ended", |state| state == Some('Z'));
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

/// Types Ctrl-Z when asked to, and continues the process group after it has stopped.
const JOB_CONTROL: &str = r#"
    print("stopped" if os.WIFSTOPPED(status) else "ended", flush=True)
    os.killpg(child, signal.SIGCONT)
    print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)
said = type_at_ready(master, b"\x1a")
print(said.decode().replace("\r", "").replace("^Z", ""))
"#;

#[test]
fn job_control_stops_and_continues_softswap() {
    let dir = tempfile::tempdir().unwrap();
    let typed = "trap 'exit 9' CONT; echo ready; while :; do :; done";
    let by_itself = "trap 'exit 9' CONT; kill -TSTP $$; while :; do :; done";
    for text in [typed, by_itself] {
        let inner = shell(dir.path(), text);
        let mut outer = std::process::Command::new("timeout");
        outer.args([
            "-k",
            "1",
            "120",
            "python3",
            "-c",
            &[TYPE_AT_READY, START_JOB, JOB_CONTROL].concat(),
        ]);
        outer.arg(inner.get_program()).args(inner.get_args());
        let output = outer.output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(stdout.trim_end().ends_with("stopped\nstatus 9"), "{text}: {stdout}");
    }
}

#[test]
fn killing_softswap_leaves_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, _out, pid) = start(dir.path(), "echo $$; exec sleep 1000");
    let program = pid.parse().unwrap();
    assert!(state(program).is_some());
    send(pid_of(&child), libc::SIGKILL);
    child.wait().unwrap();
    // Without an init process that reaps orphans the process remains a zombie.
    await_state(program, "gone", |state| matches!(state, None | Some('Z' | 'X')));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the swap directory is empty");
}

#[test]
fn pipe_closes_with_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, mut out, _) = start(dir.path(), "echo ready; exec sleep 1000 >&-");
    let (end, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || end.send(out.read_to_end(&mut Vec::new()).unwrap()));
    assert_eq!(ended.recv_timeout(WAIT_TIMEOUT), Ok(0), "softswap must not keep the pipe open");
    send(pid_of(&child), libc::SIGKILL);
    child.wait().unwrap();
}

#[test]
fn ignored_sigchld_keeps_exit_status() {
    let dir = tempfile::tempdir().unwrap();
    let mut outer = std::process::Command::new("sh");
    let script = "trap '' CHLD; exec \"$0\" run -q --reserve 0 --swap \"$1\" -- sh -c 'exit 6'";
    outer.args(["-c", script]).arg(crate::common::bin_dir().join("softswap")).arg(dir.path());
    assert_eq!(outer.status().unwrap().code(), Some(6));
}

#[test]
fn summary_is_on_stderr_unless_quiet() {
    let dir = tempfile::tempdir().unwrap();
    let summary = |options: &[&str]| {
        let mut command = run(dir.path());
        let output =
            command.args(options).args(["echo", "hello"]).assert().code(0).get_output().clone();
        assert_eq!(output.stdout, b"hello\n");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = summary(&["--awake"]);
    assert!(text.contains("softswap: echo finished in ") && text.contains("waited"), "{text}");
    assert!(text.lines().count() <= 4, "{text}");
    let text = summary(&["--awake", "--verbose"]);
    assert!(text.contains("  faults  ") && text.contains("  stalled  "), "{text}");
    assert_eq!(summary(&[]), "");
    run(dir.path()).args(["--quiet", "echo", "hello"]).assert().code(0).stderr("");
}

#[test]
fn report_is_written_for_killed_program() {
    let dir = tempfile::tempdir().unwrap();
    let swap = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    std::fs::write(&path, "x".repeat(100_000)).unwrap();
    let status = std_run(swap.path())
        .args(["-q", "--report"])
        .arg(&path)
        .args(["sh", "-c", "kill -KILL $$"])
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    let report = json_file(&path);
    assert_eq!(report["schema"], 1);
    assert_eq!(report["outcome"]["kind"], "killed");
    assert_eq!(report["outcome"]["signal_name"], "SIGKILL");
    assert_eq!(report["exit_status"], 137);
    assert_eq!(report["budget_bytes"], 64 << 20);
    let keys = "wall_s used_peak_bytes resident_peak_bytes pool_peak_bytes disk_peak_bytes \
                same_filled_share compression_ratio bytes_written bytes_read stalled_ns \
                direct_reclaims reclaimed_ahead";
    for key in keys.split(' ') {
        assert!(report.get(key).is_some(), "{key} is missing");
    }
    for tier in ["zero", "staged", "standby", "filled", "pool", "disk"] {
        assert!(report["faults"][tier]["count"].is_u64(), "{tier}");
    }
}

#[test]
fn failed_start_leaves_no_report() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    run(dir.path()).arg("--report").arg(&path).arg("no-such-program-here").assert().code(127);
    assert!(!path.exists());
}

/// A program can manage at most 200 times its budget, because page tables stay in DRAM.
#[test]
fn a_block_larger_than_the_budget_can_hold_is_noted_when_it_is_allocated() {
    let note = "note: the program allocated 5.0 GiB in one call";
    let maps = |flags: &str| {
        format!(
            "import mmap, os, time; some = bytearray(40 << 20); \
             m = mmap.mmap(-1, 5 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS{flags}); \
             print('ready', flush=True)\n\
             while not os.path.exists(os.environ['SOFTSWAP_RUNTIME_DIR'] + '/done'): \
             time.sleep(0.01)"
        )
    };
    let check = |program: &str, arguments: &[&str], expected: usize| {
        let runtime_dir = tempfile::tempdir().unwrap();
        let swapped = Swapped::within("16M");
        let mut command = swapped.command(program, arguments);
        let mut running = Running::start(command.env("SOFTSWAP_RUNTIME_DIR", runtime_dir.path()));
        running.wait_for_line("ready");
        if expected > 0 {
            eventually("a note", || running.stderr_so_far().contains(note));
        }
        wait_for_rounds(running.id(), 2);
        std::fs::write(runtime_dir.path().join("done"), "").unwrap();
        let ended = running.finish(LIMIT);
        ended.expect_success("a program with a large mapping");
        assert_eq!(ended.stderr.matches(note).count(), expected, "{}", ended.stderr);
    };
    let python = python();
    let python = python.to_str().unwrap();
    check(python, &["-c", &maps("")], 1);
    check("/bin/sh", &["-c", "\"$0\" -c \"$1\"; exit $?", python, &maps("")], 1);
    // Programs rarely use all of their reservations.
    check(python, &["-c", &maps(" | 0x4000")], 0);
}
