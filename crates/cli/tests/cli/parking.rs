//! `softswap ctl PID park`, and `--park-on SIGTSTP`.

use crate::common::terminal::{START_JOB, TYPE_AT_READY};
use crate::common::{is_root, skip};
use crate::support::control_client::{Program, eventually, refused, stat, stdout_of, wait_until};
use crate::support::processes::{children, send, stat_of};
use crate::support::tree::{Tree, bytes};
use crate::support::{LIMIT, compiled};
use softswap_cli::control_client::Process;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

/// Anonymous memory that the engine of a parked process may leave in DRAM.
const MAX_LEFT_BYTES: u64 = 20 << 20;

fn anonymous_bytes(pid: i32) -> u64 {
    Process::read(pid as u32).unwrap().resident.unwrap().anonymous_bytes
}

fn is_stopped(pid: i32) -> bool {
    stat_of(pid).is_some_and(|stat| stat.state == 'T')
}

fn park(pid: &str) -> String {
    stdout_of(&["ctl", pid, "park"])
}

fn unpark(pid: &str) -> String {
    stdout_of(&["ctl", pid, "unpark"])
}

/// The process had `left_bytes` in DRAM while it was stopped.
fn await_return(pid: i32, left_bytes: u64, more_bytes: u64) {
    let least_bytes = left_bytes + more_bytes;
    wait_until("the memory is swapped in", || match anonymous_bytes(pid) {
        bytes if bytes >= least_bytes => Ok(()),
        bytes => Err(format!("{bytes} bytes of {least_bytes}")),
    });
}

#[test]
fn parked_program_leaves_dram_and_continues_with_its_data() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let options = ["--log", log.to_str().unwrap()];
    let steady = ["--mib", "64", "--threads", "4"];
    let mut program = Program::start(&options, &compiled("steady"), &steady);
    let supervisor = program.supervisor();
    let logged = |event: &str| {
        wait_until("the event is logged", || match std::fs::read_to_string(&log).unwrap() {
            text if text.contains(&format!(r#""event":"{event}""#)) => Ok(()),
            text => Err(text),
        });
    };
    let pid: i32 = program.pid().parse().unwrap();
    refused(&["ctl", &supervisor, "unpark"], 2, &["the tree is not parked"]);
    let parts = ["a tree is parked as a whole", &format!("`softswap run`: {supervisor}")];
    refused(&["ctl", &pid.to_string(), "park"], 2, &parts);
    let parts = ["shares the budget of its tree", parts[1]];
    refused(&["ctl", &pid.to_string(), "set", "memory", "1G"], 2, &parts);
    refused(&["ctl", &supervisor, "set", "memry", "1G"], 2, &[&supervisor, "did you mean memory?"]);
    for _ in 0..3 {
        let text = park(&supervisor);
        assert!(text.starts_with("1 of 1 processes stopped; "), "{text}");
        assert!(is_stopped(pid));
        let left_bytes = anonymous_bytes(pid);
        assert!(left_bytes < MAX_LEFT_BYTES, "{left_bytes} bytes are left");
        let parked = &stat(&supervisor)["tree"]["parked"];
        assert_eq!((&parked["progress"], &parked["stopped"]), (&"stopped".into(), &1.into()));
        assert!(bytes(parked, "before_bytes") > bytes(parked, "left_bytes"), "{parked}");
        logged("parked");
        refused(&["ctl", &supervisor, "park"], 2, &["parked already"]);
        assert_eq!(unpark(&supervisor), "continued = 1\n");
        await_return(pid, left_bytes, 8 << 20);
        logged("unparked");
    }
    program.expect_alive();
    park(&supervisor);
    refused(&["stat", &pid.to_string()], 1, &[&format!("`softswap ctl {supervisor} unpark`")]);
    // A stopped program would not receive the signal.
    send(program.running.id(), libc::SIGTERM);
    let ended = program.running.finish(LIMIT);
    ended.expect_success("steady");
    assert!(ended.stdout_text().contains("ok steady"), "{}", ended.stdout_text());
}

/// For each byte received, sends a digest of its memory, and one of its child's.
const SERVER: &str = r#"
import hashlib, os, signal, socket, sys, time
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
ticks = 0
def tick(*_):
    global ticks
    ticks += 1
signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
requests, answers = os.pipe(), os.pipe()
common = os.urandom(1 << 20) * 10
is_child = os.fork() == 0
block = bytearray(os.urandom(1 << 20)) * 20
digest = lambda: hashlib.sha256(common + block).digest()
if is_child:
    os.close(requests[1])
    while os.read(requests[0], 1):
        os.write(answers[1], digest())
    os._exit(0)
while peer.recv(1):
    before = ticks
    os.write(requests[1], b"x")
    peer.sendall(os.read(answers[0], 32) + digest())
    while ticks == before: time.sleep(0.01)
signal.setitimer(signal.ITIMER_REAL, 0)  # Python restores the default action at exit.
"#;

fn digests(tree: &mut Tree, peer: &mut TcpStream) -> [u8; 64] {
    let mut answer = [0; 64];
    let asked = peer.write_all(b"x").and_then(|()| peer.read_exact(&mut answer));
    if let Err(error) = asked {
        eventually("the end of the server", || tree.running.has_ended());
        panic!("{error}: {}", tree.running.stderr_so_far());
    }
    answer
}

/// Memory shared by forked children stays in DRAM. Otherwise it would be there twice afterwards.
#[test]
fn parked_tree_keeps_connections_pipes_and_timers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let python = crate::support::python();
    let program = [python.to_str().unwrap(), "-c", SERVER, &port];
    let mut tree = Tree::start(&["--memory", "32M"], &program);
    let (mut peer, _) = listener.accept().unwrap();
    let before = digests(&mut tree, &mut peer);
    let server = children(tree.running.id())[0];
    let pids = [server, children(server)[0]];
    for _ in 0..3 {
        let text = park(&tree.pid());
        assert!(text.starts_with("2 of 2 processes stopped; "), "{text}");
        assert!(pids.into_iter().all(is_stopped));
        assert_eq!(unpark(&tree.pid()), "continued = 2\n");
        assert!(digests(&mut tree, &mut peer) == before, "the memory has changed");
    }
    drop(peer);
    tree.running.finish(LIMIT).expect_success("a server");
}

