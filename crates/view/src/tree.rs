//! The data to show.

use crate::reading::Reading;
use std::time::Duration;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tree {
    /// PID of `softswap run`.
    pub root: u32,
    pub command: String,
    pub shared: Option<Shared>,
    pub processes: Vec<Process>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shared {
    pub budget_bytes: u64,
    pub granted_bytes: u64,
    pub turns: u64,
    /// `None` unless processes take turns now.
    pub turn_owner_pid: Option<u32>,
    /// True from `softswap ctl PID park` to `unpark`.
    pub is_parked: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub state: State,
    /// Own budget, or the granted share of the tree's budget.
    pub budget_bytes: u64,
    /// Private memory in DRAM, as counted by the kernel.
    pub anonymous_bytes: u64,
    pub cpu: Duration,
    pub threads: u32,
    pub settings: Vec<(String, String)>,
    /// Faults by tier and latency bucket; empty if not requested.
    pub latencies: Vec<Vec<u64>>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub enum State {
    Awake(Box<Reading>),
    /// Without an engine: the memory fits the budget.
    #[default]
    Asleep,
    Silent(String),
}

impl Process {
    #[must_use]
    pub fn reading(&self) -> Option<&Reading> {
        match &self.state {
            State::Awake(reading) => Some(reading),
            _ => None,
        }
    }

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
    #[must_use]
    pub fn sum(&self) -> Reading {
        let mut sum = Reading::default();
        self.processes.iter().filter_map(Process::reading).for_each(|it| sum.add(it));
        sum
    }

    #[must_use]
    pub fn budget_bytes(&self) -> u64 {
        match self.shared {
            Some(shared) => shared.budget_bytes,
            None => self.processes.iter().map(|it| it.budget_bytes).sum(),
        }
    }

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
