//! The ledger against a sequential one, against threads, and with garbage in it.

use super::layout::{Header, Owner, Word};
use super::*;
use proptest::prelude::*;
use softswap_sys::memory::reserve_u64;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

const SMALL: Shape = Shape { seats: 4, steps: 24 };
const LIMIT: usize = 16;

fn ledger_of(shape: Shape, limit: usize) -> Ledger {
    Ledger::create(reserve_u64(shape.words()).unwrap(), shape, 1 << 20, limit)
}

fn process(pid: u32) -> Identity {
    Identity { pid, start: 1000 + u64::from(pid), namespace: 1 }
}

/// What holds whatever the order of words: steps and their holders, in a list.
struct Model {
    steps: Vec<Option<u32>>,
    limit: usize,
    seated: Vec<u32>,
    dead: Vec<u32>,
    asked: BTreeMap<u32, usize>,
    worth: BTreeMap<u32, u64>,
}

impl Model {
    fn new() -> Model {
        let steps = vec![None; SMALL.steps];
        let [seated, dead] = [Vec::new(), Vec::new()];
        Model { steps, limit: LIMIT, seated, dead, asked: BTreeMap::new(), worth: BTreeMap::new() }
    }

    fn held(&self, pid: u32) -> usize {
        self.steps[..self.limit].iter().filter(|step| **step == Some(pid)).count()
    }

    fn beyond(&self, pid: u32) -> usize {
        self.steps[self.limit..].iter().filter(|step| **step == Some(pid)).count()
    }

    fn take(&mut self, pid: u32, count: usize) -> usize {
        let free = self.steps[..self.limit].iter_mut().filter(|step| step.is_none()).take(count);
        free.map(|step| *step = Some(pid)).count()
    }

    fn give(&mut self, pid: u32, count: usize) -> usize {
        let held = self.steps.iter_mut().rev().filter(|step| **step == Some(pid)).take(count);
        held.map(|step| *step = None).count()
    }

    fn end(&mut self, pid: u32) {
        self.give(pid, usize::MAX);
        self.seated.retain(|seated| *seated != pid);
        self.asked.remove(&pid);
        self.worth.remove(&pid);
    }

    /// What is left to it once it has done what it is asked.
    fn left(&self, pid: u32) -> usize {
        self.asked.get(&pid).map_or(self.held(pid), |keep| self.held(pid).min(*keep))
    }

