//! Interleavings, by loom, of clients and servers that time out and are killed.

use super::client::Ticket;
use super::layout::State;
use super::*;
use crate::common_model::{check, process, seven_is_dead};
use crate::membership::Owner;
use loom::thread;
use softswap_sys::primitive::Ordering::Release;
use softswap_sys::primitive::reserve_u64;

const ONE: Shape = Shape { requests: 1, pages: 1, page_words: 1, areas: 0 };

fn queue() -> RequestQueue {
    RequestQueue::create(reserve_u64(ONE.words()).unwrap(), ONE, 1, u64::MAX)
}

fn page(number: u64) -> [Page; 1] {
    [Page { number, generation: number + 100 }]
}

fn submit(queue: &RequestQueue, pid: u32, number: u64) -> Ticket {
    let ticket = queue.take(Operation::Read, process(pid), || u64::MAX).unwrap();
    queue.fill_in(&ticket, Operation::Write, 1, &page(number), &[&number.to_le_bytes()]);
    queue.submit(&ticket, State::Submitted).unwrap();
    ticket
}

fn owner(queue: &RequestQueue) -> Owner {
    queue.requests.owner(0)
}

fn state(queue: &RequestQueue) -> State {
    State::of(owner(queue).state).unwrap()
}

/// Asserts that page, generation and content come from one request.
fn assert_whole(job: &Job) {
    let number = job.pages[0].number;
    assert_eq!(job.pages[..], page(number));
    assert_eq!(job.content, number.to_le_bytes());
}

fn serve_one(queue: &RequestQueue) {
    loop {
        let seen = queue.notifications();
        if let Some(job) = queue.next_job(0) {
            assert_whole(&job);
            queue.complete(&job, &Outcome::Done, &[]);
            return;
        }
        queue.await_notification(seen, u64::MAX);
    }
}

#[test]
fn every_submitted_request_is_answered_and_its_client_wakes() {
    check(|| {
        let queue = queue();
        let server = thread::spawn(move || serve_one(&queue));
        let ticket = submit(&queue, 7, 3);
        queue.await_answer(&ticket, || u64::MAX).unwrap();
        queue.free(&ticket).unwrap();
        server.join().unwrap();
    });
}

#[test]
fn a_client_waiting_for_a_free_request_gets_it() {
    check(|| {
        let queue = queue();
        let first = queue.take(Operation::Read, process(7), || u64::MAX).unwrap();
        let other =
            thread::spawn(move || queue.take(Operation::Read, process(8), || u64::MAX).unwrap());
        let free = |ticket: &Ticket| {
            let word = queue.requests.word(ticket.at, 0);
            word.store(ticket.owner.to(State::Answered as u8).word(), Release);
            queue.free(ticket).unwrap();
        };
        free(&first);
        assert_ne!(other.join().unwrap().owner, first.owner);
    });
}

#[test]
fn a_request_withdrawn_and_taken_again_is_never_read_as_half_of_each() {
    check(|| {
        let queue = queue();
        let ticket = submit(&queue, 7, 3);
        let server = thread::spawn(move || {
            let job = queue.next_job(0);
            job.iter().for_each(assert_whole);
            job.map(|job| (job.pages[0].number, queue.complete(&job, &Outcome::Done, &[])))
        });
        let is_free = queue.await_answer(&ticket, || 0).is_err()
            && queue.take(Operation::Read, process(8), || 0).is_ok_and(|again| {
                queue.fill_in(&again, Operation::Write, 1, &page(4), &[&4_u64.to_le_bytes()]);
                true
            });
        let served = server.join().unwrap();
        if let Some((3, is_awaited)) = served {
            // The request was either withdrawn or answered.
            assert!(!(is_awaited && is_free));
        }
        assert_ne!(state(&queue), State::Abandoned);
    });
}

#[test]
fn a_late_answer_does_not_reach_the_next_client() {
    check(|| {
        let queue = queue();
        let ticket = submit(&queue, 7, 3);
        let job = queue.next_job(0).unwrap();
        let client = thread::spawn(move || {
            let _ = queue.await_answer(&ticket, || 0);
            queue.take(Operation::Read, process(8), || 0).ok()
        });
        let is_awaited = queue.complete(&job, &Outcome::Done, &[]);
        let next = client.join().unwrap();
        match next {
            Some(next) => assert_eq!(owner(&queue), next.owner),
            None => assert!(matches!(state(&queue), State::Answered | State::Free)),
        }
        assert!(!(is_awaited && next.is_some()));
    });
}

#[test]
fn a_posted_request_is_served_once_and_freed() {
    check(|| {
        let queue = queue();
        let server = thread::spawn(move || serve_one(&queue));
        let post = |number: u64| {
            let (me, bytes) = (process(7), number.to_le_bytes());
            queue.post(me, Operation::Write, 1, &page(number), &[&bytes]).is_ok()
        };
        assert!(post(3));
        let is_next = post(4);
        server.join().unwrap();
        let expected = if is_next { State::Posted } else { State::Free };
        assert_eq!(state(&queue), expected);
    });
}

#[test]
fn the_next_server_repeats_requests_left_in_service() {
    check(|| {
        let queue = queue();
        let ticket = submit(&queue, 7, 3);
        // The server is killed with this request in service.
        drop(queue.next_job(0).unwrap());
        let client = thread::spawn(move || queue.await_answer(&ticket, || 0));
        queue.begin_service();
        let job = queue.next_job(0);
        let is_awaited = job.is_some_and(|job| queue.complete(&job, &Outcome::Done, &[]));
        let in_time = client.join().unwrap().is_ok();
        assert!(!in_time || is_awaited);
        assert!(matches!(state(&queue), State::Answered | State::Free), "{:?}", state(&queue));
    });
}

#[test]
fn only_requests_of_dead_clients_are_freed() {
    check(|| {
        let queue = queue();
        // This client is killed before it submits its request.
        let _ = queue.take(Operation::Read, process(7), || u64::MAX).unwrap();
        let other = thread::spawn(move || submit(&queue, 8, 4));
        assert_eq!(queue.reap(seven_is_dead, |_| true), 1);
        let ticket = other.join().unwrap();
        assert_eq!(queue.reap(seven_is_dead, |_| true), 0);
        assert_eq!(owner(&queue), ticket.owner.to(State::Submitted as u8));
    });
}
