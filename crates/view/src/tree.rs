//! What there is to show: the trees of processes that `softswap run` has started.

use crate::reading::Reading;
use std::time::Duration;

/// What one `softswap run` has started.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tree {
    /// The number of `softswap run`.
    pub root: u32,
    /// The program and its arguments.
    pub command: String,
    /// One budget for all, if they share one: what it is, and what is granted of it.
    pub shared: Option<Shared>,
    pub processes: Vec<Process>,
}

/// A budget that all processes of a tree share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shared {
    pub budget_bytes: u64,
    pub granted_bytes: u64,
}

/// A process under softswap.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub state: State,
    /// What it had at the time it was started with, or has been granted.
    pub budget_bytes: u64,
    /// Private memory that is in DRAM, as the kernel counts it.
    pub anonymous_bytes: u64,
    /// Since its start.
    pub cpu: Duration,
    pub threads: u32,
    /// Its settings, by key.
    pub settings: Vec<(String, String)>,
    /// Faults by tier and bucket of latency; empty where nobody has asked for them.
    pub latencies: Vec<Vec<u64>>,
}

/// What a process is to softswap.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// It has an engine, which has answered.
    Awake(Box<Reading>),
    /// What it has fits its budget: it has no engine.
    Asleep,
    /// It could not be asked, and why.
    Silent(String),
}

impl Process {
    /// What its engine has answered, if it has.
    #[must_use]
    pub fn reading(&self) -> Option<&Reading> {
        match &self.state {
            State::Awake(reading) => Some(reading),
            _ => None,
        }
    }

    /// What it has of its budget.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        match &self.state {
            State::Awake(reading) => reading.used_bytes,
            State::Asleep => self.anonymous_bytes,
            State::Silent(_) => 0,
        }
    }

    /// A setting's value.
    #[must_use]
    pub fn setting(&self, key: &str) -> Option<&str> {
        let found = self.settings.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }
}

impl Tree {
    /// All that have answered, added up.
    #[must_use]
    pub fn sum(&self) -> Reading {
        let mut sum = Reading::default();
        self.processes.iter().filter_map(Process::reading).for_each(|it| sum.add(it));
        sum
    }

    /// What all may take together.
    #[must_use]
    pub fn budget_bytes(&self) -> u64 {
        match self.shared {
            Some(shared) => shared.budget_bytes,
            None => self.processes.iter().map(|it| it.budget_bytes).sum(),
        }
    }

    /// How many are awake, and how many asleep.
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
