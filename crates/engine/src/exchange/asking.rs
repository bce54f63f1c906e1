//! The side of a process: a request is taken, filled in, asked and waited for.
//!
//! That may be in a fault, so nothing is allocated unless it fails, and nothing is locked.

use super::layout::{Header, State, Status, Word, pair, started, unpair};
use super::serving::OutcomeCode;
use super::{Exchange, Operation, Page, TEXT_BYTES, load_bytes, store_bytes};
use crate::base::primitive::Ordering::{AcqRel, Acquire, Relaxed};
use crate::ledger::Identity;

/// One of so many requests only reads may take.
const FOR_READS: usize = 4;

/// Why something that was asked was not done.
///
/// ```
/// use softswap_engine::exchange::Failure;
/// assert!(Failure::Deadline.to_string().contains("in time"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There is no room for it; says where.
    #[error("{0}")]
    Full(Box<str>),
    /// Nobody has answered in time. It may have been done, and may yet be.
    #[error("nobody answered in time")]
    Deadline,
    /// A page cannot be had any more; says which, and where it was looked for.
    #[error("{0}")]
    Lost(Box<str>),
    /// It could not be done; says why.
    #[error("{0}")]
    Failed(Box<str>),
    /// The shared memory has been overwritten.
    #[error("the page by which processes speak to the helper has been overwritten")]
    Unsound,
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) operation: Operation,
    pub(super) area: u64,
    pub(super) pages: &'a [Page],
}

/// A request that this process has taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    pub(super) at: usize,
    /// As it is while it is taken.
    pub(super) status: Status,
}

/// Something that this process has asked, and is to wait for ([`Exchange::finish`]).
///
/// ```
/// use softswap_engine::exchange::{Exchange, Failure, Operation, Page, SHAPE};
/// use softswap_engine::ledger::Identity;
/// let words = softswap_sys::memory::reserve_u64(SHAPE.words()).unwrap();
/// let exchange = Exchange::create(words, SHAPE, 100, 1_000_000);
/// let me = Identity { pid: 7, start: 1, namespace: 2 };
/// let pages = [Page { number: 3, generation: 1 }];
/// let asked = exchange.begin(me, Operation::Read, 1, &pages, &[]).unwrap();
/// // There is no server.
/// assert_eq!(exchange.finish(asked, std::iter::empty()), Err(Failure::Deadline));
/// ```
#[derive(Debug)]
#[must_use]
pub struct Asked {
    ticket: Ticket,
    clock: Clock,
}

impl Exchange {
    /// Asks for something to be done with pages of an area; `content`: what each is to hold,
    /// where they are written.
    ///
    /// # Errors
    /// When it could not be asked.
    pub fn begin(
        &self,
        me: Identity,
        operation: Operation,
        area: u64,
        pages: &[Page],
        content: &[&[u8]],
    ) -> Result<Asked, Failure> {
        let clock = Clock::start(self.patience_ns());
        let ticket = self.take_for(operation, me, || clock.left_ns())?;
        self.fill(&ticket, content);
        self.ask(&ticket, Question { operation, area, pages })?;
        Ok(Asked { ticket, clock })
    }

    /// As [`Exchange::begin`] of what has no content, for which nobody waits longer than this.
    ///
    /// # Errors
    /// When it could not be asked at once.
    pub fn begin_soon(
        &self,
        me: Identity,
        operation: Operation,
        area: u64,
        pages: &[Page],
        patience_ns: u64,
    ) -> Result<Asked, Failure> {
        let clock = Clock::start(patience_ns);
        let ticket = self.take_for(operation, me, || 0)?;
        self.ask(&ticket, Question { operation, area, pages })?;
        Ok(Asked { ticket, clock })
    }

    /// As [`Exchange::begin`], but nobody waits for it: it may not be done.
    ///
    /// # Errors
    /// When it could not be asked at once.
    pub fn post(
        &self,
        me: Identity,
        operation: Operation,
        area: u64,
        pages: &[Page],
        content: &[&[u8]],
    ) -> Result<(), Failure> {
        let ticket = self.take_for(operation, me, || 0)?;
        self.fill(&ticket, content);
        self.ask_as(State::Posted, &ticket, Question { operation, area, pages })
    }

