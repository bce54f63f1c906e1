//! The rate of write-back from the pool: the age of the oldest pages, the share of evicted pages
//! that is written back, and the share of these that refaults.
//!
//! A page found on the disk would still be in the pool if the pool had held all pages written back
//! since. Only the time of a page's eviction is recorded, but pages have about the same age when
//! they are written back.
//!
//! A page that bypassed a full pool counts as written back, but does not affect the age.

use crate::base::average::follow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Evictions after which the counts are halved.
const HALF_LIFE_PAGES: u64 = 4096;
/// Initial bias: this many pages count as written back and refaulted.
const UNKNOWN_PAGES: u64 = 64;

/// Concurrent updates may be lost.
#[derive(Debug, Default)]
pub struct WriteBackRate {
    /// Average number of evictions before a page's write-back; 0 before the first one.
    age: AtomicU64,
    evicted: AtomicU64,
    written_back: AtomicU64,
    refaulted: AtomicU64,
    bypassed: AtomicU64,
    held: AtomicU64,
}

impl WriteBackRate {
    pub(crate) fn note_evictions(&self, pages: u64) {
        let evicted = self.evicted.fetch_add(pages, Relaxed) + pages;
        if evicted >= 2 * HALF_LIFE_PAGES {
            self.counts().for_each(|count| count.store(count.load(Relaxed) / 2, Relaxed));
        }
    }

    fn counts(&self) -> impl Iterator<Item = &AtomicU64> {
        [&self.evicted, &self.written_back, &self.bypassed, &self.refaulted, &self.held].into_iter()
    }

    pub(crate) fn forget(&self) {
        self.counts().chain([&self.age]).for_each(|count| count.store(0, Relaxed));
    }

    pub fn note_age(&self, distance: u64) {
        match self.age.load(Relaxed) {
            0 => self.age.store(distance, Relaxed),
            _ => follow(&self.age, distance, 64),
        }
    }

    pub(crate) fn age(&self) -> u64 {
        self.age.load(Relaxed)
    }

    pub fn note_write_backs(&self, pages: u64) {
        self.written_back.fetch_add(pages, Relaxed);
    }

    pub(crate) fn note_bypassed(&self) {
        self.bypassed.fetch_add(1, Relaxed);
    }

    fn outgrown(&self) -> u64 {
        self.written_back.load(Relaxed) + self.bypassed.load(Relaxed)
    }

    pub(crate) fn note_held(&self) {
        self.held.fetch_add(1, Relaxed);
    }

    /// Returns the share (0 to 1) of pages that are touched while they are in the pool.
    pub(crate) fn share_held(&self) -> f64 {
        let (held, written_back) = (self.held.load(Relaxed), self.written_back.load(Relaxed));
        (held + UNKNOWN_PAGES) as f64 / (held + written_back + UNKNOWN_PAGES) as f64
    }

    /// Returns the number of additional pages with which the pool would still hold the page.
    pub(crate) fn note_write_back_refault(&self, distance: u64) -> u64 {
        self.note_refault_after(distance.saturating_sub(self.age.load(Relaxed)))
    }

    /// As [`Self::note_write_back_refault`], for a page outside the pool for `since` evictions.
    pub(crate) fn note_refault_after(&self, since: u64) -> u64 {
        self.refaulted.fetch_add(1, Relaxed);
        let evicted = self.evicted.load(Relaxed).max(1);
        since.saturating_mul(self.outgrown().min(evicted)) / evicted
    }

