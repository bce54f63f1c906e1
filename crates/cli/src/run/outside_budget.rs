//! Memory of a process outside the budget, which is always reported.
//!
//! The kernel counts a process's resident memory by kind. All of it that the engine does not manage
//! is outside the budget. `run` samples it, because it is freed at exit.

use crate::control_client;
use softswap_engine::base::stats::{Counter, Stats};
use softswap_view::report::OutsideBudget;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// Early, because programs may exit early.
pub(super) const FIRST_SAMPLE_DELAY: Duration = Duration::from_millis(10);
const MAX_INTERVAL: Duration = Duration::from_millis(200);
/// Consecutive samples without the runtime after which it counts as absent: at the first one the
/// loader may not have finished.
const SAMPLES_WITHOUT_RUNTIME: u32 = 2;
const MAX_THREADS: usize = 256;

/// `None` if the process has exited, or may not be inspected.
pub(crate) fn outside_budget(pid: u32, stats: &Stats) -> Option<OutsideBudget> {
    sample(pid, stats, true).map(|(outside, _)| outside)
}

/// Also returns the peak resident memory.
fn sample(pid: u32, stats: &Stats, is_managed: bool) -> Option<(OutsideBudget, u64)> {
    // Read in this order, so that memory charged in between does not count as unmanaged.
    let now = control_client::Process::read(pid)?.resident?;
    let used_bytes = if is_managed { stats.get(Counter::UsedBytes) } else { 0 };
    // In a sleeping process all committed memory counts as used, touched or not.
    let anonymous_bytes = now.anonymous_bytes.saturating_sub(used_bytes);
    let (shared_bytes, file_bytes) = (now.shared_bytes, now.file_bytes);
    let total_bytes = anonymous_bytes + shared_bytes + file_bytes;
    let outside = OutsideBudget {
        total_bytes,
        anonymous_bytes,
        shared_bytes,
        file_bytes,
        ..OutsideBudget::default()
    };
    Some((outside, now.peak_bytes))
}

#[derive(Debug)]
pub(super) struct Watch {
    pid: u32,
    stats: Stats,
    pause: Duration,
    peak: Option<OutsideBudget>,
    threads_peak: Option<u32>,
    /// Device and inode of the executed file, and the number of samples without the runtime.
    program: Option<((u64, u64), u32)>,
}

impl Watch {
    pub(super) fn new(pid: u32, stats: Stats) -> Watch {
        Watch {
            pid,
            stats,
            pause: FIRST_SAMPLE_DELAY,
            peak: None,
            threads_peak: None,
            program: None,
        }
    }

    pub(super) fn pause(&self) -> Duration {
        self.pause
    }

    pub(super) fn poll(&mut self) {
        self.pause = (self.pause * 2).min(MAX_INTERVAL);
        let threads = control_client::program_threads(self.pid, MAX_THREADS).ok();
        let threads = threads.map(|threads| threads.len() as u32);
        self.threads_peak = self.threads_peak.max(threads);
        let samples_without_runtime = self.note_sample_without_runtime();
        let is_managed = samples_without_runtime == 0;
        let Some((now, most_bytes)) = sample(self.pid, &self.stats, is_managed) else { return };
        let peak = self.peak.get_or_insert(now);
        peak.total_bytes = peak.total_bytes.max(now.total_bytes);
        peak.anonymous_bytes = peak.anonymous_bytes.max(now.anonymous_bytes);
        peak.shared_bytes = peak.shared_bytes.max(now.shared_bytes);
        peak.file_bytes = peak.file_bytes.max(now.file_bytes);
        peak.left_by_exec = samples_without_runtime >= SAMPLES_WITHOUT_RUNTIME;
        // Between samples the memory may have been larger.
        let used_bytes = if is_managed { self.stats.get(Counter::UsedPeakBytes) } else { 0 };
        if self.stats.get(Counter::Asleep) == 0 {
            peak.total_bytes = peak.total_bytes.max(most_bytes.saturating_sub(used_bytes));
        }
    }

    /// Returns the number of consecutive samples in which the runtime was not found. Once found, it
    /// is not searched for again until the next exec.
    fn note_sample_without_runtime(&mut self) -> u32 {
        let exe = std::fs::metadata(format!("/proc/{}/exe", self.pid));
        // Before the runtime was first loaded, exec cannot have removed it.
        let is_there = |counter| self.stats.get(counter) != 0;
        let was_there = is_there(Counter::Version) || is_there(Counter::Asleep);
        if !was_there {
            return 0;
        }
        let Ok(exe) = exe else {
            // The link is unknown, for example after the exit of the main thread alone.
            return self.program.map_or(0, |(_, looks)| looks);
        };
        let exe = (exe.dev(), exe.ino());
        let before = self.program.filter(|(known, _)| *known == exe).map(|(_, looks)| looks);
        let looks = match before {
            Some(looks @ (0 | SAMPLES_WITHOUT_RUNTIME..)) => looks,
            _ => match control_client::Process::read(self.pid)
                .and_then(|process| process.is_managed())
            {
                Some(false) => before.unwrap_or(0) + 1,
                _ => 0,
            },
        };
        self.program = Some((exe, looks));
        looks
    }

    /// Does not count the engine's threads.
    pub(super) fn threads_peak(&self) -> Option<u32> {
        self.threads_peak
    }

    /// `None` if the process exited before the first sample.
    pub(super) fn peak(&self) -> Option<OutsideBudget> {
        self.peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_engine::base::stats::STATS_WORDS;
    use std::sync::atomic::AtomicU64;
    use std::sync::{Mutex, PoisonError};

    /// Tests that compare the memory of this process run one at a time.
    static ALONE: Mutex<()> = Mutex::new(());

    fn stats() -> Stats {
        Stats::new(Box::leak((0..STATS_WORDS).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>()))
    }

    #[test]
    fn engine_memory_is_inside_budget() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let stats = stats();
        let block = vec![1u8; 64 << 20];
        let all = outside_budget(std::process::id(), &stats).unwrap();
        assert!(all.anonymous_bytes >= 64 << 20, "{all:?}");
        stats.set(Counter::UsedBytes, 64 << 20);
        let rest = outside_budget(std::process::id(), &stats).unwrap();
        assert!(rest.total_bytes + (60 << 20) < all.total_bytes, "{rest:?} of {all:?}");
        assert!(std::hint::black_box(block)[5] == 1);
    }

    #[test]
    fn peaks_include_memory_between_samples() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut watch = Watch::new(std::process::id(), stats());
        watch.poll();
        let before = watch.peak().unwrap();
        drop(std::hint::black_box(vec![1u8; 96 << 20]));
        watch.poll();
        let after = watch.peak().unwrap();
        assert!(after.total_bytes >= before.total_bytes.max(96 << 20), "{after:?}");
        assert!(watch.pause() <= MAX_INTERVAL);
    }

    #[test]
    fn exited_process_has_no_sample() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(outside_budget(child.id(), &stats()), None);
    }
}
