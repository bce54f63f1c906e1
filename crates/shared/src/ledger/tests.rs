//! Tests members of a ledger, also in several threads.

use super::*;
use crate::membership::Owner;
use softswap_sys::memory::reserve_u64;
use softswap_sys::process_identity::{Liveness, ProcessIdentity};
use std::sync::atomic::AtomicBool;

pub(super) const SMALL: Shape = Shape { members: 4, chunks: 24 };
pub(super) const LIMIT: usize = 16;

pub(super) fn ledger_of(shape: Shape, limit: usize) -> Ledger {
    Ledger::create(reserve_u64(shape.words()).unwrap(), shape, 1 << 20, limit)
}

pub(super) fn process(pid: u32) -> ProcessIdentity {
    ProcessIdentity { pid, start: 1000 + u64::from(pid), namespace: 1 }
}

#[test]
fn a_member_notices_that_its_entry_was_overwritten() {
    let ledger = ledger_of(SMALL, LIMIT);
    let member = ledger.join(process(7)).unwrap();
    assert!(member.is_sound());
    ledger.members.word(member.entry, 0).store(9, Relaxed);
    assert!(!member.is_sound());
    let other = ledger.join(process(8)).unwrap();
    ledger.segment.words()[0].store(1, Relaxed);
    assert!(!other.is_sound() && Ledger::open(ledger.segment.words(), SMALL).is_none());
}

fn asked(member: &Member, need: usize) -> Option<(usize, usize)> {
    member.request_release(need, |_| false).map(|request| (request.entry, request.chunks))
}

fn keep(member: &Member) -> Option<usize> {
    member.release_target().map(|target| target.keep)
}

#[test]
fn a_demand_is_served_up_to_the_floor_and_beyond_it_if_urgent() {
    let ledger = ledger_of(SMALL, LIMIT);
    let [child, parent] = [1, 2].map(|pid| ledger.join(process(pid)).unwrap());
    assert_eq!((child.take(4), parent.take(12)), (4, 12));
    assert_eq!((ledger.limit(), ledger.floor()), (16, 4));
    child.publish(u64::MAX, 0);
    child.demand(3);
    assert_eq!((ledger.serve_demands(), keep(&parent)), (0, None));
    child.demand_urgently(3);
    assert_eq!((ledger.serve_demands(), keep(&parent)), (3, Some(9)));
    assert_eq!(ledger.serve_demands(), 0);
    child.demand_urgently(16);
    assert_eq!((ledger.serve_demands(), keep(&parent)), (5, Some(4)));
}

#[test]
fn a_member_below_its_floor_gets_it_from_the_lowest_benefit() {
    let ledger = ledger_of(SMALL, LIMIT);
    let [poor, rich, richer] = [1, 2, 3].map(|pid| ledger.join(process(pid)).unwrap());
    assert_eq!((rich.take(6), richer.take(10)), (6, 10));
    rich.publish(5, 0);
    richer.publish(9, 0);
    assert_eq!(ledger.floor(), 2);
    assert_eq!(asked(&poor, 8), Some((rich.entry, 2)));
    assert_eq!((keep(&rich), keep(&richer)), (Some(4), None));
    // A member that releases nothing, because it is stopped, is skipped.
    let is_rich = |entry| entry == rich.entry;
    assert_eq!(
        poor.request_release(8, is_rich),
        Some(ReleaseRequest { entry: richer.entry, chunks: 2 })
    );
    rich.release(2);
    assert_eq!(poor.take(2), 2);
    rich.end_release(rich.release_target().unwrap());
    assert_eq!(asked(&poor, 8), None, "all other members have a higher benefit");
    poor.publish(11, 0);
    assert_eq!(asked(&poor, 8), Some((rich.entry, 2)));
}

#[test]
fn two_equal_requests_are_both_met() {
    let ledger = ledger_of(SMALL, LIMIT);
    let [rich, one, other] = [1, 2, 3].map(|pid| ledger.join(process(pid)).unwrap());
    assert_eq!(rich.take(LIMIT), LIMIT);
    assert_eq!(ledger.floor(), 2);
    assert_eq!(asked(&one, 2), Some((rich.entry, 2)));
    let first = rich.release_target().unwrap();
    assert_eq!(asked(&other, 2), Some((rich.entry, 2)));
    assert_eq!(keep(&rich), Some(LIMIT - 4));
    rich.release(2);
    rich.end_release(first);
    let second = rich.release_target().unwrap();
    assert_eq!(second.keep, LIMIT - 4, "ending the first request does not end the second");
    rich.release(2);
    rich.end_release(second);
    assert_eq!(rich.release_target(), None);
    // An equal request, while the previous one is being ended.
    assert_eq!(rich.take(4), 4);
    assert!(asked(&one, 2).is_some());
    let before = rich.release_target().unwrap();
    rich.end_release(before);
    assert!(asked(&one, 2).is_some());
    let after = rich.release_target().unwrap();
    assert_eq!(after.keep, before.keep);
    rich.end_release(before);
    assert_eq!(rich.release_target(), Some(after));
}

