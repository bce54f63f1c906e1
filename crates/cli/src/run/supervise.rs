//! Standing in for the program: its signals, its stops, its end.
//!
//! Signals are held back and read from a queue. The child shares our process
//! group, so what the terminal or the kernel sends to the group has reached it
//! already; only what a process sent to us by number is passed on. The number and
//! the group look alike here. What the program, or a process that it started, sends
//! is taken for the group's (`kill 0`): its own signal does not come back to it.

use super::beside::{Beside, FIRST_LOOK, Watch};
use super::history::Samples;
use super::log::Log;
use super::progress::{Progress, Wanted};
use super::release::Space;
use super::tables::Tables;
use super::thrashing::Thrashing;
use super::tree::Tree;
use super::tree_areas::TreeAreas;
use super::unmanaged::{Search, UnmanagedPeaks};
use crate::control_client::Process;
use crate::refusal::{CANNOT_RUN, NOT_FOUND, Refusal, plain};
use rustix::process::{Pid, Signal, WaitOptions, wait};
use serde_json::json;
use softswap_engine::base::stats::Stats;
use softswap_sys::child::{self, SignalQueue};
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::time::{Duration, Instant};

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Exited(u8),
    Killed(i32),
}

/// Signals that are passed on; real-time signals come on top.
const PASSED_ON: [i32; 14] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGURG,
    libc::SIGIO,
    libc::SIGPWR,
];

/// What is known of a program that has ended.
pub(super) struct Finished {
    pub(super) ending: Ending,
    /// What it had beside its budget.
    pub(super) beside: Option<Beside>,
    pub(super) unmanaged: Option<UnmanagedPeaks>,
    /// So that the caller can end by the same signal.
    pub(super) signals: SignalQueue,
}

/// Starts the program and stays until it ends; looks at it, at its areas, and at the space that
/// its swap file takes, now and then. Unless it `is_quiet`, a program that thrashes is told so; how
/// it fares is shown as far as that is `wanted`, and written to the log.
pub(super) fn run(
    mut command: Command,
    (stats_fd, stats): (BorrowedFd<'_>, Stats),
    (space, mut tree, areas, samples): (
        &mut Space,
        Option<&mut Tree>,
        &mut TreeAreas,
        &mut Samples,
    ),
    (is_quiet, wanted, mut log): (bool, Wanted, Option<&mut Log>),
    is_all_managed: bool,
) -> Result<Finished, Refusal> {
    let signals: Vec<i32> = PASSED_ON.into_iter().chain(child::real_time_signals()).collect();
    let queue = SignalQueue::hold(&signals)
        .map_err(|error| Refusal::own(format!("cannot hold signals: {}", plain(&error))))?;
    let ledger_fd = tree.as_ref().map(|tree| tree.fd());
    let kept: Vec<BorrowedFd<'_>> =
        [stats_fd].into_iter().chain(ledger_fd).chain(areas.descriptors()).collect();
    queue.prepare(&mut command, &kept);
    let name = command.get_program().to_os_string();
    let child = command.spawn().map_err(|error| not_started(&name, &error))?;
    step_aside();
    tree.iter_mut().for_each(|tree| tree.serve(child.id()));
    // Only now: threads hold back the same signals as this one.
    areas.watch(is_quiet)?;
    log.iter_mut().for_each(|log| log.start(child.id()));
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Refusal::own("the system gave no process number"))?;
    let mut watch = Watch::new(child.id(), stats);
    let mut search = is_all_managed.then(|| Search::new(child.id()));
    let mut is_told = is_quiet;
    let mut thrashing = Thrashing::new(child.id(), stats, !is_quiet || log.is_some());
    let mut tables = Tables::new(stats);
    let mut progress = Progress::new(child.id(), stats, wanted);
    let mut look = |is_stopping: bool| {
        if is_stopping {
            progress.end();
            return Duration::ZERO;
        }
        watch.look();
        let budget_bytes = tree.as_ref().map(|tree| tree.limit_bytes());
        if let Some(advice) = thrashing.look(budget_bytes) {
            // As a note of the program's start: a reader that has gone away is no trouble.
            if !is_quiet {
                progress.end();
                let _ = writeln!(std::io::stderr(), "softswap: note: {advice}");
            }
            log.iter_mut().for_each(|log| log.write("thrashing", json!({ "advice": advice })));
        }
        if let Some(note) = tables.look(budget_bytes).filter(|_| !is_quiet) {
            progress.end();
            let _ = writeln!(std::io::stderr(), "softswap: note: {note}");
        }
        if let Some(search) = &mut search {
            let report = tree.as_ref().map(|tree| tree.report());
            let processes = report.iter().flat_map(|report| &report.processes);
            let members: Vec<u32> = processes.map(|process| process.pid).collect();
            let new = search.look(&members);
            tree.iter().for_each(|tree| tree.set_unmanaged(search.now()));
            for process in &new {
                if !std::mem::replace(&mut is_told, true) {
                    progress.end();
                    let _ = writeln!(std::io::stderr(), "softswap: note: {}", process.note());
                }
                let event = json!({ "process": process });
                log.iter_mut().for_each(|log| log.write("unmanaged", event.clone()));
            }
        }
        space.look(&stats);
        tree.iter_mut().for_each(|tree| tree.look());
        areas.look();
        let tree_report = || tree.as_ref().map(|tree| tree.report());
        progress.look(tree_report);
        log.iter_mut().for_each(|log| log.look(&stats, budget_bytes, tree_report));
        samples.look(&stats, tree_report);
        tree.iter().map(|tree| tree.longest_pause()).fold(watch.pause(), Duration::min)
    };
    let ending = attend(pid, &queue, &mut look)
        .map_err(|error| Refusal::own(format!("cannot wait for the program: {}", plain(&error))))?;
    progress.end();
    let unmanaged = search.map(Search::end);
    Ok(Finished { ending, beside: watch.peak(), unmanaged, signals: queue })
}

