//! Where what lies in the shared words.

use softswap_sys::PAGE_SIZE;
use softswap_sys::birth::NAMESPACE_BITS;

/// What an exchange begins with: another layout has another one.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"sswexch2");
pub(super) const HEADER_WORDS: usize = 8;
pub(super) const AREA_WORDS: usize = 2;
/// Words before a request's page numbers, and of its text.
const FIELD_WORDS: usize = 8;
const TEXT_WORDS: usize = 64;
/// The longest text of an answer, in bytes.
pub const TEXT_BYTES: usize = TEXT_WORDS * 8;
/// The most pages of a request.
pub const MOST_PAGES: usize = 32;

/// How many requests and areas there are.
///
/// ```
/// use softswap_engine::exchange::SHAPE;
/// assert!(SHAPE.words() * 8 < 9 << 20);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Requests under way at once, at most.
    pub requests: usize,
    /// Pages of a request, at most: no more than [`MOST_PAGES`].
    pub pages: usize,
    /// Words of a page.
    pub page_words: usize,
    /// Areas at the same time, at most.
    pub areas: usize,
}

/// The shape of a tree's exchange.
pub const SHAPE: Shape =
    Shape { requests: 64, pages: MOST_PAGES, page_words: PAGE_SIZE / 8, areas: 1024 };

impl Shape {
    /// Words that an exchange of this shape takes. DRAM is taken by what is used of them.
    #[must_use]
    pub const fn words(self) -> usize {
        self.first_request() + self.requests * self.request_words()
    }

    /// Buffers begin at pages of their own.
    const fn first_request(self) -> usize {
        (HEADER_WORDS + self.areas * AREA_WORDS).next_multiple_of(self.page_words)
    }

    const fn fields_words(self) -> usize {
        (FIELD_WORDS + 2 * self.pages + TEXT_WORDS).next_multiple_of(self.page_words)
    }

    const fn request_words(self) -> usize {
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

/// Words of the header.
#[derive(Debug, Clone, Copy)]
pub(super) enum Header {
    Magic,
    /// Rises when something is asked.
    Bell,
    /// Rises when a request becomes free.
    Freed,
    /// The number of the last area.
    LastArea,
    /// Pages that all areas may have together.
    LimitPages,
    /// How long a request is waited for, in ns.
    PatienceNs,
}

/// Words of a request, in front of its page numbers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Word {
    /// How far it is, and whose ([`Status`]).
    Status,
    /// When its owner began, and the turn for which that holds: told after it was taken, so
    /// that one of another turn is not known yet.
    Start,
    /// What is to be done: the operation, and above it how many pages.
    What,
    Area,
    /// What came of it, and above that how many bytes of text.
    Outcome,
}

/// Words of an area's entry.
#[derive(Debug, Clone, Copy)]
pub(super) enum AreaWord {
    /// Its number; 0: there is none.
    Number,
    /// Pages that it has claimed.
    Pages,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// Its owner fills it in.
    Taken,
    /// It waits for the server.
    Asked,
    /// As asked, but nobody waits for the answer.
    Posted,
    InService,
    /// It waits for its owner.
    Answered,
    /// Its owner waits no longer; the server may still write to it, and frees it then.
    Abandoned,
}

impl State {
    const ALL: [State; 7] = [
        State::Free,
        State::Taken,
        State::Asked,
        State::Posted,
        State::InService,
        State::Answered,
        State::Abandoned,
    ];
}

const STATE_BITS: u32 = 3;
/// The kernel's largest number of a process has as many.
const PID_BITS: u32 = 22;
/// So many bits are left for turns.
const TURN_BITS: u32 = 64 - STATE_BITS - PID_BITS - NAMESPACE_BITS;

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// How far a request is and whose it is, in one word: so its owner is never half known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) state: State,
    pub(super) pid: u32,
    pub(super) namespace: u32,
    /// Rises each time the request is taken: what is late is no answer to the next one.
    pub(super) turn: u32,
}

impl Status {
    /// `None` where the word is none: somebody has overwritten it.
    pub(super) fn of(word: u64) -> Option<Status> {
        let state = *State::ALL.get((word & mask(STATE_BITS)) as usize)?;
        let rest = word >> STATE_BITS;
        Some(Status {
            state,
            pid: (rest & mask(PID_BITS)) as u32,
            namespace: (rest >> PID_BITS & mask(NAMESPACE_BITS)) as u32,
            turn: turn_of(word),
        })
    }

    pub(super) fn word(self) -> u64 {
        let Status { state, pid, namespace, turn } = self;
        let above = u64::from(turn) << NAMESPACE_BITS | u64::from(namespace) & mask(NAMESPACE_BITS);
        (above << PID_BITS | u64::from(pid) & mask(PID_BITS)) << STATE_BITS | state as u64
    }

    /// The same, but so far.
    pub(super) fn to(self, state: State) -> Status {
        Status { state, ..self }
    }

    /// What is left of it when it is free.
    pub(super) fn freed(turn: u32) -> Status {
        Status { state: State::Free, pid: 0, namespace: 0, turn }
    }

    /// The turn after this one.
    pub(super) fn next_turn(self) -> u32 {
        ((u64::from(self.turn) + 1) & mask(TURN_BITS)) as u32
    }
}

/// The turn that a status word says, whatever else it says.
pub(super) fn turn_of(word: u64) -> u32 {
    (word >> (64 - TURN_BITS)) as u32
}

const START_BITS: u32 = 64 - TURN_BITS;

pub(super) fn started(turn: u32, start: u64) -> u64 {
    u64::from(turn) << START_BITS | start & mask(START_BITS)
}

/// When a request's owner began, if the word is of that turn.
pub(super) fn start_of(turn: u32, word: u64) -> Option<u64> {
    (turn_of(word) == turn).then_some(word & mask(START_BITS))
}

/// A number of pages beside a small one, in a word.
pub(super) fn pair(low: u8, count: usize) -> u64 {
    (count as u64) << 8 | u64::from(low)
}

pub(super) fn unpair(word: u64) -> (u8, usize) {
    (word as u8, usize::try_from(word >> 8).unwrap_or(usize::MAX))
}
