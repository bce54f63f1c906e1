//! Reports once, while it runs, a program that thrashes: it does hardly anything except wait for
//! pages.

use procfs::process::Process;
use softswap_engine::base::stats::{Counter, Stats, Tier};
use softswap_view::stall;
use softswap_view::units::bytes;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Duration of thrashing before it is reported.
const WINDOW: Duration = Duration::from_secs(10);
/// Interval between two samples.
const STEP: Duration = Duration::from_secs(1);
/// Share of the time, in percent, above which a program thrashes. A program that only waits reaches
/// 80 with a fast disk, because the kernel's time to deliver a fault is not counted as waiting.
const THRASHES_PERCENT: f64 = 60.0;
/// Share of the waits from which a tier is named.
const MOSTLY: f64 = 0.5;

/// Cumulative figures of a process.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    at: Duration,
    /// Waits for pages of the disk and of the pool, over all threads.
    disk: Duration,
    pool: Duration,
    /// CPU time of all threads, without waits that polled.
    cpu: Duration,
    /// Number of the program's threads.
    threads: u32,
}

impl Sample {
    /// Returns the changes since `before`.
    fn since(self, before: Sample) -> Sample {
        Sample {
            at: self.at.saturating_sub(before.at),
            disk: self.disk.saturating_sub(before.disk),
            pool: self.pool.saturating_sub(before.pool),
            cpu: self.cpu.saturating_sub(before.cpu),
            threads: self.threads,
        }
    }

    /// Returns the share of its threads' time for which they waited, in percent.
    fn waited_percent(self) -> f64 {
        stall::share(self.disk + self.pool, self.cpu, self.at, self.threads) * 100.0
    }
}

/// Detects thrashing of a process.
#[derive(Debug)]
pub(super) struct Thrashing {
    pid: u32,
    stats: Stats,
    started: Instant,
    /// The last sample of each step, for the length of the window; `None` once reported.
    samples: Option<VecDeque<Sample>>,
}

impl Thrashing {
    /// Watches a process that has just been started, if `is_told` is true.
    pub(super) fn new(pid: u32, stats: Stats, is_told: bool) -> Thrashing {
        Thrashing { pid, stats, started: Instant::now(), samples: is_told.then(VecDeque::new) }
    }

    /// Returns the message if it is due. `budget_bytes` is the tree's budget, if the program shares
    /// one.
    pub(super) fn poll(&mut self, budget_bytes: Option<u64>) -> Option<String> {
        let at = self.started.elapsed();
        let samples = self.samples.as_mut()?;
        if samples.back().is_some_and(|last| at < last.at + STEP) {
            return None;
        }
        let now = sample(self.pid, &self.stats, at)?;
        let seen = changes_over_window(samples, now)?;
        if seen.waited_percent() <= THRASHES_PERCENT {
            return None;
        }
        self.samples = None;
        let memory_bytes = self.stats.get(Counter::MappedPeakBytes);
        let budget_bytes = budget_bytes.unwrap_or_else(|| self.stats.get(Counter::BudgetBytes));
        Some(advice(seen, budget_bytes, memory_bytes))
    }
}

/// Adds a sample. Returns the changes over the window that ends with it, once the window is full.
fn changes_over_window(samples: &mut VecDeque<Sample>, now: Sample) -> Option<Sample> {
    while samples.get(1).is_some_and(|second| second.at + WINDOW <= now.at) {
        samples.pop_front();
    }
    samples.push_back(now);
    let first = samples.front().filter(|first| first.at + WINDOW <= now.at)?;
    Some(now.since(*first))
}

fn sample(pid: u32, stats: &Stats, at: Duration) -> Option<Sample> {
    let stat = Process::new(i32::try_from(pid).ok()?).ok()?.stat().ok()?;
    let ticks = stat.utime + stat.stime;
    let cpu = Duration::from_secs_f64(ticks as f64 / procfs::ticks_per_second() as f64);
    let polled = Duration::from_nanos(stats.get(Counter::IoWaitCpuNs));
    let threads = u64::try_from(stat.num_threads).unwrap_or(1);
    Some(Sample {
        at,
        disk: Duration::from_nanos(stats.waited_ns(Tier::Disk)),
        pool: Duration::from_nanos(stats.waited_ns(Tier::Pool)),
        cpu: cpu.saturating_sub(polled),
        threads: threads.saturating_sub(stats.get(Counter::EngineThreads)) as u32,
    })
}

fn advice(seen: Sample, budget_bytes: u64, memory_bytes: u64) -> String {
    let percent = seen.waited_percent();
    let seconds = seen.at.as_secs();
    let disk_share = seen.disk.as_secs_f64() / (seen.disk + seen.pool).as_secs_f64();
    let (what, beside) = if disk_share >= MOSTLY {
        ("from the disk", ", or a faster disk by --swap")
    } else {
        ("compressed in memory", "")
    };
    format!(
        "in the last {seconds} s the program waited for pages {percent:.0}% of the time, mostly \
         for pages {what}: its working set does not fit in {} (its memory is {} in all); a larger \
         --memory would help{beside}",
        bytes(budget_bytes),
        bytes(memory_bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64, disk_s: f64, cpu_s: f64, threads: u32) -> Sample {
        Sample {
            at: Duration::from_secs(second),
            disk: Duration::from_secs_f64(disk_s),
            pool: Duration::ZERO,
            cpu: Duration::from_secs_f64(cpu_s),
            threads,
        }
    }

    #[test]
    fn thrashing_is_judged_over_last_ten_seconds() {
        let mut samples = VecDeque::new();
        for second in 0..10 {
            assert!(changes_over_window(&mut samples, at(second, second as f64, 0.0, 1)).is_none());
        }
        let first = changes_over_window(&mut samples, at(10, 10.0, 0.0, 1)).unwrap();
        assert_eq!((first.at.as_secs(), first.waited_percent()), (10, 100.0));
        // From here the program works.
        let later =
            (11..=20).map(|second| changes_over_window(&mut samples, at(second, 10.0, 1.0, 1)));
        let later: Vec<_> = later.map(|seen| seen.unwrap().waited_percent().round()).collect();
        assert_eq!(later, [90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 20.0, 10.0, 0.0]);
        assert!(samples.len() <= 12, "{}", samples.len());
    }

    #[test]
    fn thrashing_message_has_amount_and_remedy() {
        let text = advice(at(10, 9.5, 0.5, 1), 64 << 20, 1 << 30);
        assert!(text.contains("95% of the time, mostly for pages from the disk"), "{text}");
        assert!(text.contains("64.0 MiB (its memory is 1.0 GiB in all)"), "{text}");
        assert!(text.contains("--memory") && text.contains("--swap"), "{text}");
        let pool = Sample { pool: Duration::from_secs(9), ..at(10, 0.0, 10.0, 1) };
        let text = advice(pool, 64 << 20, 1 << 30);
        assert!(
            text.contains("mostly for pages compressed in memory") && !text.contains("--swap"),
            "{text}"
        );
    }
}
