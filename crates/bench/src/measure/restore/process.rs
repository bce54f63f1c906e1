//! The restorer's process, and how a benchmark reaches it.

use super::changes::{Act, Answer, Changes};
use clap::Args;
use softswap_cli::refusal::{Refusal, plain};
use softswap_sys::child::SignalQueue;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

/// Undoes what a benchmark changed when standard input ends; of no use by itself.
#[derive(Args)]
pub(crate) struct RestorerArgs {}

/// The restorer's process.
pub(crate) fn restore(_args: &RestorerArgs) -> Result<ExitCode, Refusal> {
    let ends = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
    let _held = SignalQueue::hold(&ends)
        .map_err(|error| Refusal::own(format!("cannot hold signals: {}", plain(&error))))?;
    let mut changes = Changes::default();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let answer: Answer = serde_json::from_str(&line)
            .map_err(|error| format!("the restorer does not know {line:?}: {error}"))
            .and_then(|act| changes.perform(act));
        let text = serde_json::to_string(&answer).unwrap_or_default();
        // If the benchmark has exited, the input has ended, too.
        let _ = writeln!(io::stdout(), "{text}");
    }
    match changes.undo_all() {
        failed if failed.is_empty() => Ok(ExitCode::SUCCESS),
        failed => Err(Refusal::own(failed.join("; "))),
    }
}

/// The restorer, seen from the benchmark; everything is undone when this goes.
pub(crate) struct Restorer {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Restorer {
    pub(crate) fn start() -> Result<Restorer, String> {
        let program = std::env::current_exe().map_err(|error| plain(&error))?;
        let mut child = Command::new(program)
            .arg("restorer")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| plain(&error))?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let from = BufReader::new(from.ok_or("the restorer has no standard output")?);
        Ok(Restorer { child, to, from })
    }

    /// Has the restorer do something, and waits until it is done.
    pub(crate) fn ask(&mut self, act: &Act) -> Answer {
        let silent = || "the restorer of what is changed on the machine has ended".to_string();
        let text = serde_json::to_string(act).map_err(|error| error.to_string())?;
        let to = self.to.as_mut().ok_or_else(silent)?;
        writeln!(to, "{text}").map_err(|_| silent())?;
        let mut line = String::new();
        self.from.read_line(&mut line).map_err(|error| plain(&error))?;
        serde_json::from_str(&line).map_err(|_| silent())?
    }
}

impl Drop for Restorer {
    fn drop(&mut self) {
        drop(self.to.take());
        let _ = self.child.wait();
    }
}
