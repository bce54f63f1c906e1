//! Parks the tree: its processes evict their memory while their faults wait, then they are stopped.
//!
//! SIGSTOP would also stop the threads that evict, so it is sent last. Processes that cannot evict
//! are only stopped: unmanaged ones, small ones that sleep, forked children and their parents.
//! Daemons, which have left the tree, evict but are not stopped.

use crate::control_client::{self, Process};
use crate::tree_report::{Parked, Parking as Progress};
use rustix::process::{Pid, Signal};
use softswap_shared::ledger::{Eviction, LEASE_MS, Ledger};
use softswap_sys::raw::now_ns;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(20);
/// Time for processes to begin to evict. Until then, those that Ctrl-Z has stopped are continued.
const BEGIN: Duration = Duration::from_secs(1);
/// Without any eviction for this time, the processes are stopped regardless.
const STUCK: Duration = Duration::from_secs(10);
/// Attempts to stop all processes: a process may create others meanwhile.
const MAX_PASSES: u32 = 200;

type Id = (u32, u64);

#[derive(Debug, Default)]
enum State {
    #[default]
    Running,
    Evicting {
        before_bytes: u64,
    },
    Stopped {
        /// Parents before their children.
        by_us: Vec<Id>,
        before_bytes: u64,
    },
}

#[derive(Debug, Default)]
struct Inner {
    state: State,
    /// Incremented at each begin: a thread notices that its parking was ended.
    generation: u64,
}

/// The last time that the tree had less memory than ever before.
struct LastProgress {
    at: Instant,
    least_bytes: u64,
    most_members: usize,
}

impl LastProgress {
    fn new(now: Instant) -> Self {
        Self { at: now, least_bytes: u64::MAX, most_members: 0 }
    }

    /// A process that slept begins to evict late, and its memory counts only then.
    fn update(&mut self, members: usize, used_bytes: u64, now: Instant) {
        if members > self.most_members {
            (self.most_members, self.least_bytes) = (members, u64::MAX);
        }
        if used_bytes < self.least_bytes {
            (self.least_bytes, self.at) = (used_bytes, now);
        }
    }
}

/// Shared with the thread that parks the tree.
#[derive(Debug, Default)]
pub(super) struct Parking(Mutex<Inner>);

fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

