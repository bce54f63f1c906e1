//! Request queue between the processes of a tree and `softswap-remote`.
//!
//! `softswap run` creates the queue in shared memory: a table of requests, each with buffers for
//! its pages. A client takes a free request, fills it in, submits it and sleeps until the server
//! has answered it.
//!
//! ```text
//! Free -> Taken -> Submitted -> InService -> Answered -> Free
//!           |        |            |
//!           |        v            +-> Abandoned -> Free (by the server)
//!           |       Free          |
//!           +-> Posted -----------+
//! ```
//!
//! Each transition is one compare-and-swap of a word with the state, the owner and a generation. So
//! requests of killed clients are reaped, and a late answer is dropped. Every wait has a timeout. A
//! new server repeats the requests that its predecessor did not answer, so an operation may be
//! executed twice.
//!
//! Any process of the tree may write anything to this memory, so both sides copy a request and
//! check the copy.

mod layout;
mod server;
mod client;
#[cfg(not(feature = "loom"))]
mod areas;
#[cfg(all(test, feature = "loom"))]
mod model;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use crate::membership::Membership;
use crate::segment::{Segment, increment_and_wake};
#[cfg(not(feature = "loom"))]
pub use areas::{
    AreaEntry, MAX_AREA_PAGES, MAX_NUMBER, NoArea, RemoteArea, RemoteAreas, hold_tree,
    open_inherited,
};
pub use client::{Failure, PendingRequest};
use layout::{Header, MAGIC, Word};
pub use layout::{MAX_PAGES, SHAPE, Shape, TEXT_BYTES};
pub use server::{Job, Outcome};
use softswap_sys::primitive::AtomicU64;
use softswap_sys::primitive::Ordering::Relaxed;

/// Operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Read the pages.
    Read,
    /// Store the pages.
    Write,
    /// Discard the pages from the first listed one to the last one.
    Discard,
}

/// A page of an area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Page {
    /// Number in the area.
    pub number: u64,
    /// Number of the write that stored the content to read, or that stores this content.
    pub generation: u64,
}

/// Request queue in shared memory.
///
/// ```
/// use softswap_shared::request_queue::{RequestQueue, SHAPE};
/// use softswap_sys::memory::reserve_u64;
/// let words = reserve_u64(SHAPE.words()).unwrap();
/// let queue = RequestQueue::create(words, SHAPE, 1 << 18, 5_000_000_000);
/// assert_eq!(queue.limit_pages(), 1 << 18);
/// assert!(queue.next_job(0).is_none());
/// ```
#[derive(Debug, Clone, Copy)]
pub struct RequestQueue {
    segment: Segment,
    requests: Membership,
    shape: Shape,
}

impl RequestQueue {
    fn of(segment: Segment, shape: Shape) -> RequestQueue {
        let words = &segment.words()[shape.first_request()..];
        let requests = Membership::new(words, shape.requests, shape.request_words());
        RequestQueue { segment, requests, shape }
    }

    /// Creates a queue in zeroed words.
    ///
    /// # Panics
    /// If there are fewer words than the shape needs.
    #[must_use]
    pub fn create(
        words: &'static [AtomicU64],
        shape: Shape,
        limit_pages: u64,
        timeout_ns: u64,
    ) -> RequestQueue {
        let queue = RequestQueue::of(Segment::create(words, shape.words(), MAGIC), shape);
        queue.header(Header::LimitPages).store(limit_pages, Relaxed);
        queue.header(Header::TimeoutNs).store(timeout_ns, Relaxed);
        queue.segment.publish();
        queue
    }

    /// Opens a queue that another process has created. Returns `None` if the words contain none.
    #[must_use]
    pub fn open(words: &'static [AtomicU64], shape: Shape) -> Option<RequestQueue> {
        Some(RequestQueue::of(Segment::open(words, shape.words(), MAGIC)?, shape))
    }

    /// Returns the maximum number of pages of all areas together.
    #[must_use]
    pub fn limit_pages(&self) -> u64 {
        self.header(Header::LimitPages).load(Relaxed)
    }

    /// Returns the timeout of a request in ns, at most an hour.
    #[must_use]
    pub fn timeout_ns(&self) -> u64 {
        const MAX_NS: u64 = 3_600_000_000_000;
        self.header(Header::TimeoutNs).load(Relaxed).min(MAX_NS)
    }

    fn header(&self, word: Header) -> &'static AtomicU64 {
        &self.segment.words()[word as usize]
    }

    fn word(&self, request: usize, word: Word) -> &'static AtomicU64 {
        self.requests.word(request, word as usize)
    }

    fn page(&self, request: usize, at: usize) -> [&'static AtomicU64; 2] {
        let first = self.shape.page_number_at(request, at);
        [0, 1].map(|word| &self.segment.words()[first + word])
    }

    fn set_page(&self, request: usize, at: usize, page: Page) {
        let [number, generation] = self.page(request, at);
        number.store(page.number, Relaxed);
        generation.store(page.generation, Relaxed);
    }

    fn buffer(&self, request: usize, at: usize) -> &'static [AtomicU64] {
        &self.segment.words()[self.shape.buffer_at(request, at)..][..self.shape.page_words]
    }

    fn text(&self, request: usize) -> &'static [AtomicU64] {
        &self.segment.words()[self.shape.text_at(request)..][..TEXT_BYTES / 8]
    }

    /// Wakes the server.
    pub fn notify_server(&self) {
        increment_and_wake(self.header(Header::Notifications));
    }
}

/// Copies bytes to shared words. A concurrent reader may see only a part of the new bytes.
fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    for (word, bytes) in words.iter().zip(bytes.chunks(8)) {
        let mut value = [0; 8];
        value[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(value), Relaxed);
    }
}

fn load_bytes(words: &[AtomicU64], bytes: &mut [u8]) {
    for (word, bytes) in words.iter().zip(bytes.chunks_mut(8)) {
        bytes.copy_from_slice(&word.load(Relaxed).to_le_bytes()[..bytes.len()]);
    }
}
