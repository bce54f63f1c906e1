//! Layout of a request queue in shared memory: the header, the areas, the requests.

use crate::membership::{FREE, OWNER_WORDS};
use softswap_sys::PAGE_SIZE;

/// Identifies the layout; changes with it.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"sswrequ3");
pub(super) const HEADER_WORDS: usize = 8;
/// Number of words of a request before its page numbers.
const FIELD_WORDS: usize = 8;
const TEXT_WORDS: usize = 64;
/// Maximum length of an answer's text in bytes.
pub const TEXT_BYTES: usize = TEXT_WORDS * 8;
/// Maximum number of pages of a request.
pub const MAX_PAGES: usize = 32;

/// Dimensions of a request queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of requests that can be pending at the same time.
    pub requests: usize,
    /// Maximum number of pages of a request, at most [`MAX_PAGES`].
    pub pages: usize,
    /// Number of words of a page.
    pub page_words: usize,
    /// Maximum number of areas.
    pub areas: usize,
}

/// Dimensions of a tree's request queue.
pub const SHAPE: Shape =
    Shape { requests: 64, pages: MAX_PAGES, page_words: PAGE_SIZE / 8, areas: 1024 };

impl Shape {
    /// Returns the number of words of a queue. Only words in use take DRAM.
    #[must_use]
    pub const fn words(self) -> usize {
        self.first_request() + self.requests * self.request_words()
    }

    /// At a page boundary, as the buffers need.
    pub(super) const fn first_request(self) -> usize {
        (HEADER_WORDS + 2 * self.areas).next_multiple_of(self.page_words)
    }

    const fn fields_words(self) -> usize {
        (FIELD_WORDS + 2 * self.pages + TEXT_WORDS).next_multiple_of(self.page_words)
    }

    pub(super) const fn request_words(self) -> usize {
        self.fields_words() + self.pages * self.page_words
    }

    pub(super) const fn request_at(self, request: usize) -> usize {
        self.first_request() + request * self.request_words()
    }

    pub(super) const fn page_number_at(self, request: usize, page: usize) -> usize {
        self.request_at(request) + FIELD_WORDS + 2 * page
    }

    pub(super) const fn text_at(self, request: usize) -> usize {
        self.page_number_at(request, self.pages)
    }

    pub(super) const fn buffer_at(self, request: usize, page: usize) -> usize {
        self.request_at(request) + self.fields_words() + page * self.page_words
    }
}

/// Words of the header, after the magic number.
#[derive(Debug, Clone, Copy)]
pub(super) enum Header {
    Notifications = 1,
    /// Increases when a request becomes free.
    Freed,
    LastArea,
    LimitPages,
    TimeoutNs,
}

/// Words of a request, after its owner.
#[derive(Debug, Clone, Copy)]
pub(super) enum Word {
    /// Operation and number of pages.
    Operation = OWNER_WORDS as isize,
    Area,
    /// Outcome and length of its text in bytes.
    Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Free = FREE as isize,
    /// The client fills the request in.
    Taken,
    Submitted,
    /// The request waits for the server, and no client waits for the answer.
    Posted,
    InService,
    Answered,
    /// The client has timed out. The server frees the request.
    Abandoned,
}

impl State {
    /// Returns `None` for an invalid state, because the word was overwritten.
    pub(super) fn of(state: u8) -> Option<State> {
        use State::*;
        let all = [Free, Taken, Submitted, Posted, InService, Answered, Abandoned];
        all.get(usize::from(state)).copied()
    }
}

pub(super) fn pair(code: u8, count: usize) -> u64 {
    (count as u64) << 8 | u64::from(code)
}

pub(super) fn unpair(word: u64) -> (u8, usize) {
    (word as u8, usize::try_from(word >> 8).unwrap_or(usize::MAX))
}
