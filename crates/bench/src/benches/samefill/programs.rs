//! Reads the memory of programs. Each is stopped when it is large enough, read, and killed.

use crate::benches::swap::programs::Program;
use crate::measure::managed_program::temporary_directory;
use crate::pages::{Page, open};
use rustix::process::{Pid, Signal, kill_process};
use softswap_cli::control_client::Process;
use softswap_cli::refusal::{OrRefuse, Refusal, plain};
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Programs with different data: numbers of Python, a database, lines of text, a graph.
pub(super) const PROGRAMS: [Program; 4] =
    [Program::NumericSort, Program::Sqlite, Program::GnuSort, Program::GraphWalk];
/// Interval between reads of a program's size.
const INTERVAL: Duration = Duration::from_millis(1);

/// Child process, killed on drop and when this process exits.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns up to `pages` pages of a program that grows larger than that, or the reason why this
/// machine cannot run it.
pub(super) fn pages_of(
    program: Program,
    pages: usize,
    signals: &SignalQueue,
) -> Result<Result<Vec<Page>, String>, Refusal> {
    let dir = temporary_directory()?;
    // The program grows to 4/3 of `goal_bytes`. It is read before it reaches that size and begins
    // to free memory.
    let goal_bytes = (pages * PAGE_SIZE) as u64;
    let ready = match program.make_ready(dir.path(), goal_bytes / 3 * 4) {
        Ok(ready) => ready,
        Err(why) => return Ok(Err(why)),
    };
    let mut command = Command::new(&ready.path);
    command.args(&ready.arguments).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    signals.prepare(&mut command, &[std::io::stderr().as_fd()]);
    let mut running = match command.spawn() {
        Ok(child) => Running(child),
        Err(error) => return Ok(Err(plain(&error))),
    };
    while resident_bytes(running.0.id()) < goal_bytes {
        if let Ok(Some(status)) = running.0.try_wait() {
            return Ok(Err(format!("it exited before it was large enough ({status})")));
        }
        std::thread::sleep(INTERVAL);
    }
    let stopped = kill_process(Pid::from_child(&running.0), Signal::STOP);
    stopped.map_err(Into::into).or_own("the program cannot be stopped")?;
    let mut found = Vec::with_capacity(pages);
    open::process(running.0.id())?.read(pages as u64, |chunk| {
        found.extend_from_slice(chunk);
        Ok(())
    })?;
    Ok(Ok(found))
}

fn resident_bytes(pid: u32) -> u64 {
    let resident = Process::read(pid).and_then(|process| process.resident);
    resident.map_or(0, |it| it.anonymous_bytes + it.shared_bytes + it.file_bytes)
}
