use super::layout::State;
use super::*;
use proptest::prelude::*;
use softswap_sys::memory::reserve_u64;
use softswap_sys::process_identity::{Liveness, ProcessIdentity};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

const PAGE: usize = 4096;
const SMALL: Shape = Shape { requests: 3, ..SHAPE };
const LONG_NS: u64 = 60_000_000_000;

fn queue(timeout_ns: u64) -> RequestQueue {
    RequestQueue::create(reserve_u64(SMALL.words()).unwrap(), SMALL, 1000, timeout_ns)
}

fn process(pid: u32) -> ProcessIdentity {
    ProcessIdentity { pid, start: 5, namespace: 1 }
}

fn page(number: u64) -> Page {
    Page { number, generation: number * 7 + 1 }
}

fn write(
    queue: &RequestQueue,
    me: ProcessIdentity,
    pages: &[Page],
    bytes: &[u8],
) -> Result<(), Failure> {
    let content: Vec<&[u8]> = bytes.chunks(PAGE).collect();
    let request = queue.begin(me, Operation::Write, 1, pages, &content)?;
    queue.finish(request, std::iter::empty())
}

fn read(
    queue: &RequestQueue,
    me: ProcessIdentity,
    pages: &[Page],
    into: &mut [u8],
) -> Result<(), Failure> {
    let request = queue.begin(me, Operation::Read, 1, pages, &[])?;
    queue.finish(request, into.chunks_mut(PAGE))
}

fn serve(queue: &RequestQueue, is_done: &AtomicBool) {
    let mut stored = std::collections::HashMap::new();
    while !is_done.load(SeqCst) {
        let seen = queue.notifications();
        let Some(job) = queue.next_job(1) else {
            queue.await_notification(seen, 10_000_000);
            continue;
        };
        let key = |page: &Page| (job.area, page.number, page.generation);
        let (mut outcome, mut content) = (Outcome::Done, Vec::new());
        match job.operation {
            Operation::Write => {
                for (page, bytes) in job.pages.iter().zip(job.content.chunks(PAGE)) {
                    stored.insert(key(page), bytes.to_vec());
                }
            }
            Operation::Read => {
                for page in &job.pages {
                    match stored.get(&key(page)) {
                        Some(bytes) => content.extend_from_slice(bytes),
                        None => outcome = Outcome::Lost(format!("no page {}", page.number)),
                    }
                }
            }
            Operation::Discard => job.pages.iter().for_each(|page| drop(stored.remove(&key(page)))),
        }
        queue.complete(&job, &outcome, &content);
    }
}

#[test]
fn many_threads_get_back_what_they_wrote() {
    let queue = queue(LONG_NS);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&queue, &is_done));
        let clients = (0..8_u32).map(|client| {
            scope.spawn(move || {
                let me = process(client + 1);
                for round in 0..40_u64 {
                    let count = (round as usize % MAX_PAGES) + 1;
                    let first = u64::from(client) * 10_000 + round * 40;
                    let pages: Vec<Page> = (0..count as u64).map(|at| page(first + at)).collect();
                    let fill = |at: usize| (first as usize + at * 3) as u8;
                    let bytes: Vec<u8> = (0..count).flat_map(|at| vec![fill(at); PAGE]).collect();
                    write(&queue, me, &pages, &bytes).unwrap();
                    let mut back = vec![0; bytes.len()];
                    read(&queue, me, &pages, &mut back).unwrap();
                    assert!(back == bytes);
                }
            })
        });
        clients.collect::<Vec<_>>().into_iter().for_each(|it| it.join().unwrap());
        is_done.store(true, SeqCst);
        server.join().unwrap();
    });
}

#[test]
fn a_lost_page_is_reported_with_its_text() {
    let queue = queue(LONG_NS);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&queue, &is_done));
        let mut bytes = [0; PAGE];
        let lost = read(&queue, process(1), &[page(9)], &mut bytes);
        assert_eq!(lost, Err(Failure::Lost("no page 9".into())));
        is_done.store(true, SeqCst);
    });
}

#[test]
fn a_request_without_an_answer_times_out() {
    let queue = queue(1_000_000);
    let request = || read(&queue, process(1), &[page(1)], &mut [0; PAGE]);
    assert_eq!(request(), Err(Failure::Timeout));
    // The timeouts have freed all three requests.
    (0..4).for_each(|_| assert_eq!(request(), Err(Failure::Timeout)));
    assert_eq!(queue.reap(|_| Liveness::Dead, |_| true), 0);
    // Without a free request, a read times out, too.
    assert!((0..3).all(|_| queue.take(Operation::Read, process(2), || 1).is_ok()));
    assert_eq!(request(), Err(Failure::Timeout));
}

#[test]
fn writes_without_a_server_leave_requests_for_reads() {
    let queue = RequestQueue::create(reserve_u64(SHAPE.words()).unwrap(), SHAPE, 1000, LONG_NS);
    let take = |operation| queue.take(operation, process(1), || 0);
    let writes = (0..).take_while(|_| take(Operation::Write).is_ok()).count();
    let discards = (0..).take_while(|_| take(Operation::Discard).is_ok()).count();
    assert_eq!((writes, discards), (SHAPE.requests * 3 / 4, 0));
    assert_eq!((0..).take_while(|_| take(Operation::Read).is_ok()).count(), SHAPE.requests / 4);
}