    /// Whom a process may ask, and for how much of what it needs.
    fn ring(&self, pid: u32, need: usize) -> Vec<(u32, usize)> {
        let floor = (self.limit / (2 * self.seated.len())).max(1);
        let worth = |pid: &u32| self.worth.get(pid).copied().unwrap_or(0);
        let (held, own) = (self.held(pid), worth(&pid));
        let may_give = |other: &&u32| **other != pid && self.left(**other) > floor;
        let others: Vec<u32> = self.seated.iter().filter(may_give).copied().collect();
        let is_cheap = |other: &&u32| held < floor || 2 * worth(other) < own;
        let cheap: Vec<u32> = others.iter().filter(is_cheap).copied().collect();
        let key = |other: &u32| (worth(other), usize::MAX - self.left(*other));
        if let Some(least) = cheap.iter().map(key).min() {
            let most = if held < floor { floor - held } else { need };
            let cheapest = cheap.iter().filter(|other| key(other) == least);
            let of = |other: &u32| (*other, need.min(most).min(self.left(*other) - floor));
            return cheapest.map(of).collect();
        }
        let is_larger =
            |other: &&u32| 2 * own >= worth(other) && self.left(**other) > held + held / 4 + 1;
        let larger: Vec<u32> = others.iter().filter(is_larger).copied().collect();
        let most = larger.iter().map(|other| self.left(*other)).max();
        let largest = larger.iter().filter(|other| Some(self.left(**other)) == most);
        let of = |other: &u32| {
            let left = self.left(*other);
            (*other, need.min((left - held) / 2).min(left - floor))
        };
        largest.map(of).collect()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Sit(u32),
    Take(u32, usize),
    Give(u32, usize),
    Leave(u32),
    Kill(u32),
    Reap,
    Limit(usize),
    Publish(u32, u64),
    Ring(u32, usize),
    Answer(u32),
}

fn steps() -> impl Strategy<Value = Step> {
    let pid = || 1..7u32;
    prop_oneof![
        3 => pid().prop_map(Step::Sit),
        4 => (pid(), 0..12usize).prop_map(|(pid, count)| Step::Take(pid, count)),
        3 => (pid(), 0..12usize).prop_map(|(pid, count)| Step::Give(pid, count)),
        1 => pid().prop_map(Step::Leave),
        1 => pid().prop_map(Step::Kill),
        1 => Just(Step::Reap),
        1 => (0..SMALL.steps + 4).prop_map(Step::Limit),
        2 => (pid(), 0..4u64).prop_map(|(pid, worth)| Step::Publish(pid, worth)),
        2 => (pid(), 1..9usize).prop_map(|(pid, need)| Step::Ring(pid, need)),
        1 => pid().prop_map(Step::Answer),
    ]
}

/// The ledger and its model, and the seats that processes have.
struct Both {
    ledger: Ledger,
    model: Model,
    seats: BTreeMap<u32, Seat>,
    /// Of processes that have been killed, which nobody has found out.
    left: BTreeMap<u32, Seat>,
}

impl Both {
    fn act(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let Both { ledger, model, seats, left } = self;
        match step {
            Step::Sit(pid) if !model.dead.contains(pid) => {
                let seat = ledger.take_seat(process(*pid));
                let has_room = model.seated.contains(pid) || model.seated.len() < SMALL.seats;
                prop_assert_eq!(seat.is_some(), has_room);
                if let Some(seat) = seat {
                    seats.insert(*pid, seat);
                    if !model.seated.contains(pid) {
                        model.seated.push(*pid);
                    }
                }
            }
            Step::Take(pid, count) => {
                let Some(seat) = seats.get(pid).copied() else { return Ok(()) };
                prop_assert_eq!(seat.take(*count), model.take(*pid, *count));
            }
            Step::Give(pid, count) => {
                let Some(seat) = seats.get(pid).copied() else { return Ok(()) };
                prop_assert_eq!(seat.give(*count), model.give(*pid, *count));
            }
            Step::Leave(pid) => {
                let Some(seat) = seats.remove(pid) else { return Ok(()) };
                seat.leave();
                prop_assert!(!seat.is_sound());
                model.end(*pid);
            }
            Step::Kill(pid) => {
                let Some(seat) = seats.remove(pid) else { return Ok(()) };
                left.insert(*pid, seat);
                model.dead.push(*pid);
            }
            Step::Reap => {
                let dead = std::mem::take(&mut model.dead);
                let is_dead = |who: Identity| dead.iter().any(|pid| process(*pid) == who);
                let free = ledger.free_steps();
                ledger.reap(|who| if is_dead(who) { Fate::Dead } else { Fate::Alive });
                dead.iter().for_each(|pid| model.end(*pid));
                left.clear();
                prop_assert!(ledger.free_steps() >= free);
            }
            Step::Limit(limit) => {
                ledger.set_limit(*limit);
                model.limit = (*limit).min(SMALL.steps);
            }
            Step::Publish(pid, worth) => {
                let Some(seat) = seats.get(pid).copied() else { return Ok(()) };
                seat.publish(*worth, 4096);
                model.worth.insert(*pid, *worth);
            }
            Step::Ring(pid, need) => {
                let Some(seat) = seats.get(pid).copied() else { return Ok(()) };
                return self.ring(*pid, seat, *need);
            }
            Step::Answer(pid) => {
                let Some(seat) = seats.get(pid).copied() else { return Ok(()) };
                prop_assert_eq!(seat.asked().map(|it| it.keep), model.asked.remove(pid));
                seat.asked().into_iter().for_each(|question| seat.answered(question));
                prop_assert_eq!(seat.asked(), None);
            }
            Step::Sit(_) => {}
        }
        Ok(())
    }

