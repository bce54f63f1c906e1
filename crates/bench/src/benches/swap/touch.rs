//! Which page a pattern touches next, and the touching.

use super::latency::Latencies;
use super::plan::Pattern;
use crate::measure::noise::{below, noise};
use crate::measure::region::{Region, WORDS};
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Of the accesses of a hot set, those that go there.
const HOT_PERCENT: u64 = 90;
/// Of the accesses of a hot set, one in so many writes.
const WRITE_EVERY: u64 = 4;
/// A prime larger than any number of pages: hot pages lie scattered.
const STRIDE: u64 = 11_400_714_785_074_694_791;

/// What one thread did.
pub(super) struct Touched {
    pub(super) touches: u64,
    pub(super) latencies: Latencies,
}

/// How a thread walks over all pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Touches {
    pub(super) pattern: Pattern,
    /// Of all pages, those that are hot.
    pub(super) hot_share: f64,
    /// Where going from page to page begins.
    pub(super) first: u64,
    pub(super) seed: u64,
}

impl Touches {
    /// Touches one page after the other, one word of each, until time is up or
    /// so many have been touched.
    pub(super) fn go(&self, region: &Region, time: Duration, most_touches: u64) -> Touched {
        let pages = region.pages() as u64;
        let hot_pages = ((pages as f64 * self.hot_share) as u64).clamp(1, pages);
        let mut touched = Touched { touches: 0, latencies: Latencies::new() };
        let start = Instant::now();
        let mut before = start;
        for (at, number) in (0..).zip(noise(self.seed)) {
            let index = self.index(at, number, pages, hot_pages) as usize;
            if self.writes(number) {
                region.write(index);
            } else {
                black_box(region.word(index, (number % WORDS as u64) as usize).load(Relaxed));
            }
            let now = Instant::now();
            touched.latencies.add(now.duration_since(before).as_nanos() as u64);
            touched.touches += 1;
            if now.duration_since(start) >= time || touched.touches >= most_touches {
                break;
            }
            before = now;
        }
        touched
    }

    fn index(&self, at: u64, number: u64, pages: u64, hot_pages: u64) -> u64 {
        match self.pattern {
            Pattern::RandomRead | Pattern::RandomWrite => below(number, pages),
            Pattern::SequentialRead | Pattern::SequentialWrite => (self.first + at) % pages,
            Pattern::HotSet => {
                // The lower bits choose the kind of page, the upper ones the page.
                let within = if number % 100 < HOT_PERCENT { hot_pages } else { pages };
                scattered(below(number, within), pages)
            }
        }
    }

    fn writes(&self, number: u64) -> bool {
        match self.pattern {
            Pattern::RandomWrite | Pattern::SequentialWrite => true,
            Pattern::RandomRead | Pattern::SequentialRead => false,
            Pattern::HotSet => (number >> 8).is_multiple_of(WRITE_EVERY),
        }
    }
}

/// A page for each of `0..pages`, neighbours far apart.
fn scattered(number: u64, pages: u64) -> u64 {
    (u128::from(number) * u128::from(STRIDE) % u128::from(pages)) as u64
}