#[test]
fn a_request_abandoned_in_service_is_freed_by_the_server() {
    let queue = queue(1);
    let ticket = queue.take(Operation::Read, process(1), || 1).unwrap();
    queue.fill_in(&ticket, Operation::Discard, 1, &[page(1)], &[]);
    queue.submit(&ticket, State::Submitted).unwrap();
    let job = queue.next_job(0).unwrap();
    assert_eq!(queue.await_answer(&ticket, || 0), Err(Failure::Timeout));
    let state = || State::of(queue.requests.owner(ticket.at).state).unwrap();
    assert_eq!(state(), State::Abandoned);
    assert!(!queue.complete(&job, &Outcome::Done, &[]));
    assert_eq!(state(), State::Free);
}

#[test]
fn a_posted_write_is_done_and_read_with_a_timeout_of_its_own() {
    let queue = queue(LONG_NS);
    let is_done = AtomicBool::new(false);
    let posted = || queue.post(process(1), Operation::Write, 1, &[page(2)], &[&[9; PAGE]]);
    let soon = |ns| {
        let request = queue.begin_within(process(1), Operation::Read, 1, &[page(2)], ns)?;
        let mut bytes = [0; PAGE];
        queue.finish(request, [&mut bytes[..]].into_iter()).map(|()| bytes)
    };
    // Without a server, a posted request remains in use.
    assert_eq!(soon(1_000_000), Err(Failure::Timeout));
    assert!((0..3).all(|_| posted().is_ok()));
    assert_eq!(posted(), Err(Failure::Timeout));
    assert_eq!(queue.reap(|_| Liveness::Dead, |_| true), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&queue, &is_done));
        while soon(LONG_NS).is_err() {}
        assert_eq!(soon(LONG_NS), Ok([9; PAGE]));
        is_done.store(true, SeqCst);
    });
}

#[test]
fn requests_of_the_dead_are_freed_and_those_of_the_unknown_kept() {
    let queue = queue(LONG_NS);
    let tickets = [7, 8, 9].map(|pid| queue.take(Operation::Read, process(pid), || 1).unwrap());
    let liveness = |identity: ProcessIdentity| match identity {
        ProcessIdentity { pid: 7, start: 5, namespace: 1 } => Liveness::Dead,
        ProcessIdentity { pid: 8, .. } => Liveness::Unknown,
        _ => Liveness::Alive,
    };
    assert_eq!(queue.reap(liveness, |_| true), 1);
    assert_eq!(queue.take(Operation::Read, process(10), || 0).unwrap().at, tickets[0].at);
    assert!(queue.take(Operation::Read, process(10), || 0).is_err());
}

#[test]
fn requests_of_the_unknown_are_freed_with_their_area() {
    let queue = queue(LONG_NS);
    let submit = |pid, area| {
        let ticket = queue.take(Operation::Read, process(pid), || 1).unwrap();
        queue.fill_in(&ticket, Operation::Read, area, &[page(1)], &[]);
        queue.submit(&ticket, State::Submitted).unwrap();
    };
    submit(7, 1);
    submit(8, 2);
    // A client has not yet recorded its area.
    queue.take(Operation::Read, process(9), || 1).unwrap();
    assert_eq!(queue.reap(|_| Liveness::Unknown, |area| area == 1), 1);
    assert_eq!(queue.reap(|_| Liveness::Unknown, |area| area == 1), 0);
    assert_eq!(queue.reap(|_| Liveness::Alive, |_| false), 0);
}

#[test]
fn an_overwritten_queue_is_noticed() {
    let queue = queue(LONG_NS);
    queue.segment.words()[0].store(7, SeqCst);
    assert_eq!(read(&queue, process(1), &[page(1)], &mut []), Err(Failure::Unsound));
}

proptest! {
    /// Neither side panics or misses its timeout with any content of the shared memory.
    #[test]
    fn garbage_is_tolerated(
        garbage in proptest::collection::vec((0_usize..3, 0_usize..140, any::<u64>()), 1..40),
        states in proptest::collection::vec(0_u64..8, 3),
    ) {
        let queue = queue(1_000);
        for (request, word, value) in garbage {
            queue.segment.words()[SMALL.request_at(request) + word].store(value, SeqCst);
        }
        for (request, state) in states.into_iter().enumerate() {
            let word = queue.requests.word(request, 0);
            word.store(word.load(SeqCst) & !7 | state, SeqCst);
        }
        queue.begin_service();
        queue.reap(|_| Liveness::Dead, |_| true);
        while let Some(job) = queue.next_job(0) {
            prop_assert!((1..=MAX_PAGES).contains(&job.pages.len()));
            queue.complete(&job, &Outcome::Lost("x".repeat(1000)), &vec![1; 40 * PAGE]);
        }
        let mut bytes = [0; PAGE];
        prop_assert!(read(&queue, process(1), &[page(1)], &mut bytes).is_err());
        queue.reap(|_| Liveness::Dead, |_| true);
        queue.reap(|_| Liveness::Dead, |_| true);
        prop_assert!(queue.take(Operation::Read, process(2), || 0).is_ok());
    }
}