    fn ring(&mut self, pid: u32, seat: Seat, need: usize) -> Result<(), TestCaseError> {
        let rung = seat.ring(need, |_| false);
        let expected = self.model.ring(pid, need);
        let Some(rung) = rung else {
            prop_assert!(expected.iter().all(|(_, steps)| *steps == 0), "{:?}", expected);
            return Ok(());
        };
        // Who was killed is asked, too, as long as nobody has found out.
        let mut all = self.seats.iter().chain(&self.left);
        let (other, others) = all.find(|(_, seat)| seat.at == rung.seat).unwrap();
        prop_assert!(expected.contains(&(*other, rung.steps)), "{:?} of {:?}", rung, expected);
        let keep = self.model.left(*other) - rung.steps;
        prop_assert!(keep >= self.ledger.floor());
        prop_assert_eq!(others.asked().map(|it| it.keep), Some(keep));
        self.model.asked.insert(*other, keep);
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let Both { ledger, model, seats, .. } = self;
        let free = model.steps[..model.limit].iter().filter(|step| step.is_none()).count();
        prop_assert_eq!((ledger.limit(), ledger.free_steps()), (model.limit, free));
        for (pid, seat) in seats {
            prop_assert!(seat.is_sound());
            prop_assert_eq!((seat.held(), seat.beyond()), (model.held(*pid), model.beyond(*pid)));
        }
        Ok(())
    }
}

fn do_without_model(ledger: Ledger, seats: &mut BTreeMap<u32, Seat>, step: &Step) {
    let seat_of = |pid: &u32| seats.get(pid).copied();
    match step {
        Step::Sit(pid) => {
            let seat = ledger.take_seat(process(*pid));
            seats.extend(seat.map(|seat| (*pid, seat)));
        }
        Step::Take(pid, count) => drop(seat_of(pid).map(|seat| seat.take(*count))),
        Step::Give(pid, count) => drop(seat_of(pid).map(|seat| seat.give(*count))),
        Step::Leave(pid) | Step::Kill(pid) => drop(seats.remove(pid).map(Seat::leave)),
        Step::Reap => drop(ledger.reap(|_| Fate::Unknown)),
        Step::Limit(limit) => ledger.set_limit(*limit),
        Step::Publish(pid, worth) => drop(seat_of(pid).map(|seat| seat.publish(*worth, 1))),
        Step::Ring(pid, need) => drop(seat_of(pid).map(|seat| seat.ring(*need, |_| false))),
        Step::Answer(pid) => {
            let asked = seat_of(pid).and_then(|seat| Some((seat, seat.asked()?)));
            asked.into_iter().for_each(|(seat, question)| seat.answered(question));
        }
    }
}

proptest! {
    #[test]
    fn a_ledger_agrees_with_a_list_of_steps(steps in prop::collection::vec(steps(), 0..200)) {
        let ledger = ledger_of(SMALL, LIMIT);
        let (seats, left) = (BTreeMap::new(), BTreeMap::new());
        let mut both = Both { ledger, model: Model::new(), seats, left };
        for step in steps {
            both.act(&step)?;
            both.check()?;
        }
    }

    #[test]
    fn garbage_is_taken_for_what_it_may_be_at_most_and_goes_away(
        garbage in prop::collection::vec((0..SMALL.words(), any::<u64>(), steps()), 1..60),
    ) {
        let ledger = ledger_of(SMALL, LIMIT);
        let mut seats = BTreeMap::new();
        for (word, value, step) in garbage {
            ledger.words[word].store(value, Relaxed);
            // Whatever comes of it, nobody panics.
            do_without_model(ledger, &mut seats, &step);
            prop_assert!(ledger.limit() <= SMALL.steps && ledger.free_steps() <= ledger.limit());
            let mut sound: Vec<_> = seats.values().filter(|seat| seat.is_sound()).collect();
            // Of two that took the same seat in turn only the last can be sound.
            sound.dedup_by_key(|seat| seat.at);
            let held: usize = sound.iter().map(|seat| seat.held()).sum();
            prop_assert!(held <= ledger.limit(), "{} of {}", held, ledger.limit());
        }
        ledger.set_limit(SMALL.steps);
        ledger.reap(|_| Fate::Dead);
        prop_assert_eq!((ledger.taken_seats(), ledger.free_steps()), (0, SMALL.steps));
    }
}

#[test]
fn a_seat_that_is_lost_is_told() {
    let ledger = ledger_of(SMALL, LIMIT);
    let seat = ledger.take_seat(process(7)).unwrap();
    assert!(seat.is_sound());
    ledger.seat_word(seat.at, Word::Owner).store(9, Relaxed);
    assert!(!seat.is_sound());
    let other = ledger.take_seat(process(8)).unwrap();
    ledger.header(Header::Magic).store(1, Relaxed);
    assert!(!other.is_sound() && Ledger::open(ledger.words, SMALL).is_none());
}

fn keep(seat: &Seat) -> Option<usize> {
    seat.asked().map(|question| question.keep)
}

#[test]
fn who_cannot_ask_gets_its_floor_by_others_and_more_where_it_cannot_do_without() {
    let ledger = ledger_of(SMALL, LIMIT);
    let [child, parent] = [1, 2].map(|pid| ledger.take_seat(process(pid)).unwrap());
    assert_eq!((child.take(4), parent.take(12)), (4, 12));
    assert_eq!((ledger.limit(), ledger.floor()), (16, 4));
    child.publish(u64::MAX, 0);
    child.want(3);
    assert_eq!((ledger.ring_for_others(), keep(&parent)), (0, None));
    child.want_urgently(3);
    assert_eq!((ledger.ring_for_others(), keep(&parent)), (3, Some(9)));
    // Asked for once.
    assert_eq!(ledger.ring_for_others(), 0);
    // Nobody is asked below its floor.
    child.want_urgently(16);
    assert_eq!((ledger.ring_for_others(), keep(&parent)), (5, Some(4)));
}

#[test]
fn who_has_too_little_gets_its_floor_from_whoever_is_worth_least() {
    let ledger = ledger_of(SMALL, LIMIT);
    let [poor, rich, richer] = [1, 2, 3].map(|pid| ledger.take_seat(process(pid)).unwrap());
    assert_eq!((rich.take(6), richer.take(10)), (6, 10));
    rich.publish(5, 0);
    richer.publish(9, 0);
    // A third of half of all.
    assert_eq!(ledger.floor(), 2);
    assert_eq!(poor.ring(8, |_| false), Some(Rung { seat: rich.at, steps: 2 }));
    assert_eq!((keep(&rich), keep(&richer)), (Some(4), None));
    // One that does not answer, as it is stopped.
    let is_rich = |at| at == rich.at;
    assert_eq!(poor.ring(8, is_rich), Some(Rung { seat: richer.at, steps: 2 }));
    rich.give(2);
    assert_eq!(poor.take(2), 2);
    rich.answered(rich.asked().unwrap());
    assert_eq!(poor.ring(8, |_| false), None, "it is worth less than the others");
    poor.publish(11, 0);
    assert_eq!(poor.ring(8, |_| false), Some(Rung { seat: rich.at, steps: 2 }));
}

#[test]
fn of_two_questions_alike_each_is_answered() {
    let ledger = ledger_of(SMALL, LIMIT);
    let [rich, one, other] = [1, 2, 3].map(|pid| ledger.take_seat(process(pid)).unwrap());
    assert_eq!(rich.take(LIMIT), LIMIT);
    assert_eq!(ledger.floor(), 2);
    assert_eq!(one.ring(2, |_| false), Some(Rung { seat: rich.at, steps: 2 }));
    let first = rich.asked().unwrap();
    // Both get what they asked for.
    assert_eq!(other.ring(2, |_| false), Some(Rung { seat: rich.at, steps: 2 }));
    assert_eq!(keep(&rich), Some(LIMIT - 4));
    rich.give(2);
    rich.answered(first);
    let second = rich.asked().unwrap();
    assert_eq!(second.keep, LIMIT - 4, "that is another question");
    rich.give(2);
    rich.answered(second);
    assert_eq!(rich.asked(), None);
    // The same once more, while the answer to the one before is under way.
    assert_eq!(rich.take(4), 4);
    assert!(one.ring(2, |_| false).is_some());
    let before = rich.asked().unwrap();
    rich.answered(before);
    assert!(one.ring(2, |_| false).is_some());
    let after = rich.asked().unwrap();
    assert_eq!(after.keep, before.keep);
    rich.answered(before);
    assert_eq!(rich.asked(), Some(after));
}

#[test]
fn of_two_alike_neither_starves_and_neither_asks_for_ever() {
    let ledger = ledger_of(SMALL, LIMIT);
    let [one, other] = [1, 2].map(|pid| ledger.take_seat(process(pid)).unwrap());
    assert_eq!((one.take(12), other.take(4)), (12, 4));
    one.publish(90, 0);
    other.publish(60, 0);
    // It has clearly more, and is not worth clearly more.
    assert_eq!(other.ring(9, |_| false), Some(Rung { seat: one.at, steps: 4 }));
    assert_eq!(one.ring(9, |_| false), None);
    one.give(4);
    one.answered(one.asked().unwrap());
    assert_eq!(other.take(4), 4);
    one.publish(60, 0);
    other.publish(90, 0);
    assert_eq!((one.ring(9, |_| false), other.ring(9, |_| false)), (None, None));
    // Clearly more.
    other.publish(121, 0);
    assert_eq!(other.ring(9, |_| false), Some(Rung { seat: one.at, steps: 4 }));
}

#[test]
fn who_holds_steps_beyond_a_lower_limit_is_rung_again() {
    let ledger = ledger_of(SMALL, LIMIT);
    let seat = ledger.take_seat(process(1)).unwrap();
    assert_eq!(seat.take(LIMIT), LIMIT);
    ledger.set_limit(8);
    let bell = seat.bell();
    ledger.ring_beyond();
    assert_ne!(seat.bell(), bell);
    assert_eq!(seat.give(8), 8);
    let bell = seat.bell();
    ledger.ring_beyond();
    assert_eq!((seat.bell(), seat.beyond()), (bell, 0));
}

#[test]
fn who_was_killed_while_it_took_its_seat_is_known() {
    let ledger = ledger_of(SMALL, LIMIT);
    let half = Owner { generation: 5, namespace: 1, pid: 9 };
    ledger.seat_word(0, Word::Owner).store(half.word(), Relaxed);
    let seen = |who: Identity| (who.pid, who.start, who.namespace) == (9, 0, 1);
    ledger.reap(|who| if seen(who) { Fate::Alive } else { Fate::Dead });
    assert_eq!(ledger.taken_seats(), 1);
    // Another process of that number knows that the first one has ended.
    let seat = ledger.take_seat(process(9)).unwrap();
    assert_eq!((seat.at, seat.generation, ledger.taken_seats()), (0, 6, 1));
    ledger.reap(|_| Fate::Dead);
    ledger.seat_word(1, Word::Owner).store(half.word(), Relaxed);
    ledger.reap(|who| if seen(who) { Fate::Dead } else { Fate::Alive });
    assert_eq!(ledger.taken_seats(), 0);
}

#[test]
fn what_a_process_says_of_itself_is_its_own_only() {
    let ledger = ledger_of(SMALL, LIMIT);
    let seat = ledger.take_seat(process(1)).unwrap();
    seat.publish(5, 4096);
    let faults = [1, 2, 3, 4, 5, 6];
    let counts = Counts { faults, stalled_ns: 7, bytes_read: 8, bytes_written: 9 };
    let sizes = Sizes { resident_bytes: 10, pool_bytes: 11, disk_bytes: 12 };
    seat.publish_counts(&counts);
    seat.publish_sizes(&sizes);
    seat.publish_name(*b"a name of 16 let");
    let tenant = ledger.tenants()[0];
    assert_eq!((tenant.counts, tenant.sizes, tenant.peak_bytes), (counts, sizes, 4096));
    assert_eq!((tenant.used_bytes, seat.asked(), seat.is_sound()), (4096, None, true));
    assert_eq!(&tenant.name, b"a name of 16 let");
    seat.leave();
    assert!(ledger.take_seat(process(2)).is_some());
    let tenant = ledger.tenants()[0];
    let nothing = (Counts::default(), Sizes::default(), 0);
    assert_eq!((tenant.counts, tenant.sizes, tenant.peak_bytes), nothing);
    assert_eq!(tenant.name, [0; 16]);
}

#[test]
fn what_an_owner_is_its_word_says() {
    let largest = Owner { generation: (1 << 24) - 1, namespace: (1 << 18) - 1, pid: 4_194_304 - 1 };
    for owner in [largest, Owner { generation: 1, namespace: 2, pid: 3 }] {
        assert_eq!(Owner::of(owner.word()), owner);
    }
    assert_eq!((largest.next_generation(), largest.gone().pid), (0, 0));
}

#[test]
fn who_does_not_answer_is_passed_over_for_who_does() {
    let ledger = ledger_of(SMALL, LIMIT);
    let [stopped, polite, asker] = [1, 2, 3].map(|pid| ledger.take_seat(process(pid)).unwrap());
    assert_eq!((stopped.take(8), polite.take(8)), (8, 8));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                polite.await_bell(polite.bell(), 1_000_000);
                if let Some(question) = polite.asked() {
                    polite.give(polite.held() - question.keep);
                    polite.answered(question);
                }
            }
        });
        polite.publish(1, 0);
        asker.publish(9, 0);
        // All but its floor: the other one's it does not get.
        let got = asker.obtain(12, 10_000_000_000);
        done.store(true, Relaxed);
        assert_eq!(got, 6);
    });
    assert_eq!((stopped.held(), polite.held(), asker.held()), (8, 2, 6));
    assert!(stopped.asked().is_some() && ledger.free_steps() == 0);
}

