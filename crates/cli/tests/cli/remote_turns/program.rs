//! The program under fault injection. It runs in a quarter of its memory, verifies and rewrites its pages
//! continuously, and reports wrong bytes.

use crate::support::tree::{HELPER, child_called};
use crate::support::{Ended, LIMIT, Report, Running, Swapped, compiled};
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Limit against hangs: requests to a cluster and the start of a helper have their own deadlines.
const WAIT_TIMEOUT: Duration = Duration::from_secs(150);
const THREADS: u64 = 2;
const STRIDE_BYTES: u64 = 64;
const MIB: &str = "32";
const A_QUARTER: &str = "8M";
/// Part of the message that refuses a cluster with too much latency.
const TOO_SLOW: &str = "beyond 10 ms";

pub(crate) struct Program {
    running: Running,
    swapped: Swapped,
    /// Shared file with the time of each thread's last step.
    beat: File,
    _sockets: TempDir,
    /// The local swap area in addition to the cluster.
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
        let end = Instant::now() + WAIT_TIMEOUT;
        while program.last_step(0) == 0 {
            let has_ended = program.running.has_ended();
            // Other load on the machine may make the cluster slow.
            if has_ended && program.running.stderr_so_far().contains(TOO_SLOW) {
                program.running = Running::start(&mut command);
            } else if has_ended || Instant::now() > end {
                panic!("it does not start: {}", program.running.stderr_so_far());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        program
    }

    /// Waits until the program has written all of its memory.
    pub(crate) fn wait_ready(&mut self) {
        self.wait("ready", |program| {
            let stop_message = program.running.stdout_so_far();
            String::from_utf8_lossy(&stop_message).lines().any(|line| line == "ready")
        });
    }

    /// Waits until each thread has completed a step that it began after now.
    pub(crate) fn wait_for_steps(&mut self, what: &str) {
        let now = softswap_sys::raw::now_ns();
        self.wait(what, |program| (0..THREADS).all(|thread| program.last_step(thread) > now));
    }

    fn wait(&mut self, what: &str, is_so: impl Fn(&Program) -> bool) {
        let end = Instant::now() + WAIT_TIMEOUT;
        while !is_so(self) {
            let is_late = Instant::now() > end;
            if self.running.has_ended() || is_late {
                let how = if is_late { "not in time" } else { "it has ended" };
                panic!("{what}: {how}: {}", self.running.stderr_so_far());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the start time of a thread's last step in ns; 0 before the first one.
    fn last_step(&self, thread: u64) -> u64 {
        let mut word = [0; 8];
        let read = self.beat.read_exact_at(&mut word, thread * STRIDE_BYTES);
        if read.is_ok() { u64::from_le_bytes(word) } else { 0 }
    }

    pub(crate) fn helper(&self) -> Option<i32> {
        child_called(self.running.id(), HELPER)
    }

    /// Stops the program, and with it `softswap run`, but not the helper.
    pub(crate) fn hold(&mut self) {
        let program = child_called(self.running.id(), "steady").expect("the program");
        send(program, Signal::STOP);
        // `softswap run` stops after its program. A SIGCONT sent earlier would be lost.
        let stat = format!("/proc/{}/stat", self.running.id());
        self.wait("held", |_| {
            std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "))
        });
    }

    pub(crate) fn release(&self) {
        send(self.running.id(), Signal::CONT);
    }

    /// Waits until the program has stopped without a wrong byte and with a message that contains
    /// one of `parts`. If it `may_continue`, also accepts that it still works. Returns true if it
    /// has stopped.
    pub(crate) fn has_reported(&mut self, parts: &[&str], may_continue: bool) -> bool {
        if may_continue {
            let now = softswap_sys::raw::now_ns();
            let end = Instant::now() + WAIT_TIMEOUT;
            while !self.running.has_ended() && Instant::now() < end {
                if (0..THREADS).all(|thread| self.last_step(thread) > now) {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let end = Instant::now() + WAIT_TIMEOUT;
        while !self.running.has_ended() {
            let stderr = self.running.stderr_so_far();
            assert!(Instant::now() < end, "it neither stops nor goes on: {stderr}");
            std::thread::sleep(Duration::from_millis(5));
        }
        let stderr = self.running.stderr_so_far();
        assert!(!stderr.contains("FAILED"), "a wrong byte: {stderr}");
        assert!(!stderr.contains("internal error"), "{stderr}");
        let stop_message = self
            .stop_message()
            .unwrap_or_else(|| panic!("it stopped, and nobody says why: {stderr}"));
        assert!(
            parts.iter().any(|part| stop_message.contains(part)),
            "it is to say {parts:?}: {stop_message}"
        );
        true
    }

    /// Returns the message that states why the program was stopped.
    pub(crate) fn stop_message(&self) -> Option<String> {
        let stderr = self.running.stderr_so_far();
        let is_it = |line: &&str| line.contains("softswap: stopping the program");
        stderr.lines().find(is_it).map(str::to_string)
    }

    /// Makes the program verify all of its data, which must be unchanged.
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
