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
    ledger_of(SMALL)
}

fn ledger_of(shape: Shape) -> Ledger {
    Ledger::create(reserve_u64(shape.words()).unwrap(), shape, 1, shape.steps)
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

#[test]
fn who_is_taken_for_dead_while_it_takes_its_seat_writes_into_no_other() {
    check(|| {
        let ledger = ledger_of(Shape { seats: 1, steps: 1 });
        let dead = |who: Identity| if who.pid == 7 { Fate::Dead } else { Fate::Alive };
        let taker = thread::spawn(move || ledger.take_seat(process(7)).is_some());
        ledger.reap(dead);
        let next = ledger.take_seat(process(8));
        taker.join().unwrap();
        let Some(next) = next else { return };
        let tenants = ledger.tenants();
        assert_eq!((tenants.len(), tenants[0].identity), (1, process(8)));
        assert!(next.is_sound() && next.take(1) == 1);
        ledger.reap(dead);
        assert_eq!(next.held(), 1);
    });
}

#[test]
fn who_lives_is_not_reaped_by_what_its_seat_said_of_another() {
    check(|| {
        let ledger = ledger_of(Shape { seats: 1, steps: 1 });
        // As the dead are told: by number and beginning.
        let fate = |who: Identity| {
            let is_eight = who.pid == 8 && (who.start == 0 || who.start == process(8).start);
            if is_eight { Fate::Alive } else { Fate::Dead }
        };
        assert_eq!(ledger.take_seat(process(7)).unwrap().take(1), 1);
        let reaper = thread::spawn(move || ledger.reap(fate));
        ledger.reap(fate);
        let seat = ledger.take_seat(process(8)).unwrap();
        let taken = seat.take(1);
        reaper.join().unwrap();
        assert!(seat.is_sound());
        assert_eq!((seat.held(), taken), (1, 1));
    });
}

#[test]
fn a_question_asked_while_another_is_answered_stays() {
    check(|| {
        let ledger = ledger_of(Shape { seats: 2, steps: 4 });
        let [rich, poor] = [7, 8].map(|pid| ledger.take_seat(process(pid)).unwrap());
        assert_eq!(rich.take(4), 4);
        let asking = thread::spawn(move || poor.ring(1, |_| false).is_some());
        let answered = rich.asked().inspect(|question| {
            rich.give(rich.held() - question.keep);
            rich.answered(*question);
        });
        let is_asked = asking.join().unwrap();
        assert!(is_asked && (answered.is_some() != rich.asked().is_some()));
    });
}