/// The ledger has that namespace's PIDs, which belong to other processes here.
#[test]
fn only_processes_of_the_tree_are_stopped() {
    if !is_root() {
        return skip("a PID namespace needs root");
    }
    let steady = compiled("steady");
    let program = ["unshare", "-pf", steady.to_str().unwrap(), "--mib", "48"];
    let mut tree = Tree::start(&["--memory", "32M"], &program);
    tree.running.wait_for_line("ready");
    let unshare = children(tree.running.id())[0];
    let inner = children(unshare)[0];
    let stat = tree.stat();
    assert_eq!(stat["unmanaged"].as_array().map(Vec::len), Some(0), "{stat}");
    let text = park(&tree.pid());
    assert!(text.starts_with("2 of 2 processes stopped; "), "{text}");
    assert!(is_stopped(unshare) && is_stopped(inner) && !is_stopped(1));
    assert!(anonymous_bytes(inner) < MAX_LEFT_BYTES, "{}", anonymous_bytes(inner));
    assert_eq!(unpark(&tree.pid()), "continued = 2\n");
    send(inner, libc::SIGTERM);
    tree.running.finish(LIMIT).expect_ok("steady");
}

#[test]
fn sleeping_program_wakes_to_be_parked() {
    let script = "import time\nblock = bytearray(b'abcdefgh' * (1 << 17)) * 90\n\
                  print('ready', flush=True)\nwhile True: time.sleep(0.01)";
    let mut tree = Tree::of_script(&["--memory", "auto:64M-256M"], script);
    tree.running.wait_for_line("ready");
    let pid = children(tree.running.id())[0];
    park(&tree.pid());
    assert!(is_stopped(pid) && anonymous_bytes(pid) < MAX_LEFT_BYTES, "{}", anonymous_bytes(pid));
    unpark(&tree.pid());
    send(pid, libc::SIGTERM);
    tree.running.finish(LIMIT);
}

#[test]
fn continued_supervisor_continues_its_parked_tree() {
    let program = Program::under_pressure(&[]);
    let pid: i32 = program.pid().parse().unwrap();
    park(&program.supervisor());
    let left_bytes = anonymous_bytes(pid);
    send(program.running.id(), libc::SIGCONT);
    await_return(pid, left_bytes, 8 << 20);
    assert!(!is_stopped(pid));
    program.finish().expect_success("hog");
}

/// Types Ctrl-Z, and continues the program as `fg` does.
const SHELL: &str = r#"
    program = int(open(f"/proc/{child}/task/{child}/children").read())
    state = dict(line.split(":", 1) for line in open(f"/proc/{program}/status"))
    print("stopped", state["State"].split()[0], int(state["RssAnon"].split()[0]) // 1024, flush=True)
    os.killpg(child, signal.SIGCONT)
    os.kill(program, signal.SIGUSR1)
    print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)
said = type_at_ready(master, b"\x1a")
print(said.decode().replace("\r", "").replace("^Z", ""))
"#;

const JOB: &str = r#"
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
block = bytearray(b"abcdefgh" * (1 << 17)) * 90
print("ready", flush=True)
signal.sigwait([signal.SIGUSR1])
assert block.count(b"abcdefgh") == 90 << 17
"#;

#[test]
fn ctrl_z_parks_and_fg_continues() {
    let python = crate::support::python();
    let script = [TYPE_AT_READY, START_JOB, SHELL].concat();
    let mut shell = Command::new("timeout");
    shell.args(["-k", "1", "120", "python3", "-c", &script]).arg(crate::support::softswap());
    shell.args(["run", "-q", "--reserve", "0", "--memory", "64M", "--park-on", "SIGTSTP", "--"]);
    let output = shell.arg(python).args(["-c", JOB]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let [ready, stopped, status] = lines[..] else { panic!("{text}") };
    assert_eq!((ready, status), ("ready", "status 0"), "{text}");
    let left_mib: u64 = stopped.strip_prefix("stopped T ").expect(&text).parse().unwrap();
    assert!(left_mib < MAX_LEFT_BYTES >> 20, "{left_mib} MiB are left");
}
