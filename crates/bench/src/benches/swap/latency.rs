//! Latencies in the engine's buckets: four to the octave.

use serde::{Deserialize, Serialize};
use softswap_engine::base::stats::{BUCKETS, bucket_floor, bucket_of};

/// How many there were in each bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Latencies(Vec<u64>);

impl Latencies {
    pub(super) fn new() -> Latencies {
        Latencies(vec![0; BUCKETS])
    }

    pub(super) fn of_counts(counts: Vec<u64>) -> Latencies {
        Latencies(counts)
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

    /// The shares that are over by each bucket's end, from the first that is
    /// not empty to the last.
    pub(super) fn distribution(&self) -> Vec<(f64, f64)> {
        let total = self.count().max(1) as f64;
        let mut seen = 0;
        let mut points = Vec::new();
        for (index, count) in self.0.iter().enumerate() {
            let before = seen;
            seen += count;
            if *count > 0 && before == 0 {
                points.push((bucket_floor(index) as f64 / 1000.0, 0.0));
            }
            if seen > 0 && (before as f64) < total {
                points.push((bucket_floor(index + 1) as f64 / 1000.0, seen as f64 / total));
            }
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_goes_from_none_to_all() {
        let mut latencies = Latencies::new();
        (0..90).for_each(|_| latencies.add(1_000));
        (0..10).for_each(|_| latencies.add(100_000));
        let points = latencies.distribution();
        assert_eq!((points[0].1, points[points.len() - 1].1), (0.0, 1.0));
        assert!(points.windows(2).all(|p| p[0].0 < p[1].0 && p[0].1 <= p[1].1), "{points:?}");
        assert!((0.9..1.2).contains(&latencies.quantile_us(0.5)));
        assert!((90.0..120.0).contains(&latencies.quantile_us(0.95)));
        assert!(Latencies::new().distribution().is_empty());
    }
}
