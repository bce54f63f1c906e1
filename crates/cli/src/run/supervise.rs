//! Supervises the program: forwards signals, follows stops, reports the exit.
//!
//! The program shares the process group of `run`, so signals to the group have already reached it.
//! Only signals that a process sent to the PID of `run` are forwarded. Both look alike: signals
//! from the program or its descendants are taken for signals to the group (`kill 0`).

use super::checks::{Checks, Found, Supervised};
use super::outside_budget::FIRST_SAMPLE_DELAY;
use super::tree::Budget;
use crate::control_client::Process;
use crate::refusal::{CANNOT_RUN, NOT_FOUND, OrRefuse, Refusal, plain};
use rustix::process::{Pid, Signal, WaitOptions, wait};
use softswap_sys::child::{self, SignalQueue};
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::time::{Duration, Instant};

const EVICTING_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Exited(u8),
    Killed(i32),
}

/// Forwarded besides real-time signals. The other signals cannot be caught, or have a meaning for `run`.
const FORWARDED: [i32; 23] = [
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
    libc::SIGABRT,
    libc::SIGTRAP,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSYS,
    libc::SIGPROF,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSTKFLT,
];

pub(super) struct Finished {
    pub(super) ending: Ending,
    pub(super) found: Found,
    /// Needed to end `run` by the signal that killed the program.
    pub(super) signals: SignalQueue,
}

pub(super) fn run(mut command: Command, mut run: Supervised<'_>) -> Result<Finished, Refusal> {
    let signals: Vec<i32> = FORWARDED.into_iter().chain(child::real_time_signals()).collect();
    let queue = SignalQueue::hold(&signals).or_own("cannot block signals")?;
    let ledger_fd = run.tree.as_ref().map(|tree| tree.fd());
    let kept: Vec<BorrowedFd<'_>> =
        [run.stats_fd].into_iter().chain(ledger_fd).chain(run.areas.descriptors()).collect();
    queue.prepare(&mut command, &kept);
    let name = command.get_program().to_os_string();
    let child = command.spawn().map_err(|error| not_started(&name, &error))?;
    step_aside();
    if let Some(tree) = &mut run.tree {
        tree.serve(child.id());
    }
    // Threads inherit the blocked signals.
    run.areas.watch(run.is_quiet)?;
    if let Some(log) = &mut run.log {
        log.start(child.id());
    }
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Refusal::own("the kernel returned no PID"))?;
    let budget = run.tree.as_ref().map(|tree| tree.budget());
    let mut checks = Checks::new(child.id(), run);
    let ending = forward_until_exit(pid, &queue, budget.as_ref(), &mut checks)
        .or_own("cannot wait for the program")?;
    let found = checks.end();
    Ok(Finished { ending, found, signals: queue })
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

/// Closes descriptors, so that a pipe closes when the program closes its end. Keeps standard error.
/// Disables core files of this process.
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

/// While the tree evicts its memory, its processes are continued, and this process does not stop.
fn forward_until_exit(
    pid: Pid,
    queue: &SignalQueue,
    budget: Option<&Budget>,
    checks: &mut Checks<'_>,
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
            next_check = Instant::now() + checks.poll();
        }
        while let Some(received) = queue.next()? {
            let program = pid.as_raw_nonzero().get();
            stops.note(received.signal);
            budget.iter().for_each(|budget| budget.note_signal(received.signal));
            // The kernel names this process as the sender if its own write exceeds a limit.
            let is_own = u32::try_from(received.sender) == Ok(std::process::id());
            let is_for_it =
                received.from_process && !is_own && !is_of_its_group(received.sender, program);
            if received.signal != libc::SIGCHLD && is_for_it {
                // If the program has exited in the meantime, `reap` reports the exit.
                let _ = child::forward(program, &received);
            }
        }
        if let Some(ending) = reap(pid, &mut stops)? {
            // Nothing else could continue the other processes of a parked tree.
            budget.iter().for_each(|budget| budget.unpark());
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
            checks.end_progress();
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

    /// Returns true once for each stop. SIGSTOP, SIGTTIN and SIGTTOU to the group have stopped this
    /// process already.
    fn must_follow_stop(&mut self) -> bool {
        let Some(signal) = self.program else { return false };
        let must_follow_stop = self.is_asked || (signal == libc::SIGTSTP && is_job_of_a_shell());
        if must_follow_stop {
            *self = Stops::default();
        }
        must_follow_stop
    }
}

/// The parent, of another group in the session, can move this process to the background.
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

/// Returns true if the sender is in the group, and is the program or its descendant.
fn is_of_its_group(sender: i32, program: i32) -> bool {
    use rustix::process::{getpgid, getpgrp};
    let group = Pid::from_raw(sender).and_then(|sender| getpgid(Some(sender)).ok());
    group == Some(getpgrp()) && descends(sender, program)
}

/// Follows living parents.
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

/// Returns the program's ending. The first process of a container also reaps orphaned processes.
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
