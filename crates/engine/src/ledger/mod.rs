//! One budget for a tree of processes: who holds how much of it.
//!
//! `softswap run` makes the ledger in shared memory, and each process of the tree takes a
//! *seat* there. The budget is cut into *steps*, and a table says of each step which seat
//! holds it, if any does. So nothing has to be added up, and no step is ever held twice,
//! whoever is killed in the midst of whatever: a process takes a step by one compare-and-swap
//! of that word, from nobody to itself. What a dead process holds is taken back by whoever
//! comes to look.
//!
//! Who finds nothing free *rings* the seat whose memory is worth least and that has more than
//! its fair share: it is asked to keep fewer steps, and gives back what has left. Worth is
//! what one MiB more would save, as each process publishes it.
//!
//! The limit may be moved: steps beyond it are not to be taken, and who holds some moves to
//! others or gives them back.
//!
//! Any process of the tree may write anything here. What is read is taken for what it may be
//! at most, and a seat that is no longer its process's is told ([`Seat::is_sound`]); then
//! the process does with a fixed share.

mod layout;
mod seat;
mod account;
mod reaping;
mod ringing;
#[cfg(not(feature = "loom"))]
mod obtaining;
#[cfg(all(test, feature = "loom"))]
mod model;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use crate::base::primitive::AtomicU64;
use crate::base::primitive::Ordering::{AcqRel, Acquire, Relaxed, Release};
pub use account::{Counts, Sizes};
use layout::{HEADER_WORDS, Header, MAGIC, SEAT_WORDS, Word};
pub use layout::{SHAPE, Shape};
pub use reaping::{Fate, Tenant};
pub use ringing::Rung;
pub use seat::{Identity, Question, Seat};

/// The shared words.
///
/// ```
/// use softswap_engine::ledger::{Identity, Ledger, SHAPE};
/// use softswap_sys::memory::reserve_u64;
/// let words = reserve_u64(SHAPE.words()).unwrap();
/// let ledger = Ledger::create(words, SHAPE, 1 << 20, 64);
/// let seat = ledger.take_seat(Identity { pid: 7, start: 1, namespace: 2 }).unwrap();
/// assert_eq!((seat.take(40), seat.take(40)), (40, 24));
/// seat.give(10);
/// assert_eq!((seat.held(), ledger.free_steps()), (54, 10));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Ledger {
    words: &'static [AtomicU64],
    shape: Shape,
}

impl Ledger {
    /// A new ledger over words of zero, of `limit` steps of so many bytes.
    ///
    /// # Panics
    /// When there are fewer words than the shape needs.
    #[must_use]
    pub fn create(
        words: &'static [AtomicU64],
        shape: Shape,
        step_bytes: u64,
        limit: usize,
    ) -> Ledger {
        let ledger = Ledger { words: &words[..shape.words()], shape };
        ledger.header(Header::StepBytes).store(step_bytes, Relaxed);
        ledger.set_limit(limit);
        ledger.header(Header::Magic).store(MAGIC, Release);
        ledger
    }

    /// The ledger that another process made; `None` where these words are none.
    #[must_use]
    pub fn open(words: &'static [AtomicU64], shape: Shape) -> Option<Ledger> {
        let ledger = Ledger { words: words.get(..shape.words())?, shape };
        ledger.is_sound().then_some(ledger)
    }

    /// Whether this still looks like a ledger.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.header(Header::Magic).load(Acquire) == MAGIC && self.step_bytes() > 0
    }

    /// Bytes of a step.
    #[must_use]
    pub fn step_bytes(&self) -> u64 {
        self.header(Header::StepBytes).load(Relaxed)
    }

    /// Steps that may be held by all together.
    #[must_use]
    pub fn limit(&self) -> usize {
        (self.header(Header::Limit).load(Acquire) as usize).min(self.shape.steps)
    }

    /// Moves the limit. Who holds steps beyond it is rung.
    pub fn set_limit(&self, limit: usize) {
        let limit = limit.min(self.shape.steps);
        // First: whoever finds the new limit finds all steps that may be held.
        self.header(Header::Extent).fetch_max(limit as u64, AcqRel);
        self.header(Header::Limit).store(limit as u64, Release);
        self.ring_beyond();
        self.note_freed();
    }

    /// Steps that nobody holds.
    #[must_use]
    pub fn free_steps(&self) -> usize {
        self.table()[..self.limit()].iter().filter(|step| step.load(Relaxed) == 0).count()
    }

    /// Rises whenever steps become free: what [`Ledger::await_freed`] is to begin with.
    #[must_use]
    pub fn freed(&self) -> u64 {
        self.header(Header::Freed).load(Acquire)
    }

    /// Sleeps until steps have become free since `seen`, or for `ns`.
    pub fn await_freed(&self, seen: u64, ns: u64) {
        sleep(self.header(Header::Freed), seen, ns);
    }

    fn note_freed(&self) {
        let freed = self.header(Header::Freed);
        freed.fetch_add(1, AcqRel);
        wake(freed);
    }

    fn header(&self, word: Header) -> &'static AtomicU64 {
        &self.words[word as usize]
    }

    fn seat_word(&self, seat: usize, word: Word) -> &'static AtomicU64 {
        &self.words[HEADER_WORDS + seat * SEAT_WORDS + word as usize]
    }

    /// All steps that there may be.
    fn table(&self) -> &'static [AtomicU64] {
        &self.words[HEADER_WORDS + self.shape.seats * SEAT_WORDS..]
    }

    /// The steps that anybody can have taken: those within the largest limit so far.
    fn extent(&self) -> &'static [AtomicU64] {
        let extent = self.header(Header::Extent).load(Acquire) as usize;
        &self.table()[..extent.min(self.shape.steps)]
    }
}

#[cfg(not(feature = "loom"))]
fn sleep(word: &AtomicU64, seen: u64, ns: u64) {
    softswap_sys::futex::wait_shared(word, seen, ns);
}

#[cfg(not(feature = "loom"))]
fn wake(word: &AtomicU64) {
    softswap_sys::futex::wake_shared(word);
}

#[cfg(feature = "loom")]
fn sleep(word: &AtomicU64, seen: u64, _ns: u64) {
    crate::base::primitive::wait(word, seen);
}

#[cfg(feature = "loom")]
fn wake(word: &AtomicU64) {
    crate::base::primitive::wake(word);
}
