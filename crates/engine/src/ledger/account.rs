//! What a process says for reports: what it has done, and what it has.

use super::Ledger;
use super::layout::Word;
use super::seat::Seat;
use crate::base::primitive::Ordering::Relaxed;
#[cfg(not(feature = "loom"))]
use crate::base::stats;

/// As many as [`crate::base::stats::TIERS`].
const TIERS: usize = 6;
#[cfg(not(feature = "loom"))]
const _: () = assert!(TIERS == stats::TIERS.len() && stats::Tier::Zero as usize == 0);

/// What a process has done since its start.
///
/// ```
/// use softswap_engine::ledger::Counts;
/// let counts = Counts { faults: [9, 0, 0, 0, 5, 2], ..Counts::default() };
/// assert_eq!(counts.returns(), 7);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Faults by tier, in the order of [`crate::base::stats::TIERS`].
    pub faults: [u64; TIERS],
    /// For how long threads waited for them, over all threads.
    pub stalled_ns: u64,
    /// From the swap areas.
    pub bytes_read: u64,
    /// To them.
    pub bytes_written: u64,
}

/// What a process has now, in bytes. All 0 where it says nothing.
///
/// ```
/// assert_eq!(softswap_engine::ledger::Sizes::default().disk_bytes, 0);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Resident pages.
    pub resident_bytes: u64,
    /// Whole slabs of the compressed pool.
    pub pool_bytes: u64,
    /// Swap slots.
    pub disk_bytes: u64,
}

impl Counts {
    /// Faults that brought something back: all but those on pages never touched before.
    #[must_use]
    pub fn returns(&self) -> u64 {
        let [_zero, back @ ..] = &self.faults;
        // Any process of the tree may have written them.
        back.iter().fold(0, |sum, faults| sum.saturating_add(*faults))
    }

    /// What has been counted since `before`; all of it where that is another program's, which
    /// had done more.
    ///
    /// ```
    /// use softswap_engine::ledger::Counts;
    /// let at = |bytes_read| Counts { bytes_read, ..Counts::default() };
    /// assert_eq!(at(9).since(&at(4)), at(5));
    /// assert_eq!(at(3).since(&at(4)), at(3));
    /// ```
    #[must_use]
    pub fn since(&self, before: &Counts) -> Counts {
        let pairs = || self.words().into_iter().zip(before.words());
        let is_anothers = pairs().any(|(now, before)| now < before);
        if is_anothers { *self } else { self.with(before, |now, before| now - before) }
    }

    /// Both together.
    #[must_use]
    pub fn and(&self, other: &Counts) -> Counts {
        self.with(other, u64::saturating_add)
    }

    /// Of each figure the larger.
    #[must_use]
    pub fn at_least(&self, other: &Counts) -> Counts {
        self.with(other, u64::max)
    }

    fn with(&self, other: &Counts, of: impl Fn(u64, u64) -> u64) -> Counts {
        let others = other.words();
        let words = self.words();
        Counts::of(std::array::from_fn(|at| of(words[at], others[at])))
    }

    fn words(&self) -> [u64; Word::COUNTS.len()] {
        let [zero, staged, standby, filled, pool, disk] = self.faults;
        let Counts { stalled_ns, bytes_read, bytes_written, .. } = *self;
        [zero, staged, standby, filled, pool, disk, stalled_ns, bytes_read, bytes_written]
    }

    fn of(words: [u64; Word::COUNTS.len()]) -> Counts {
        let [faults @ .., stalled_ns, bytes_read, bytes_written] = words;
        Counts { faults, stalled_ns, bytes_read, bytes_written }
    }
}

impl Sizes {
    /// Both together.
    #[must_use]
    pub fn and(&self, other: &Sizes) -> Sizes {
        Sizes {
            resident_bytes: self.resident_bytes.saturating_add(other.resident_bytes),
            pool_bytes: self.pool_bytes.saturating_add(other.pool_bytes),
            disk_bytes: self.disk_bytes.saturating_add(other.disk_bytes),
        }
    }
}

impl Seat {
    /// Says what it has done so far.
    pub fn publish_counts(&self, counts: &Counts) {
        self.store(Word::COUNTS, counts.words());
    }

    /// Says what it has now.
    pub fn publish_sizes(&self, sizes: &Sizes) {
        let Sizes { resident_bytes, pool_bytes, disk_bytes } = *sizes;
        self.store(Word::SIZES, [resident_bytes, pool_bytes, disk_bytes]);
    }

    fn store<const N: usize>(&self, places: [Word; N], words: [u64; N]) {
        for (place, word) in places.into_iter().zip(words) {
            self.ledger.seat_word(self.at, place).store(word, Relaxed);
        }
    }
}

impl Ledger {
    /// What the tenant of a seat has last said that it has done, and has.
    pub(super) fn account(&self, at: usize) -> (Counts, Sizes) {
        let load = |word| self.seat_word(at, word).load(Relaxed);
        let [resident_bytes, pool_bytes, disk_bytes] = Word::SIZES.map(load);
        (Counts::of(Word::COUNTS.map(load)), Sizes { resident_bytes, pool_bytes, disk_bytes })
    }
}
