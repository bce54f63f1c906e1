//! Latency histograms with the engine's buckets, four per octave.

use serde::{Deserialize, Serialize};
use softswap_engine::base::stats::{BUCKETS, bucket_floor, bucket_of};

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
