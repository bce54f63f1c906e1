//! The client's side: takes a request, fills it in, submits it and waits for the answer.
//!
//! This runs while a page is faulted in, so it takes no lock, and allocates only on failure.

use super::layout::{Header, State, Word, pair, unpair};
use super::server::OutcomeCode;
use super::{Operation, Page, RequestQueue, TEXT_BYTES, load_bytes, store_bytes};
use crate::membership::Owner;
use softswap_sys::primitive::Ordering::{Acquire, Relaxed};
use softswap_sys::primitive::wait_shared;
use softswap_sys::process_identity::ProcessIdentity;

/// Divisor: a quarter of the requests is for reads only, so that stuck writes do not delay them.
const READS_DIVISOR: usize = 4;

/// Reasons why a request was not executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The servers have no free space; the text describes where.
    #[error("{0}")]
    Full(Box<str>),
    /// No answer arrived in time. The operation may have been executed, or may be executed later.
    #[error("no answer in time")]
    Timeout,
    /// A page is lost; the text names it and where it was stored.
    #[error("{0}")]
    Lost(Box<str>),
    /// The operation failed; the text states the reason.
    #[error("{0}")]
    Failed(Box<str>),
    /// The shared memory has been overwritten.
    #[error("the request queue to softswap-remote was overwritten")]
    Unsound,
}

/// A request that this client has taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    pub(super) at: usize,
    pub(super) owner: Owner,
}

/// A submitted request, for [`RequestQueue::finish`].
///
/// ```
/// use softswap_shared::request_queue::{Failure, Operation, Page, RequestQueue, SHAPE};
/// use softswap_sys::{memory::reserve_u64, process_identity::ProcessIdentity};
/// let words = reserve_u64(SHAPE.words()).unwrap();
/// let queue = RequestQueue::create(words, SHAPE, 100, 1_000_000);
/// let me = ProcessIdentity { pid: 7, start: 1, namespace: 2 };
/// let pages = [Page { number: 3, generation: 1 }];
/// let request = queue.begin(me, Operation::Read, 1, &pages, &[]).unwrap();
/// // There is no server.
/// assert_eq!(queue.finish(request, std::iter::empty()), Err(Failure::Timeout));
/// ```
#[derive(Debug)]
#[must_use]
pub struct PendingRequest {
    ticket: Ticket,
    deadline: Deadline,
}

impl RequestQueue {
    /// Submits an operation on pages, with their `content` for a write. Waits for a free request.
    ///
    /// # Errors
    /// If no request became free within the queue's timeout.
    pub fn begin(
        &self,
        me: ProcessIdentity,
        operation: Operation,
        area: u64,
        pages: &[Page],
        content: &[&[u8]],
    ) -> Result<PendingRequest, Failure> {
        let deadline = Deadline::after(self.timeout_ns());
        let ticket = self.take(operation, me, || deadline.left_ns())?;
        self.fill_in(&ticket, operation, area, pages, content);
        self.submit(&ticket, State::Submitted)?;
        Ok(PendingRequest { ticket, deadline })
    }

    /// Submits an operation without content. Does not wait for a free request.
    ///
    /// # Errors
    /// If no request is free.
    pub fn begin_within(
        &self,
        me: ProcessIdentity,
        operation: Operation,
        area: u64,
        pages: &[Page],
        timeout_ns: u64,
    ) -> Result<PendingRequest, Failure> {
        let deadline = Deadline::after(timeout_ns);
        let ticket = self.take(operation, me, || 0)?;
        self.fill_in(&ticket, operation, area, pages, &[]);
        self.submit(&ticket, State::Submitted)?;
        Ok(PendingRequest { ticket, deadline })
    }

    /// Submits an operation whose answer is ignored; it may fail. Does not wait for a free request.
    ///
    /// # Errors
    /// If no request is free.
    pub fn post(
        &self,
        me: ProcessIdentity,
        operation: Operation,
        area: u64,
        pages: &[Page],
        content: &[&[u8]],
    ) -> Result<(), Failure> {
        let ticket = self.take(operation, me, || 0)?;
        self.fill_in(&ticket, operation, area, pages, content);
        self.submit(&ticket, State::Posted)
    }

