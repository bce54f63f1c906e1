//! Counters and sizes that members publish for reports.

use super::Ledger;
use super::layout::{COUNTS, SIZES, TIERS, Word};
use super::member::Member;
use softswap_sys::primitive::Ordering::Relaxed;

/// Counters of events of a process since its start.
///
/// ```
/// use softswap_shared::ledger::Counts;
/// let counts = Counts { faults: [9, 0, 0, 0, 5, 2], ..Counts::default() };
/// assert_eq!(counts.returns(), 7);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Faults by tier; the first one counts pages that were never touched before.
    pub faults: [u64; TIERS],
    /// Time that threads waited for faults, summed over all threads, in ns.
    pub stalled_ns: u64,
    /// Bytes read from the swap areas.
    pub bytes_read: u64,
    /// Bytes written to the swap areas.
    pub bytes_written: u64,
}

/// Memory of a process in bytes; 0 if it publishes nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Resident pages.
    pub resident_bytes: u64,
    /// Compressed pool.
    pub pool_bytes: u64,
    /// Used swap slots.
    pub disk_bytes: u64,
    /// Tables of pages, at their peak.
    pub tables_bytes: u64,
    /// The largest block that was allocated.
    pub largest_block_bytes: u64,
}

impl Sizes {
    /// Returns the memory in use, resident and evicted.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        // Any process of the tree may have written the sizes, so the sum may overflow.
        let sizes = [self.resident_bytes, self.pool_bytes, self.disk_bytes];
        sizes.into_iter().fold(0, u64::saturating_add)
    }
}

impl Counts {
    /// Returns the number of faults on evicted pages.
    #[must_use]
    pub fn returns(&self) -> u64 {
        self.faults[1..].iter().fold(0, |sum, faults| sum.saturating_add(*faults))
    }

    /// Returns the difference to `before`; `self` if `before` is larger, so of another program.
    ///
    /// ```
    /// use softswap_shared::ledger::Counts;
    /// let at = |bytes_read| Counts { bytes_read, ..Counts::default() };
    /// assert_eq!(at(9).since(&at(4)), at(5));
    /// assert_eq!(at(3).since(&at(4)), at(3));
    /// ```
    #[must_use]
    pub fn since(&self, before: &Counts) -> Counts {
        let is_larger = |(now, before): (u64, u64)| before > now;
        match self.words().into_iter().zip(before.words()).any(is_larger) {
            true => *self,
            false => self.with(before, |now, before| now - before),
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn and(&self, other: &Counts) -> Counts {
        self.with(other, u64::saturating_add)
    }

    /// Returns the maximum of each count.
    #[must_use]
    pub fn max_of_each(&self, other: &Counts) -> Counts {
        self.with(other, u64::max)
    }

    fn with(&self, other: &Counts, of: impl Fn(u64, u64) -> u64) -> Counts {
        let (words, others) = (self.words(), other.words());
        Counts::of(std::array::from_fn(|at| of(words[at], others[at])))
    }

    fn words(&self) -> [u64; COUNTS] {
        let [a, b, c, d, e, f] = self.faults;
        [a, b, c, d, e, f, self.stalled_ns, self.bytes_read, self.bytes_written]
    }

    fn of([faults @ .., stalled_ns, bytes_read, bytes_written]: [u64; COUNTS]) -> Counts {
        Counts { faults, stalled_ns, bytes_read, bytes_written }
    }
}

impl Sizes {
    /// Returns the sum of both.
    #[must_use]
    pub fn and(&self, other: &Sizes) -> Sizes {
        let (words, others) = (self.words(), other.words());
        Sizes::of(std::array::from_fn(|at| words[at].saturating_add(others[at])))
    }

    fn words(&self) -> [u64; SIZES] {
        let Sizes { resident_bytes, pool_bytes, disk_bytes, tables_bytes, largest_block_bytes } =
            *self;
        [resident_bytes, pool_bytes, disk_bytes, tables_bytes, largest_block_bytes]
    }

    fn of(words: [u64; SIZES]) -> Sizes {
        let [resident_bytes, pool_bytes, disk_bytes, tables_bytes, largest_block_bytes] = words;
        Sizes { resident_bytes, pool_bytes, disk_bytes, tables_bytes, largest_block_bytes }
    }
}

impl Member {
    /// Publishes the counters of events.
    pub fn publish_counts(&self, counts: &Counts) {
        self.store(Word::Counts, counts.words());
    }

    /// Publishes the memory in use.
    pub fn publish_sizes(&self, sizes: &Sizes) {
        self.store(Word::Sizes, sizes.words());
    }

    /// Publishes the kernel's name of the process.
    pub fn publish_name(&self, name: [u8; 16]) {
        let (words, _) = name.as_chunks::<8>();
        self.store(Word::Name, [words[0], words[1]].map(u64::from_le_bytes));
    }

    fn store<const N: usize>(&self, first: Word, words: [u64; N]) {
        for (at, word) in words.into_iter().enumerate() {
            self.ledger.members.word(self.entry, first as usize + at).store(word, Relaxed);
        }
    }
}

impl Ledger {
    pub(super) fn counts(&self, entry: usize) -> Counts {
        Counts::of(self.load(entry, Word::Counts))
    }

    pub(super) fn sizes(&self, entry: usize) -> Sizes {
        Sizes::of(self.load(entry, Word::Sizes))
    }

    pub(super) fn name(&self, entry: usize) -> [u8; 16] {
        let words: [u64; 2] = self.load(entry, Word::Name);
        let mut name = [0; 16];
        name[..8].copy_from_slice(&words[0].to_le_bytes());
        name[8..].copy_from_slice(&words[1].to_le_bytes());
        name
    }

    fn load<const N: usize>(&self, entry: usize, first: Word) -> [u64; N] {
        std::array::from_fn(|at| self.members.word(entry, first as usize + at).load(Relaxed))
    }
}
