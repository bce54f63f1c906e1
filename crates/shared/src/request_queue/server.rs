//! The server's side: claims requests and answers them. There is one server at a time.

use super::layout::{Header, State, Word, pair, unpair};
use super::{MAX_PAGES, Operation, Page, RequestQueue, TEXT_BYTES, load_bytes, store_bytes};
use crate::membership::Owner;
use crate::segment::increment_and_wake;
use softswap_sys::primitive::Ordering::{Acquire, Relaxed};
use softswap_sys::primitive::{wait_shared, wake_shared};
use softswap_sys::process_identity::{Liveness, ProcessIdentity};

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The request was executed.
    Done,
    /// The servers have no free space; the text describes where.
    Full(String),
    /// A page is lost; the text names it and where it was stored.
    Lost(String),
    /// The operation failed; the text states the reason.
    Failed(String),
}

/// Outcome in shared memory; 0 means none.
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
    fn code(&self) -> OutcomeCode {
        match self {
            Outcome::Done => OutcomeCode::Done,
            Outcome::Full(_) => OutcomeCode::Full,
            Outcome::Lost(_) => OutcomeCode::Lost,
            Outcome::Failed(_) => OutcomeCode::Failed,
        }
    }

    fn text(&self) -> &str {
        match self {
            Outcome::Done => "",
            Outcome::Full(text) | Outcome::Lost(text) | Outcome::Failed(text) => text,
        }
    }
}

/// A request in service, copied from shared memory.
#[derive(Debug)]
pub struct Job {
    at: usize,
    owner: Owner,
    /// Operation to execute.
    pub operation: Operation,
    /// Number of the area.
    pub area: u64,
    /// Pages, at least one.
    pub pages: Vec<Page>,
    /// Content of the pages of a write.
    pub content: Vec<u8>,
}

impl Job {
    /// Returns the index of its request.
    #[must_use]
    pub fn request(&self) -> usize {
        self.at
    }
}

impl RequestQueue {
    /// Resubmits requests left in service, and frees abandoned ones. A server calls this first.
    pub fn begin_service(&self) {
        for (at, owner) in self.requests.owned() {
            let resubmitted = owner.to(State::Submitted as u8);
            // The client may abandon the request concurrently.
            if owner.state != State::InService as u8
                || !self.requests.change(at, owner, resubmitted)
            {
                self.free_from(at, owner.to(State::Abandoned as u8));
            }
        }
    }

    /// Claims the next submitted request from index `from` on. Answers invalid ones with an error.
    pub fn next_job(&self, from: usize) -> Option<Job> {
        let count = self.shape.requests;
        (0..count).map(|step| (from + step) % count).find_map(|at| self.claim(at))
    }

    fn claim(&self, at: usize) -> Option<Job> {
        let seen = self.requests.owner(at);
        let in_service = match State::of(seen.state)? {
            State::Submitted => State::InService,
            // No client waits for the answer, as for an abandoned request.
            State::Posted => State::Abandoned,
            _ => return None,
        };
        let (operation, count) = unpair(self.word(at, Word::Operation).load(Relaxed));
        let operation = match operation {
            0 => Some(Operation::Read),
            1 => Some(Operation::Write),
            2 => Some(Operation::Discard),
            _ => None,
        };
        let most = self.shape.pages.min(MAX_PAGES);
        let valid = operation.filter(|_| (1..=most).contains(&count));
        let count = if valid.is_some() { count } else { 0 };
        let page = |index| {
            let [number, generation] = self.page(at, index).map(|word| word.load(Relaxed));
            Page { number, generation }
        };
        let pages = (0..count).map(page).collect();
        let mut content = Vec::new();
        if valid == Some(Operation::Write) {
            let page_bytes = self.shape.page_words * 8;
            content.resize(count * page_bytes, 0);
            for (index, bytes) in content.chunks_exact_mut(page_bytes).enumerate() {
                load_bytes(self.buffer(at, index), bytes);
            }
        }
        let area = self.word(at, Word::Area).load(Relaxed);
        // Change the state after the copy. This fails if the client has withdrawn the request.
        let owner = seen.to(in_service as u8);
        if !self.requests.change(at, seen, owner) {
            return None;
        }
        let operation = valid.unwrap_or(Operation::Discard);
        let job = Job { at, owner, operation, area, pages, content };
        if valid.is_none() {
            let why = "the request queue contains an invalid request: a bug in softswap; please \
                       report it";
            self.complete(&job, &Outcome::Failed(why.into()), &[]);
            return None;
        }
        Some(job)
    }

    /// Answers a job, with the `content` of pages read. Returns false if no client waits for it.
    pub fn complete(&self, job: &Job, outcome: &Outcome, content: &[u8]) -> bool {
        let pages = content.chunks(self.shape.page_words * 8).take(job.pages.len());
        for (index, bytes) in pages.enumerate() {
            store_bytes(self.buffer(job.at, index), bytes);
        }
        let text = outcome.text().as_bytes();
        let text = &text[..text.len().min(TEXT_BYTES)];
        store_bytes(self.text(job.at), text);
        let code = outcome.code() as u8;
        self.word(job.at, Word::Outcome).store(pair(code, text.len()), Relaxed);
        let is_awaited = job.owner.state == State::InService as u8
            && self.requests.change(job.at, job.owner, job.owner.to(State::Answered as u8));
        match is_awaited {
            true => wake_shared(self.requests.word(job.at, 0)),
            false => drop(self.free_from(job.at, job.owner.to(State::Abandoned as u8))),
        }
        is_awaited
    }

    /// Frees a request. Returns false if its owner or state has changed.
    pub(super) fn free_from(&self, at: usize, from: Owner) -> bool {
        let is_freed = self.requests.change(at, from, from.freed());
        if is_freed {
            increment_and_wake(self.header(Header::Freed));
        }
        is_freed
    }

    /// Frees the requests of dead clients, and returns their number. A client of unknown liveness,
    /// in another PID namespace, counts as dead once no process uses the area. Requests in service
    /// are freed when the server answers them.
    pub fn reap(
        &self,
        liveness: impl Fn(ProcessIdentity) -> Liveness,
        has_area: impl Fn(u64) -> bool,
    ) -> usize {
        let is_stray = |&(at, owner): &(usize, Owner)| {
            let knows_area = match State::of(owner.state) {
                Some(State::Taken) => false,
                Some(State::Submitted | State::Answered) => true,
                Some(_) => return false,
                None => return true,
            };
            match liveness(self.requests.identity(at, owner)) {
                Liveness::Dead => true,
                Liveness::Unknown => {
                    knows_area && !has_area(self.word(at, Word::Area).load(Relaxed))
                }
                Liveness::Alive => false,
            }
        };
        let stray = self.requests.owned().filter(is_stray);
        stray.filter(|(at, owner)| self.free_from(*at, *owner)).count()
    }

    /// Returns the notification count, for [`RequestQueue::await_notification`].
    #[must_use]
    pub fn notifications(&self) -> u64 {
        self.header(Header::Notifications).load(Acquire)
    }

    /// Waits up to `ns` until the notification count differs from `seen`.
    pub fn await_notification(&self, seen: u64, ns: u64) {
        wait_shared(self.header(Header::Notifications), seen, ns);
    }
}