    /// Waits for the answer, and copies pages that were read to `buffers`.
    ///
    /// # Errors
    /// If the operation may not have been executed. The buffers' content is then undefined.
    pub fn finish<'b>(
        &self,
        request: PendingRequest,
        buffers: impl Iterator<Item = &'b mut [u8]>,
    ) -> Result<(), Failure> {
        let PendingRequest { ticket, deadline } = request;
        self.await_answer(&ticket, || deadline.left_ns())?;
        let outcome = self.outcome(&ticket);
        if outcome.is_ok() {
            for (at, bytes) in buffers.take(self.shape.pages).enumerate() {
                load_bytes(self.buffer(ticket.at, at), bytes);
            }
        }
        // Free the request after the copy. If it cannot be freed, the server has reaped it.
        self.free(&ticket)?;
        outcome
    }

    /// Takes a free request. Waits for one while `left_ns` returns more than 0.
    pub(super) fn take(
        &self,
        operation: Operation,
        me: ProcessIdentity,
        left_ns: impl Fn() -> u64,
    ) -> Result<Ticket, Failure> {
        let count = match operation {
            Operation::Read => self.shape.requests,
            _ => self.shape.requests - self.shape.requests / READS_DIVISOR,
        };
        loop {
            if !self.segment.is_sound() {
                return Err(Failure::Unsound);
            }
            let freed = self.header(Header::Freed).load(Acquire);
            if let Some((at, owner)) = self.requests.join(0..count, me, State::Taken as u8, |_| ())
            {
                return Ok(Ticket { at, owner });
            }
            match left_ns() {
                0 => return Err(Failure::Timeout),
                ns => wait_shared(self.header(Header::Freed), freed, ns),
            }
        }
    }

    pub(super) fn fill_in(
        &self,
        ticket: &Ticket,
        operation: Operation,
        area: u64,
        pages: &[Page],
        content: &[&[u8]],
    ) {
        let (at, count) = (ticket.at, pages.len().min(self.shape.pages));
        self.word(at, Word::Operation).store(pair(operation as u8, count), Relaxed);
        self.word(at, Word::Area).store(area, Relaxed);
        self.word(at, Word::Outcome).store(0, Relaxed);
        for (index, page) in pages.iter().take(count).enumerate() {
            self.set_page(at, index, *page);
        }
        for (index, bytes) in content.iter().take(count).enumerate() {
            store_bytes(self.buffer(at, index), bytes);
        }
    }

    pub(super) fn submit(&self, ticket: &Ticket, state: State) -> Result<(), Failure> {
        self.change(ticket, State::Taken, state)?;
        self.notify_server();
        Ok(())
    }

    pub(super) fn await_answer(
        &self,
        ticket: &Ticket,
        left_ns: impl Fn() -> u64,
    ) -> Result<(), Failure> {
        let word = self.requests.word(ticket.at, 0);
        loop {
            let seen = word.load(Acquire);
            let owner = Owner::of(seen);
            if owner.to(ticket.owner.state) != ticket.owner {
                return Err(Failure::Unsound);
            }
            match (State::of(owner.state), left_ns()) {
                (Some(State::Answered), _) => return Ok(()),
                (Some(State::Submitted | State::InService), 0) => {
                    if self.withdraw(ticket, owner) {
                        return Err(Failure::Timeout);
                    }
                }
                (Some(State::Submitted | State::InService), ns) => wait_shared(word, seen, ns),
                _ => return Err(Failure::Unsound),
            }
        }
    }

    fn withdraw(&self, ticket: &Ticket, seen: Owner) -> bool {
        if seen.state == State::Submitted as u8 {
            return self.free_from(ticket.at, seen);
        }
        // The server may still write to the request, and frees it afterwards.
        self.requests.change(ticket.at, seen, seen.to(State::Abandoned as u8))
    }

    fn outcome(&self, ticket: &Ticket) -> Result<(), Failure> {
        let (code, len) = unpair(self.word(ticket.at, Word::Outcome).load(Relaxed));
        let text = || self.printable_text(ticket.at, len);
        match OutcomeCode::of(code) {
            Some(OutcomeCode::Done) => Ok(()),
            Some(OutcomeCode::Full) => Err(Failure::Full(text())),
            Some(OutcomeCode::Lost) => Err(Failure::Lost(text())),
            Some(OutcomeCode::Failed) => Err(Failure::Failed(text())),
            None => Err(Failure::Unsound),
        }
    }

    fn printable_text(&self, at: usize, len: usize) -> Box<str> {
        let mut bytes = [0; TEXT_BYTES];
        let len = len.min(bytes.len());
        load_bytes(self.text(at), &mut bytes);
        let shown = |it: char| if it.is_control() { '?' } else { it };
        String::from_utf8_lossy(&bytes[..len]).chars().map(shown).collect::<String>().into()
    }

    pub(super) fn free(&self, ticket: &Ticket) -> Result<(), Failure> {
        let is_freed = self.free_from(ticket.at, ticket.owner.to(State::Answered as u8));
        is_freed.then_some(()).ok_or(Failure::Unsound)
    }

    fn change(&self, ticket: &Ticket, from: State, to: State) -> Result<(), Failure> {
        let [from, to] = [from, to].map(|state| ticket.owner.to(state as u8));
        self.requests.change(ticket.at, from, to).then_some(()).ok_or(Failure::Unsound)
    }
}

#[derive(Debug)]
struct Deadline {
    ns: u64,
}

#[cfg(not(feature = "loom"))]
impl Deadline {
    fn after(timeout_ns: u64) -> Deadline {
        Deadline { ns: softswap_sys::raw::now_ns().saturating_add(timeout_ns) }
    }

    fn left_ns(&self) -> u64 {
        self.ns.saturating_sub(softswap_sys::raw::now_ns())
    }
}

#[cfg(feature = "loom")]
impl Deadline {
    fn after(_timeout_ns: u64) -> Deadline {
        Deadline { ns: u64::MAX }
    }

    fn left_ns(&self) -> u64 {
        self.ns
    }
}
