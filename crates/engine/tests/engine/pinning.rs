//! Memory pinned for system calls remains within its share of the budget, even with concurrent
//! calls. A signal ends a wait for free memory.

use crate::common::{Setup, World, assert_holds, mix64, random, write_all};
use softswap_engine::api::engine::pinning::Then;
use softswap_engine::base::access::Access;
use softswap_engine::core::errors::{Exhausted, FaultError};
use softswap_sys::raw::current_thread;
use softswap_sys::{PAGE_SIZE, signals, threads};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const THREADS: u64 = 12;
const PAGES: usize = 512;

/// Calls that together need more than the share charge pages before they pin them, and wait.
#[test]
fn pinned_memory_of_calls_is_bounded() {
    let world = World::new(&Setup { memory_mib: 8, ..Setup::default() });
    let engine = &*world.engine;
    let most = engine.hold_limit_bytes() / PAGE_SIZE;
    assert!(most > 64 && most < PAGES, "{most} pages of a budget of 2048");
    let contents = random(PAGES as u64);
    let memories: Vec<_> = (0..THREADS).map(|_| world.map_with(&contents)).collect();
    let (done, highest) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (pinned_whole, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| engine.run_reclaim(|| !done.load(Relaxed)));
        let callers: Vec<_> = (0..THREADS)
            .map(|number| {
                let (memories, contents) = (&memories, &contents);
                let (highest, pinned_whole, refused) = (&highest, &pinned_whole, &refused);
                let world = &world;
                scope.spawn(move || {
                    let memory = memories[number as usize];
                    for step in 0..60 {
                        let chance = mix64(number << 32 | step);
                        let pages = 1 + chance as usize % (most - 1);
                        let first = (chance >> 32) as usize % (PAGES - pages);
                        let part = memory.part(first * PAGE_SIZE, pages * PAGE_SIZE);
                        while !engine.try_hold(pages) {
                            refused.fetch_add(1, Relaxed);
                            engine.wait_for_release();
                        }
                        let pinned = engine.pin_until(part.address(), part.len(), 0).unwrap();
                        assert_eq!((pinned.bytes, pinned.then), (part.len(), Then::Done));
                        highest.fetch_max(engine.held_pages(), Relaxed);
                        assert_holds(part, &contents[first..first + pages]);
                        assert_eq!(world.resident(part), pages, "pinned pages must be resident");
                        engine.unpin(part.address(), part.len());
                        engine.release(pages);
                        pinned_whole.fetch_add(1, Relaxed);
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = callers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Relaxed);
        engine.wake_background();
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
    assert_eq!(engine.held_pages(), 0);
    assert_eq!(pinned_whole.into_inner(), THREADS as usize * 60);
    assert!(refused.into_inner() > 0, "some calls must have waited");
    let highest = highest.into_inner();
    assert!(highest > most / 2 && highest <= most, "{highest} of {most}");
}

#[test]
fn held_memory_is_charged() {
    let world = World::new(&Setup { memory_mib: 8, ..Setup::default() });
    let engine = &*world.engine;
    let pages = engine.hold_limit_bytes() / PAGE_SIZE;
    let memory = world.map(2000);
    write_all(memory, &random(2000));
    let before = world.resident(memory);
    assert!(engine.try_hold_memory(pages));
    assert!(!engine.try_hold_memory(1) && !engine.try_hold(1));
    write_all(memory, &random(2000));
    let resident_with_hold = world.resident(memory);
    assert!(
        resident_with_hold + pages / 2 < before,
        "{resident_with_hold} pages resident with {pages} held, {before} without"
    );
    engine.release_memory(pages);
    assert_eq!(engine.held_pages(), 0);
    write_all(memory, &random(2000));
    assert!(world.resident(memory) > resident_with_hold);
}

fn exhaust(world: &World) {
    let memory = world.map(4000);
    let mut page = 0;
    loop {
        match world.engine.pin(memory.address() + page * PAGE_SIZE, PAGE_SIZE, PAGE_SIZE) {
            Ok(_) => page += 1,
            Err(FaultError::Exhausted(Exhausted::NoVictims { .. })) => return,
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn partial_mlock_is_undone() {
    let world = World::new(&Setup { memory_mib: 8, ..Setup::default() });
    let engine = &*world.engine;
    let memory = world.map(8);
    write_all(memory.part(0, 4 * PAGE_SIZE), &random(4));
    let at = |page: usize| memory.address() + page * PAGE_SIZE;
    engine.lock_range(at(2), PAGE_SIZE).unwrap();
    // Only one page is locked. Pin the others, so that they remain resident.
    engine.pin(at(0), 4 * PAGE_SIZE, usize::MAX).unwrap();
    exhaust(&world);
    let error = engine.lock_range(at(0), memory.len()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
    let locked: Vec<_> = (0..8).map(|page| engine.has_locked(at(page), PAGE_SIZE)).collect();
    assert_eq!(locked, [false, false, true, false, false, false, false, false]);
    // The locked page keeps its own pin, in addition to this test's.
    engine.unpin(at(0), 4 * PAGE_SIZE);
    engine.reclaim_now(1000);
    assert_eq!(world.resident(memory), 1, "the failed mlock must undo its own pins only");
}

#[test]
fn signal_interrupts_wait_for_memory() {
    let world = World::new(&Setup { memory_mib: 8, ..Setup::default() });
    let memory = world.map(8);
    exhaust(&world);
    let fault = |open| world.engine.fault_until(memory.address(), Access::Write, open);
    let wait = || {
        // The signals remain blocked until the thread exits, so none is delivered.
        let _ = signals::block_all();
        threads::interrupt(current_thread());
        let start = Instant::now();
        let mut calls = 0;
        // A thread that retries after signals waits as long as one without signals.
        let error = loop {
            match fault(signals::bit(signals::SIGSYS)) {
                Err(error) if error.is_for_a_signal() => calls += 1,
                outcome => break outcome.unwrap_err(),
            }
        };
        assert!(matches!(error, FaultError::Exhausted(Exhausted::NoVictims { .. })), "{error}");
        // The wait lasts 1.5 s in all, and each call counts for at most 0.1 s of it.
        assert!(calls > 10, "interrupted {calls} times");
        // Load cannot shorten the wait, so a lower bound is safe.
        assert!(start.elapsed() > Duration::from_secs(1), "{:?}", start.elapsed());
        assert!(!fault(signals::bit(signals::SIGSEGV)).unwrap_err().is_for_a_signal());
    };
    thread::scope(|scope| scope.spawn(wait).join().unwrap());
}
