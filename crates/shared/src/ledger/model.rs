//! Interleavings, by loom, of members that join, take, release, exit and reap.

use super::*;
use crate::common_model::{check, process, seven_is_dead};
use loom::thread;
use softswap_sys::primitive::reserve_u64;
use softswap_sys::process_identity::{Liveness, ProcessIdentity};

const SMALL: Shape = Shape { members: 2, chunks: 2 };

fn ledger() -> Ledger {
    ledger_of(SMALL)
}

fn ledger_of(shape: Shape) -> Ledger {
    Ledger::create(reserve_u64(shape.words()).unwrap(), shape, 1, shape.chunks)
}

#[test]
fn no_entry_and_no_chunk_is_taken_twice() {
    check(|| {
        let ledger = ledger();
        let take = move |pid| {
            let member = ledger.join(process(pid)).unwrap();
            (member.entry, member.take(2))
        };
        let other = thread::spawn(move || take(7));
        let (at, count) = take(8);
        let (others, rest) = other.join().unwrap();
        assert_ne!(at, others);
        assert_eq!((count + rest, ledger.free_chunks()), (2, 0));
    });
}

#[test]
fn chunks_of_the_dead_are_freed_once_and_never_those_of_the_next_member() {
    check(|| {
        let ledger = ledger();
        assert_eq!(ledger.join(process(7)).unwrap().take(1), 1);
        let reaper = thread::spawn(move || ledger.reap(seven_is_dead));
        let other = thread::spawn(move || ledger.reap(seven_is_dead));
        // The new member may get the freed entry and chunk.
        let member = ledger.join(process(8)).unwrap();
        let taken = member.take(2);
        let freed = reaper.join().unwrap() + other.join().unwrap();
        assert_eq!(freed, 1);
        assert_eq!((member.held(), ledger.free_chunks()), (taken, 2 - taken));
    });
}

#[test]
fn a_release_wakes_a_waiting_member() {
    check(|| {
        let ledger = ledger();
        let (giver, taker) = (ledger.join(process(7)).unwrap(), ledger.join(process(8)).unwrap());
        assert_eq!(giver.take(2), 2);
        let giving = thread::spawn(move || giver.release(1));
        loop {
            let seen = ledger.releases();
            if taker.take(1) == 1 {
                break;
            }
            ledger.await_release(seen, 0);
        }
        assert_eq!(giving.join().unwrap(), 1);
        assert_eq!((taker.held(), giver.held()), (1, 1));
    });
}

#[test]
fn chunks_taken_while_the_limit_is_lowered_are_excess() {
    check(|| {
        let ledger = ledger();
        let member = ledger.join(process(7)).unwrap();
        let lowering = thread::spawn(move || ledger.set_limit(1));
        let taken = member.take(2);
        assert_eq!(member.total(), taken);
        lowering.join().unwrap();
        assert_eq!(member.held() + member.excess(), taken);
        member.release(member.excess());
        assert!(member.held() <= 1 && member.excess() == 0);
    });
}

#[test]
fn a_process_taken_for_dead_while_joining_writes_to_no_other_member() {
    check(|| {
        let ledger = ledger_of(Shape { members: 1, chunks: 1 });
        let taker = thread::spawn(move || ledger.join(process(7)).is_some());
        ledger.reap(seven_is_dead);
        let next = ledger.join(process(8));
        taker.join().unwrap();
        let Some(next) = next else { return };
        let members = ledger.members();
        assert_eq!((members.len(), members[0].identity), (1, process(8)));
        assert!(next.is_sound() && next.take(1) == 1);
        ledger.reap(seven_is_dead);
        assert_eq!(next.held(), 1);
    });
}

