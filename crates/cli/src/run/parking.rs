//! Parks the tree: its processes evict their memory while their faults wait, then they are stopped.
//!
//! SIGSTOP would also stop the threads that evict, so it is sent last. Processes that cannot evict
//! (unmanaged ones, and those asleep without a thread) are only stopped.

use crate::control_client::{self, Process};
use crate::tree_report::{Parked, TreeReport};
use rustix::process::Signal;
use softswap_shared::ledger::{Eviction, Ledger};
use softswap_sys::raw::now_ns;
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time until which the tree is parked, from the last extension, in ms. If this process is killed,
/// the faults of the tree wait no longer.
const LEASE_MS: u64 = 10_000;
/// Interval of checks.
const INTERVAL: Duration = Duration::from_millis(20);
/// Time for processes to begin to evict: a sleeping one starts its engine first.
const BEGIN: Duration = Duration::from_millis(500);
/// Time without any eviction after which the processes are stopped regardless.
const STUCK: Duration = Duration::from_secs(10);
/// Maximum number of attempts to stop all processes: a process may create others meanwhile.
const MAX_PASSES: u32 = 200;

/// A process, by PID and start time.
type Id = (u32, u64);

#[derive(Debug, Default)]
enum State {
    #[default]
    Running,
    Evicting {
        /// Continue processes that the terminal has stopped.
        continues: bool,
        before_bytes: u64,
    },
    Stopped {
        by_us: Vec<Id>,
        before_bytes: u64,
    },
}

/// Whether the tree is parked.
#[derive(Debug, Default)]
pub(super) struct Parking(Mutex<State>);

fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

impl Parking {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to park the tree. If `continues`, processes that the terminal stops meanwhile are
    /// continued, because a stopped process cannot evict. Returns false if the tree is parked.
    pub(super) fn begin(&self, ledger: &Ledger, pids: &HashSet<u32>, continues: bool) -> bool {
        let mut state = self.state();
        if !matches!(*state, State::Running) {
            return false;
        }
        *state = State::Evicting { continues, before_bytes: resident_bytes(pids) };
        ledger.park_until(now_ms() + LEASE_MS);
        true
    }

    /// Returns true while processes evict their memory.
    pub(super) fn is_evicting(&self) -> bool {
        matches!(*self.state(), State::Evicting { .. })
    }

    /// Returns the state of a tree of these processes for `stat`; `None` if it runs.
    pub(super) fn report(&self, pids: impl Fn() -> HashSet<u32>) -> Option<Parked> {
        let (is_stopped, before_bytes) = match *self.state() {
            State::Running => return None,
            State::Evicting { before_bytes, .. } => (false, before_bytes),
            State::Stopped { before_bytes, .. } => (true, before_bytes),
        };
        let pids = pids();
        let processes = pids.len() as u64;
        Some(Parked { is_stopped, processes, before_bytes, left_bytes: resident_bytes(&pids) })
    }

    /// Waits until the processes have evicted their memory, then stops them. `tree` returns the
    /// report and the PIDs of the tree.
    pub(super) fn finish(&self, ledger: &Ledger, tree: impl Fn() -> (TreeReport, HashSet<u32>)) {
        let began = Instant::now();
        let (mut least_bytes, mut progress) = (u64::MAX, began);
        loop {
            let (report, pids) = tree();
            let State::Evicting { continues, .. } = *self.state() else { return };
            ledger.park_until(now_ms() + LEASE_MS);
            if continues {
                let stopped = pids.iter().filter_map(|pid| Process::read(*pid));
                stopped.filter(Process::is_stopped).for_each(|it| send(it.pid, Signal::CONT));
            }
            if report.used_bytes < least_bytes {
                (least_bytes, progress) = (report.used_bytes, Instant::now());
            }
            let is_done = ledger.members_at(Eviction::Running) == 0 && began.elapsed() > BEGIN;
            if is_done || progress.elapsed() > STUCK {
                break;
            }
            std::thread::sleep(INTERVAL);
        }
        let mut by_us = Vec::new();
        for _ in 0..MAX_PASSES {
            let (_, pids) = tree();
            let mut state = self.state();
            let State::Evicting { before_bytes, .. } = *state else {
                by_us.iter().for_each(|id| resume(*id));
                return;
            };
            let runs = |process: &Process| !process.is_stopped() && !process.has_ended();
            let all = pids.iter().filter_map(|pid| Process::read(*pid));
            let running: Vec<Process> = all.filter(runs).collect();
            if running.is_empty() {
                *state = State::Stopped { by_us, before_bytes };
                return;
            }
            for process in running {
                let id = (process.pid, process.start_time().unwrap_or_default());
                if !by_us.contains(&id) {
                    by_us.push(id);
                }
                send(process.pid, Signal::STOP);
            }
            drop(state);
            std::thread::sleep(INTERVAL / 4);
        }
        let mut state = self.state();
        if let State::Evicting { before_bytes, .. } = *state {
            *state = State::Stopped { by_us, before_bytes };
        }
    }

    /// Continues the tree. Returns the number of processes that were stopped, or `None` if the tree
    /// is not parked.
    pub(super) fn end(&self, ledger: &Ledger) -> Option<usize> {
        let before = std::mem::take(&mut *self.state());
        let by_us = match before {
            State::Running => return None,
            State::Evicting { .. } => Vec::new(),
            State::Stopped { by_us, .. } => by_us,
        };
        ledger.park_until(0);
        by_us.iter().for_each(|id| resume(*id));
        Some(by_us.len())
    }
}

/// Sends a signal. A process that has exited needs none.
fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let _ = pid.map(|pid| rustix::process::kill_process(pid, signal));
}

/// Continues a process, unless its PID belongs to another one by now.
fn resume((pid, start_time): Id) {
    let process = Process::read(pid);
    if process.and_then(|it| it.start_time()).unwrap_or_default() == start_time {
        send(pid, Signal::CONT);
    }
}

fn resident_bytes(pids: &HashSet<u32>) -> u64 {
    let resident = |pid: &u32| Some(Process::read(*pid)?.resident?.anonymous_bytes);
    pids.iter().filter_map(resident).sum()
}

/// Returns the processes of a tree: the `known` ones, and all that they have started.
pub(super) fn all_processes(known: impl Iterator<Item = u32>) -> HashSet<u32> {
    let (mut todo, mut all) = (Vec::from_iter(known), HashSet::new());
    while let Some(pid) = todo.pop() {
        if Process::read(pid).is_some_and(|process| !process.has_ended()) && all.insert(pid) {
            todo.extend(control_client::listed_children(pid).unwrap_or_default());
        }
    }
    all
}
