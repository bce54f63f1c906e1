use super::layout::{Header, State, Status, Word};
use super::*;
use crate::ledger::{Fate, Identity};
use proptest::prelude::*;
use softswap_sys::memory::reserve_u64;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

const PAGE: usize = 4096;
const SMALL: Shape = Shape { requests: 3, ..SHAPE };
const LONG_NS: u64 = 60_000_000_000;

fn exchange(patience_ns: u64) -> Exchange {
    Exchange::create(reserve_u64(SMALL.words()).unwrap(), SMALL, 1000, patience_ns)
}

fn process(pid: u32) -> Identity {
    Identity { pid, start: 5, namespace: 1 }
}

fn page(number: u64) -> Page {
    Page { number, generation: number * 7 + 1 }
}

fn write(exchange: &Exchange, me: Identity, pages: &[Page], bytes: &[u8]) -> Result<(), Failure> {
    let content: Vec<&[u8]> = bytes.chunks(PAGE).collect();
    let asked = exchange.begin(me, Operation::Write, 1, pages, &content)?;
    exchange.finish(asked, std::iter::empty())
}

fn read(exchange: &Exchange, me: Identity, pages: &[Page], into: &mut [u8]) -> Result<(), Failure> {
    let asked = exchange.begin(me, Operation::Read, 1, pages, &[])?;
    exchange.finish(asked, into.chunks_mut(PAGE))
}

/// Answers by what was written, until it is told to end.
fn serve(exchange: &Exchange, ends: &AtomicBool) {
    let mut kept = std::collections::HashMap::new();
    while !ends.load(SeqCst) {
        let bell = exchange.bell();
        let Some(job) = exchange.next_job(1) else {
            exchange.await_bell(bell, 10_000_000);
            continue;
        };
        let key = |page: &Page| (job.area, page.number, page.generation);
        let (mut outcome, mut content) = (Outcome::Done, Vec::new());
        match job.operation {
            Operation::Write => {
                for (page, bytes) in job.pages.iter().zip(job.content.chunks(PAGE)) {
                    kept.insert(key(page), bytes.to_vec());
                }
            }
            Operation::Read => {
                for page in &job.pages {
                    match kept.get(&key(page)) {
                        Some(bytes) => content.extend_from_slice(bytes),
                        None => outcome = Outcome::Lost(format!("no page {}", page.number)),
                    }
                }
            }
            Operation::Discard => job.pages.iter().for_each(|page| drop(kept.remove(&key(page)))),
        }
        exchange.answer(&job, &outcome, &content);
    }
}

#[test]
fn many_threads_get_back_what_they_wrote() {
    let exchange = exchange(LONG_NS);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&exchange, &ends));
        let clients = (0..8_u32).map(|client| {
            scope.spawn(move || {
                let me = process(client + 1);
                for round in 0..40_u64 {
                    let count = (round as usize % MOST_PAGES) + 1;
                    let first = u64::from(client) * 10_000 + round * 40;
                    let pages: Vec<Page> = (0..count as u64).map(|at| page(first + at)).collect();
                    let fill = |at: usize| (first as usize + at * 3) as u8;
                    let bytes: Vec<u8> = (0..count).flat_map(|at| vec![fill(at); PAGE]).collect();
                    write(&exchange, me, &pages, &bytes).unwrap();
                    let mut back = vec![0; bytes.len()];
                    read(&exchange, me, &pages, &mut back).unwrap();
                    assert!(back == bytes);
                }
            })
        });
        clients.collect::<Vec<_>>().into_iter().for_each(|it| it.join().unwrap());
        ends.store(true, SeqCst);
        server.join().unwrap();
    });
}

#[test]
fn what_is_lost_is_told_in_words() {
    let exchange = exchange(LONG_NS);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&exchange, &ends));
        let mut bytes = [0; PAGE];
        let lost = read(&exchange, process(1), &[page(9)], &mut bytes);
        assert_eq!(lost, Err(Failure::Lost("no page 9".into())));
        ends.store(true, SeqCst);
    });
}

#[test]
fn nobody_waits_for_longer_than_its_deadline() {
    let exchange = exchange(1_000_000);
    let asked = || read(&exchange, process(1), &[page(1)], &mut [0; PAGE]);
    assert_eq!(asked(), Err(Failure::Deadline));
    // Of three requests none has stayed behind.
    (0..4).for_each(|_| assert_eq!(asked(), Err(Failure::Deadline)));
    assert_eq!(exchange.reap(|_| Fate::Dead, |_| true), 0);
    // With none free, either.
    assert!((0..3).all(|_| exchange.take_for(Operation::Read, process(2), || 1).is_ok()));
    assert_eq!(asked(), Err(Failure::Deadline));
}

#[test]
fn writes_that_nobody_serves_leave_requests_for_reads() {
    let exchange = Exchange::create(reserve_u64(SHAPE.words()).unwrap(), SHAPE, 1000, LONG_NS);
    let take = |operation| exchange.take_for(operation, process(1), || 0);
    let writes = (0..).take_while(|_| take(Operation::Write).is_ok()).count();
    let discards = (0..).take_while(|_| take(Operation::Discard).is_ok()).count();
    assert_eq!((writes, discards), (SHAPE.requests * 3 / 4, 0));
    assert_eq!((0..).take_while(|_| take(Operation::Read).is_ok()).count(), SHAPE.requests / 4);
}

