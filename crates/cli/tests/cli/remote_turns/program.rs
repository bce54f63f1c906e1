//! The program that goes on in a quarter of its memory while things happen to the cluster that
//! has the rest: it verifies and rewrites its pages without a pause, and says where a byte is
//! wrong.

use crate::support::tree::{HELPER, child_called};
use crate::support::{Ended, LIMIT, Report, Running, Swapped, compiled};
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Only keeps a hang from lasting for ever: what is asked of a cluster has a deadline, and so has
/// the start of a helper.
const PATIENCE: Duration = Duration::from_secs(150);
const THREADS: u64 = 2;
const STRIDE_BYTES: u64 = 64;
const MIB: &str = "32";
const A_QUARTER: &str = "8M";
/// By this a cluster is refused that would be of no use.
const TOO_SLOW: &str = "beyond 10 ms";

pub(crate) struct Program {
    running: Running,
    swapped: Swapped,
    /// When each thread has made its last step.
    beat: File,
    _sockets: TempDir,
    /// What it swaps to beside the cluster.
    _directory: Option<TempDir>,
}

impl Program {
    pub(crate) fn start(url: &str, is_beside_directory: bool) -> Program {
        let directory = is_beside_directory
            .then(|| tempfile::tempdir_in("/var/tmp").expect("a directory on a disk"));
        let mut swapped =
            Swapped::within(A_QUARTER).option("--codec=none").option(format!("--swap={url}"));
        if let Some(directory) = &directory {
            swapped = swapped.option(format!("--swap={}", directory.path().display()));
        }
        let sockets = tempfile::tempdir().expect("a temporary directory");
        let path = sockets.path().join("beat");
        let beat = File::options().read(true).write(true).create_new(true).open(&path);
        let beat = beat.expect("a file");
        beat.set_len(THREADS * STRIDE_BYTES).expect("a longer file");
        let mut command = swapped.command(compiled("steady"), &["--mib", MIB]);
        command.args(["--threads", &THREADS.to_string(), "--beat"]).arg(path);
        command.env("SOFTSWAP_RUNTIME_DIR", sockets.path());
        let running = Running::start(&mut command);
        let mut program =
            Program { running, swapped, beat, _sockets: sockets, _directory: directory };
        let end = Instant::now() + PATIENCE;
        while program.last_step(0) == 0 {
            let has_ended = program.running.has_ended();
            // A machine that is busy with other things makes a cluster slow.
            if has_ended && program.running.stderr_so_far().contains(TOO_SLOW) {
                program.running = Running::start(&mut command);
            } else if has_ended || Instant::now() > end {
                panic!("it does not start: {}", program.running.stderr_so_far());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        program
    }

    /// Until it has written all of its memory.
    pub(crate) fn wait_ready(&mut self) {
        self.wait("ready", |program| {
            let told = program.running.stdout_so_far();
            String::from_utf8_lossy(&told).lines().any(|line| line == "ready")
        });
    }

    /// Until each thread has made a step that it began after now.
    pub(crate) fn wait_for_steps(&mut self, what: &str) {
        let now = softswap_sys::raw::now_ns();
        self.wait(what, |program| (0..THREADS).all(|thread| program.last_step(thread) > now));
    }

    fn wait(&mut self, what: &str, is_so: impl Fn(&Program) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(self) {
            let is_late = Instant::now() > end;
            if self.running.has_ended() || is_late {
                let how = if is_late { "not in time" } else { "it has ended" };
                panic!("{what}: {how}: {}", self.running.stderr_so_far());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// When a thread began its last step; 0 before the first one.
    fn last_step(&self, thread: u64) -> u64 {
        let mut word = [0; 8];
        let read = self.beat.read_exact_at(&mut word, thread * STRIDE_BYTES);
        if read.is_ok() { u64::from_le_bytes(word) } else { 0 }
    }

    pub(crate) fn helper(&self) -> Option<i32> {
        child_called(self.running.id(), HELPER)
    }

    /// Holds the program, and with it `softswap run`, but not the helper.
    pub(crate) fn hold(&mut self) {
        let program = child_called(self.running.id(), "steady").expect("the program");
        send(program, Signal::STOP);
        // It stops as its program does, and must not be told to go on before.
        let stat = format!("/proc/{}/stat", self.running.id());
        self.wait("held", |_| {
            std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "))
        });
    }

    pub(crate) fn let_go(&self) {
        send(self.running.id(), Signal::CONT);
    }

    /// It has stopped, without a wrong byte and with a message that has one of these parts; or,
    /// if it `may_go_on`, it still works. True where it has stopped.
    pub(crate) fn has_told(&mut self, parts: &[&str], may_go_on: bool) -> bool {
        if may_go_on {
            let now = softswap_sys::raw::now_ns();
            let end = Instant::now() + PATIENCE;
            while !self.running.has_ended() && Instant::now() < end {
                if (0..THREADS).all(|thread| self.last_step(thread) > now) {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let end = Instant::now() + PATIENCE;
        while !self.running.has_ended() {
            let stderr = self.running.stderr_so_far();
            assert!(Instant::now() < end, "it neither stops nor goes on: {stderr}");
            std::thread::sleep(Duration::from_millis(5));
        }
        let stderr = self.running.stderr_so_far();
        assert!(!stderr.contains("FAILED"), "a wrong byte: {stderr}");
        assert!(!stderr.contains("internal error"), "{stderr}");
        let told =
            self.told().unwrap_or_else(|| panic!("it stopped, and nobody says why: {stderr}"));
        assert!(parts.iter().any(|part| told.contains(part)), "it is to say {parts:?}: {told}");
        true
    }

    /// Why it was stopped, as it was said.
    pub(crate) fn told(&self) -> Option<String> {
        let stderr = self.running.stderr_so_far();
        let is_it = |line: &&str| line.contains("softswap: stopping the program");
        stderr.lines().find(is_it).map(str::to_string)
    }

    /// Has it verify all; it must find everything as it was.
    pub(crate) fn finish(self) -> Ended {
        send(self.running.id(), Signal::TERM);
        let Report { ended, figures } = self.swapped.report_of(self.running.finish(LIMIT));
        ended.expect_ok("steady");
        for errors in ["read_errors", "checksum_errors"] {
            assert_eq!(figures[errors], 0, "{errors}: {}", ended.stderr);
        }
        assert!(figures["pages_out"].as_u64() > Some(1000), "hardly anything went out");
        ended
    }
}

fn send(process: i32, what: Signal) {
    let process = rustix::process::Pid::from_raw(process).expect("its number");
    rustix::process::kill_process(process, what).expect("a signal to it");
}