    /// Puts the pages that are to be written into the request.
    fn fill(&self, ticket: &Ticket, content: &[&[u8]]) {
        for (at, bytes) in content.iter().take(self.shape.pages).enumerate() {
            store_bytes(self.buffer(ticket.at, at), bytes);
        }
    }

    /// Waits for what was asked. `buffers`: for the content of each page, where they are read.
    ///
    /// # Errors
    /// When it is not certain that it was done, whatever may have been. The buffers then hold
    /// nothing of use.
    pub fn finish<'b>(
        &self,
        asked: Asked,
        buffers: impl Iterator<Item = &'b mut [u8]>,
    ) -> Result<(), Failure> {
        let Asked { ticket, clock } = asked;
        self.await_answer(&ticket, || clock.left_ns())?;
        let outcome = self.outcome(&ticket);
        if outcome.is_ok() {
            for (at, bytes) in buffers.take(self.shape.pages).enumerate() {
                load_bytes(self.buffer(ticket.at, at), bytes);
            }
        }
        // Last: what was read is the answer only if it was there until then.
        self.release(&ticket)?;
        outcome
    }

    /// Takes a free request, or waits until one becomes free. A part of them is for reads alone:
    /// writes that wait for a server that is gone keep nobody from what others have.
    pub(super) fn take_for(
        &self,
        operation: Operation,
        me: Identity,
        left_ns: impl Fn() -> u64,
    ) -> Result<Ticket, Failure> {
        let count = match operation {
            Operation::Read => self.shape.requests,
            _ => self.shape.requests - self.shape.requests / FOR_READS,
        };
        loop {
            if !self.is_sound() {
                return Err(Failure::Unsound);
            }
            let freed = self.header(Header::Freed).load(Acquire);
            if let Some(ticket) = self.try_take(count, me) {
                return Ok(ticket);
            }
            match left_ns() {
                0 => return Err(Failure::Deadline),
                ns => super::sleep(self.header(Header::Freed), freed, ns),
            }
        }
    }

    /// A free request among the first `count`.
    fn try_take(&self, count: usize, me: Identity) -> Option<Ticket> {
        (0..count).find_map(|at| {
            let word = self.word(at, Word::Status);
            let seen = word.load(Relaxed);
            let before = Status::of(seen).filter(|before| before.state == State::Free)?;
            let Identity { pid, namespace, start } = me;
            let turn = before.next_turn();
            let status = Status { state: State::Taken, pid, namespace, turn };
            word.compare_exchange(seen, status.word(), AcqRel, Relaxed).ok()?;
            self.word(at, Word::Start).store(started(turn, start), Relaxed);
            Some(Ticket { at, status })
        })
    }

    /// Asks, and rings the bell.
    pub(super) fn ask(&self, ticket: &Ticket, what: Question<'_>) -> Result<(), Failure> {
        self.ask_as(State::Asked, ticket, what)
    }

    pub(super) fn ask_as(
        &self,
        state: State,
        ticket: &Ticket,
        what: Question<'_>,
    ) -> Result<(), Failure> {
        debug_assert!(what.pages.len() <= self.shape.pages);
        let at = ticket.at;
        let count = what.pages.len().min(self.shape.pages);
        self.word(at, Word::What).store(pair(what.operation as u8, count), Relaxed);
        self.word(at, Word::Area).store(what.area, Relaxed);
        self.word(at, Word::Outcome).store(0, Relaxed);
        for (index, page) in what.pages.iter().take(count).enumerate() {
            self.set_page(at, index, *page);
        }
        self.step(ticket, State::Taken, state)?;
        self.ring();
        Ok(())
    }

    /// Waits until it is answered. What is not in time is nobody's any more.
    pub(super) fn await_answer(
        &self,
        ticket: &Ticket,
        left_ns: impl Fn() -> u64,
    ) -> Result<(), Failure> {
        let word = self.word(ticket.at, Word::Status);
        loop {
            let seen = word.load(Acquire);
            let status = Status::of(seen).ok_or(Failure::Unsound)?;
            if status.to(State::Taken) != ticket.status {
                return Err(Failure::Unsound);
            }
            match (status.state, left_ns()) {
                (State::Answered, _) => return Ok(()),
                (State::Asked | State::InService, 0) => {
                    if self.withdraw(ticket, status) {
                        return Err(Failure::Deadline);
                    }
                }
                (State::Asked | State::InService, ns) => super::sleep(word, seen, ns),
                _ => return Err(Failure::Unsound),
            }
        }
    }

    /// Waits no longer for what is so far; false where it is farther by now.
    pub(super) fn withdraw(&self, ticket: &Ticket, seen: Status) -> bool {
        let next = match seen.state {
            State::Asked => Status::freed(seen.turn),
            // The server may write to it yet.
            _ => seen.to(State::Abandoned),
        };
        let word = self.word(ticket.at, Word::Status);
        let is_done = word.compare_exchange(seen.word(), next.word(), AcqRel, Relaxed).is_ok();
        if is_done && next.state == State::Free {
            self.note_freed();
        }
        is_done
    }

    fn outcome(&self, ticket: &Ticket) -> Result<(), Failure> {
        let (code, len) = unpair(self.word(ticket.at, Word::Outcome).load(Relaxed));
        let text = || self.text(ticket.at, len);
        match OutcomeCode::of(code) {
            Some(OutcomeCode::Done) => Ok(()),
            Some(OutcomeCode::Full) => Err(Failure::Full(text())),
            Some(OutcomeCode::Lost) => Err(Failure::Lost(text())),
            Some(OutcomeCode::Failed) => Err(Failure::Failed(text())),
            None => Err(Failure::Unsound),
        }
    }

    /// What an answer says in words: what can be shown of it.
    fn text(&self, at: usize, len: usize) -> Box<str> {
        let first = self.shape.text_at(at);
        let mut bytes = [0; TEXT_BYTES];
        let len = len.min(bytes.len());
        load_bytes(&self.words[first..first + TEXT_BYTES / 8], &mut bytes);
        let shown = |it: char| if it.is_control() { '?' } else { it };
        String::from_utf8_lossy(&bytes[..len]).chars().map(shown).collect::<String>().into()
    }

    /// Lets go of an answered request.
    pub(super) fn release(&self, ticket: &Ticket) -> Result<(), Failure> {
        let word = self.word(ticket.at, Word::Status);
        let answered = ticket.status.to(State::Answered).word();
        let free = Status::freed(ticket.status.turn).word();
        word.compare_exchange(answered, free, AcqRel, Relaxed).map_err(|_| Failure::Unsound)?;
        self.note_freed();
        Ok(())
    }

    fn step(&self, ticket: &Ticket, from: State, to: State) -> Result<(), Failure> {
        let word = self.word(ticket.at, Word::Status);
        let [from, to] = [from, to].map(|state| ticket.status.to(state).word());
        word.compare_exchange(from, to, AcqRel, Relaxed).map(drop).map_err(|_| Failure::Unsound)
    }
}

/// How much of a request's time is left.
#[derive(Debug)]
struct Clock {
    deadline_ns: u64,
}

#[cfg(not(feature = "loom"))]
impl Clock {
    fn start(patience_ns: u64) -> Clock {
        Clock { deadline_ns: softswap_sys::raw::now_ns().saturating_add(patience_ns) }
    }

    fn left_ns(&self) -> u64 {
        self.deadline_ns.saturating_sub(softswap_sys::raw::now_ns())
    }
}

#[cfg(feature = "loom")]
impl Clock {
    fn start(_patience_ns: u64) -> Clock {
        Clock { deadline_ns: u64::MAX }
    }

    fn left_ns(&self) -> u64 {
        self.deadline_ns
    }
}
