//! The data to show: the process trees that `softswap run` has started.

use crate::reading::Reading;
use std::time::Duration;

/// The process tree of one `softswap run`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tree {
    /// PID of `softswap run`.
    pub root: u32,
    /// The program and its arguments.
    pub command: String,
    /// The common budget, if the processes share one.
    pub shared: Option<Shared>,
    pub processes: Vec<Process>,
}

/// A budget that all processes of a tree share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shared {
    pub budget_bytes: u64,
    pub granted_bytes: u64,
    /// Number of turns taken so far.
    pub turns: u64,
    /// Owner of the present turn, if processes take turns now.
    pub turn_owner_pid: Option<u32>,
    /// True from `softswap ctl PID park` to `unpark`.
    pub is_parked: bool,
}

/// A process under softswap.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub state: State,
    /// The process's own budget, or the share of the tree's budget that is granted to it.
    pub budget_bytes: u64,
    /// Private memory in DRAM, as counted by the kernel.
    pub anonymous_bytes: u64,
    /// CPU time since the process's start.
    pub cpu: Duration,
    pub threads: u32,
    /// Settings by key.
    pub settings: Vec<(String, String)>,
    /// Faults by tier and latency bucket; empty if they were not requested.
    pub latencies: Vec<Vec<u64>>,
}

/// State of a process under softswap.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum State {
    /// The process's engine has answered.
    Awake(Box<Reading>),
    /// The process's memory fits the budget, so it has no engine.
    #[default]
    Asleep,
    /// The process could not be queried, for this reason.
    Silent(String),
}

impl Process {
    /// Returns the answer of the process's engine, if any.
    #[must_use]
    pub fn reading(&self) -> Option<&Reading> {
        match &self.state {
            State::Awake(reading) => Some(reading),
            _ => None,
        }
    }

    /// Returns the memory that the process uses of its budget, if that is known.
    #[must_use]
    pub fn used_bytes(&self) -> Option<u64> {
        match &self.state {
            State::Awake(reading) => Some(reading.used_bytes),
            State::Asleep => Some(self.anonymous_bytes),
            State::Silent(_) => None,
        }
    }

    #[must_use]
    pub fn setting(&self, key: &str) -> Option<&str> {
        let found = self.settings.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }
}

impl Tree {
    /// Returns the sum of all answers.
    #[must_use]
    pub fn sum(&self) -> Reading {
        let mut sum = Reading::default();
        self.processes.iter().filter_map(Process::reading).for_each(|it| sum.add(it));
        sum
    }

    /// Returns the total budget of all processes.
    #[must_use]
    pub fn budget_bytes(&self) -> u64 {
        match self.shared {
            Some(shared) => shared.budget_bytes,
            None => self.processes.iter().map(|it| it.budget_bytes).sum(),
        }
    }

    /// Returns the number of awake processes and of sleeping ones.
    #[must_use]
    pub fn awake_and_asleep(&self) -> (usize, usize) {
        let count = |is: fn(&State) -> bool| {
            self.processes.iter().filter(|process| is(&process.state)).count()
        };
        (
            count(|state| matches!(state, State::Awake(_))),
            count(|state| matches!(state, State::Asleep)),
        )
    }
}
