//! Adapts the size of readahead windows to the share of pages read but not touched.
//!
//! A window is a hit when its stream reaches it and a miss when its marker is never touched. Every
//! stream ends with a miss, so pages are counted, not windows: short runs waste a large part of
//! long windows; the end of a long stream is negligible.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Pages of finished windows per evaluation.
const EVALUATION_PAGES: u64 = 1024;

/// Results of past windows, and the maximum size of new ones.
#[derive(Debug, Default)]
pub(crate) struct Accuracy {
    reached_pages: AtomicU64,
    lost_pages: AtomicU64,
    longest: AtomicUsize,
    /// Lower bound of the maximum, in pages.
    least: usize,
    /// Upper bound of the maximum, in pages.
    most: AtomicUsize,
}

impl Accuracy {
    /// Starts with windows of up to `most` pages. The maximum never falls below `least`.
    pub(crate) fn new(least: usize, most: usize) -> Accuracy {
        Accuracy {
            longest: AtomicUsize::new(most),
            least,
            most: AtomicUsize::new(most),
            ..Accuracy::default()
        }
    }

    /// Returns the upper bound of the window size, in pages.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Relaxed)
    }

    pub(crate) fn resize(&self, most: usize) {
        self.most.store(most, Relaxed);
        self.longest.fetch_min(most, Relaxed);
    }

    pub(crate) fn longest(&self) -> usize {
        self.longest.load(Relaxed)
    }

    pub(crate) fn reached(&self, pages: usize) {
        self.reached_pages.fetch_add(pages as u64, Relaxed);
        self.evaluate();
    }

    pub(crate) fn lost(&self, pages: usize) {
        self.lost_pages.fetch_add(pages as u64, Relaxed);
        self.evaluate();
    }

    fn evaluate(&self) {
        if self.reached_pages.load(Relaxed) + self.lost_pages.load(Relaxed) < EVALUATION_PAGES {
            return;
        }
        // If several threads evaluate at the same time, one of them gets all counts.
        let reached = self.reached_pages.swap(0, Relaxed);
        let lost = self.lost_pages.swap(0, Relaxed);
        let all = reached + lost;
        if all < EVALUATION_PAGES {
            return;
        }
        let longest = self.longest();
        // The maximum window is halved if more than a quarter of the pages was not touched. It is
        // doubled if at most a tenth was not.
        let next = if lost * 4 > all {
            longest / 2
        } else if lost * 10 <= all {
            longest * 2
        } else {
            longest
        };
        self.longest.store(next.clamp(self.least, self.most()), Relaxed);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// Simulates runs of `run` pages, each followed by windows that double. Returns the untouched
    /// pages per touched page, once the window size is stable.
    fn waste(accuracy: &Accuracy, run: usize) -> f64 {
        let (mut wanted, mut wasted) = (0, 0);
        for round in 0..400 {
            let (mut at, mut window) = (3, 8);
            while at < run {
                accuracy.reached(window);
                at += window;
                window = (2 * window).min(accuracy.longest());
            }
            accuracy.lost(window);
            if round >= 200 {
                wanted += run;
                wasted += at + window - run;
            }
        }
        wasted as f64 / wanted as f64
    }

    #[test]
    fn window_size_follows_run_length() {
        let accuracy = Accuracy::new(8, 128);
        assert_eq!(accuracy.longest(), 128, "the first windows have the maximum size");
        assert!(waste(&accuracy, 20) < 0.8);
        assert_eq!(accuracy.longest(), 8);
        assert!(waste(&accuracy, 10_000) < 0.05);
        assert_eq!(accuracy.longest(), 128, "windows grow again");
        assert!(waste(&accuracy, 200) < 0.7);
        assert!((16..=64).contains(&accuracy.longest()), "{}", accuracy.longest());
    }

    #[test]
    fn windows_stay_within_bounds() {
        let accuracy = Accuracy::new(8, 100);
        (0..10_000).for_each(|_| accuracy.lost(8));
        assert_eq!(accuracy.longest(), 8);
        (0..10_000).for_each(|_| accuracy.reached(8));
        assert_eq!(accuracy.longest(), 100);
    }

    #[test]
    fn few_windows_change_nothing() {
        let accuracy = Accuracy::new(8, 128);
        (0..7).for_each(|_| accuracy.lost(64));
        assert_eq!(accuracy.longest(), 128);
    }
}
