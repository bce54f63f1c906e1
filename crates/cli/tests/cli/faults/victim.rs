//! The program under softswap that is struck, watched while it runs: how long it makes
//! no step, and what is left of it at its end.

use crate::support::control_client::{PATIENCE, wait_until};
use crate::support::{Ended, Running, compiled, softswap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Guards against hangs, not expectations of speed. Without a message the program may not stand
/// still for longer.
const LONGEST_SILENCE: Duration = PATIENCE;
const END_LIMIT: Duration = PATIENCE;
const THREADS: u64 = 2;
const STRIDE_BYTES: u64 = 64;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It verified all of its data.
    WentOn,
    /// It was stopped, and a message says why.
    Told,
    /// By a signal that was sent to it.
    Killed,
}

/// How it may end beside verifying all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum May {
    /// In no other way.
    GoOn,
    /// Stopped with a message.
    BeTold,
    /// By this signal, without a message, too.
    BeKilled(i32),
}

pub(crate) struct Victim {
    running: Running,
    beat: File,
    /// Sockets.
    runtime_dir: TempDir,
    _beat_dir: TempDir,
    longest_pause: Duration,
    /// Time in which it was not to run.
    excused_until: Instant,
}

/// What softswap is asked for.
pub(crate) struct Setting<'a> {
    pub(crate) memory: &'a str,
    pub(crate) swap: &'a Path,
    pub(crate) options: &'a [&'a str],
    /// In front of all: a shell script that ends in `exec "$@"`.
    pub(crate) shell: Option<String>,
    pub(crate) mib: u64,
}

impl<'a> Setting<'a> {
    pub(crate) fn on(swap: &'a Path) -> Setting<'a> {
        Setting { memory: "12M", swap, options: &[], shell: None, mib: 40 }
    }
}

fn beat_file() -> (TempDir, PathBuf, File) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("beat");
    let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    file.set_len(THREADS * STRIDE_BYTES).expect("a longer file");
    (dir, path, file)
}

fn now_ns() -> u64 {
    softswap_sys::raw::now_ns()
}

impl Victim {
    pub(crate) fn plain(arguments: &[&str]) -> Victim {
        let mut command = Command::new(compiled("steady"));
        command.args(arguments);
        Victim::start(command)
    }