#[test]
fn a_live_member_is_not_reaped_by_the_start_time_of_the_last_one() {
    check(|| {
        let ledger = ledger_of(Shape { members: 1, chunks: 1 });
        // Like the liveness rule: by PID and start time.
        let fate = |who: ProcessIdentity| {
            let is_eight = who.pid == 8 && (who.start == 0 || who.start == process(8).start);
            if is_eight { Liveness::Alive } else { Liveness::Dead }
        };
        assert_eq!(ledger.join(process(7)).unwrap().take(1), 1);
        let reaper = thread::spawn(move || ledger.reap(fate));
        ledger.reap(fate);
        let member = ledger.join(process(8)).unwrap();
        let taken = member.take(1);
        reaper.join().unwrap();
        assert!(member.is_sound());
        assert_eq!((member.held(), taken), (1, 1));
    });
}

#[test]
fn a_request_made_while_another_ends_stays() {
    check(|| {
        let ledger = ledger_of(Shape { members: 2, chunks: 4 });
        let [rich, poor] = [7, 8].map(|pid| ledger.join(process(pid)).unwrap());
        assert_eq!(rich.take(4), 4);
        let asking = thread::spawn(move || poor.request_release(1, |_| false).is_some());
        let answered = rich.release_target().inspect(|target| {
            rich.release(rich.held() - target.keep);
            rich.end_release(*target);
        });
        let is_asked = asking.join().unwrap();
        assert!(is_asked && (answered.is_some() != rich.release_target().is_some()));
    });
}

const NOW_MS: u64 = 5_000;

/// Returns two members that claim a turn and do not fit together.
fn claimants() -> [Member; 2] {
    let ledger = ledger_of(Shape { members: 2, chunks: 4 });
    ledger.set_takes_turns(true);
    [7, 8].map(|pid| {
        let member = ledger.join(process(pid)).unwrap();
        let claim = Claim { wants: 3, waited: 900, ran: 100, progress_ms: NOW_MS };
        member.publish_claim(NOW_MS, claim);
        member
    })
}

#[test]
fn a_turn_advanced_by_two_processes_has_one_owner() {
    check(|| {
        let [one, other] = claimants();
        let ledger = *one.ledger();
        let advancing = thread::spawn(move || ledger.advance_turn(NOW_MS, true));
        ledger.advance_turn(NOW_MS, true);
        advancing.join().unwrap();
        assert_ne!(one.has_turn(NOW_MS), other.has_turn(NOW_MS));
        assert_ne!(one.must_wait(NOW_MS), other.must_wait(NOW_MS));
        assert_eq!(ledger.turns(), 1);
    });
}

/// The model's waits have no time-out, so a lost wake-up would be a deadlock.
#[test]
fn a_waiting_member_is_woken_when_the_owner_exits() {
    check(|| {
        let [one, other] = claimants();
        one.ledger().advance_turn(NOW_MS, true);
        let (owner, waiter) = if one.has_turn(NOW_MS) { (one, other) } else { (other, one) };
        let ending = thread::spawn(move || {
            owner.end_claim(NOW_MS);
            owner.release_entry();
        });
        while waiter.await_turn(|| NOW_MS, 1) {}
        ending.join().unwrap();
        assert!(!waiter.must_wait(NOW_MS));
    });
}

#[test]
fn a_waiting_member_is_woken_when_turns_are_turned_off() {
    check(|| {
        let [one, other] = claimants();
        let ledger = *one.ledger();
        ledger.advance_turn(NOW_MS, true);
        let waiter = if one.must_wait(NOW_MS) { one } else { other };
        let ending = thread::spawn(move || ledger.set_takes_turns(false));
        while waiter.await_turn(|| NOW_MS, 1) {}
        ending.join().unwrap();
        assert_eq!((ledger.turn(NOW_MS), ledger.advance_turn(NOW_MS, true)), (None, None));
    });
}

/// A process that read the setting before may still begin a turn. The next round ends that turn.
#[test]
fn a_turn_that_begins_while_they_are_turned_off_ends_with_the_next_round() {
    check(|| {
        let [one, other] = claimants();
        let ledger = *one.ledger();
        let beginning = thread::spawn(move || ledger.advance_turn(NOW_MS, true));
        ledger.set_takes_turns(false);
        beginning.join().unwrap();
        assert_eq!(ledger.advance_turn(NOW_MS, true), None);
        assert!(!one.must_wait(NOW_MS) && !other.must_wait(NOW_MS));
    });
}
