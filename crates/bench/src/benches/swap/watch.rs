//! Periodically reads the statistics of a cgroup, and of compressed pages outside it.
//!
//! The kernel's sides need the reads. Reclaim in a cgroup decides by its statistics whether to
//! deactivate pages, and the kernel updates them only every few seconds or when they are read. If a
//! program fills its cgroup sooner, all its pages are on the active list while the statistics say
//! the opposite. Then reclaim scans no page, and the program is OOM-killed although swap is
//! available.

use crate::measure::restore::zram;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(5);
/// Number of reads of the cgroup's statistics for each read of memory outside it, which changes
/// slowly.
const OUTSIDE_EVERY: usize = 4;

/// Where the kernel stores compressed pages that are not charged to the cgroup.
#[derive(Debug, Clone)]
pub(super) enum Outside {
    Nowhere,
    Zram(String),
    Zswap,
}

impl Outside {
    fn bytes(&self) -> u64 {
        match self {
            Outside::Nowhere => 0,
            Outside::Zram(name) => zram::used_bytes(name),
            // Equal to pool_total_size, which not every kernel provides.
            Outside::Zswap => kib_of("/proc/meminfo", "Zswap:", 1) << 10,
        }
    }
}

/// Returns a word of the line that begins with the word `first`, as a number.
fn kib_of(path: &str, first: &str, word: usize) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(first));
    line.and_then(|line| line.split_whitespace().nth(word)?.parse().ok()).unwrap_or(0)
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Peaks {
    /// Largest increase since the start of memory outside the cgroup.
    pub(super) outside_bytes: u64,
    /// Largest used part of the swap area.
    pub(super) swapped_bytes: u64,
}

/// Thread that samples until it is stopped.
pub(super) struct GroupWatch {
    until: Sender<()>,
    thread: JoinHandle<Peaks>,
}

impl GroupWatch {
    pub(super) fn start(
        group: Option<PathBuf>,
        swap: Option<PathBuf>,
        outside: Outside,
    ) -> GroupWatch {
        let (until, ended) = channel();
        let thread = std::thread::spawn(move || {
            let before_bytes = outside.bytes();
            let mut peaks = Peaks::default();
            for at in 0.. {
                if let Some(group) = &group {
                    let _ = fs::read(group.join("memory.stat"));
                }
                let last = ended.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout);
                if last || at % OUTSIDE_EVERY == 0 {
                    let more = outside.bytes().saturating_sub(before_bytes);
                    peaks.outside_bytes = peaks.outside_bytes.max(more);
                    // Columns of /proc/swaps: name, kind, size, used.
                    let used = |path: &Path| Some(kib_of("/proc/swaps", path.to_str()?, 3) << 10);
                    let used = swap.as_deref().and_then(used).unwrap_or(0);
                    peaks.swapped_bytes = peaks.swapped_bytes.max(used);
                }
                if last {
                    break;
                }
            }
            peaks
        });
        GroupWatch { until, thread }
    }

    pub(super) fn stop(self) -> Peaks {
        drop(self.until);
        self.thread.join().unwrap_or_default()
    }
}
