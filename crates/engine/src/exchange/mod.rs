//! How the processes of a tree speak to the one that speaks to the network.
//!
//! `softswap run` makes the exchange in shared memory that every process of the tree inherits: a
//! table of requests, each with room for the pages that it is about. A process takes a free one,
//! fills it in, rings and sleeps until it is answered; the *server*, a helper of the tree's,
//! takes what is asked and answers it.
//!
//! ```text
//! Free -> Taken -> Asked -> InService -> Answered -> Free
//!           |        |          |
//!           |        v          +-> Abandoned -> Free (by the server)
//!           |       Free        |
//!           +-> Posted ---------+
//! ```
//!
//! Each step is one compare-and-swap of a word that also says whose the request is, and in which
//! turn: whoever is killed in the midst is known by it, and an answer that comes late is an
//! answer to nobody. Nobody waits for longer than its deadline. What a server has left
//! unanswered the next one takes up: all that may be asked may be done twice.
//!
//! Any process of the tree may write anything here. So both sides look at a copy of what a
//! request says, and at what it may be at most.

mod layout;
mod serving;
mod asking;
mod reaping;
#[cfg(not(feature = "loom"))]
mod areas;
#[cfg(all(test, feature = "loom"))]
mod model;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use crate::base::primitive::AtomicU64;
use crate::base::primitive::Ordering::{AcqRel, Acquire, Relaxed, Release};
#[cfg(not(feature = "loom"))]
pub use areas::{
    AreaSeat, Areas, DeadArea, MOST_AREA_PAGES, MOST_NUMBER, NoArea, hold_tree, open_inherited,
};
pub use asking::{Asked, Failure};
use layout::{AREA_WORDS, AreaWord, HEADER_WORDS, Header, MAGIC, Word};
pub use layout::{MOST_PAGES, SHAPE, Shape, TEXT_BYTES};
pub use serving::{Job, Outcome};

/// What is asked for.
///
/// ```
/// use softswap_engine::exchange::Operation;
/// assert_ne!(Operation::Read, Operation::Write);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The content of pages.
    Read,
    /// Pages are to be kept.
    Write,
    /// The pages from the first one named to the last one are not needed any more.
    Discard,
}

impl Operation {
    const ALL: [Operation; 3] = [Operation::Read, Operation::Write, Operation::Discard];
}

/// Which page of an area, and how often it has been written.
///
/// ```
/// use softswap_engine::exchange::Page;
/// let page = Page { number: 7, generation: 1 };
/// assert_ne!(page, Page { generation: 2, ..page });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Its number in the area.
    pub number: u64,
    /// Of the content that is asked for, or given.
    pub generation: u64,
}

impl Page {
    /// What lists of pages are filled up by.
    pub(crate) const NONE: Page = Page { number: 0, generation: 0 };
}

/// The shared words.
///
/// ```
/// use softswap_engine::exchange::{Exchange, SHAPE};
/// use softswap_sys::memory::reserve_u64;
/// let words = reserve_u64(SHAPE.words()).unwrap();
/// let exchange = Exchange::create(words, SHAPE, 1 << 18, 5_000_000_000);
/// assert_eq!(exchange.limit_pages(), 1 << 18);
/// assert!(exchange.next_job(0).is_none()); // Nothing is asked.
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    words: &'static [AtomicU64],
    shape: Shape,
}

impl Exchange {
    /// A new exchange over words of zero, for areas that may have `limit_pages` together, in
    /// which a request is waited for so long.
    ///
    /// # Panics
    /// When there are fewer words than the shape needs.
    #[must_use]
    pub fn create(
        words: &'static [AtomicU64],
        shape: Shape,
        limit_pages: u64,
        patience_ns: u64,
    ) -> Exchange {
        let exchange = Exchange { words: &words[..shape.words()], shape };
        exchange.header(Header::LimitPages).store(limit_pages, Relaxed);
        exchange.header(Header::PatienceNs).store(patience_ns, Relaxed);
        exchange.header(Header::Magic).store(MAGIC, Release);
        exchange
    }

    /// The exchange that another process made; `None` where these words are none.
    #[must_use]
    pub fn open(words: &'static [AtomicU64], shape: Shape) -> Option<Exchange> {
        let exchange = Exchange { words: words.get(..shape.words())?, shape };
        exchange.is_sound().then_some(exchange)
    }

    /// Whether this still looks like an exchange.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.header(Header::Magic).load(Acquire) == MAGIC
    }

    /// Pages that all areas may have together.
    #[must_use]
    pub fn limit_pages(&self) -> u64 {
        self.header(Header::LimitPages).load(Relaxed)
    }

    /// How long a request is waited for, in ns: an hour at most.
    #[must_use]
    pub fn patience_ns(&self) -> u64 {
        const MOST_NS: u64 = 3_600_000_000_000;
        self.header(Header::PatienceNs).load(Relaxed).min(MOST_NS)
    }

    fn header(&self, word: Header) -> &'static AtomicU64 {
        &self.words[word as usize]
    }

    fn word(&self, request: usize, word: Word) -> &'static AtomicU64 {
        &self.words[self.shape.request_at(request) + word as usize]
    }

    fn area_word(&self, area: usize, word: AreaWord) -> &'static AtomicU64 {
        &self.words[HEADER_WORDS + area * AREA_WORDS + word as usize]
    }

    /// What a request says of one of its pages.
    fn page(&self, request: usize, at: usize) -> Page {
        let first = self.shape.page_number_at(request, at);
        Page {
            number: self.words[first].load(Relaxed),
            generation: self.words[first + 1].load(Relaxed),
        }
    }

    fn set_page(&self, request: usize, at: usize, page: Page) {
        let first = self.shape.page_number_at(request, at);
        self.words[first].store(page.number, Relaxed);
        self.words[first + 1].store(page.generation, Relaxed);
    }

    /// A page of a request's buffer.
    fn buffer(&self, request: usize, at: usize) -> &'static [AtomicU64] {
        let first = self.shape.buffer_at(request, at);
        &self.words[first..first + self.shape.page_words]
    }

    /// A request has become free.
    fn note_freed(&self) {
        let freed = self.header(Header::Freed);
        freed.fetch_add(1, AcqRel);
        wake(freed);
    }

    /// Something is asked.
    fn ring(&self) {
        let bell = self.header(Header::Bell);
        bell.fetch_add(1, AcqRel);
        wake(bell);
    }
}

/// Copies bytes to shared words. Whoever looks at them meanwhile sees some of both.
fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, bytes) in words.iter().zip(whole) {
        word.store(u64::from_le_bytes(*bytes), Relaxed);
    }
    if !rest.is_empty()
        && let Some(word) = words.get(whole.len())
    {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        word.store(u64::from_le_bytes(last), Relaxed);
    }
}

/// Copies bytes from shared words.
fn load_bytes(words: &[AtomicU64], bytes: &mut [u8]) {
    let (whole, rest) = bytes.as_chunks_mut::<8>();
    for (word, bytes) in words.iter().zip(&mut *whole) {
        *bytes = word.load(Relaxed).to_le_bytes();
    }
    if let Some(word) = words.get(whole.len()) {
        rest.copy_from_slice(&word.load(Relaxed).to_le_bytes()[..rest.len()]);
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