#[test]
fn two_equal_members_share_and_stop_asking() {
    let ledger = ledger_of(SMALL, LIMIT);
    let [one, other] = [1, 2].map(|pid| ledger.join(process(pid)).unwrap());
    assert_eq!((one.take(12), other.take(4)), (12, 4));
    one.publish(90, 0);
    other.publish(60, 0);
    // `one` has clearly more chunks than `other`, but not clearly more benefit.
    assert_eq!(asked(&other, 9), Some((one.entry, 4)));
    assert_eq!(asked(&one, 9), None);
    one.release(4);
    one.end_release(one.release_target().unwrap());
    assert_eq!(other.take(4), 4);
    one.publish(60, 0);
    other.publish(90, 0);
    assert_eq!((asked(&one, 9), asked(&other, 9)), (None, None));
    other.publish(121, 0);
    assert_eq!(asked(&other, 9), Some((one.entry, 4)));
}

/// Simulates a round of members that are short of memory: each requests an eighth of what it holds,
/// and the others release at once what it requests.
fn simulate_round(members: &[Member]) {
    for member in members {
        let owed = member.ledger().floor().saturating_sub(member.held());
        let mut missing = (member.held() / 8).max(owed).max(1);
        missing -= member.take(missing);
        while let Some((entry, _)) = (missing > 0).then(|| asked(member, missing)).flatten() {
            let other = members.iter().find(|other| other.entry == entry).unwrap();
            let target = other.release_target().unwrap();
            other.release(other.held() - target.keep);
            other.end_release(target);
            missing -= member.take(missing);
        }
    }
}

/// Budget threads make ten rounds a second while memory is short, so 20 rounds take two seconds.
#[test]
fn equal_members_have_equal_shares_after_20_rounds() {
    for held in [[399, 1].as_slice(), &[300, 60, 39, 1], &[97, 101, 101, 101], &[1, 396, 1, 2]] {
        let ledger = ledger_of(Shape { members: 4, chunks: 400 }, 400);
        let members: Vec<_> = (1..).map(process).take(held.len()).collect();
        let members: Vec<_> = members.into_iter().map(|it| ledger.join(it).unwrap()).collect();
        for (member, held) in members.iter().zip(held) {
            assert_eq!(member.take(*held), *held);
            member.publish(70, 0);
        }
        (0..20).for_each(|_| simulate_round(&members));
        let shares: Vec<_> = members.iter().map(Member::held).collect();
        let (least, most) = (*shares.iter().min().unwrap(), *shares.iter().max().unwrap());
        assert!(most <= least + least / 4 + 1, "{held:?}: {shares:?}");
        // A member with a clearly higher benefit gets what the others have beyond their floors.
        members[0].publish(150, 0);
        (0..20).for_each(|_| simulate_round(&members));
        let floors = (held.len() - 1) * ledger.floor();
        assert_eq!(members[0].held(), 400 - floors, "{held:?}");
    }
}

#[test]
fn a_member_beyond_a_lowered_limit_is_notified_again() {
    let ledger = ledger_of(SMALL, LIMIT);
    let member = ledger.join(process(1)).unwrap();
    assert_eq!(member.take(LIMIT), LIMIT);
    ledger.set_limit(8);
    let seen = member.notifications();
    ledger.notify_excess();
    assert_ne!(member.notifications(), seen);
    assert_eq!(member.release(8), 8);
    let seen = member.notifications();
    ledger.notify_excess();
    assert_eq!((member.notifications(), member.excess()), (seen, 0));
}

#[test]
fn a_process_killed_while_joining_is_judged_by_its_pid() {
    let ledger = ledger_of(SMALL, LIMIT);
    let half = Owner { state: 1, generation: 5, namespace: 1, pid: 9 };
    ledger.members.word(0, 0).store(half.word(), Relaxed);
    let seen =
        |identity: ProcessIdentity| (identity.pid, identity.start, identity.namespace) == (9, 0, 1);
    ledger.reap(|identity| if seen(identity) { Liveness::Alive } else { Liveness::Dead });
    assert_eq!(ledger.member_count(), 1);
    // Another process has the same PID, so the previous one is dead.
    let member = ledger.join(process(9)).unwrap();
    assert_eq!((member.entry, member.generation, ledger.member_count()), (0, 6, 1));
    ledger.reap(|_| Liveness::Dead);
    ledger.members.word(1, 0).store(half.word(), Relaxed);
    ledger.reap(|identity| if seen(identity) { Liveness::Dead } else { Liveness::Alive });
    assert_eq!(ledger.member_count(), 0);
}

