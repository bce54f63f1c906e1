//! The program under fault injection. Its progress and what it leaves are checked.

use crate::support::control_client::{WAIT_TIMEOUT, wait_until};
use crate::support::processes::{all_with, send};
use crate::support::steady::{Beat, THREADS};
use crate::support::{Ended, Running, compiled, softswap, softswap_with};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Completed,
    Reported,
    Killed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum May {
    Continue,
    StopWithMessage,
    /// The program may also be killed by this signal, without a message.
    Killed(i32),
}

pub(crate) struct Victim {
    running: Running,
    beat: Beat,
    runtime_dir: TempDir,
    _beat_dir: TempDir,
    max_interval: Duration,
    /// The test itself caused earlier stalls.
    excused_until: Instant,
}

pub(crate) struct Setting<'a> {
    pub(crate) memory: &'a str,
    pub(crate) swap: &'a Path,
    pub(crate) options: &'a [&'a str],
    /// A shell script that ends in `exec "$@"`.
    pub(crate) shell: Option<String>,
    pub(crate) mib: u64,
}

impl<'a> Setting<'a> {
    pub(crate) fn on(swap: &'a Path) -> Setting<'a> {
        Setting { memory: "12M", swap, options: &[], shell: None, mib: 40 }
    }
}

impl Victim {
    pub(crate) fn plain(arguments: &[&str]) -> Victim {
        Victim::start(Command::new(compiled("steady")).args(arguments))
    }

    pub(crate) fn under(setting: &Setting<'_>) -> Victim {
        let mut command = match &setting.shell {
            None => Command::new(softswap()),
            Some(script) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", script, "sh"]).arg(softswap());
                shell
            }
        };
        command
            .args(["run", "-q", "--reserve=0", "--memory", setting.memory, "--swap"])
            .arg(setting.swap)
            .args(setting.options)
            .arg("--")
            .arg(compiled("steady"))
            .args(["--mib", &setting.mib.to_string()]);
        Victim::start(&mut command)
    }

    fn start(command: &mut Command) -> Victim {
        let [runtime_dir, beat_dir] =
            std::array::from_fn(|_| tempfile::tempdir().expect("a temporary directory"));
        let beat = Beat::create(beat_dir.path(), command);
        let running = Running::start(command.env("SOFTSWAP_RUNTIME_DIR", runtime_dir.path()));
        Victim {
            running,
            beat,
            runtime_dir,
            _beat_dir: beat_dir,
            max_interval: Duration::ZERO,
            excused_until: Instant::now(),
        }
    }

    /// softswap's PID, which is also the process group.
    pub(crate) fn id(&self) -> i32 {
        self.running.id()
    }

    pub(crate) fn program(&self) -> Option<i32> {
        members(self.id()).into_iter().find(|pid| *pid != self.id())
    }

    pub(crate) fn send_to_all(&self, signal: i32) {
        send(-self.id(), signal);
    }

    pub(crate) fn send(&self, signal: i32) {
        send(self.id(), signal);
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.running.has_ended()
    }

    /// Waits until all of the program's memory is written, or it has exited.
    pub(crate) fn wait_ready(&mut self) {
        self.wait("the program is ready", |victim| {
            victim.check_progress();
            victim.running.has_printed("ready")
        });
    }

    /// Waits until the program runs, or all processes have exited.
    pub(crate) fn wait_started(&mut self) {
        self.wait("the program has started", |victim| victim.beat.last_step(0) != 0);
    }

    fn wait(&mut self, what: &str, mut is_so: impl FnMut(&mut Victim) -> bool) {
        wait_until(what, || {
            let is_over = is_so(self) || self.has_ended();
            is_over.then_some(()).ok_or_else(|| self.running.stderr_so_far())
        });
    }

    /// Also checks the program's progress.
    pub(crate) fn watch(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.has_ended() {
            std::thread::sleep(Duration::from_millis(5).min(time));
            self.check_progress();
        }
    }