    pub(crate) fn under(setting: &Setting<'_>) -> Victim {
        let mut swap = std::ffi::OsString::from("--swap=");
        swap.push(setting.swap);
        let mut command = match &setting.shell {
            None => Command::new(softswap()),
            Some(script) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", script, "sh"]).arg(softswap());
                shell
            }
        };
        command
            .args(["run", "-q", "--reserve=0", "--memory", setting.memory])
            .arg(swap)
            .args(setting.options)
            .arg("--")
            .arg(compiled("steady"))
            .args(["--mib", &setting.mib.to_string()]);
        Victim::start(command)
    }

    fn start(mut command: Command) -> Victim {
        let (beat_dir, path, beat) = beat_file();
        let runtime_dir = tempfile::tempdir().expect("a temporary directory");
        command
            .args(["--threads", &THREADS.to_string(), "--beat"])
            .arg(path)
            .env("SOFTSWAP_RUNTIME_DIR", runtime_dir.path());
        let running = Running::start(&mut command);
        Victim {
            running,
            beat,
            runtime_dir,
            _beat_dir: beat_dir,
            longest_pause: Duration::ZERO,
            excused_until: Instant::now(),
        }
    }

    /// softswap's own number.
    pub(crate) fn id(&self) -> i32 {
        self.running.id()
    }

    /// The program's number, once it has been started.
    pub(crate) fn program(&self) -> Option<i32> {
        members(self.id()).into_iter().find(|pid| *pid != self.id())
    }

    /// To softswap and the program.
    pub(crate) fn send_to_all(&self, signal: i32) {
        let _ = softswap_sys::child::send(-self.id(), signal);
    }

    pub(crate) fn send(&self, signal: i32) {
        let _ = softswap_sys::child::send(self.id(), signal);
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.running.has_ended()
    }

    fn is_ready(&self) -> bool {
        String::from_utf8_lossy(&self.running.stdout_so_far()).lines().any(|line| line == "ready")
    }

    /// Until it has written all of its memory, or has ended.
    pub(crate) fn wait_ready(&mut self) {
        let end = Instant::now() + END_LIMIT;
        while !self.is_ready() && !self.has_ended() {
            assert!(Instant::now() < end, "it is not ready: {}", self.running.stderr_so_far());
            self.watch(Duration::from_millis(5));
        }
    }

    /// Until the program itself runs, or all has ended.
    pub(crate) fn wait_started(&mut self) {
        let end = Instant::now() + END_LIMIT;
        while self.last_step(0) == 0 && !self.has_ended() {
            assert!(Instant::now() < end, "it does not run: {}", self.running.stderr_so_far());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn last_step(&self, thread: u64) -> u64 {
        let mut word = [0; 8];
        let read = self.beat.read_exact_at(&mut word, thread * STRIDE_BYTES);
        if read.is_ok() { u64::from_le_bytes(word) } else { 0 }
    }

    /// Lets it run, and looks at what it does.
    pub(crate) fn watch(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.has_ended() {
            std::thread::sleep(Duration::from_millis(5).min(time));
            self.look();
        }
    }

    /// It was not to run until now.
    pub(crate) fn excuse(&mut self) {
        self.excused_until = Instant::now();
    }

    fn look(&mut self) {
        let now = now_ns();
        for thread in 0..THREADS {
            let last = self.last_step(thread);
            if last == 0 {
                continue;
            }
            let pause = Duration::from_nanos(now.saturating_sub(last));
            let pause = pause.min(self.excused_until.elapsed());
            self.longest_pause = self.longest_pause.max(pause);
            let stderr = || self.running.stderr_so_far();
            assert!(
                pause < LONGEST_SILENCE || stderr().contains("softswap: "),
                "a thread has made no step for {pause:?}, and nobody says why"
            );
        }
    }

    /// Asks it to verify all, and judges its end.
    pub(crate) fn finish(mut self, may: May) -> (End, Duration) {
        // Before, nobody takes the signal.
        self.wait_started();
        self.send(libc::SIGTERM);
        let end = Instant::now() + END_LIMIT;
        while !self.has_ended() {
            // Verifying is one thread's work.
            std::thread::sleep(Duration::from_millis(5));
            assert!(Instant::now() < end, "no end: {}", self.running.stderr_so_far());
        }
        let (group, runtime_dir) = (self.id(), self.runtime_dir);
        let pause = self.longest_pause;
        let ended = self.running.finish(END_LIMIT);
        nothing_is_left(group, runtime_dir.path());
        (judge(&ended, may), pause)
    }

    /// As [`Victim::finish`], where a limit may have kept it from what it does: then it
    /// says so itself, or its loader does, and that is no wrong byte.
    pub(crate) fn finish_under_limit(self, signal: i32, limit: &str) -> (End, Duration) {
        self.send(libc::SIGTERM);
        let (group, pause) = (self.id(), self.longest_pause);
        let ended = self.running.finish(END_LIMIT);
        nothing_is_left(group, self.runtime_dir.path());
        let is_wrong =
            ended.stderr.contains("expected ") || ended.stderr.contains("internal error");
        assert!(!is_wrong, "{limit}: {}", ended.stderr);
        let is_told = !ended.stderr.is_empty();
        match ended.status.signal() {
            None if ended.status.success() => (End::WentOn, pause),
            Some(got) if got == signal || got == libc::SIGKILL => (End::Killed, pause),
            // Before it came to its handler.
            Some(libc::SIGTERM) => (End::Killed, pause),
            _ if is_told => (End::Told, pause),
            _ => panic!("{limit}: it ended by {} and nobody says why", ended.status),
        }
    }

    /// Its end, as it is.
    pub(crate) fn finish_raw(self) -> Ended {
        self.running.finish(END_LIMIT)
    }
}

fn judge(ended: &Ended, may: May) -> End {
    let (stdout, stderr) = (ended.stdout_text(), &ended.stderr);
    assert!(!stderr.contains("FAILED"), "a wrong byte: {stderr}");
    assert!(!stderr.contains("internal error"), "{stderr}");
    if ended.status.success() {
        let last = stdout.lines().last().unwrap_or_default();
        assert!(last.starts_with("ok steady"), "{last:?}, {stderr}");
        return End::WentOn;
    }
    if let May::BeKilled(signal) = may
        && ended.status.signal() == Some(signal)
    {
        return End::Killed;
    }
    assert!(
        may != May::GoOn && stderr.contains("softswap: "),
        "it ended by {} and may {may:?}: {stderr}",
        ended.status
    );
    End::Told
}

/// The processes of a group.
pub(crate) fn members(group: i32) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // State, parent, group: behind the name, which may hold anything.
            let rest: Vec<&str> =
                stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
            let is_dead = matches!(rest.first(), Some(&"Z" | &"X"));
            !is_dead && rest.get(2) == Some(&group.to_string().as_str())
        })
        .collect()
}

/// Neither processes nor sockets. The kernel may need a moment for what it kills.
fn nothing_is_left(group: i32, runtime_dir: &Path) {
    wait_until("no process to be left", || match members(group) {
        none if none.is_empty() => Ok(()),
        some => Err(format!("{some:?}")),
    });
    wait_until("no socket to be left", || {
        if std::fs::read_dir(runtime_dir).map_or(0, Iterator::count) == 0 {
            return Ok(());
        }
        // One that was killed cannot take its socket away: whoever meets it does, once it is gone.
        let look = Command::new(softswap())
            .args(["stat", &std::process::id().to_string()])
            .env("SOFTSWAP_RUNTIME_DIR", runtime_dir)
            .output();
        Err(format!("{look:?}"))
    });
}
