//! Swap space is free when `run` has ended.
//!
//! A swap file has no name and goes with the process that had it, but its rings keep it
//! open until the kernel has taken them apart, which happens in the background: a tenth
//! of a second after the process is gone. Whoever starts the next program at once would
//! find the disk full. So `run` waits until what the file took is free again.

use softswap_engine::base::stats::{Counter, Stats};
use softswap_engine::door::settings::AreaSpec;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Others write to the file system, too: it is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);
/// What may be missing of it: a file system has tables of its own.
const SLACK_PART: u64 = 16;

/// What was free on the areas' file systems, and what the swap files took, at one time.
#[derive(Debug)]
pub(super) struct Space {
    dirs: Vec<PathBuf>,
    /// Both together: what is free when the files are gone.
    whole_bytes: u64,
}

impl Space {
    /// The file systems of the areas that have a file of their own.
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

    /// Looks again: the program, and others, need space for files of theirs.
    pub(super) fn look(&mut self, stats: &Stats) {
        self.whole_bytes = self.free_bytes() + stats.get(Counter::SwapFileBytes);
    }

    /// Waits until what the swap files took is free.
    pub(super) fn wait_until_free(&self, stats: &Stats) {
        let file_bytes = stats.get(Counter::SwapFileBytes);
        if self.dirs.is_empty() || file_bytes == 0 || stats.get(Counter::UsesIoUring) == 0 {
            return;
        }
        let enough_bytes = file_bytes - file_bytes / SLACK_PART;
        let until = Instant::now() + PATIENCE;
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
