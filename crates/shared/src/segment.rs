//! Shared words that begin with a magic number.

use softswap_sys::primitive::Ordering::{AcqRel, Acquire, Release};
use softswap_sys::primitive::{AtomicU64, wake_shared};

pub(crate) fn increment_and_wake(count: &AtomicU64) {
    count.fetch_add(1, AcqRel);
    wake_shared(count);
}

/// Shared words; the first one holds the magic number, which identifies the version of the layout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    words: &'static [AtomicU64],
    magic: u64,
}

impl Segment {
    /// Takes the first `len` words, which are 0. [`Segment::publish`] ends their initialization.
    pub(crate) fn create(words: &'static [AtomicU64], len: usize, magic: u64) -> Segment {
        Segment { words: &words[..len], magic }
    }

    /// Makes the initialized words visible to [`Segment::open`].
    pub(crate) fn publish(self) {
        self.words[0].store(self.magic, Release);
    }

    /// Returns `None` if there are too few words, or if they have another magic number.
    pub(crate) fn open(words: &'static [AtomicU64], len: usize, magic: u64) -> Option<Segment> {
        let segment = Segment { words: words.get(..len)?, magic };
        segment.is_sound().then_some(segment)
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.words[0].load(Acquire) == self.magic
    }

    pub(crate) fn words(&self) -> &'static [AtomicU64] {
        self.words
    }
}
