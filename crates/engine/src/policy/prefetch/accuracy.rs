//! How much of what is read ahead is wanted: windows that miss get shorter.
//!
//! A window is right when its stream reaches it, and a miss when its marker is never
//! touched. Each stream ends with a miss, so what counts is how many pages were read for
//! nothing beside those that were not: short runs waste much of long windows, and little
//! of short ones; a long stream's end is nothing beside its length.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Pages that are looked at together, whichever way their windows ended.
const LOOK_PAGES: u64 = 1024;
/// More than one page in so many for nothing halves the longest window.
const TOO_MANY: u64 = 4;
/// At most one in so many doubles it.
const FEW: u64 = 10;

/// What became of windows, and what follows for those to come.
#[derive(Debug)]
pub(crate) struct Accuracy {
    reached_pages: AtomicU64,
    lost_pages: AtomicU64,
    /// Pages of a window, at most, and its bounds.
    longest: AtomicUsize,
    least: usize,
    most: AtomicUsize,
}

impl Accuracy {
    /// Nothing is known yet: windows may have `most` pages. They never get shorter
    /// than `least`.
    pub(crate) fn new(least: usize, most: usize) -> Accuracy {
        Accuracy {
            reached_pages: AtomicU64::new(0),
            lost_pages: AtomicU64::new(0),
            longest: AtomicUsize::new(most),
            least,
            most: AtomicUsize::new(most),
        }
    }

    /// How many pages a window may have at best.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Relaxed)
    }

    /// Windows may have `most` pages from now on.
    pub(crate) fn resize(&self, most: usize) {
        self.most.store(most, Relaxed);
        self.longest.fetch_min(most, Relaxed);
    }

    /// How many pages a window may have.
    pub(crate) fn longest(&self) -> usize {
        self.longest.load(Relaxed)
    }

    /// A window of so many pages was reached.
    pub(crate) fn reached(&self, pages: usize) {
        self.reached_pages.fetch_add(pages as u64, Relaxed);
        self.look();
    }

    /// A window of so many pages never will be.
    pub(crate) fn lost(&self, pages: usize) {
        self.lost_pages.fetch_add(pages as u64, Relaxed);
        self.look();
    }

    fn look(&self) {
        if self.reached_pages.load(Relaxed) + self.lost_pages.load(Relaxed) < LOOK_PAGES {
            return;
        }
        // Of threads that come here together only one has it all.
        let reached = self.reached_pages.swap(0, Relaxed);
        let lost = self.lost_pages.swap(0, Relaxed);
        let all = reached + lost;
        if all < LOOK_PAGES {
            return;
        }
        let longest = self.longest();
        let next = if lost * TOO_MANY > all {
            longest / 2
        } else if lost * FEW <= all {
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

    /// Runs of so many pages, each followed by windows that double as they may. The
    /// pages read for nothing, for each that was wanted, once it has settled.
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
    fn short_runs_shorten_windows_and_long_ones_have_the_longest() {
        let accuracy = Accuracy::new(8, 128);
        assert_eq!(accuracy.longest(), 128, "nothing speaks against it");
        assert!(waste(&accuracy, 20) < 0.8);
        assert_eq!(accuracy.longest(), 8);
        assert!(waste(&accuracy, 10_000) < 0.05);
        assert_eq!(accuracy.longest(), 128, "they get longer again");
        assert!(waste(&accuracy, 200) < 0.7);
        assert!((16..=64).contains(&accuracy.longest()), "{}", accuracy.longest());
    }

    #[test]
    fn windows_stay_within_their_bounds() {
        let accuracy = Accuracy::new(8, 100);
        (0..10_000).for_each(|_| accuracy.lost(8));
        assert_eq!(accuracy.longest(), 8);
        (0..10_000).for_each(|_| accuracy.reached(8));
        assert_eq!(accuracy.longest(), 100);
    }

    #[test]
    fn a_few_windows_decide_nothing() {
        let accuracy = Accuracy::new(8, 128);
        (0..7).for_each(|_| accuracy.lost(64));
        assert_eq!(accuracy.longest(), 128);
    }
}
