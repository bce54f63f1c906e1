//! Reports once a running program that thrashes: most of its time is waits for pages.

use super::progress::done;
use softswap_engine::base::stats::{Counter, Stats, Tier};
use softswap_view::estimate::if_too_large;
use softswap_view::rates::{Changes, Done};
use softswap_view::stall;
use softswap_view::units::bytes;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_secs(1);
/// A program that only waits reaches 80 % with a fast disk: the kernel's time to deliver a fault
/// does not count as waiting.
const THRASHES_PERCENT: f64 = 60.0;
const MOSTLY: f64 = 0.5;

/// Returns the share of the threads' time for which they waited for pages of the disk and the pool.
fn waited_percent(seen: &Changes) -> f64 {
    let waited = seen.waited(Tier::Disk) + seen.waited(Tier::Pool);
    stall::share(waited, seen.cpu, seen.wall, seen.threads) * 100.0
}

#[derive(Debug)]
pub(super) struct Thrashing {
    pid: u32,
    stats: Stats,
    started: Instant,
    /// Largest budget that fitted the available memory at the start.
    largest_bytes: u64,
    /// One sample of each step of the last window; `None` once thrashing is reported.
    samples: Option<VecDeque<(Duration, Done)>>,
}

impl Thrashing {
    pub(super) fn new(pid: u32, stats: Stats, largest_bytes: u64, is_enabled: bool) -> Thrashing {
        let samples = is_enabled.then(VecDeque::new);
        Thrashing { pid, stats, started: Instant::now(), largest_bytes, samples }
    }

    pub(super) fn poll(&mut self, budget_bytes: Option<u64>) -> Option<String> {
        let at = self.started.elapsed();
        let last = self.samples.as_ref()?.back();
        if last.is_some_and(|(last, _)| at < *last + STEP) {
            return None;
        }
        let now = done(self.pid, &self.stats)?;
        let seen = thrashing_once(&mut self.samples, at, now)?;
        let memory_bytes = self.stats.get(Counter::MappedPeakBytes);
        let budget_bytes = budget_bytes.unwrap_or_else(|| self.stats.get(Counter::BudgetBytes));
        Some(advice(&seen, budget_bytes, memory_bytes, self.largest_bytes))
    }
}

/// `None` unless the program thrashed over the last window, and after the first time.
fn thrashing_once(
    samples: &mut Option<VecDeque<(Duration, Done)>>,
    at: Duration,
    now: Done,
) -> Option<Changes> {
    let seen = changes_over_window(samples.as_mut()?, at, now)?;
    if waited_percent(&seen) <= THRASHES_PERCENT {
        return None;
    }
    *samples = None;
    Some(seen)
}

/// `None` until the samples span a whole window.
fn changes_over_window(
    samples: &mut VecDeque<(Duration, Done)>,
    at: Duration,
    now: Done,
) -> Option<Changes> {
    while samples.get(1).is_some_and(|(second, _)| *second + WINDOW <= at) {
        samples.pop_front();
    }
    samples.push_back((at, now));
    let (then, first) = samples.front().filter(|(first, _)| *first + WINDOW <= at)?;
    Some(now.since(first, at - *then))
}

fn advice(seen: &Changes, budget_bytes: u64, memory_bytes: u64, largest_bytes: u64) -> String {
    let percent = waited_percent(seen);
    let seconds = seen.wall.as_secs();
    let [disk, pool] = [Tier::Disk, Tier::Pool].map(|tier| seen.waited(tier).as_secs_f64());
    // Less than a quarter more would not help.
    let size = match if_too_large(Some(largest_bytes), budget_bytes + budget_bytes / 4) {
        largest if !largest.is_empty() => largest,
        _ => "; `softswap advise FILE` names a size after a run with --report FILE".into(),
    };
    let (what, other_remedy) = if disk >= MOSTLY * (disk + pool) {
        ("from the disk", ", or a faster disk by --swap")
    } else {
        ("compressed in memory", "")
    };
    format!(
        "in the last {seconds} s the program waited for pages {percent:.0} % of the time, mostly \
         for pages {what}: its working set does not fit in {} (it has {} of memory); a larger \
         --memory would help{other_remedy}{size}",
        bytes(budget_bytes),
        bytes(memory_bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_view::reading::Reading;

    fn done(waited: &[(Tier, u64)], cpu_s: u64) -> Done {
        let mut reading = Reading::default();
        waited.iter().for_each(|(tier, s)| reading.waited_ns[*tier as usize] = s * 1_000_000_000);
        Done { reading, cpu: Duration::from_secs(cpu_s), threads: 1 }
    }

    #[test]
    fn thrashing_is_judged_over_last_ten_seconds() {
        let mut samples = VecDeque::new();
        let mut at = |second, disk_s, cpu_s| {
            let now = done(&[(Tier::Disk, disk_s)], cpu_s);
            changes_over_window(&mut samples, Duration::from_secs(second), now)
        };
        assert!((0..10).all(|second| at(second, second, 0).is_none()));
        let first = at(10, 10, 0).unwrap();
        assert_eq!((first.wall.as_secs(), waited_percent(&first)), (10, 100.0));
        // From second 11 on the program runs without waits.
        let later = (11..=20).map(|second| waited_percent(&at(second, 10, 1).unwrap()).round());
        let expected = [90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 20.0, 10.0, 0.0];
        assert_eq!(later.collect::<Vec<_>>(), expected);
        assert!(samples.len() <= 12, "{}", samples.len());
    }

    #[test]
    fn thrashing_is_reported_once() {
        let mut samples = Some(VecDeque::new());
        let mut reports_at = |second| {
            let now = done(&[(Tier::Disk, second)], 0);
            thrashing_once(&mut samples, Duration::from_secs(second), now).is_some()
        };
        assert_eq!((0..60).filter(|second| reports_at(*second)).collect::<Vec<_>>(), [10]);
    }

    #[test]
    fn thrashing_message_has_amount_and_remedy() {
        let seen = |waited: &[(Tier, u64)], cpu_s| {
            done(waited, cpu_s).since(&Done::default(), Duration::from_secs(20))
        };
        let text = advice(&seen(&[(Tier::Disk, 19)], 1), 64 << 20, 1 << 30, 80 << 20);
        assert!(text.contains("95 % of the time, mostly for pages from the disk"), "{text}");
        assert!(text.contains("64.0 MiB (it has 1.0 GiB of memory)"), "{text}");
        assert!(
            text.ends_with(
                "a larger --memory would help, or a faster disk by --swap; `softswap advise FILE` \
                 names a size after a run with --report FILE"
            ),
            "{text}"
        );
        let text = advice(&seen(&[(Tier::Pool, 18)], 20), 64 << 20, 1 << 30, 72 << 20);
        assert!(
            text.contains("mostly for pages compressed in memory") && !text.contains("--swap"),
            "{text}"
        );
        assert!(text.contains("would help, but at most --memory 72M fits"), "{text}");
        assert!(!text.contains("softswap advise"), "{text}");
    }
}
