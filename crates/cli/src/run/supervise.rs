//! Supervises the program: forwards signals, follows stops, reports the exit.
//!
//! Signals are blocked and read from a queue. The program shares the process group of `run`, so
//! signals from the terminal or the kernel to the group have already reached the program. Only
//! signals that a process sent to the PID of `run` are forwarded. A signal to the PID and one to
//! the group look alike. Signals from the program or its descendants are taken for signals to the
//! group (`kill 0`), so that a program's own signal is not returned to it.

use super::history::Samples;
use super::log::Log;
use super::outside_budget::{FIRST_SAMPLE_DELAY, Watch};
use super::progress::{Progress, Wanted};
use super::release::Space;
use super::tables::Tables;
use super::thrashing::Thrashing;
use super::tree::{Budget, Tree};
use super::tree_areas::TreeAreas;
use super::unmanaged::{self, Search};
use crate::control_client::Process;
use crate::refusal::{CANNOT_RUN, NOT_FOUND, OrRefuse, Refusal, plain};
use rustix::process::{Pid, Signal, WaitOptions, wait};
use serde_json::json;
use softswap_engine::base::stats::Stats;
use softswap_sys::child::{self, SignalQueue};
use softswap_view::report::{OutsideBudget, Unmanaged};
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::time::{Duration, Instant};

/// Interval of checks whether the processes of a tree have evicted their memory.
const EVICTING_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Exited(u8),
    Killed(i32),
}

/// Signals that are forwarded, in addition to real-time signals.
const FORWARDED: [i32; 14] = [
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

/// Results of a program that has ended.
pub(super) struct Finished {
    pub(super) ending: Ending,
    pub(super) outside_budget: Option<OutsideBudget>,
    pub(super) threads_peak: Option<u32>,
    pub(super) unmanaged: Option<Unmanaged>,
    /// Needed to end `run` by the signal that killed the program.
    pub(super) signals: SignalQueue,
}

/// Starts the program and supervises it until it ends. Regularly samples the program, the swap
/// areas and the free space for the swap file. Reports thrashing unless `is_quiet`; shows progress
/// as `wanted`, and writes the log. Notes advise no more than `largest_budget_bytes`.
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
    largest_budget_bytes: u64,
) -> Result<Finished, Refusal> {
    let signals: Vec<i32> = FORWARDED.into_iter().chain(child::real_time_signals()).collect();
    let queue = SignalQueue::hold(&signals).or_own("cannot block signals")?;
    let ledger_fd = tree.as_ref().map(|tree| tree.fd());
    let kept: Vec<BorrowedFd<'_>> =
        [stats_fd].into_iter().chain(ledger_fd).chain(areas.descriptors()).collect();
    queue.prepare(&mut command, &kept);
    let name = command.get_program().to_os_string();
    let child = command.spawn().map_err(|error| not_started(&name, &error))?;
    step_aside();
    tree.iter_mut().for_each(|tree| tree.serve(child.id()));
    // Threads inherit the blocked signals, so they are started after the signals are blocked.
    areas.watch(is_quiet)?;
    log.iter_mut().for_each(|log| log.start(child.id()));
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Refusal::own("the kernel returned no PID"))?;
    let mut watch = Watch::new(child.id(), stats);
    let mut search = is_all_managed.then(|| Search::new(child.id()));
    let mut is_told = is_quiet;
    let is_noted = !is_quiet || log.is_some();
    let mut thrashing = Thrashing::new(child.id(), stats, largest_budget_bytes, is_noted);
    let mut tables = Tables::new(stats, largest_budget_bytes);
    let mut progress = Progress::new(child.id(), stats, wanted);
    let budget = tree.as_ref().map(|tree| tree.budget());
    let mut poll = |is_stopping: bool| {
        if is_stopping {
            progress.end();
            return Duration::ZERO;
        }
        watch.poll();
        let budget_bytes = tree.as_ref().map(|tree| tree.limit_bytes());
        if let Some(advice) = thrashing.poll(budget_bytes) {
            // Errors are ignored, as for the notes at the start: the reader may have closed the
            // pipe.
            if !is_quiet {
                progress.end();
                let _ = writeln!(std::io::stderr(), "softswap: note: {advice}");
            }
            log.iter_mut().for_each(|log| log.write("thrashing", json!({ "advice": advice })));
        }
        let report = tree.as_ref().map(|tree| tree.report());
        let sizes = report.iter().flat_map(|report| &report.processes).map(|process| process.sizes);
        if let Some(note) = tables.poll(budget_bytes, sizes).filter(|_| !is_quiet) {
            progress.end();
            let _ = writeln!(std::io::stderr(), "softswap: note: {note}");
        }
        if let Some(search) = &mut search {
            let members = tree.as_ref().map_or_else(Vec::new, |tree| tree.member_pids());
            let new = search.poll(&members);
            tree.iter().for_each(|tree| tree.set_unmanaged(search.now()));
            for process in &new {
                if !std::mem::replace(&mut is_told, true) {
                    progress.end();
                    let _ =
                        writeln!(std::io::stderr(), "softswap: note: {}", unmanaged::note(process));
                }
                let event = json!({ "process": process });
                log.iter_mut().for_each(|log| log.write("unmanaged", event.clone()));
            }
        }
        space.poll(&stats);
        tree.iter_mut().for_each(|tree| tree.poll());
        for news in areas.poll() {
            if !is_quiet {
                progress.end();
                let _ = writeln!(std::io::stderr(), "softswap: note: {news}");
            }
            log.iter_mut().for_each(|log| log.write("area", json!({ "news": news })));
        }
        let tree_report = || tree.as_ref().map(|tree| tree.report());
        progress.poll(tree_report);
        let is_parked = budget.as_ref().is_some_and(|budget| budget.is_stopped());
        log.iter_mut().for_each(|log| log.poll_parked(is_parked));
        log.iter_mut().for_each(|log| log.poll(&stats, budget_bytes, tree_report));
        samples.poll(&stats, tree_report);
        tree.iter().map(|tree| tree.max_interval()).fold(watch.pause(), Duration::min)
    };
    let ending = forward_until_exit(pid, &queue, budget.as_ref(), &mut poll)
        .or_own("cannot wait for the program")?;
    progress.end();
    let unmanaged = search.map(Search::end);
    let (outside_budget, threads_peak) = (watch.peak(), watch.threads_peak());
    Ok(Finished { ending, outside_budget, threads_peak, unmanaged, signals: queue })
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
                "the kernel created no process for {}: {}; check {place}",
                name.to_string_lossy(),
                plain(error)
            ));
        }
        _ => CANNOT_RUN,
    };
    Refusal::new(status, format!("{}: cannot be started: {}", name.to_string_lossy(), plain(error)))
}

