//! Processes that take, give, end and come at the same moment: the interleavings, by loom.

use super::*;
use crate::base::primitive::reserve_u64;
use loom::thread;

const SMALL: Shape = Shape { seats: 2, steps: 2 };

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn ledger() -> Ledger {
    Ledger::create(reserve_u64(SMALL.words()).unwrap(), SMALL, 1, SMALL.steps)
}

fn process(pid: u32) -> Identity {
    Identity { pid, start: 5, namespace: 1 }
}

#[test]
fn no_seat_and_no_step_is_had_twice() {
    check(|| {
        let ledger = ledger();
        let take = move |pid| {
            let seat = ledger.take_seat(process(pid)).unwrap();
            (seat.at, seat.take(2))
        };
        let other = thread::spawn(move || take(7));
        let (at, count) = take(8);
        let (others, rest) = other.join().unwrap();
        assert_ne!(at, others);
        assert_eq!((count + rest, ledger.free_steps()), (2, 0));
    });
}

#[test]
fn what_the_dead_held_is_freed_once_and_never_what_comes_after() {
    check(|| {
        let ledger = ledger();
        assert_eq!(ledger.take_seat(process(7)).unwrap().take(1), 1);
        let fate = |who: Identity| if who.pid == 7 { Fate::Dead } else { Fate::Alive };
        let reaper = thread::spawn(move || ledger.reap(fate));
        let other = thread::spawn(move || ledger.reap(fate));
        // It may get the seat that becomes free, and the step.
        let seat = ledger.take_seat(process(8)).unwrap();
        let taken = seat.take(2);
        let freed = reaper.join().unwrap() + other.join().unwrap();
        assert_eq!(freed, 1);
        assert_eq!((seat.held(), ledger.free_steps()), (taken, 2 - taken));
    });
}

#[test]
fn who_waits_for_a_step_is_woken_by_who_gives_one() {
    check(|| {
        let ledger = ledger();
        let (giver, taker) =
            (ledger.take_seat(process(7)).unwrap(), ledger.take_seat(process(8)).unwrap());
        assert_eq!(giver.take(2), 2);
        let giving = thread::spawn(move || giver.give(1));
        loop {
            let seen = ledger.freed();
            if taker.take(1) == 1 {
                break;
            }
            ledger.await_freed(seen, 0);
        }
        assert_eq!(giving.join().unwrap(), 1);
        assert_eq!((taker.held(), giver.held()), (1, 1));
    });
}

#[test]
fn a_limit_that_is_lowered_under_who_takes_is_told_to_who_has_more() {
    check(|| {
        let ledger = ledger();
        let seat = ledger.take_seat(process(7)).unwrap();
        let lowering = thread::spawn(move || ledger.set_limit(1));
        let taken = seat.take(2);
        lowering.join().unwrap();
        assert_eq!(seat.held() + seat.beyond(), taken);
        seat.give(seat.beyond());
        assert!(seat.held() <= 1 && seat.beyond() == 0);
    });
}
