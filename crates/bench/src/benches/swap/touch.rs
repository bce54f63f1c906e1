//! Touches the pages of a region in the order of a pattern.

use super::plan::Pattern;
use crate::measure::noise::{below, noise};
use crate::measure::region::{Region, WORDS};
use serde::{Deserialize, Serialize};
use softswap_engine::base::stats::{BUCKETS, bucket_floor, bucket_of};
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Percentage of a hot set pattern's accesses that go to hot pages.
const HOT_PERCENT: u64 = 90;
/// One access of a hot set pattern in four is a write.
const WRITE_EVERY: u64 = 4;
/// A prime larger than any number of pages, which scatters hot pages.
const STRIDE: u64 = 11_400_714_785_074_694_791;

/// A histogram of latencies with the engine's buckets, four per octave.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Latencies(Vec<u64>);

impl Latencies {
    pub(super) fn new() -> Latencies {
        Latencies(vec![0; BUCKETS])
    }

    pub(super) fn add(&mut self, ns: u64) {
        self.0[bucket_of(ns)] += 1;
    }

    pub(super) fn add_all(&mut self, others: &Latencies) {
        self.0.iter_mut().zip(&others.0).for_each(|(count, more)| *count += more);
    }

    /// Returns the middle of the bucket that contains the quantile.
    pub(super) fn quantile_us(&self, share: f64) -> f64 {
        let wanted = (self.0.iter().sum::<u64>() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let found = self.0.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        let middle_us = |at| (bucket_floor(at) + bucket_floor(at + 1)) as f64 / 2000.0;
        found.map_or(f64::NAN, middle_us)
    }
}

pub(super) struct Touched {
    pub(super) touches: u64,
    pub(super) latencies: Latencies,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Touches {
    pub(super) pattern: Pattern,
    pub(super) hot_share: f64,
    /// First page of a sequential pattern.
    pub(super) first: u64,
    pub(super) seed: u64,
}

impl Touches {
    /// Touches one word of the pattern's next page until `time` is over, at most `most_touches`
    /// times.
    pub(super) fn run(&self, region: &Region, time: Duration, most_touches: u64) -> Touched {
        let pages = region.pages() as u64;
        let hot_pages = ((pages as f64 * self.hot_share) as u64).clamp(1, pages);
        let mut touched = Touched { touches: 0, latencies: Latencies::new() };
        let start = Instant::now();
        let mut before = start;
        for (at, number) in (0..).zip(noise(self.seed)) {
            let (index, is_write) = match self.pattern {
                Pattern::RandomRead => (below(number, pages), false),
                Pattern::RandomWrite => (below(number, pages), true),
                Pattern::SequentialRead => ((self.first + at) % pages, false),
                Pattern::SequentialWrite => ((self.first + at) % pages, true),
                Pattern::HotSet => {
                    // The lower bits select hot or any pages, the upper ones the page.
                    let within = if number % 100 < HOT_PERCENT { hot_pages } else { pages };
                    let is_write = (number >> 8).is_multiple_of(WRITE_EVERY);
                    (scattered(below(number, within), pages), is_write)
                }
            };
            if is_write {
                region.write(index as usize);
            } else {
                let word = region.word(index as usize, (number % WORDS as u64) as usize);
                black_box(word.load(Relaxed));
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
}

/// Permutes `0..pages` so that neighbors are far apart.
fn scattered(number: u64, pages: u64) -> u64 {
    (u128::from(number) * u128::from(STRIDE) % u128::from(pages)) as u64
}
