//! A benchmark and the program it measures take turns by lines: the program's
//! standard input and output.

use rustix::time::{ClockId, clock_gettime};
use softswap_cli::refusal::{Refusal, plain};
use softswap_sys::child::SignalQueue;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout};

/// The program, seen from the benchmark. It is ended when this goes.
pub(crate) struct TaskPipe {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl TaskPipe {
    pub(crate) fn with(mut child: Child) -> Result<TaskPipe, Refusal> {
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => Ok(TaskPipe { child, to, from: BufReader::new(from) }),
            _ => Err(Refusal::own("the task has no standard streams")),
        }
    }

    pub(crate) fn send(&mut self, line: &str) {
        // A task that has ended says why when it is listened to.
        let _ = writeln!(self.to, "{line}");
    }

    pub(crate) fn receive(&mut self) -> Result<String, Refusal> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(count) if count > 0 => Ok(line.trim_end().to_string()),
            _ => Err(match self.child.wait() {
                Ok(status) => Refusal::own(format!("the task failed: {status}")),
                Err(error) => Refusal::own(format!("the task failed: {}", plain(&error))),
            }),
        }
    }

    /// What it says of its work, as JSON.
    pub(crate) fn receive_json<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, Refusal> {
        let line = self.receive()?;
        serde_json::from_str(&line)
            .map_err(|_| Refusal::own(format!("the task said {line:?} instead of its times")))
    }

    pub(crate) fn expect(&mut self, word: &str) -> Result<(), Refusal> {
        match self.receive()? {
            line if line == word => Ok(()),
            line => Err(Refusal::own(format!("the task said {line:?} instead of {word:?}"))),
        }
    }

    pub(crate) fn end(mut self) -> Result<(), Refusal> {
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Refusal::own(format!("the task failed: {status}"))),
            Err(error) => Err(Refusal::own(format!("the task failed: {}", plain(&error)))),
        }
    }
}

impl Drop for TaskPipe {
    fn drop(&mut self) {
        // Both fail where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Holds signals, so that programs that are started end with this one.
pub(crate) fn signals() -> Result<SignalQueue, Refusal> {
    SignalQueue::hold(&[])
        .map_err(|error| Refusal::own(format!("cannot hold signals: {}", plain(&error))))
}

/// This executable, which is also the task of several benchmarks.
pub(crate) fn this_program() -> Result<PathBuf, Refusal> {
    std::env::current_exe()
        .map_err(|error| Refusal::own(format!("cannot find softswap itself: {}", plain(&error))))
}

/// The program's side: says a line.
pub(crate) fn send(line: &str) -> Result<(), Refusal> {
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "{line}").and_then(|()| out.flush());
    said.map_err(|error| Refusal::own(format!("nobody listens: {error}")))
}

pub(crate) fn send_json(what: &impl serde::Serialize) -> Result<(), Refusal> {
    send(&serde_json::to_string(what).map_err(|error| Refusal::own(error.to_string()))?)
}

/// The program's side: waits for a line.
pub(crate) fn receive() -> Result<String, Refusal> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(count) if count > 0 => Ok(line.trim_end().to_string()),
        _ => Err(Refusal::own("this program is started by a benchmark")),
    }
}

/// User and system time of the whole process so far, reclaim included.
pub(crate) fn process_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
