//! Line protocol between a benchmark and the measured program, over standard input and output.

use super::managed_program::Running;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde::de::DeserializeOwned;
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_sys::child::SignalQueue;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::BorrowedFd;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// The program is killed on drop.
pub(crate) struct TaskPipe {
    child: Running,
    /// `None` after [`TaskPipe::finish`].
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl TaskPipe {
    pub(crate) fn start(
        mut command: Command,
        name: &str,
        task: &impl Serialize,
        signals: &SignalQueue,
        kept: &[BorrowedFd<'_>],
    ) -> Result<TaskPipe, Refusal> {
        command.arg(name).arg(serde_json::to_string(task).map_err(Refusal::own)?);
        signals.prepare(&mut command, kept);
        TaskPipe::over(command)
    }

    pub(crate) fn over(mut command: Command) -> Result<TaskPipe, Refusal> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Running(command.spawn().or_own("the task did not start")?);
        let (to, from) = (child.0.stdin.take(), child.0.stdout.take());
        let from = from.ok_or_else(|| Refusal::own("the task has no standard output"))?;
        Ok(TaskPipe { child, to, from: BufReader::new(from) })
    }

    pub(crate) fn send(&mut self, line: &str) {
        // If the task has exited, `receive` reports it.
        let _ = self.to.as_mut().map(|to| writeln!(to, "{line}"));
    }

    pub(crate) fn finish(&mut self) -> Result<(), Refusal> {
        self.to = None;
        self.wait()
    }

    fn receive(&mut self) -> Result<String, Refusal> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(count) if count > 0 => Ok(line.trim_end().to_string()),
            _ => Err(self.wait().err().unwrap_or_else(|| Refusal::own("the task printed nothing"))),
        }
    }

    pub(crate) fn receive_json<T: DeserializeOwned>(&mut self) -> Result<T, Refusal> {
        let line = self.receive()?;
        serde_json::from_str(&line)
            .map_err(|_| Refusal::own(format!("the task printed {line:?} instead of its times")))
    }

    pub(crate) fn expect(&mut self, word: &str) -> Result<(), Refusal> {
        match self.receive()? {
            line if line == word => Ok(()),
            line => Err(Refusal::own(format!("the task printed {line:?} instead of {word:?}"))),
        }
    }

    pub(crate) fn wait(&mut self) -> Result<(), Refusal> {
        match self.child.0.wait().or_own("the task failed")? {
            status if status.success() => Ok(()),
            status => Err(Refusal::own(format!("the task failed: {status}"))),
        }
    }
}

/// `prepare` makes started programs exit with this process.
pub(crate) fn signals() -> Result<SignalQueue, Refusal> {
    SignalQueue::hold(&[]).or_own("cannot block signals")
}

pub(crate) fn send(line: &str) -> Result<(), Refusal> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).or_own("cannot print a line")
}

pub(crate) fn send_json(what: &impl Serialize) -> Result<(), Refusal> {
    send(&serde_json::to_string(what).map_err(Refusal::own)?)
}

pub(crate) fn receive() -> Result<(), Refusal> {
    match std::io::stdin().lock().read_line(&mut String::new()) {
        Ok(count) if count > 0 => Ok(()),
        _ => Err(Refusal::own("this internal command is for `softswap bench` only")),
    }
}

/// CPU time of the whole process, including reclaim.
pub(crate) fn process_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
