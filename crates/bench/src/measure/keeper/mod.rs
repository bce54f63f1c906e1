//! What a benchmark changes on the machine, and who puts it back.
//!
//! All of it is changed by a process of its own, the keeper, which undoes it
//! in reverse order when its standard input ends: that happens however the
//! benchmark ends, also by SIGKILL. The keeper is in a process group of its
//! own and holds signals back, so what the terminal or a shell ends does not
//! include it. It changes settings of the machine and things of its own, never
//! somebody else's device, swap area or control group.

mod acts;
pub(crate) mod group;
mod undo;
pub(crate) mod zram;

use clap::Args;
use serde::{Deserialize, Serialize};
use softswap_cli::refusal::{Refusal, plain};
use softswap_sys::child::SignalQueue;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use undo::Undo;

/// What the keeper can be asked for, one JSON object in a line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Act {
    /// Be the only keeper that swaps: settings of the machine have one owner.
    HoldSwap,
    /// A directory of one's own below this one.
    MakeDirectory {
        under: PathBuf,
    },
    /// A zram device; the answer is its name.
    AddZram {
        bytes: u64,
    },
    /// A swap area in a file that has all its storage.
    MakeSwapFile {
        path: PathBuf,
        bytes: u64,
    },
    /// A swap header on a device.
    Format {
        path: PathBuf,
    },
    SwapOn {
        path: PathBuf,
    },
    SwapOff {
        path: PathBuf,
    },
    /// A setting of the machine; the answer is what it was.
    Set {
        path: PathBuf,
        value: String,
    },
    /// A memory control group; the answer is its directory.
    MakeGroup {
        limit_bytes: Option<u64>,
        may_swap: bool,
    },
    /// Ends what runs in it.
    RemoveGroup {
        path: PathBuf,
    },
}

/// What it answers: a text, or why not.
type Answer = Result<String, String>;

/// Undoes what a benchmark changed when standard input ends; of no use by itself.
#[derive(Args)]
pub(crate) struct KeeperArgs {}

/// The keeper's process.
pub(crate) fn keep(_args: &KeeperArgs) -> Result<ExitCode, Refusal> {
    let ends = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
    let _held = SignalQueue::hold(&ends)
        .map_err(|error| Refusal::own(format!("cannot hold signals: {}", plain(&error))))?;
    let mut undo = Undo::default();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let answer: Answer = serde_json::from_str(&line)
            .map_err(|error| format!("the keeper does not know {line:?}: {error}"))
            .and_then(|act| acts::perform(act, &mut undo));
        let text = serde_json::to_string(&answer).unwrap_or_default();
        // Nobody listens any more? Then input has ended, too.
        let _ = writeln!(io::stdout(), "{text}");
    }
    match undo.all() {
        failed if failed.is_empty() => Ok(ExitCode::SUCCESS),
        failed => Err(Refusal::own(failed.join("; "))),
    }
}

/// The keeper, seen from the benchmark; everything is undone when this goes.
pub(crate) struct Keeper {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Keeper {
    pub(crate) fn start() -> Result<Keeper, String> {
        let program = std::env::current_exe().map_err(|error| plain(&error))?;
        let mut child = Command::new(program)
            .arg("keeper")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| plain(&error))?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let from = BufReader::new(from.ok_or("the keeper has no standard output")?);
        Ok(Keeper { child, to, from })
    }

    /// Has the keeper do something, and waits until it is done.
    pub(crate) fn ask(&mut self, act: &Act) -> Answer {
        let silent = || "the keeper of what is changed on the machine has ended".to_string();
        let text = serde_json::to_string(act).map_err(|error| error.to_string())?;
        let to = self.to.as_mut().ok_or_else(silent)?;
        writeln!(to, "{text}").map_err(|_| silent())?;
        let mut line = String::new();
        self.from.read_line(&mut line).map_err(|error| plain(&error))?;
        serde_json::from_str(&line).map_err(|_| silent())?
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.to.take());
        let _ = self.child.wait();
    }
}
