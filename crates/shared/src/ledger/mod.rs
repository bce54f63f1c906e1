//! Memory budget of a tree of processes.
//!
//! `softswap run` creates the ledger in shared memory, and each process joins it as a *member*. The
//! budget is divided into *chunks*; a word per chunk identifies the member that holds it. A process
//! takes a chunk by one compare-and-swap, so no chunk is held twice, and no sum can be wrong if a
//! process is killed at any point.
//!
//! The limit can change. Members that hold chunks beyond it move to other chunks or release them.
//!
//! If its entry was overwritten ([`Member::is_sound`]), a process continues with a fixed share.

mod layout;
mod member;
mod account;
mod reap;
mod release;
mod turn;
mod park;
#[cfg(not(feature = "loom"))]
mod obtain;
#[cfg(all(test, feature = "loom"))]
mod model;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
#[cfg(all(test, not(feature = "loom")))]
mod property_tests;

use crate::claims::Claims;
use crate::membership::Membership;
use crate::segment::{Segment, increment_and_wake};
pub use account::{Counts, Sizes};
use layout::{HEADER_WORDS, Header, MAGIC, MEMBER_WORDS, Word};
pub use layout::{SHAPE, Shape, TIERS};
pub use member::{Member, ReleaseTarget};
pub use park::{Eviction, LEASE_MS};
pub use reap::MemberInfo;
pub use release::ReleaseRequest;
use softswap_sys::primitive::Ordering::{AcqRel, Acquire, Relaxed, Release};
use softswap_sys::primitive::{AtomicU64, wait_shared};
pub use turn::Claim;

/// Budget of a tree in shared memory.
///
/// ```
/// use softswap_shared::ledger::{Ledger, SHAPE};
/// use softswap_sys::{memory::reserve_u64, process_identity::ProcessIdentity};
/// let words = reserve_u64(SHAPE.words()).unwrap();
/// let ledger = Ledger::create(words, SHAPE, 1 << 20, 64);
/// let member = ledger.join(ProcessIdentity { pid: 7, start: 1, namespace: 2 }).unwrap();
/// assert_eq!((member.take(40), member.take(40)), (40, 24));
/// member.release(10);
/// assert_eq!((member.held(), ledger.free_chunks()), (54, 10));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Ledger {
    segment: Segment,
    members: Membership,
    shape: Shape,
}

impl Ledger {
    fn of(segment: Segment, shape: Shape) -> Ledger {
        let members = &segment.words()[HEADER_WORDS..shape.first_chunk()];
        Ledger { segment, members: Membership::new(members, shape.members, MEMBER_WORDS), shape }
    }

    /// Creates a ledger of `limit` chunks in zeroed words.
    ///
    /// # Panics
    /// If there are fewer words than the shape needs.
    #[must_use]
    pub fn create(
        words: &'static [AtomicU64],
        shape: Shape,
        chunk_bytes: u64,
        limit: usize,
    ) -> Ledger {
        let ledger = Ledger::of(Segment::create(words, shape.words(), MAGIC), shape);
        ledger.header(Header::ChunkBytes).store(chunk_bytes, Relaxed);
        ledger.set_limit(limit);
        ledger.segment.publish();
        ledger
    }

    /// Opens a ledger that another process created; returns `None` if there is none.
    #[must_use]
    pub fn open(words: &'static [AtomicU64], shape: Shape) -> Option<Ledger> {
        let ledger = Ledger::of(Segment::open(words, shape.words(), MAGIC)?, shape);
        ledger.is_sound().then_some(ledger)
    }

    /// Returns true if the header has not been overwritten.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.segment.is_sound() && self.chunk_bytes() > 0
    }

    /// Returns the size of a chunk in bytes.
    #[must_use]
    pub fn chunk_bytes(&self) -> u64 {
        self.header(Header::ChunkBytes).load(Relaxed)
    }

    /// Returns the maximum number of chunks that all members may hold together.
    #[must_use]
    pub fn limit(&self) -> usize {
        (self.header(Header::Limit).load(Acquire) as usize).min(self.shape.chunks)
    }

    /// Sets the limit, and notifies the members that hold chunks beyond it.
    pub fn set_limit(&self, limit: usize) {
        let limit = limit.min(self.shape.chunks);
        // Raise the extent first: it then covers every chunk below any limit that a process sees.
        self.header(Header::Extent).fetch_max(limit as u64, AcqRel);
        self.header(Header::Limit).store(limit as u64, Release);
        self.notify_excess();
        self.note_release();
    }

    /// Returns the number of free chunks.
    #[must_use]
    pub fn free_chunks(&self) -> usize {
        self.within().count(0)
    }

    /// Returns a count that increases with each release, for [`Ledger::await_release`].
    #[must_use]
    pub fn releases(&self) -> u64 {
        self.header(Header::Releases).load(Acquire)
    }

    /// Waits up to `ns` until the release count differs from `seen`.
    pub fn await_release(&self, seen: u64, ns: u64) {
        wait_shared(self.header(Header::Releases), seen, ns);
    }

    fn note_release(&self) {
        increment_and_wake(self.header(Header::Releases));
    }

    fn header(&self, word: Header) -> &'static AtomicU64 {
        &self.segment.words()[word as usize]
    }

    fn word(&self, entry: usize, word: Word) -> &'static AtomicU64 {
        self.members.word(entry, word as usize)
    }

    /// Returns the chunks that a member can hold: those below the largest limit so far.
    fn chunks(&self) -> Claims {
        let extent = self.header(Header::Extent).load(Acquire) as usize;
        let first = self.shape.first_chunk();
        Claims(&self.segment.words()[first..first + extent.min(self.shape.chunks)])
    }

    fn within(&self) -> Claims {
        Claims(&self.segment.words()[self.shape.first_chunk()..][..self.limit()])
    }

    fn beyond(&self) -> Claims {
        Claims(self.chunks().0.get(self.limit()..).unwrap_or(&[]))
    }
}