impl Parking {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tree whose processes were all continued by others is not parked.
    fn lock_current(&self, ledger: &Ledger) -> MutexGuard<'_, Inner> {
        let mut inner = self.lock();
        if let State::Stopped { by_us, .. } = &inner.state
            && !by_us.is_empty()
            && !by_us.iter().any(|id| find(*id).is_some_and(|process| process.is_stopped()))
        {
            inner.state = State::Running;
            ledger.park_until(0);
        }
        inner
    }

    /// Returns the generation for [`Parking::finish`], or `None` if the tree is parked.
    pub(super) fn begin(&self, ledger: &Ledger) -> Option<u64> {
        let mut inner = self.lock_current(ledger);
        if !matches!(inner.state, State::Running) {
            return None;
        }
        inner.state = State::Evicting { before_bytes: resident_bytes(&descendants()) };
        inner.generation += 1;
        ledger.park_until(now_ms() + LEASE_MS);
        Some(inner.generation)
    }

    pub(super) fn is_evicting(&self) -> bool {
        matches!(self.lock().state, State::Evicting { .. })
    }

    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.lock().state, State::Stopped { .. })
    }

    /// `None` if the tree runs.
    pub(super) fn report(&self, ledger: &Ledger) -> Option<Parked> {
        let (progress, before_bytes) = match self.lock_current(ledger).state {
            State::Running => return None,
            State::Evicting { before_bytes, .. } => (Progress::Evicting, before_bytes),
            State::Stopped { before_bytes, .. } => (Progress::Stopped, before_bytes),
        };
        let all: Vec<Process> = descendants().into_iter().filter_map(Process::read).collect();
        let resident = |it: &Process| it.resident.map_or(0, |resident| resident.anonymous_bytes);
        let largest = all.iter().max_by_key(|process| resident(process));
        Some(Parked {
            progress,
            stopped: all.iter().filter(|process| process.is_stopped()).count() as u64,
            processes: all.len() as u64,
            before_bytes,
            left_bytes: all.iter().map(resident).sum(),
            largest_pid: largest.map_or(0, |process| process.pid),
            largest_bytes: largest.map_or(0, resident),
            largest_sleeps: largest.is_some_and(Process::sleeps),
        })
    }

    /// `used_bytes` returns the memory that the processes use. Those of this process group are
    /// continued at first, because a process stopped by Ctrl-Z cannot evict. A second Ctrl-Z stops
    /// the tree at once.
    pub(super) fn finish(
        &self,
        generation: u64,
        ledger: &Ledger,
        is_after_ctrl_z: bool,
        used_bytes: impl Fn() -> u64,
    ) {
        let began = Instant::now();
        let mut last_progress = LastProgress::new(began);
        loop {
            {
                let inner = self.lock();
                if inner.generation != generation || !matches!(inner.state, State::Evicting { .. })
                {
                    return;
                }
                ledger.park_until(now_ms() + LEASE_MS);
            }
            if is_after_ctrl_z {
                let of_group = descendants().into_iter().filter(|pid| is_of_own_group(*pid));
                let stopped = of_group.filter_map(Process::read);
                let stopped: Vec<_> = stopped.filter(Process::is_stopped).collect();
                if began.elapsed() > BEGIN && !stopped.is_empty() {
                    break;
                }
                stopped.iter().for_each(|process| {
                    send(process.pid, Signal::CONT);
                });
            }
            let running = ledger.members_at(Eviction::Running);
            let members = running + ledger.members_at(Eviction::Done);
            last_progress.update(members, used_bytes(), Instant::now());
            let is_done = running == 0 && began.elapsed() > BEGIN;
            if is_done || last_progress.at.elapsed() > STUCK {
                break;
            }
            std::thread::sleep(INTERVAL);
        }
        self.stop_all(generation, ledger);
    }

    fn stop_all(&self, generation: u64, ledger: &Ledger) {
        let mut by_us: Vec<Id> = Vec::new();
        for pass in 1..=MAX_PASSES {
            let runs = |process: &Process| !process.is_stopped() && !process.has_ended();
            let all = descendants().into_iter().filter_map(Process::read);
            let running: Vec<Process> = all.filter(runs).collect();
            let mut inner = self.lock();
            let before_bytes = match inner.state {
                State::Evicting { before_bytes } if inner.generation == generation => before_bytes,
                _ => return resume(&by_us),
            };
            // A process must not see its children stop.
            let has_stopped = |pid: u32| !running.iter().any(|process| process.pid == pid);
            for process in running.iter().filter(|process| has_stopped(process.parent)) {
                let id = (process.pid, process.start_time().unwrap_or_default());
                if send(process.pid, Signal::STOP) && !by_us.contains(&id) {
                    by_us.push(id);
                }
            }
            if running.is_empty() || pass == MAX_PASSES {
                inner.state = State::Stopped { by_us, before_bytes };
                // Daemons, which are not stopped, continue.
                ledger.park_until(0);
                return;
            }
            drop(inner);
            std::thread::sleep(INTERVAL / 4);
        }
    }

    /// Returns the number of stopped processes, or `None` if the tree is not parked.
    pub(super) fn end(&self, ledger: &Ledger) -> Option<usize> {
        let mut inner = self.lock_current(ledger);
        let by_us = match std::mem::take(&mut inner.state) {
            State::Running => return None,
            State::Evicting { .. } => Vec::new(),
            State::Stopped { by_us, .. } => by_us,
        };
        ledger.park_until(0);
        resume(&by_us);
        Some(by_us.len())
    }
}

/// False if the process has exited, or belongs to another user.
fn send(pid: u32, signal: Signal) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::kill_process(pid, signal).is_ok())
}

/// Children before their parents: a shell must not see a stopped child.
fn resume(stopped: &[Id]) {
    let there = stopped.iter().rev().filter_map(|id| find(*id));
    there.for_each(|process| {
        send(process.pid, Signal::CONT);
    });
}

/// `None` if the PID belongs to another process by now.
fn find((pid, start_time): Id) -> Option<Process> {
    Process::read(pid).filter(|process| process.start_time().unwrap_or_default() == start_time)
}

fn is_of_own_group(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| {
        rustix::process::getpgid(Some(pid)).is_ok_and(|group| group == rustix::process::getpgrp())
    })
}

fn resident_bytes(pids: &[u32]) -> u64 {
    let resident = |pid: &u32| Some(Process::read(*pid)?.resident?.anonymous_bytes);
    pids.iter().filter_map(resident).sum()
}

/// Parents before their children. Excludes the helpers, which serve the stopped processes. The
/// program could write PIDs of other processes to the ledger, so those are not used.
fn descendants() -> Vec<u32> {
    let mut all = vec![std::process::id()];
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        let children = control_client::listed_children(pid).unwrap_or_default();
        let is_helper = |process: &Process| next == 0 && process.name == "softswap-remote";
        let runs = |pid: &u32| {
            Process::read(*pid).is_some_and(|process| !process.has_ended() && !is_helper(&process))
        };
        for child in children.into_iter().filter(runs) {
            if !all.contains(&child) {
                all.push(child);
            }
        }
        next += 1;
    }
    all.remove(0);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_process_that_wakes_late_is_evicted_before_the_stop() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut last = LastProgress::new(began);
        last.update(1, 50, at(1));
        last.update(2, 4000, at(2));
        last.update(2, 3000, at(9));
        assert_eq!(last.at, at(9));
        // Memory that grows and shrinks is no progress.
        last.update(2, 3500, at(10));
        last.update(1, 3200, at(11));
        last.update(2, 3100, at(12));
        assert_eq!(last.at, at(9));
    }
}
