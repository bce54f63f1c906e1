//! The server's side: what is asked is taken up, and answered. There is one server at a time.

use super::layout::{Header, State, Status, Word, pair, unpair};
use super::{Exchange, MOST_PAGES, Operation, Page, TEXT_BYTES, load_bytes, store_bytes};
use crate::base::primitive::Ordering::{AcqRel, Acquire, Relaxed};

/// What came of a request.
///
/// ```
/// use softswap_engine::exchange::Outcome;
/// assert_ne!(Outcome::Full("here".into()), Outcome::Done);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// There is no room: where.
    Full(String),
    /// A page cannot be had any more: which, and where it was looked for.
    Lost(String),
    /// It could not be done: why.
    Failed(String),
}

/// How an outcome is written down. 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutcomeCode {
    Done = 1,
    Full,
    Lost,
    Failed,
}

impl OutcomeCode {
    pub(super) fn of(code: u8) -> Option<OutcomeCode> {
        let all = [Self::Done, Self::Full, Self::Lost, Self::Failed];
        all.into_iter().find(|it| *it as u8 == code)
    }
}

impl Outcome {
    fn parts(&self) -> (OutcomeCode, &str) {
        match self {
            Outcome::Done => (OutcomeCode::Done, ""),
            Outcome::Full(text) => (OutcomeCode::Full, text),
            Outcome::Lost(text) => (OutcomeCode::Lost, text),
            Outcome::Failed(text) => (OutcomeCode::Failed, text),
        }
    }
}

/// What is asked: a copy, which nobody changes any more.
///
/// ```
/// use softswap_engine::exchange::{Exchange, SHAPE};
/// let words = softswap_sys::memory::reserve_u64(SHAPE.words()).unwrap();
/// let exchange = Exchange::create(words, SHAPE, 1 << 18, 5_000_000_000);
/// assert!(exchange.next_job(0).is_none());
/// ```
#[derive(Debug)]
pub struct Job {
    at: usize,
    /// As it is while it is in service.
    status: Status,
    /// What is to be done.
    pub operation: Operation,
    /// In which area.
    pub area: u64,
    /// With which pages, one at least.
    pub pages: Vec<Page>,
    /// What they are to hold, one after the other, where it is a write.
    pub content: Vec<u8>,
}

impl Job {
    /// The number of its request.
    #[must_use]
    pub fn request(&self) -> usize {
        self.at
    }
}

impl Exchange {
    /// To be called by a server before anything else: takes up what the one before it has left.
    pub fn begin_service(&self) {
        for at in 0..self.shape.requests {
            let word = self.word(at, Word::Status);
            let seen = word.load(Acquire);
            match Status::of(seen) {
                Some(status) if status.state == State::InService => {
                    // Its owner may withdraw it at this moment: then it is abandoned.
                    let again = status.to(State::Asked).word();
                    if word.compare_exchange(seen, again, AcqRel, Relaxed).is_err() {
                        self.free_abandoned(at, status);
                    }
                }
                Some(status) => self.free_abandoned(at, status),
                None => {}
            }
        }
    }

    /// Something that is asked, from a request on, which is then in service. What makes no
    /// sense is refused.
    pub fn next_job(&self, from: usize) -> Option<Job> {
        let count = self.shape.requests;
        (0..count).map(|step| (from + step) % count).find_map(|at| self.take_up(at))
    }

    fn take_up(&self, at: usize) -> Option<Job> {
        let word = self.word(at, Word::Status);
        let seen = word.load(Acquire);
        let status = Status::of(seen)?;
        // Nobody waits for what is posted: as if it had been abandoned.
        let in_service = match status.state {
            State::Asked => State::InService,
            State::Posted => State::Abandoned,
            _ => return None,
        };
        let (operation, count) = unpair(self.word(at, Word::What).load(Relaxed));
        let operation = Operation::ALL.get(usize::from(operation)).copied();
        let is_sound =
            operation.is_some() && (1..=self.shape.pages.min(MOST_PAGES)).contains(&count);
        let count = if is_sound { count } else { 0 };
        let operation = operation.unwrap_or(Operation::Read);
        let mut pages = vec![Page::NONE; count];
        for (index, page) in pages.iter_mut().enumerate() {
            *page = self.page(at, index);
        }
        let mut content = Vec::new();
        if operation == Operation::Write {
            let page_bytes = self.shape.page_words * 8;
            content.resize(count * page_bytes, 0);
            for (index, bytes) in content.chunks_exact_mut(page_bytes).enumerate() {
                load_bytes(self.buffer(at, index), bytes);
            }
        }
        let area = self.word(at, Word::Area).load(Relaxed);
        // Only now: had it been withdrawn meanwhile, what was copied would be something else.
        let status = status.to(in_service);
        word.compare_exchange(seen, status.word(), AcqRel, Relaxed).ok()?;
        let job = Job { at, status, operation, area, pages, content };
        if !is_sound {
            self.answer(&job, &Outcome::Failed("the request makes no sense".into()), &[]);
            return None;
        }
        Some(job)
    }

    /// Answers a job; `content`: what its pages hold, one after the other, where it was a read
    /// that is done. Whether anybody still waits for that.
    pub fn answer(&self, job: &Job, outcome: &Outcome, content: &[u8]) -> bool {
        let (at, word) = (job.at, self.word(job.at, Word::Status));
        for (index, bytes) in content.chunks(self.shape.page_words * 8).enumerate() {
            if index < job.pages.len() {
                store_bytes(self.buffer(at, index), bytes);
            }
        }
        let (code, text) = outcome.parts();
        let text = &text.as_bytes()[..text.len().min(TEXT_BYTES)];
        let first = self.shape.text_at(at);
        store_bytes(&self.words[first..first + TEXT_BYTES / 8], text);
        self.word(at, Word::Outcome).store(pair(code as u8, text.len()), Relaxed);
        let answered = job.status.to(State::Answered).word();
        let is_awaited = job.status.state == State::InService;
        if is_awaited && word.compare_exchange(job.status.word(), answered, AcqRel, Relaxed).is_ok()
        {
            super::wake(word);
            return true;
        }
        self.free_abandoned(at, job.status);
        false
    }

    /// Frees a request of which nobody waits for the answer.
    fn free_abandoned(&self, at: usize, status: Status) {
        let abandoned = status.to(State::Abandoned).word();
        let free = Status::freed(status.turn).word();
        let word = self.word(at, Word::Status);
        if word.compare_exchange(abandoned, free, AcqRel, Relaxed).is_ok() {
            self.note_freed();
        }
    }

    /// Rises whenever something is asked: what [`Exchange::await_bell`] is to begin with.
    #[must_use]
    pub fn bell(&self) -> u64 {
        self.header(Header::Bell).load(Acquire)
    }

    /// Sleeps until something is asked since `seen`, or for `ns`.
    pub fn await_bell(&self, seen: u64, ns: u64) {
        super::sleep(self.header(Header::Bell), seen, ns);
    }

    /// Wakes who sleeps in [`Exchange::await_bell`].
    pub fn wake_server(&self) {
        self.ring();
    }
}
