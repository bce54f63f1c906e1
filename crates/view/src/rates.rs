//! Changes between two samples.

use crate::reading::Reading;
use crate::stall;
use crate::tree::{Process, Tree};
use softswap_engine::base::stats::{TIERS, Tier};
use std::collections::HashMap;
use std::time::Duration;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    pub faults: [f64; TIERS.len()],
    /// Share of the busy threads' time, 0 to 1.
    pub stalled: f64,
    pub read_bytes: f64,
    pub written_bytes: f64,
    pub pages_out: f64,
}

impl Rates {
    #[must_use]
    pub fn faults_of(&self, tier: Tier) -> f64 {
        self.faults[tier as usize]
    }

    #[must_use]
    pub fn returns(&self) -> f64 {
        TIERS.into_iter().filter(|tier| *tier != Tier::Zero).map(|it| self.faults_of(it)).sum()
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Done {
    pub reading: Reading,
    pub cpu: Duration,
    pub threads: u32,
}

impl Done {
    fn of(process: &Process) -> Option<Done> {
        let reading = *process.reading()?;
        Some(Done { reading, cpu: process.cpu, threads: process.threads })
    }

    /// `before` was taken `wall` earlier. If the counters have restarted (exec), all counts are
    /// changes.
    #[must_use]
    pub fn since(&self, before: &Done, wall: Duration) -> Changes {
        let (now, then) = (&self.reading, &before.reading);
        let has_restarted = now.stalled_ns < then.stalled_ns || now.pages_out < then.pages_out;
        let (then, cpu) = match has_restarted {
            true => (Reading::default(), Duration::ZERO),
            false => (*then, before.cpu),
        };
        let polled = Duration::from_nanos(now.polled_ns.saturating_sub(then.polled_ns));
        Changes {
            wall,
            faults: std::array::from_fn(|at| now.faults[at].saturating_sub(then.faults[at])),
            waited_ns: std::array::from_fn(|at| {
                now.waited_ns[at].saturating_sub(then.waited_ns[at])
            }),
            stalled: Duration::from_nanos(now.stalled_ns - then.stalled_ns),
            cpu: self.cpu.saturating_sub(cpu).saturating_sub(polled),
            threads: self.threads.saturating_sub(now.engine_threads as u32).max(1),
            read_bytes: now.bytes_read.saturating_sub(then.bytes_read),
            written_bytes: now.bytes_written.saturating_sub(then.bytes_written),
            pages_out: now.pages_out - then.pages_out,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Changes {
    pub wall: Duration,
    faults: [u64; TIERS.len()],
    waited_ns: [u64; TIERS.len()],
    stalled: Duration,
    /// CPU time of the program, without waits that polled.
    pub cpu: Duration,
    pub threads: u32,
    read_bytes: u64,
    written_bytes: u64,
    pages_out: u64,
}

impl Changes {
    #[must_use]
    pub fn waited(&self, tier: Tier) -> Duration {
        Duration::from_nanos(self.waited_ns[tier as usize])
    }

    fn add(&mut self, other: &Changes) {
        self.wall = self.wall.max(other.wall);
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, more)| *sum += more);
        self.waited_ns.iter_mut().zip(other.waited_ns).for_each(|(sum, more)| *sum += more);
        self.stalled += other.stalled;
        self.cpu += other.cpu;
        self.threads += other.threads;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.pages_out += other.pages_out;
    }

    #[must_use]
    pub fn rates(&self) -> Rates {
        let seconds = self.wall.as_secs_f64().max(1e-9);
        let per_second = |count: u64| count as f64 / seconds;
        Rates {
            faults: self.faults.map(per_second),
            stalled: stall::share(self.stalled, self.cpu, self.wall, self.threads),
            read_bytes: per_second(self.read_bytes),
            written_bytes: per_second(self.written_bytes),
            pages_out: per_second(self.pages_out),
        }
    }
}

#[derive(Debug, Default)]
pub struct Comparison {
    before: HashMap<u32, (Duration, Done)>,
}

impl Comparison {
    /// Returns rates of processes that were in the previous sample, and their sum by tree.
    pub fn update(&mut self, at: Duration, trees: &[Tree]) -> Compared {
        let (mut compared, mut seen) = (Compared::default(), HashMap::new());
        for tree in trees {
            let mut sum: Option<Changes> = None;
            for process in &tree.processes {
                let Some(now) = Done::of(process) else { continue };
                seen.insert(process.pid, (at, now));
                let Some((then, before)) = self.before.get(&process.pid) else { continue };
                let changes = now.since(before, at.saturating_sub(*then));
                compared.processes.insert(process.pid, changes.rates());
                sum.get_or_insert_default().add(&changes);
            }
            let rates = sum.map(|changes| changes.rates()).unwrap_or_default();
            compared.trees.insert(tree.root, rates);
        }
        self.before = seen;
        compared
    }
}

/// Rates by PID, and by the PID of a tree's root.
#[derive(Debug, Clone, Default)]
pub struct Compared {
    pub processes: HashMap<u32, Rates>,
    pub trees: HashMap<u32, Rates>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::State;

    fn process(pid: u32, pool_faults: u64, stalled_ns: u64, cpu: Duration) -> Process {
        let mut reading = Reading { stalled_ns, pages_out: pool_faults, ..Reading::default() };
        reading.faults[Tier::Pool as usize] = pool_faults;
        Process {
            pid,
            name: "a".into(),
            state: State::Awake(Box::new(reading)),
            cpu,
            threads: 1,
            ..Process::default()
        }
    }

    #[test]
    fn rates_are_per_second_and_summed_per_tree() {
        let mut comparison = Comparison::default();
        let tree = |processes| Tree { root: 1, processes, ..Tree::default() };
        let second = Duration::from_secs;
        let before = [process(2, 100, 0, second(1)), process(3, 10, 0, second(1))];
        let first = comparison.update(second(10), &[tree(before.to_vec())]);
        assert!(first.processes.is_empty());
        assert_eq!(first.trees[&1], Rates::default());
        let after = [
            process(2, 300, 1_000_000_000, second(2)),
            process(3, 10, 0, second(1)),
            process(4, 7, 0, second(1)),
        ];
        let compared = comparison.update(second(12), &[tree(after.to_vec())]);
        assert_eq!(compared.processes[&2].faults_of(Tier::Pool), 100.0);
        assert_eq!(compared.processes[&2].stalled, 0.5);
        assert_eq!(compared.trees[&1].returns(), 100.0);
        assert!(!compared.processes.contains_key(&4));
    }

    #[test]
    fn exec_resets_rates() {
        let mut comparison = Comparison::default();
        let tree = |it| Tree { root: 1, processes: vec![it], ..Tree::default() };
        let second = Duration::from_secs;
        comparison.update(second(1), &[tree(process(2, 500, 900, second(9)))]);
        let compared = comparison.update(second(2), &[tree(process(2, 50, 100, second(9)))]);
        assert_eq!(compared.processes[&2].faults_of(Tier::Pool), 0.0_f64.max(50.0));
    }
}