#[test]
fn processes_that_come_go_and_are_killed_leave_every_step_free() {
    let ledger = ledger_of(Shape { seats: 16, steps: 64 }, 48);
    let killed: [AtomicBool; 200] = [const { AtomicBool::new(false) }; 200];
    let fate = |who: Identity| {
        if killed[who.pid as usize].load(Relaxed) { Fate::Dead } else { Fate::Alive }
    };
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (killed, fate) = (&killed, &fate);
            scope.spawn(move || {
                for life in 0..50 {
                    let pid = thread * 50 + life;
                    let Some(seat) = ledger.take_seat(process(pid.max(1))) else { continue };
                    let mut own = 0;
                    for turn in 0..40 {
                        own += seat.take(1 + turn % 5);
                        own -= seat.give(turn % 4);
                        assert_eq!(seat.held() + seat.beyond(), own);
                        if turn == 20 {
                            ledger.reap(fate);
                        }
                    }
                    if life % 2 == 0 {
                        seat.leave();
                    } else {
                        killed[pid as usize].store(true, Relaxed);
                    }
                }
            });
        }
    });
    ledger.reap(fate);
    assert_eq!((ledger.taken_seats(), ledger.free_steps()), (0, 48));
    assert_eq!(ledger.extent().len(), 48);
}