fn not_started(name: &std::ffi::OsStr, error: &std::io::Error) -> Refusal {
    let status = match error.raw_os_error() {
        Some(libc::ENOENT) => NOT_FOUND,
        Some(
            number @ (libc::EAGAIN | libc::ENOMEM | libc::ESRCH | libc::EMFILE | libc::ENFILE),
        ) => {
            let place = match number {
                libc::EMFILE | libc::ENFILE => "`ulimit -n`",
                _ => "`ulimit -u` and free memory",
            };
            return Refusal::own(format!(
                "no process could be started for {}: {}; look at {place}",
                name.to_string_lossy(),
                plain(error)
            ));
        }
        _ => CANNOT_RUN,
    };
    Refusal::new(status, format!("{}: cannot be started: {}", name.to_string_lossy(), plain(error)))
}

/// Lets go of what only the program should hold: a pipe must close when the
/// program closes it. Leaves stderr, and no core file of our own.
fn step_aside() {
    use rustix::fs::{Mode, OFlags};
    if let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
    child::close_inherited();
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Passes signals on until the program ends, and has somebody `look` at it, who says after
/// how long to look again, and is told before we stop as the program has.
fn attend(
    pid: Pid,
    queue: &SignalQueue,
    look: &mut dyn FnMut(bool) -> Duration,
) -> std::io::Result<Ending> {
    let mut next_look = Instant::now() + FIRST_LOOK;
    let mut stops = Stops::default();
    loop {
        queue.wait(next_look.saturating_duration_since(Instant::now()))?;
        if Instant::now() >= next_look {
            next_look = Instant::now() + look(false);
        }
        while let Some(arrived) = queue.next()? {
            let program = pid.as_raw_nonzero().get();
            stops.note(arrived.signal);
            let is_for_it = arrived.from_process && !is_of_its_group(arrived.sender, program);
            if arrived.signal != libc::SIGCHLD && is_for_it {
                // A child that has ended meanwhile is found below.
                let _ = child::send(program, arrived.signal);
            }
        }
        if let Some(ending) = reap(pid, &mut stops)? {
            return Ok(ending);
        }
        if stops.is_ours() {
            look(true);
            rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
        }
    }
}

/// Decides whether this process stops when the program has stopped.
///
/// A shell with job control waits for this process, and takes the terminal back when it stops. A
/// program that is stopped by its number may be continued by its number: a supervisor that had
/// stopped too would not notice.
#[derive(Default)]
struct Stops {
    /// The signal that has stopped the program, until it continues.
    program: Option<i32>,
    /// SIGTSTP has come: from the terminal, to the group, or to this process.
    is_asked: bool,
}

impl Stops {
    fn note(&mut self, arrived: i32) {
        match arrived {
            libc::SIGTSTP => self.is_asked = true,
            libc::SIGCONT => self.is_asked = false,
            _ => {}
        }
    }

    /// Returns true once for each stop that this process has to follow. SIGSTOP, SIGTTIN and
    /// SIGTTOU to the group have stopped this process already.
    fn is_ours(&mut self) -> bool {
        let Some(signal) = self.program else { return false };
        let is_ours = self.is_asked || (signal == libc::SIGTSTP && is_job_of_a_shell());
        if is_ours {
            *self = Stops::default();
        }
        is_ours
    }
}

/// Returns true if this process is in the foreground of a terminal, and its parent, of another
/// group in the same session, can move it from there.
fn is_job_of_a_shell() -> bool {
    use rustix::process::{getpgid, getpgrp, getppid, getsid};
    let Ok(terminal) = std::fs::File::open("/dev/tty") else { return false };
    let parent = getppid();
    let is_session = |parent: Pid| getsid(Some(parent)).ok() == getsid(None).ok();
    rustix::termios::tcgetpgrp(&terminal).is_ok_and(|group| group == getpgrp())
        && parent.is_some_and(|parent| {
            getpgid(Some(parent)).is_ok_and(|group| group != getpgrp()) && is_session(parent)
        })
}

/// Whether what `sender` has sent may be for the group that the program shares with us: it is
/// in the group, and the program or started by that.
fn is_of_its_group(sender: i32, program: i32) -> bool {
    use rustix::process::{getpgid, getpgrp};
    let group = Pid::from_raw(sender).and_then(|sender| getpgid(Some(sender)).ok());
    group == Some(getpgrp()) && descends(sender, program)
}

/// Whether process `who` is `ancestor`, or was started by it, through parents that are
/// all still there.
fn descends(mut who: i32, ancestor: i32) -> bool {
    // As deep as anybody starts shells in shells; it ends though numbers are used again.
    for _ in 0..64 {
        if who == ancestor {
            return true;
        }
        let parent = u32::try_from(who).ok().and_then(Process::read).map(|it| it.parent as i32);
        match parent {
            Some(parent) if parent > 0 => who = parent,
            _ => return false,
        }
    }
    false
}

/// Takes in every change of state; the program's end, if it ended. Children
/// that are not ours by birth come to the first process of a container.
fn reap(program: Pid, stops: &mut Stops) -> std::io::Result<Option<Ending>> {
    let changes = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
    while let Some((who, status)) = wait(changes)? {
        if who != program {
            continue;
        }
        if let Some(code) = status.exit_status() {
            return Ok(Some(Ending::Exited(code as u8)));
        }
        if let Some(signal) = status.terminating_signal() {
            return Ok(Some(Ending::Killed(signal)));
        }
        if status.continued() {
            stops.program = None;
        }
        if let Some(signal) = status.stopping_signal() {
            stops.program = Some(signal);
        }
    }
    Ok(None)
}
