//! Processes that ask, give up and end while a server answers, ends and comes back: the
//! interleavings, by loom.

use super::asking::{Question, Ticket};
use super::layout::{State, Status, Word};
use super::*;
use crate::base::primitive::reserve_u64;
use crate::ledger::{Fate, Identity};
use loom::thread;

const ONE: Shape = Shape { requests: 1, pages: 1, page_words: 1, areas: 0 };

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn exchange() -> Exchange {
    Exchange::create(reserve_u64(ONE.words()).unwrap(), ONE, 1, u64::MAX)
}

fn process(pid: u32) -> Identity {
    Identity { pid, start: 5, namespace: 1 }
}

fn page(number: u64) -> [Page; 1] {
    [Page { number, generation: number + 100 }]
}

fn ask(exchange: &Exchange, pid: u32, number: u64) -> Ticket {
    let ticket = exchange.take_for(Operation::Read, process(pid), || u64::MAX).unwrap();
    store_bytes(exchange.buffer(ticket.at, 0), &number.to_le_bytes());
    let pages = &page(number);
    let operation = Operation::Write;
    exchange.ask(&ticket, Question { operation, area: 1, pages }).unwrap();
    ticket
}

/// What was asked came as one: its page, generation and content belong together.
fn assert_whole(job: &Job) {
    let number = job.pages[0].number;
    assert_eq!(job.pages[..], page(number));
    assert_eq!(job.content, number.to_le_bytes());
}

fn serve_one(exchange: &Exchange) {
    loop {
        let bell = exchange.bell();
        if let Some(job) = exchange.next_job(0) {
            assert_whole(&job);
            exchange.answer(&job, &Outcome::Done, &[]);
            return;
        }
        exchange.await_bell(bell, u64::MAX);
    }
}

#[test]
fn what_is_asked_is_answered_and_nobody_sleeps_for_ever() {
    check(|| {
        let exchange = exchange();
        let server = thread::spawn(move || serve_one(&exchange));
        let ticket = ask(&exchange, 7, 3);
        exchange.await_answer(&ticket, || u64::MAX).unwrap();
        exchange.release(&ticket).unwrap();
        server.join().unwrap();
    });
}

#[test]
fn who_waits_for_a_request_gets_the_one_that_becomes_free() {
    check(|| {
        let exchange = exchange();
        let first = exchange.take_for(Operation::Read, process(7), || u64::MAX).unwrap();
        let other = thread::spawn(move || {
            exchange.take_for(Operation::Read, process(8), || u64::MAX).unwrap()
        });
        let free = |ticket: &Ticket| {
            let word = exchange.word(ticket.at, Word::Status);
            word.store(ticket.status.to(State::Answered).word(), Release);
            exchange.release(ticket).unwrap();
        };
        free(&first);
        assert_ne!(other.join().unwrap().status, first.status);
    });
}

#[test]
fn a_request_that_is_withdrawn_and_taken_again_is_never_seen_as_half_of_each() {
    check(|| {
        let exchange = exchange();
        let ticket = ask(&exchange, 7, 3);
        let server = thread::spawn(move || {
            let job = exchange.next_job(0);
            job.iter().for_each(assert_whole);
            job.map(|job| (job.pages[0].number, exchange.answer(&job, &Outcome::Done, &[])))
        });
        let is_free = exchange.await_answer(&ticket, || 0).is_err()
            && exchange.try_again(process(8)).map(|again| exchange.fill_in(&again, 4)).is_some();
        let served = server.join().unwrap();
        if let Some((3, is_awaited)) = served {
            // Withdrawn or answered: one of both.
            assert!(!(is_awaited && is_free));
        }
        // In the end the request is somebody's or free: never nobody's.
        let word = exchange.word(0, Word::Status).load(Acquire);
        assert_ne!(Status::of(word).unwrap().state, State::Abandoned);
    });
}

#[test]
fn a_late_answer_is_none_to_who_comes_next() {
    check(|| {
        let exchange = exchange();
        let ticket = ask(&exchange, 7, 3);
        let job = exchange.next_job(0).unwrap();
        let owner = thread::spawn(move || {
            let _ = exchange.await_answer(&ticket, || 0);
            exchange.try_again(process(8))
        });
        let is_awaited = exchange.answer(&job, &Outcome::Done, &[]);
        let next = owner.join().unwrap();
        let status = Status::of(exchange.word(0, Word::Status).load(Acquire)).unwrap();
        match next {
            Some(next) => assert_eq!(status, next.status),
            None => assert!(matches!(status.state, State::Answered | State::Free)),
        }
        assert!(!(is_awaited && next.is_some()));
    });
}

#[test]
fn what_is_posted_comes_whole_once_and_the_request_becomes_free() {
    check(|| {
        let exchange = exchange();
        let server = thread::spawn(move || serve_one(&exchange));
        let post = |number: u64| {
            let (me, bytes) = (process(7), number.to_le_bytes());
            exchange.post(me, Operation::Write, 1, &page(number), &[&bytes]).is_ok()
        };
        assert!(post(3));
        let is_next = post(4);
        server.join().unwrap();
        let status = Status::of(exchange.word(0, Word::Status).load(Acquire)).unwrap();
        let expected = if is_next { State::Posted } else { State::Free };
        assert_eq!(status.state, expected);
    });
}

#[test]
fn the_next_server_takes_up_what_the_last_one_left() {
    check(|| {
        let exchange = exchange();
        let ticket = ask(&exchange, 7, 3);
        // It is killed with this in service.
        drop(exchange.next_job(0).unwrap());
        let owner = thread::spawn(move || exchange.await_answer(&ticket, || 0));
        exchange.begin_service();
        let job = exchange.next_job(0);
        let is_awaited = job.is_some_and(|job| exchange.answer(&job, &Outcome::Done, &[]));
        let in_time = owner.join().unwrap().is_ok();
        let status = Status::of(exchange.word(0, Word::Status).load(Acquire)).unwrap();
        assert!(!in_time || is_awaited);
        assert!(matches!(status.state, State::Answered | State::Free), "{status:?}");
    });
}

#[test]
fn requests_of_the_dead_become_free_and_those_of_the_living_stay() {
    check(|| {
        let exchange = exchange();
        // Killed before it asked.
        let _ = exchange.take_for(Operation::Read, process(7), || u64::MAX).unwrap();
        let fate = |who: Identity| if who.pid == 7 { Fate::Dead } else { Fate::Alive };
        let other = thread::spawn(move || ask(&exchange, 8, 4));
        assert_eq!(exchange.reap(fate, |_| true), 1);
        let ticket = other.join().unwrap();
        assert_eq!(exchange.reap(fate, |_| true), 0);
        let status = Status::of(exchange.word(0, Word::Status).load(Acquire)).unwrap();
        assert_eq!(status, ticket.status.to(State::Asked));
    });
}

impl Exchange {
    /// A free request, if there is one now.
    fn try_again(&self, me: Identity) -> Option<Ticket> {
        self.take_for(Operation::Read, me, || 0).ok()
    }

    fn fill_in(&self, ticket: &Ticket, number: u64) {
        store_bytes(self.buffer(ticket.at, 0), &number.to_le_bytes());
        self.set_page(ticket.at, 0, page(number)[0]);
    }
}
