//! Waits until swap space is free at the end of `run`.
//!
//! A swap file is unlinked and freed with its process. But the process's io_uring rings keep the
//! file open until the kernel frees them in the background, about 0.1 s after the exit. A program
//! started before that could find the disk full. So `run` waits until the file's space is free.

use softswap_engine::api::settings::AreaSpec;
use softswap_engine::base::stats::{Counter, Stats};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest wait. The expected free space may never be reached, because other processes write to the
/// file system, too.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);
/// Divisor of the files' size: this part need not become free, because it may hold the file
/// system's own metadata.
const SLACK_PART: u64 = 16;

/// Free space of the areas' file systems plus the size of the swap files.
#[derive(Debug)]
pub(super) struct Space {
    dirs: Vec<PathBuf>,
    /// Expected free space, in bytes, once the swap files are freed.
    whole_bytes: u64,
}

impl Space {
    /// Finds the file systems of the areas that have their own file.
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

    /// Updates the expected free space, because other files change the free space.
    pub(super) fn poll(&mut self, stats: &Stats) {
        self.whole_bytes = self.free_bytes() + stats.get(Counter::SwapFileBytes);
    }

    /// Waits until the swap files' space is free.
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
