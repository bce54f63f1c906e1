//! Measured I/O times, by direction and size.
//!
//! Each processor adds to its own samples, which are merged every 100 ms. A bucket without new
//! samples keeps its statistics. The scheme is that of Linux's block statistics (`blk-stat`).

use crate::base::transfer_size::BUCKETS;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

pub(crate) const INTERVAL_NS: u64 = 100_000_000;
/// Count in the upper 24 bits, sum in ns in the lower 40: one word, so both are consistent.
#[derive(Debug, Default)]
struct Sums {
    count_and_sum: AtomicU64,
    max_ns: AtomicU32,
}

const SUM_BITS: u32 = 40;

#[derive(Debug, Default)]
#[repr(align(128))]
struct CpuSamples {
    buckets: [Sums; BUCKETS],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) mean_ns: u64,
    pub(crate) max_ns: u64,
}

#[derive(Debug, Default)]
struct Merged {
    mean_ns: AtomicU64,
    max_ns: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Samples {
    cpus: Box<[CpuSamples]>,
    merged: [Merged; BUCKETS],
    interval_end_ns: AtomicU64,
}

impl Samples {
    pub(crate) fn new(cpus: usize) -> Samples {
        Samples {
            cpus: (0..cpus.max(1)).map(|_| CpuSamples::default()).collect(),
            merged: Default::default(),
            interval_end_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn record(&self, cpu: usize, bucket: usize, ns: u64, now_ns: u64) {
        let gathered = &self.cpus[cpu % self.cpus.len()].buckets[bucket];
        // Limited, so that sums cannot overflow.
        gathered.count_and_sum.fetch_add(1 << SUM_BITS | ns.min(1_000_000_000), Relaxed);
        gathered.max_ns.fetch_max(u32::try_from(ns).unwrap_or(u32::MAX), Relaxed);
        let end = self.interval_end_ns.load(Relaxed);
        let next = now_ns + INTERVAL_NS;
        // The first sample only starts the first interval.
        if now_ns >= end
            && self.interval_end_ns.compare_exchange(end, next, Relaxed, Relaxed).is_ok()
            && end != 0
        {
            self.merge();
        }
    }

    fn merge(&self) {
        for (bucket, merged) in self.merged.iter().enumerate() {
            let (mut count, mut sum, mut max) = (0, 0, 0);
            for cpu in &self.cpus {
                let gathered = &cpu.buckets[bucket];
                let word = gathered.count_and_sum.swap(0, Relaxed);
                count += word >> SUM_BITS;
                sum += word & ((1 << SUM_BITS) - 1);
                max = max.max(gathered.max_ns.swap(0, Relaxed));
            }
            if let Some(mean_ns) = sum.checked_div(count) {
                merged.mean_ns.store(mean_ns, Relaxed);
                merged.max_ns.store(u64::from(max), Relaxed);
            }
        }
    }

    /// Returns a bucket's statistics; `None` until an interval with samples has ended.
    pub(crate) fn times(&self, bucket: usize) -> Option<Times> {
        let merged = &self.merged[bucket];
        let mean_ns = merged.mean_ns.load(Relaxed);
        (mean_ns > 0).then(|| Times { mean_ns, max_ns: merged.max_ns.load(Relaxed) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn first_use_starts_statistics() {
        let samples = Samples::new(2);
        samples.record(0, 6, 10_000, 1);
        samples.record(1, 6, 20_000, INTERVAL_NS);
        assert_eq!(samples.times(6), None);
        samples.record(0, 6, 30_000, INTERVAL_NS + 1);
        assert_eq!(samples.times(6), Some(Times { mean_ns: 20_000, max_ns: 30_000 }));
        assert_eq!(samples.times(7), None);
    }

    proptest! {
        #[test]
        fn interval_replaces_sampled_buckets_only(
            steps in prop::collection::vec(
                (0..4usize, 0..BUCKETS, 1..5_000_000u64, 0..60_000_000u64), 1..300),
        ) {
            let samples = Samples::new(4);
            let mut gathered: Vec<Vec<u64>> = vec![Vec::new(); BUCKETS];
            let mut expected = [None; BUCKETS];
            let (mut now, mut end) = (1, 0);
            for (cpu, bucket, ns, pause) in steps {
                now += pause;
                samples.record(cpu, bucket, ns, now);
                gathered[bucket].push(ns);
                if now >= end {
                    if end != 0 {
                        for (list, expected) in gathered.iter_mut().zip(&mut expected) {
                            if let Some(max_ns) = list.iter().max().copied() {
                                let mean_ns = list.iter().sum::<u64>() / list.len() as u64;
                                *expected = Some(Times { mean_ns, max_ns });
                                list.clear();
                            }
                        }
                    }
                    end = now + INTERVAL_NS;
                }
                for (bucket, expected) in expected.iter().enumerate() {
                    prop_assert_eq!(samples.times(bucket), *expected);
                }
            }
        }
    }

    #[test]
    fn threads_lose_no_sample() {
        let samples = Samples::new(3);
        samples.record(0, 6, 1000, 1);
        std::thread::scope(|scope| {
            for cpu in 0..4 {
                let samples = &samples;
                scope.spawn(move || (0..10_000).for_each(|_| samples.record(cpu, 6, 1000, 2)));
            }
        });
        samples.record(0, 6, 1000, 2 * INTERVAL_NS);
        assert_eq!(samples.times(6), Some(Times { mean_ns: 1000, max_ns: 1000 }));
    }
}
