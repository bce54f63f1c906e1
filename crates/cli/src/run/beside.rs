//! What a process has in memory beside the budget. Unmanaged memory is never silent.
//!
//! The kernel counts what a process has in memory by kind; what the engine has of it is
//! in the page of counters. What remains is beside the budget: stacks, small mappings,
//! code and files, memory shared with others, and all of a program whose memory the
//! runtime never sees. It is gone with the process, so it is looked at while that runs.

use crate::control_client;
use serde::Serialize;
use softswap_engine::base::stats::{Counter, Stats};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// The first look is soon, for programs that end soon; then it is taken less often.
pub(super) const FIRST_LOOK: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// So many looks without the runtime: at the first one the loader may be at work yet.
const SURELY_WITHOUT: u32 = 2;

/// Memory beside the budget: the peaks that were seen, each by itself, or what it is now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Beside {
    /// All together.
    pub(super) total_bytes: u64,
    /// Private memory that is not the engine's: `RssAnon` without what the budget counts.
    pub(super) anonymous_bytes: u64,
    /// `RssShmem`.
    pub(super) shared_bytes: u64,
    /// `RssFile`: code, and files that are mapped.
    pub(super) file_bytes: u64,
    /// Whether the program had become one, by exec, in which the runtime is not.
    pub(super) left_by_exec: bool,
}

impl Beside {
    /// What a process has now; `None` where it has ended, or may not be asked.
    pub(crate) fn of(pid: u32, stats: &Stats) -> Option<Beside> {
        look(pid, stats, true).map(|(beside, _)| beside)
    }

    fn raise(&mut self, other: &Beside) {
        self.total_bytes = self.total_bytes.max(other.total_bytes);
        self.anonymous_bytes = self.anonymous_bytes.max(other.anonymous_bytes);
        self.shared_bytes = self.shared_bytes.max(other.shared_bytes);
        self.file_bytes = self.file_bytes.max(other.file_bytes);
    }
}

/// One look: what is beside the budget now, and the most that the process ever had in
/// memory at once.
fn look(pid: u32, stats: &Stats, is_managed: bool) -> Option<(Beside, u64)> {
    // In this order: what is charged in between is not taken for unmanaged.
    let now = control_client::Process::read(pid)?.resident?;
    let used_bytes = if is_managed { stats.get(Counter::UsedBytes) } else { 0 };
    // While it sleeps what it has committed counts as used, touched or not.
    let anonymous_bytes = now.anonymous_bytes.saturating_sub(used_bytes);
    let (shared_bytes, file_bytes) = (now.shared_bytes, now.file_bytes);
    let total_bytes = anonymous_bytes + shared_bytes + file_bytes;
    let beside =
        Beside { total_bytes, anonymous_bytes, shared_bytes, file_bytes, ..Beside::default() };
    Some((beside, now.peak_bytes))
}

/// Looks at a process while it runs.
#[derive(Debug)]
pub(super) struct Watch {
    pid: u32,
    stats: Stats,
    pause: Duration,
    peak: Option<Beside>,
    /// The file that the process runs, and how often the runtime was not found in it.
    program: Option<((u64, u64), u32)>,
}

impl Watch {
    pub(super) fn new(pid: u32, stats: Stats) -> Watch {
        Watch { pid, stats, pause: FIRST_LOOK, peak: None, program: None }
    }

    /// How long to wait until the next look.
    pub(super) fn pause(&self) -> Duration {
        self.pause
    }

    pub(super) fn look(&mut self) {
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        let looks_without = self.looks_without_runtime();
        let is_managed = looks_without == 0;
        let Some((now, most_bytes)) = look(self.pid, &self.stats, is_managed) else { return };
        let peak = self.peak.get_or_insert(now);
        peak.raise(&now);
        peak.left_by_exec = looks_without >= SURELY_WITHOUT;
        // Between two looks there was more: at least what the engine never had.
        let used_bytes = if is_managed { self.stats.get(Counter::UsedPeakBytes) } else { 0 };
        if self.stats.get(Counter::Asleep) == 0 {
            peak.total_bytes = peak.total_bytes.max(most_bytes.saturating_sub(used_bytes));
        }
    }

    /// How often in a row the runtime was not found in the program that the process is
    /// now. What was found once is not looked for again until it becomes another one.
    fn looks_without_runtime(&mut self) -> u32 {
        let exe = std::fs::metadata(format!("/proc/{}/exe", self.pid));
        // Before the runtime is there, asleep or not, there is nothing to lose by exec.
        let is_there = |counter| self.stats.get(counter) != 0;
        let was_there = is_there(Counter::Version) || is_there(Counter::Asleep);
        let Some(exe) = exe.ok().filter(|_| was_there) else {
            return 0;
        };
        let exe = (exe.dev(), exe.ino());
        let before = self.program.filter(|(known, _)| *known == exe).map(|(_, looks)| looks);
        let looks = match before {
            Some(looks @ (0 | SURELY_WITHOUT..)) => looks,
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

    /// The peaks that were seen; `None` where the process ended before the first look.
    pub(super) fn peak(&self) -> Option<Beside> {
        self.peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_engine::base::stats::STATS_WORDS;
    use std::sync::atomic::AtomicU64;

    fn stats() -> Stats {
        Stats::new(Box::leak((0..STATS_WORDS).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>()))
    }

    #[test]
    fn what_the_engine_has_is_not_beside_the_budget() {
        let stats = stats();
        let block = vec![1u8; 64 << 20];
        let all = Beside::of(std::process::id(), &stats).unwrap();
        assert!(all.anonymous_bytes >= 64 << 20, "{all:?}");
        stats.set(Counter::UsedBytes, 64 << 20);
        let rest = Beside::of(std::process::id(), &stats).unwrap();
        assert!(rest.total_bytes + (60 << 20) < all.total_bytes, "{rest:?} of {all:?}");
        assert!(std::hint::black_box(block)[5] == 1);
    }

    #[test]
    fn peaks_stay_and_what_came_between_two_looks_is_noticed() {
        let mut watch = Watch::new(std::process::id(), stats());
        watch.look();
        let before = watch.peak().unwrap();
        drop(std::hint::black_box(vec![1u8; 96 << 20]));
        watch.look();
        let after = watch.peak().unwrap();
        assert!(after.total_bytes >= before.total_bytes.max(96 << 20), "{after:?}");
        assert!(watch.pause() <= LONGEST_PAUSE);
    }

    #[test]
    fn a_process_that_has_ended_has_nothing() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(Beside::of(child.id(), &stats()), None);
    }
}