#[test]
fn the_next_member_of_an_entry_has_no_figures_of_the_last_one() {
    let ledger = ledger_of(SMALL, LIMIT);
    let member = ledger.join(process(1)).unwrap();
    member.publish(5, 4096);
    let faults = [1, 2, 3, 4, 5, 6];
    let counts = Counts { faults, stalled_ns: 7, bytes_read: 8, bytes_written: 9 };
    let [resident_bytes, pool_bytes, disk_bytes, tables_bytes, largest_block_bytes] =
        [10, 11, 12, 13, 14];
    let sizes = Sizes { resident_bytes, pool_bytes, disk_bytes, tables_bytes, largest_block_bytes };
    member.publish_counts(&counts);
    member.publish_sizes(&sizes);
    member.publish_name(*b"a name of 16 let");
    let info = ledger.members()[0];
    assert_eq!((info.counts, info.sizes, info.peak_bytes), (counts, sizes, 4096));
    assert_eq!((info.used_bytes, member.release_target(), member.is_sound()), (4096, None, true));
    assert_eq!(&info.name, b"a name of 16 let");
    member.release_entry();
    assert!(ledger.join(process(2)).is_some());
    let info = ledger.members()[0];
    let nothing = (Counts::default(), Sizes::default(), 0);
    assert_eq!((info.counts, info.sizes, info.peak_bytes), nothing);
    assert_eq!(info.name, [0; 16]);
}

#[test]
fn a_stopped_member_is_skipped_for_one_that_releases() {
    let ledger = ledger_of(SMALL, LIMIT);
    let [stopped, willing, requester] = [1, 2, 3].map(|pid| ledger.join(process(pid)).unwrap());
    assert_eq!((stopped.take(8), willing.take(8)), (8, 8));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                willing.await_notification(willing.notifications(), 1_000_000);
                if let Some(target) = willing.release_target() {
                    willing.release(willing.held() - target.keep);
                    willing.end_release(target);
                }
            }
        });
        willing.publish(1, 0);
        requester.publish(9, 0);
        // Wait for all chunks of the willing member except its floor; the stopped member releases
        // none. A request fails if the willing member's thread does not run for a while.
        while requester.held() < 6 {
            let _ = requester.obtain(12 - requester.held(), 1_000_000_000);
        }
        done.store(true, Relaxed);
    });
    assert_eq!((stopped.held(), willing.held(), requester.held()), (8, 2, 6));
    assert!(stopped.release_target().is_some() && ledger.free_chunks() == 0);
}

#[test]
fn processes_that_join_leave_and_are_killed_free_every_chunk() {
    let ledger = ledger_of(Shape { members: 16, chunks: 64 }, 48);
    let killed: [AtomicBool; 200] = [const { AtomicBool::new(false) }; 200];
    let fate = |identity: ProcessIdentity| {
        if killed[identity.pid as usize].load(Relaxed) { Liveness::Dead } else { Liveness::Alive }
    };
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (killed, fate) = (&killed, &fate);
            scope.spawn(move || {
                for life in 0..50 {
                    let pid = thread * 50 + life;
                    let Some(member) = ledger.join(process(pid.max(1))) else { continue };
                    let mut own = 0;
                    for turn in 0..40 {
                        own += member.take(1 + turn % 5);
                        own -= member.release(turn % 4);
                        assert_eq!(member.held() + member.excess(), own);
                        if turn == 20 {
                            ledger.reap(fate);
                        }
                    }
                    if life % 2 == 0 {
                        member.release_entry();
                    } else {
                        killed[pid as usize].store(true, Relaxed);
                    }
                }
            });
        }
    });
    ledger.reap(fate);
    assert_eq!((ledger.member_count(), ledger.free_chunks()), (0, 48));
    assert_eq!(ledger.chunks().0.len(), 48);
}

#[test]
fn random_writes_to_the_shared_words_block_no_member() {
    let ledger = ledger_of(SMALL, LIMIT);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for pid in 1..4 {
            let done = &done;
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    let Some(member) = ledger.join(process(pid)) else { continue };
                    let _ = member.obtain(3, 100_000);
                    member.publish(u64::from(pid), 1);
                    member.await_notification(member.notifications(), 1_000);
                    if let Some(target) = member.release_target() {
                        member.release(target.keep.min(member.held()));
                        member.end_release(target);
                    }
                    let members = ledger.members();
                    assert!(members.len() <= SMALL.members && ledger.limit() <= SMALL.chunks);
                    ledger.notify_excess();
                    ledger.reap(|identity| {
                        if identity.pid % 2 == 0 { Liveness::Dead } else { Liveness::Unknown }
                    });
                    member.release_entry();
                }
            });
        }
        let mut random = 1_u64;
        for _ in 0..200_000 {
            // Marsaglia's xorshift.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let word = random as usize % ledger.segment.words().len();
            // Half of the values are small, because those are often meaningful.
            let value = if random >> 63 == 0 { random } else { random >> 20 & 0xFF };
            ledger.segment.words()[word].store(value, Relaxed);
        }
        done.store(true, Relaxed);
    });
    ledger.set_limit(SMALL.chunks);
    ledger.reap(|_| Liveness::Dead);
    assert_eq!((ledger.member_count(), ledger.free_chunks()), (0, SMALL.chunks));
}
