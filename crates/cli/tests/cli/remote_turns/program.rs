//! The program under fault injection. It verifies and rewrites its pages continuously.

use crate::support::control_client::wait_until;
use crate::support::processes::{HELPER, child_called, send, stat_of};
use crate::support::steady::Beat;
use crate::support::{Ended, LIMIT, Report, Running, Swapped, TOO_SLOW, compiled, disk_dir};
use tempfile::TempDir;

const MIB: &str = "32";
const A_QUARTER: &str = "8M";

pub(crate) struct Program {
    running: Running,
    swapped: Swapped,
    beat: Beat,
    _sockets: TempDir,
    /// The local swap area.
    _directory: Option<TempDir>,
}

impl Program {
    pub(crate) fn start(url: &str, has_directory: bool) -> Program {
        let directory = has_directory.then(disk_dir);
        let mut swapped = Swapped::within(A_QUARTER).option("--codec=none").swap(url);
        if let Some(directory) = &directory {
            swapped = swapped.swap(directory.path().display());
        }
        let sockets = tempfile::tempdir().expect("a temporary directory");
        let mut command = swapped.command(compiled("steady"), &["--mib", MIB]);
        let beat = Beat::create(sockets.path(), &mut command);
        command.env("SOFTSWAP_RUNTIME_DIR", sockets.path());
        let running = Running::start(&mut command);
        let mut program =
            Program { running, swapped, beat, _sockets: sockets, _directory: directory };
        wait_until("the program starts", || {
            if program.beat.last_step(0) != 0 {
                return Ok(());
            }
            let has_ended = program.running.has_ended();
            let stderr = program.running.stderr_so_far();
            if has_ended {
                assert!(stderr.contains(TOO_SLOW), "the program does not start: {stderr}");
                program.running = Running::start(&mut command);
            }
            Err(stderr)
        });
        program
    }

    pub(crate) fn wait_ready(&mut self) {
        self.wait("ready", |program| program.running.has_printed("ready"));
    }

    /// Each thread must complete a step that it began after now.
    pub(crate) fn wait_for_steps(&mut self, what: &str) {
        let now = softswap_sys::raw::now_ns();
        self.wait(what, |program| program.beat.is_after(now));
    }

    fn wait(&mut self, what: &str, is_so: impl Fn(&Program) -> bool) {
        wait_until(what, || {
            if is_so(self) {
                return Ok(());
            }
            let has_ended = self.running.has_ended();
            let stderr = self.running.stderr_so_far();
            assert!(!has_ended, "{what}: the program has exited: {stderr}");
            Err(stderr)
        });
    }

    pub(crate) fn helper(&self) -> Option<i32> {
        child_called(self.running.id(), HELPER)
    }

    fn program(&self) -> i32 {
        child_called(self.running.id(), "steady").expect("the program")
    }

    /// `softswap run` and the helper continue.
    pub(crate) fn hold(&mut self) {
        let program = self.program();
        send(program, libc::SIGSTOP);
        self.wait("held", |_| stat_of(program).is_some_and(|stat| stat.state == 'T'));
    }

    pub(crate) fn release(&self) {
        send(self.program(), libc::SIGCONT);
    }

    /// Waits for a message with one of `parts`; if `may_continue`, also accepts a program that
    /// continues. Returns true if the program has stopped.
    pub(crate) fn has_reported(&mut self, parts: &[&str], may_continue: bool) -> bool {
        let now = softswap_sys::raw::now_ns();
        let has_ended = wait_until("the program continues or exits", || {
            let has_ended = self.running.has_ended();
            let is_over = has_ended || may_continue && self.beat.is_after(now);
            is_over.then_some(has_ended).ok_or_else(|| self.running.stderr_so_far())
        });
        if !has_ended {
            return false;
        }
        let stderr = self.running.stderr_so_far();
        assert!(!stderr.contains("FAILED"), "a wrong byte: {stderr}");
        assert!(!stderr.contains("internal error"), "{stderr}");
        let stop_message = self
            .stop_message()
            .unwrap_or_else(|| panic!("the program stopped without a message: {stderr}"));
        assert!(
            parts.iter().any(|part| stop_message.contains(part)),
            "the message must contain one of {parts:?}: {stop_message}"
        );
        true
    }

    pub(crate) fn stop_message(&self) -> Option<String> {
        let stderr = self.running.stderr_so_far();
        let is_it = |line: &&str| line.contains("softswap: stopping the program");
        stderr.lines().find(is_it).map(str::to_string)
    }

    /// The program must find all of its data unchanged.
    pub(crate) fn finish(self) -> Ended {
        send(self.running.id(), libc::SIGTERM);
        let Report { ended, figures } = self.swapped.report_of(self.running.finish(LIMIT));
        ended.expect_ok("steady");
        for errors in ["read_errors", "checksum_errors"] {
            assert_eq!(figures[errors], 0, "{errors}: {}", ended.stderr);
        }
        assert!(figures["pages_out"].as_u64() > Some(1000), "only few pages were evicted");
        ended
    }
}