#[test]
fn who_scribbles_over_the_page_stops_nobody() {
    let ledger = ledger_of(SMALL, LIMIT);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for pid in 1..4 {
            let done = &done;
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    let Some(seat) = ledger.take_seat(process(pid)) else { continue };
                    let _ = seat.obtain(3, 100_000);
                    seat.publish(u64::from(pid), 1);
                    seat.await_bell(seat.bell(), 1_000);
                    if let Some(question) = seat.asked() {
                        seat.give(question.keep.min(seat.held()));
                        seat.answered(question);
                    }
                    let tenants = ledger.tenants();
                    assert!(tenants.len() <= SMALL.seats && ledger.limit() <= SMALL.steps);
                    ledger.ring_beyond();
                    ledger.reap(|who| if who.pid % 2 == 0 { Fate::Dead } else { Fate::Unknown });
                    seat.leave();
                }
            });
        }
        let mut random = 1_u64;
        for _ in 0..200_000 {
            // Marsaglia's xorshift.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let word = random as usize % ledger.words.len();
            // Often one that means something.
            let value = if random >> 63 == 0 { random } else { random >> 20 & 0xFF };
            ledger.words[word].store(value, Relaxed);
        }
        done.store(true, Relaxed);
    });
    ledger.set_limit(SMALL.steps);
    ledger.reap(|_| Fate::Dead);
    assert_eq!((ledger.taken_seats(), ledger.free_steps()), (0, SMALL.steps));
}