    /// Returns the likelihood (0 to 1) that a page outside the pool refaults without a prefetch.
    pub(crate) fn refault_share(&self) -> f64 {
        let (refaulted, outgrown) = (self.refaulted.load(Relaxed), self.outgrown());
        ((refaulted + UNKNOWN_PAGES) as f64 / (outgrown + UNKNOWN_PAGES) as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn recent_write_back_needs_little_more_memory() {
        let write_back_rate = WriteBackRate::default();
        write_back_rate.note_age(1000);
        write_back_rate.note_evictions(2000);
        write_back_rate.note_write_backs(500);
        assert_eq!(write_back_rate.note_write_back_refault(900), 0);
        assert_eq!(write_back_rate.note_write_back_refault(1000), 0);
        // A quarter of the 400 evictions since then were written back.
        assert_eq!(write_back_rate.note_write_back_refault(1400), 100);
    }

    #[test]
    fn refaults_are_related_to_write_backs() {
        let write_back_rate = WriteBackRate::default();
        assert_eq!(write_back_rate.refault_share(), 1.0, "no page was written back yet");
        write_back_rate.note_write_backs(6400);
        assert!(write_back_rate.refault_share() < 0.011);
        (0..1552).for_each(|_| assert_eq!(write_back_rate.note_write_back_refault(0), 0));
        assert_eq!(write_back_rate.refault_share(), 0.25);
        (0..10_000).for_each(|_| assert_eq!(write_back_rate.note_write_back_refault(0), 0));
        assert_eq!(write_back_rate.refault_share(), 1.0);
        write_back_rate.note_write_backs(100_000);
        write_back_rate.forget();
        assert_eq!(write_back_rate.refault_share(), 1.0);
    }

    #[test]
    fn bypassed_pages_count_as_written_back() {
        let write_back_rate = WriteBackRate::default();
        write_back_rate.note_age(300);
        write_back_rate.note_evictions(1000);
        (0..500).for_each(|_| write_back_rate.note_bypassed());
        // Half of the 400 evictions since then bypassed the pool.
        assert_eq!(write_back_rate.note_refault_after(400), 200);
        assert_eq!(write_back_rate.note_write_back_refault(400), 50);
        assert!(write_back_rate.refault_share() < 0.2);
        assert_eq!(write_back_rate.share_held(), 1.0, "no write-back was recorded");
    }

    #[test]
    fn pool_hits_count_as_held() {
        let write_back_rate = WriteBackRate::default();
        write_back_rate.note_write_backs(6400);
        assert!(write_back_rate.share_held() < 0.02);
        (0..6400).for_each(|_| write_back_rate.note_held());
        assert!((0.49..0.51).contains(&write_back_rate.share_held()));
        write_back_rate.note_evictions(2 * HALF_LIFE_PAGES);
        assert!((0.49..0.51).contains(&write_back_rate.share_held()), "both counts are halved");
    }

    #[test]
    fn old_events_decay() {
        let write_back_rate = WriteBackRate::default();
        write_back_rate.note_age(64);
        (0..100).for_each(|_| {
            write_back_rate.note_evictions(100);
            write_back_rate.note_write_backs(100);
        });
        assert!(write_back_rate.note_write_back_refault(64 + 100) >= 90);
        (0..1000).for_each(|_| write_back_rate.note_evictions(100));
        assert_eq!(
            write_back_rate.note_write_back_refault(64 + 100),
            0,
            "no page is written back any more"
        );
        (0..1000).for_each(|_| write_back_rate.note_age(6400));
        write_back_rate.note_write_backs(100_000);
        assert_eq!(
            write_back_rate.note_write_back_refault(6000),
            0,
            "the page is younger than those written back now"
        );
    }

    proptest! {
        /// Simulates the pool and a larger one as queues.
        #[test]
        fn larger_pool_holds_pages_within_its_growth(
            one_in in 1..=4_u64,
            seed: u64,
        ) {
            const OBJECTS: usize = 500;
            const MORE: usize = 100;
            let write_back_rate = WriteBackRate::default();
            let (mut pool, mut gone) = (VecDeque::new(), VecDeque::new());
            let mut random = seed | 1;
            let (mut right, mut all) = (0, 0);
            for now in 0..40_000_u64 {
                write_back_rate.note_evictions(1);
                // One in `one_in` pages is compressible; the others bypass the pool.
                if now % one_in == 0 {
                    pool.push_back(now);
                }
                if pool.len() > OBJECTS {
                    let oldest = pool.pop_front().unwrap();
                    write_back_rate.note_age(now - oldest);
                    write_back_rate.note_write_backs(1);
                    gone.push_back(oldest);
                    if gone.len() > 4 * MORE {
                        gone.pop_front();
                    }
                }
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                if now > 10_000 && random % 64 == 0 {
                    let at = (random >> 32) as usize % gone.len();
                    let needed = write_back_rate.note_write_back_refault(now - gone[at]);
                    all += 1;
                    let would_stay = gone.len() - at <= MORE;
                    right += u32::from((needed <= MORE as u64) == would_stay);
                }
            }
            prop_assert!(right * 10 >= all * 9, "{} of {}", right, all);
        }
    }
}
