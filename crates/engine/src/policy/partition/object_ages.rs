//! Age distribution of the pool's objects, found by repeated random samples.

use super::ghost_hits::STEPS;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const EACH_TIME: usize = 16;
const SAMPLES: usize = 128;

#[derive(Debug)]
pub(super) struct Samples {
    distances: [u64; SAMPLES],
    /// From [`SAMPLES`] on, new ones replace the oldest.
    count: usize,
    random: u64,
}

impl Default for Samples {
    fn default() -> Samples {
        Samples { distances: [0; SAMPLES], count: 0, random: 0 }
    }
}

impl Samples {
    pub(super) fn forget(&mut self) {
        self.count = 0;
    }

    /// Takes more samples. `at_random` is that of `Partition::step`.
    pub(super) fn sample(&mut self, at_random: impl Fn(u64) -> Option<u64>) {
        let wanted = EACH_TIME.max(SAMPLES.saturating_sub(self.count));
        let until = self.count + wanted;
        // Not every random number selects an object.
        for _ in 0..4 * wanted {
            if self.count == until {
                break;
            }
            // Multiplier and increment of Knuth's MMIX.
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005);
            self.random = self.random.wrapping_add(1_442_695_040_888_963_407);
            if let Some(distance) = at_random(self.random) {
                self.distances[self.count % SAMPLES] = distance;
                self.count += 1;
            }
        }
    }
}

/// Upper bounds of the ages of 1/16, 2/16 ... of the objects; `u64::MAX` while unknown.
#[derive(Debug)]
pub(super) struct ObjectAges([AtomicU64; STEPS]);

impl Default for ObjectAges {
    fn default() -> ObjectAges {
        ObjectAges([const { AtomicU64::new(u64::MAX) }; STEPS])
    }
}

impl ObjectAges {
    pub(super) fn learn(&self, samples: &Samples) {
        if samples.count < STEPS {
            return;
        }
        let mut sorted = samples.distances;
        let sorted = &mut sorted[..samples.count.min(SAMPLES)];
        sorted.sort_unstable();
        for (at, age) in self.0.iter().enumerate() {
            age.store(sorted[(at + 1) * sorted.len() / STEPS - 1], Relaxed);
        }
    }

    pub(super) fn are_known(&self) -> bool {
        self.0.iter().all(|age| age.load(Relaxed) != u64::MAX)
    }

    pub(super) fn forget(&self) {
        self.0.iter().for_each(|age| age.store(u64::MAX, Relaxed));
    }

    /// Returns the part of `bytes`, the size of all objects, that is younger than `distance`.
    pub(super) fn younger(&self, distance: u64, bytes: usize) -> usize {
        let parts = self.0.iter().take_while(|age| age.load(Relaxed) < distance).count();
        bytes / STEPS * parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn younger_share_is_zero_without_samples() {
        let ages = ObjectAges::default();
        assert_eq!(ages.younger(u64::MAX, 1600), 0);
        let mut samples = Samples::default();
        let few = Cell::new(STEPS - 1);
        samples.sample(|_| few.replace(few.get().saturating_sub(1)).checked_sub(1).map(|_| 10));
        ages.learn(&samples);
        assert!(!ages.are_known());
        assert_eq!(ages.younger(1 << 40, 1600), 0);
        few.set(1);
        samples.sample(|_| few.replace(few.get().saturating_sub(1)).checked_sub(1).map(|_| 10));
        ages.learn(&samples);
        assert!(ages.are_known());
        assert_eq!(ages.younger(11, 1600), 1600);
    }

    #[test]
    fn shares_follow_recent_objects() {
        let (ages, mut samples) = (ObjectAges::default(), Samples::default());
        for oldest in [1 << 20, 1000] {
            for _ in 0..=SAMPLES / EACH_TIME {
                samples.sample(|random| Some((random >> 32) % oldest));
            }
            ages.learn(&samples);
            assert_eq!(ages.younger(0, 1600), 0);
            let half = ages.younger(oldest / 2, 1600);
            assert!((500..=1100).contains(&half), "{half} of 1600 below {oldest} / 2");
            assert_eq!(ages.younger(oldest, 1600), 1600);
        }
        ages.forget();
        assert_eq!(ages.younger(u64::MAX, 1600), 0);
    }

    #[test]
    fn missing_objects_are_resampled() {
        let mut samples = Samples::default();
        samples.sample(|random| (random >> 60 == 0).then_some(1));
        assert!((1..SAMPLES).contains(&samples.count), "{}", samples.count);
        samples.sample(|random| (random >> 63 == 0).then_some(1));
        assert_eq!(samples.count, SAMPLES);
        samples.sample(|random| (random >> 63 == 0).then_some(1));
        assert_eq!(samples.count, SAMPLES + EACH_TIME);
    }
}
