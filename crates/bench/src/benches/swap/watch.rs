//! Looks at a group and what lies outside of it, again and again.
//!
//! The looking has an effect that the kernel's sides need. Reclaim in a group
//! decides by the group's statistics whether pages are to leave the active
//! list, and these are brought up to date every few seconds at most, or when
//! somebody reads them. A program that fills its group sooner has all its pages
//! on the active list while the statistics still say the opposite: nothing is
//! scanned, and the program is killed with swap to spare.

use crate::measure::restore::zram;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(5);
/// What lies outside changes slowly: it is looked at once in so many times.
const OUTSIDE_EVERY: usize = 4;

/// Where the kernel keeps packed pages that it does not count.
#[derive(Debug, Clone)]
pub(super) enum Outside {
    Nowhere,
    Zram(String),
    Zswap,
}

impl Outside {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Outside::Nowhere => 0,
            Outside::Zram(name) => zram::used_bytes(name),
            // The same figure as pool_total_size, which not every kernel shows.
            Outside::Zswap => meminfo("Zswap:"),
        }
    }
}

fn meminfo(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// The most that was seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Peaks {
    /// More than before.
    pub(super) outside_bytes: u64,
    /// In use of the swap area.
    pub(super) swapped_bytes: u64,
}

/// A thread that looks, until this goes.
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
                    let swapped = swap.as_deref().map_or(0, used_of);
                    peaks.swapped_bytes = peaks.swapped_bytes.max(swapped);
                }
                if last {
                    break;
                }
            }
            peaks
        });
        GroupWatch { until, thread }
    }

    pub(super) fn end(self) -> Peaks {
        drop(self.until);
        self.thread.join().unwrap_or_default()
    }
}

/// What of an area is in use, by /proc/swaps.
fn used_of(path: &Path) -> u64 {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let line = swaps.lines().find(|line| line.split_whitespace().next() == path.to_str());
    // Name, kind, size, used.
    let kib = line.and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
