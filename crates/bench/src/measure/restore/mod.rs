//! Makes and undoes a benchmark's changes to the machine.
//!
//! A separate process, the restorer, undoes them in reverse order when its standard input is
//! closed, so even after SIGKILL. Its own process group and blocked signals protect it from the
//! terminal. It never changes a device, swap area or cgroup that it did not create.

pub(crate) mod group;
pub(crate) mod zram;
pub(crate) mod changes;

use super::task_pipe::TaskPipe;
use changes::{Action, Answer, Changes};
use clap::Args;
use softswap_cli::library::own_executable;
use softswap_cli::refusal::{OrRefuse, Refusal};
use softswap_sys::child::SignalQueue;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Undoes the changes of a benchmark when standard input ends; for internal use.
#[derive(Args)]
pub(crate) struct RestorerArgs {}

pub(crate) fn restore() -> Result<ExitCode, Refusal> {
    let ends = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
    let _held = SignalQueue::hold(&ends).or_own("cannot block signals")?;
    let mut changes = Changes::default();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let answer: Answer = serde_json::from_str(&line)
            .map_err(|error| format!("the restorer received an unknown request {line:?}: {error}"))
            .and_then(|act| changes.perform(act));
        let text = serde_json::to_string(&answer).unwrap_or_default();
        // If the benchmark has exited, the input is also closed, so the loop ends.
        let _ = writeln!(io::stdout(), "{text}");
    }
    match changes.undo_all() {
        failed if failed.is_empty() => Ok(ExitCode::SUCCESS),
        failed => Err(Refusal::own(failed.join("; "))),
    }
}

/// Undoes all changes on drop.
pub(crate) struct Restorer(TaskPipe);

impl Restorer {
    pub(crate) fn start() -> Result<Restorer, Refusal> {
        let mut command = Command::new(own_executable()?);
        command.arg("restorer").process_group(0);
        TaskPipe::over(command).map(Restorer)
    }

    pub(crate) fn request(&mut self, act: &Action) -> Answer {
        self.0.send(&serde_json::to_string(act).map_err(|error| error.to_string())?);
        self.0.receive_json::<Answer>().map_err(|error| {
            format!("the process that changes the machine's settings (the restorer): {error}")
        })?
    }
}

impl Drop for Restorer {
    fn drop(&mut self) {
        let _ = self.0.finish();
    }
}