#[test]
fn what_is_given_up_in_service_is_freed_by_the_server() {
    let exchange = exchange(1);
    let ticket = exchange.take_for(Operation::Read, process(1), || 1).unwrap();
    let pages = &[page(1)];
    let question = asking::Question { operation: Operation::Discard, area: 1, pages };
    exchange.ask(&ticket, question).unwrap();
    let job = exchange.next_job(0).unwrap();
    assert_eq!(exchange.await_answer(&ticket, || 0), Err(Failure::Deadline));
    let state = || Status::of(exchange.word(ticket.at, Word::Status).load(SeqCst)).unwrap().state;
    assert_eq!(state(), State::Abandoned);
    assert!(!exchange.answer(&job, &Outcome::Done, &[]));
    assert_eq!(state(), State::Free);
}

#[test]
fn what_is_posted_is_done_and_read_within_a_patience_of_its_own() {
    let exchange = exchange(LONG_NS);
    let ends = AtomicBool::new(false);
    let posted = || exchange.post(process(1), Operation::Write, 1, &[page(2)], &[&[9; PAGE]]);
    let soon = |ns| {
        let asked = exchange.begin_soon(process(1), Operation::Read, 1, &[page(2)], ns)?;
        let mut bytes = [0; PAGE];
        exchange.finish(asked, [&mut bytes[..]].into_iter()).map(|()| bytes)
    };
    // Nobody serves: nothing is waited for, and what is posted takes its request along.
    assert_eq!(soon(1_000_000), Err(Failure::Deadline));
    assert!((0..3).all(|_| posted().is_ok()));
    assert_eq!(posted(), Err(Failure::Deadline));
    assert_eq!(exchange.reap(|_| Fate::Dead, |_| true), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&exchange, &ends));
        while soon(LONG_NS).is_err() {}
        assert_eq!(soon(LONG_NS), Ok([9; PAGE]));
        ends.store(true, SeqCst);
    });
}

#[test]
fn the_dead_lose_their_requests_and_the_unknown_keep_them() {
    let exchange = exchange(LONG_NS);
    let tickets =
        [7, 8, 9].map(|pid| exchange.take_for(Operation::Read, process(pid), || 1).unwrap());
    let fate = |who: Identity| match who {
        Identity { pid: 7, start: 5, namespace: 1 } => Fate::Dead,
        Identity { pid: 8, .. } => Fate::Unknown,
        _ => Fate::Alive,
    };
    assert_eq!(exchange.reap(fate, |_| true), 1);
    assert_eq!(exchange.take_for(Operation::Read, process(10), || 0).unwrap().at, tickets[0].at);
    assert!(exchange.take_for(Operation::Read, process(10), || 0).is_err());
}

#[test]
fn requests_of_the_unknown_go_with_their_area() {
    let exchange = exchange(LONG_NS);
    let ask = |pid, area| {
        let ticket = exchange.take_for(Operation::Read, process(pid), || 1).unwrap();
        let pages = &[page(1)];
        let operation = Operation::Read;
        let question = asking::Question { operation, area, pages };
        exchange.ask(&ticket, question).unwrap();
    };
    ask(7, 1);
    ask(8, 2);
    // It has not said yet what it is about.
    exchange.take_for(Operation::Read, process(9), || 1).unwrap();
    assert_eq!(exchange.reap(|_| Fate::Unknown, |area| area == 1), 1);
    assert_eq!(exchange.reap(|_| Fate::Unknown, |area| area == 1), 0);
    assert_eq!(exchange.reap(|_| Fate::Alive, |_| false), 0);
}

#[test]
fn an_overwritten_exchange_is_told() {
    let exchange = exchange(LONG_NS);
    exchange.header(Header::Magic).store(7, SeqCst);
    assert_eq!(read(&exchange, process(1), &[page(1)], &mut []), Err(Failure::Unsound));
}

proptest! {
    /// Whatever is written there, both sides survive it and answer in time.
    #[test]
    fn garbage_is_survived(
        garbage in proptest::collection::vec((0_usize..3, 0_usize..140, any::<u64>()), 1..40),
        states in proptest::collection::vec(0_u64..8, 3),
    ) {
        let exchange = exchange(1_000);
        for (request, word, value) in garbage {
            exchange.words[SMALL.request_at(request) + word].store(value, SeqCst);
        }
        for (request, state) in states.into_iter().enumerate() {
            let word = exchange.word(request, Word::Status);
            word.store(word.load(SeqCst) & !7 | state, SeqCst);
        }
        exchange.begin_service();
        exchange.reap(|_| Fate::Dead, |_| true);
        while let Some(job) = exchange.next_job(0) {
            prop_assert!((1..=MOST_PAGES).contains(&job.pages.len()));
            exchange.answer(&job, &Outcome::Lost("x".repeat(1000)), &vec![1; 40 * PAGE]);
        }
        let mut bytes = [0; PAGE];
        prop_assert!(read(&exchange, process(1), &[page(1)], &mut bytes).is_err());
        exchange.reap(|_| Fate::Dead, |_| true);
        exchange.reap(|_| Fate::Dead, |_| true);
        prop_assert!(exchange.take_for(Operation::Read, process(2), || 0).is_ok());
    }
}
