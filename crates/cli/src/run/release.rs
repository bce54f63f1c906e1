//! Waits until swap space is free at the end of `run`.
//!
//! A swap file is unlinked, but the io_uring rings keep it open until the kernel frees them in the
//! background, about 0.1 s after the exit. Before that, the next program could find the disk full.

use softswap_engine::api::settings::AreaSpec;
use softswap_engine::base::stats::{Counter, Stats};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Other processes also write to the file system, so the expected free space may never be reached.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);
/// Divisor of the files' size: this part may hold the file system's metadata.
const SLACK_PART: u64 = 16;

#[derive(Debug)]
pub(super) struct Space {
    dirs: Vec<PathBuf>,
    whole_bytes: u64,
}

impl Space {
    pub(super) fn of(areas: &[AreaSpec]) -> Space {
        let mut dirs: Vec<PathBuf> = Vec::new();
        let device_of = |dir: &PathBuf| rustix::fs::stat(dir).ok().map(|stat| stat.st_dev);
        for area in areas.iter().filter(|area| area.path.is_dir()) {
            if !dirs.iter().any(|dir| device_of(dir) == device_of(&area.path)) {
                dirs.push(area.path.clone());
            }
        }
        let mut space = Space { dirs, whole_bytes: 0 };
        space.whole_bytes = space.free_bytes();
        space
    }

    fn free_bytes(&self) -> u64 {
        let free = |dir: &PathBuf| {
            rustix::fs::statvfs(dir).map_or(0, |fs| fs.f_bfree.saturating_mul(fs.f_frsize))
        };
        self.dirs.iter().map(free).sum()
    }

    /// Other files change the free space.
    pub(super) fn poll(&mut self, stats: &Stats) {
        self.whole_bytes = self.free_bytes() + stats.get(Counter::SwapFileBytes);
    }

    pub(super) fn wait_until_free(&self, stats: &Stats) {
        let file_bytes = stats.get(Counter::SwapFileBytes);
        if self.dirs.is_empty() || file_bytes == 0 || stats.get(Counter::UsesIoUring) == 0 {
            return;
        }
        let enough_bytes = file_bytes - file_bytes / SLACK_PART;
        let until = Instant::now() + SETTLE_TIMEOUT;
        let at_end_bytes = self.free_bytes();
        let is_free = |free_bytes: u64| {
            free_bytes + file_bytes / SLACK_PART >= self.whole_bytes
                || free_bytes >= at_end_bytes + enough_bytes
        };
        while !is_free(self.free_bytes()) && Instant::now() < until {
            std::thread::sleep(PAUSE);
        }
    }
}
