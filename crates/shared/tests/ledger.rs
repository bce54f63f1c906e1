//! Tests a ledger with many processes that are killed at any moment.

use softswap_shared::ledger::{Ledger, Member, SHAPE};
use softswap_sys::process_identity::ProcessIdentity;
use softswap_sys::shared;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const LEDGER_VARIABLE: &str = "SOFTSWAP_TEST_LEDGER";
const LIMIT: usize = 100;
const ROUNDS: usize = 100;

fn run_member(place: &str) -> ! {
    let file = File::options().read(true).write(true).open(place).unwrap();
    let words = shared::open(file, SHAPE.words()).unwrap();
    let me = ProcessIdentity::current().unwrap();
    let member: Member = Ledger::open(words, SHAPE).unwrap().join(me).unwrap();
    for turn in 0_usize.. {
        // A short timeout, because a process serves no requests while it waits.
        let _ = member.obtain(1 + turn % 7, 100_000);
        member.publish((turn % 5) as u64, (member.held() << 20) as u64);
        if let Some(target) = member.release_target() {
            member.release(member.held().saturating_sub(target.keep));
            member.end_release(target);
        }
        member.release(turn % 6);
    }
    unreachable!("the test kills this process");
}

fn start(place: &str) -> Child {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "chunks_of_killed_processes_are_reaped", "--nocapture"]);
    again.env(LEDGER_VARIABLE, place).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn chunks_of_killed_processes_are_reaped() {
    if let Ok(place) = std::env::var(LEDGER_VARIABLE) {
        run_member(&place);
    }
    let (fd, words) = shared::create(SHAPE.words()).unwrap();
    let place = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    let ledger = Ledger::create(words, SHAPE, 1 << 20, LIMIT);
    let mut alive: Vec<Child> = (0..4).map(|_| start(&place)).collect();
    let mut most_members = 0;
    for life in 0..ROUNDS {
        // Kill processes at arbitrary moments, some before they join.
        std::thread::sleep(Duration::from_micros((life * 7919 % 20_000) as u64));
        if life % 10 == 9 {
            while ledger.member_count() < 2 {
                std::thread::yield_now();
            }
        }
        most_members = most_members.max(ledger.member_count());
        let mut killed = alive.remove(life % alive.len());
        killed.kill().unwrap();
        killed.wait().unwrap();
        ledger.reap(|process| process.liveness());
        assert!(ledger.member_count() <= alive.len(), "a dead process is a member");
        alive.push(start(&place));
    }
    for mut child in alive {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    ledger.reap(|process| process.liveness());
    assert!(most_members > 1, "at most one process was a member at a time");
    assert_eq!((ledger.member_count(), ledger.free_chunks()), (0, LIMIT));
}