    pub(crate) fn excuse(&mut self) {
        self.excused_until = Instant::now();
    }

    fn check_progress(&mut self) {
        let now = softswap_sys::raw::now_ns();
        for thread in 0..THREADS {
            let last = self.beat.last_step(thread);
            if last == 0 {
                continue;
            }
            let pause = Duration::from_nanos(now.saturating_sub(last));
            let pause = pause.min(self.excused_until.elapsed());
            self.max_interval = self.max_interval.max(pause);
            let stderr = || self.running.stderr_so_far();
            assert!(
                pause < WAIT_TIMEOUT || stderr().contains("softswap: "),
                "a thread has made no step for {pause:?}, without a message"
            );
        }
    }

    /// Makes the program verify all data.
    pub(crate) fn finish(mut self, may: May) -> (End, Duration) {
        // The program handles SIGTERM only once it runs.
        self.wait_started();
        self.send(libc::SIGTERM);
        let (ended, pause) = self.end();
        (evaluate(&ended, may), pause)
    }

    /// For a program under a resource limit. It may be killed by `signal`, or exit with a message
    /// of its own or of its loader.
    pub(crate) fn finish_under_limit(self, signal: i32, limit: &str) -> (End, Duration) {
        self.send(libc::SIGTERM);
        let (ended, pause) = self.end();
        let stderr = &ended.stderr;
        let is_wrong = stderr.contains("expected ") || stderr.contains("internal error");
        assert!(!is_wrong, "{limit}: {stderr}");
        match ended.status.signal() {
            None if ended.status.success() => (End::Completed, pause),
            Some(got) if got == signal || got == libc::SIGKILL => (End::Killed, pause),
            // The program was killed before it installed its handler.
            Some(libc::SIGTERM) => (End::Killed, pause),
            _ if !stderr.is_empty() => (End::Reported, pause),
            _ => panic!("{limit}: exited with {} without a message", ended.status),
        }
    }

    /// Also returns the longest stall.
    pub(crate) fn end(self) -> (Ended, Duration) {
        let group = self.id();
        let ended = self.running.finish(WAIT_TIMEOUT);
        assert_nothing_left(group, self.runtime_dir.path());
        (ended, self.max_interval)
    }
}

fn evaluate(ended: &Ended, may: May) -> End {
    let (stdout, stderr) = (ended.stdout_text(), &ended.stderr);
    assert!(!stderr.contains("FAILED"), "a wrong byte: {stderr}");
    assert!(!stderr.contains("internal error"), "{stderr}");
    if ended.status.success() {
        let last = stdout.lines().last().unwrap_or_default();
        assert!(last.starts_with("ok steady"), "{last:?}, {stderr}");
        return End::Completed;
    }
    if let May::Killed(signal) = may
        && ended.status.signal() == Some(signal)
    {
        return End::Killed;
    }
    assert!(
        may != May::Continue && stderr.contains("softswap: "),
        "exited with {}, but only {may:?} is permitted: {stderr}",
        ended.status
    );
    End::Reported
}

pub(crate) fn members(group: i32) -> Vec<i32> {
    all_with(|stat| stat.pgrp == group && !matches!(stat.state, 'Z' | 'X'))
}

/// Killed processes take a moment to exit.
fn assert_nothing_left(group: i32, runtime_dir: &Path) {
    wait_until("all processes have exited", || match members(group) {
        none if none.is_empty() => Ok(()),
        some => Err(format!("{some:?}")),
    });
    wait_until("all sockets are removed", || {
        if std::fs::read_dir(runtime_dir).map_or(0, Iterator::count) == 0 {
            return Ok(());
        }
        // A killed process cannot remove its socket. The next `softswap` command does.
        let mut stat = softswap_with(&["stat", &std::process::id().to_string()]);
        Err(format!("{:?}", stat.env("SOFTSWAP_RUNTIME_DIR", runtime_dir).output()))
    });
}
