//! One ledger and many processes, which are killed at any moment.

use crate::common::wait_until;
use softswap_engine::ledger::{Identity, Ledger, SHAPE, Seat};
use softswap_sys::shared;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Says to a child of the test's where the ledger is.
const WHERE: &str = "SOFTSWAP_TEST_LEDGER";
const LIMIT: usize = 100;
const LIVES: usize = 100;

/// A process of the tree: takes and gives, and rings others, until it is killed.
fn live(place: &str) -> ! {
    let file = File::options().read(true).write(true).open(place).unwrap();
    let words = shared::open(file, SHAPE.words()).unwrap();
    let seat: Seat =
        Ledger::open(words, SHAPE).unwrap().take_seat(Identity::own().unwrap()).unwrap();
    for turn in 0_usize.. {
        // A little of its time: who waits cannot answer others.
        let _ = seat.obtain(1 + turn % 7, 100_000);
        seat.publish((turn % 5) as u64, (seat.held() << 20) as u64);
        if let Some(question) = seat.asked() {
            seat.give(seat.held().saturating_sub(question.keep));
            seat.answered(question);
        }
        seat.give(turn % 6);
    }
    unreachable!("it is killed");
}

fn start(place: &str) -> Child {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args([
        "--exact",
        "ledger::what_processes_held_that_are_killed_comes_back",
        "--nocapture",
    ]);
    again.env(WHERE, place).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn what_processes_held_that_are_killed_comes_back() {
    if let Ok(place) = std::env::var(WHERE) {
        live(&place);
    }
    let (fd, words) = shared::create(SHAPE.words()).unwrap();
    let place = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    let ledger = Ledger::create(words, SHAPE, 1 << 20, LIMIT);
    let mut alive: Vec<Child> = (0..4).map(|_| start(&place)).collect();
    let mut came = 0;
    for life in 0..LIVES {
        // At no particular moment, some before they have a seat.
        std::thread::sleep(Duration::from_micros((life * 7919 % 20_000) as u64));
        // Now and then once some have one, however long they take to start.
        if life % 10 == 9 {
            wait_until("two processes with a seat", || match ledger.taken_seats() {
                2.. => Ok(()),
                seats => Err(format!("{seats} seats")),
            });
        }
        let seats = ledger.taken_seats();
        came = came.max(seats);
        let mut killed = alive.remove(life % alive.len());
        killed.kill().unwrap();
        killed.wait().unwrap();
        ledger.reap(|who| who.fate());
        assert!(ledger.taken_seats() <= alive.len(), "one that is dead has a seat");
        alive.push(start(&place));
    }
    for mut child in alive {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    ledger.reap(|who| who.fate());
    assert!(came > 1, "they were at it together");
    assert_eq!((ledger.taken_seats(), ledger.free_steps()), (0, LIMIT));
}
