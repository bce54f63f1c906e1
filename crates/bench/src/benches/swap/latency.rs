//! Latencies in the engine's buckets: four to the octave.

use serde::{Deserialize, Serialize};
use softswap_engine::base::stats::{BUCKETS, bucket_floor, bucket_of};

/// How many there were in each bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
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

    pub(super) fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The middle of the bucket below whose end so large a share of them lies.
    pub(super) fn quantile_us(&self, share: f64) -> f64 {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.0.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return (bucket_floor(index) + bucket_floor(index + 1)) as f64 / 2000.0;
            }
        }
        f64::NAN
    }
}