/// Closes descriptors that only the program should hold, so that a pipe closes when the program
/// closes its end. Keeps standard error. Disables core files of this process.
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

/// Forwards signals until the program ends. Calls `poll` regularly; `poll` returns the time until
/// its next call. The argument is true before this process stops together with the program. While
/// the tree evicts its memory, its processes are continued, and this process does not stop.
fn forward_until_exit(
    pid: Pid,
    queue: &SignalQueue,
    budget: Option<&Budget>,
    poll: &mut dyn FnMut(bool) -> Duration,
) -> std::io::Result<Ending> {
    let mut next_check = Instant::now() + FIRST_SAMPLE_DELAY;
    let mut stops = Stops::default();
    // True if the tree is parked before this process stops.
    let mut follows: Option<bool> = None;
    loop {
        let is_evicting = budget.is_some_and(Budget::is_evicting);
        let most = if is_evicting { EVICTING_INTERVAL } else { Duration::MAX };
        queue.wait(next_check.saturating_duration_since(Instant::now()).min(most))?;
        if Instant::now() >= next_check {
            next_check = Instant::now() + poll(false);
        }
        while let Some(received) = queue.next()? {
            let program = pid.as_raw_nonzero().get();
            stops.note(received.signal);
            budget.iter().for_each(|budget| budget.note_signal(received.signal));
            let is_for_it = received.from_process && !is_of_its_group(received.sender, program);
            if received.signal != libc::SIGCHLD && is_for_it {
                // If the program has exited in the meantime, `reap` reports the exit.
                let _ = child::send(program, received.signal);
            }
        }
        if let Some(ending) = reap(pid, &mut stops)? {
            return Ok(ending);
        }
        if stops.must_follow_stop() {
            let parks = budget.is_some_and(Budget::park_after_ctrl_z);
            follows = Some(parks);
        }
        if !budget.is_some_and(Budget::is_evicting)
            && let Some(parks) = follows.take()
            // The tree may have been continued meanwhile.
            && (!parks || budget.is_some_and(Budget::is_stopped))
        {
            stops = Stops::default();
            poll(true);
            rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
        }
    }
}

/// Decides whether this process stops when the program has stopped.
///
/// A shell with job control waits for this process, and takes the terminal back when this process
/// stops. A program stopped by a signal to its PID may be continued by another: if this process had
/// stopped too, it would not notice.
#[derive(Default)]
struct Stops {
    /// Signal that has stopped the program, until it continues.
    program: Option<i32>,
    /// True after SIGTSTP: from the terminal, to the group, or to this process.
    is_asked: bool,
}

impl Stops {
    fn note(&mut self, received: i32) {
        match received {
            libc::SIGTSTP => self.is_asked = true,
            libc::SIGCONT => self.is_asked = false,
            _ => {}
        }
    }

    /// Returns true once for each stop that this process must follow. SIGSTOP, SIGTTIN and SIGTTOU
    /// to the group have stopped this process already.
    fn must_follow_stop(&mut self) -> bool {
        let Some(signal) = self.program else { return false };
        let must_follow_stop = self.is_asked || (signal == libc::SIGTSTP && is_job_of_a_shell());
        if must_follow_stop {
            *self = Stops::default();
        }
        must_follow_stop
    }
}

/// Returns true if this process is in the foreground of a terminal, and its parent, of another
/// group in the same session, can move it to the background.
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

/// Returns true if a signal from `sender` may have been sent to the process group: `sender` is in
/// the group, and is the program or its descendant.
fn is_of_its_group(sender: i32, program: i32) -> bool {
    use rustix::process::{getpgid, getpgrp};
    let group = Pid::from_raw(sender).and_then(|sender| getpgid(Some(sender)).ok());
    group == Some(getpgrp()) && descends(sender, program)
}

/// Returns true if process `who` is `ancestor` or its descendant, through living parents.
fn descends(mut who: i32, ancestor: i32) -> bool {
    // The limit exceeds the nesting of shells in practice, and ends the loop if PIDs are reused.
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

/// Reaps every change of state. Returns the program's ending, if it has ended. As the first process
/// of a container, `run` also reaps orphaned processes.
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
