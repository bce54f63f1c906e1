//! Processes of a tree that thrashes take turns (`--turns auto`).

use crate::support::control_client::{stdout_of, try_stat, wait_until};
use crate::support::processes::send;
use crate::support::{LIMIT, Running, Swapped, compiled};

/// Returns a run in which one of three processes fits the budget.
fn takers(turns: &str, budget: &str) -> Swapped {
    Swapped::within(budget).option("--codec=none").option(format!("--turns={turns}"))
}

fn arguments<'a>(case: &'a str, mib: &'a str, touches: &'a str, rounds: &'a str) -> [&'a str; 8] {
    ["--only", case, "--mib", mib, "--touches", touches, "--rounds", rounds]
}

/// Runs a case, whose programs verify each word that they touch. Returns the number of turns.
fn turns_of(takers: &Swapped, arguments: [&str; 8]) -> u64 {
    let report = takers.run(compiled("takers"), &arguments);
    report.ended.expect_ok(arguments[1]);
    report.figures["tree"]["turns"].as_u64().unwrap_or_else(|| panic!("{}", report.figures))
}

#[test]
fn random_readers_take_turns_and_keep_their_memory() {
    let turns = turns_of(&takers("auto", "96M"), arguments("readers", "64", "400000", "1"));
    assert!(turns > 0);
}

#[test]
fn no_turns_start_if_they_are_off() {
    let turns = turns_of(&takers("off", "72M"), arguments("readers", "48", "20000", "1"));
    assert_eq!(turns, 0);
}

/// Processes that wait for each other exit, even if the one that holds up the others has no turn.
#[test]
fn dependent_processes_exit() {
    for case in ["pipe_ring", "lock", "barrier"] {
        turns_of(&takers("auto", "64M"), arguments(case, "40", "1500", "16"));
    }
}

/// `ctl set turns auto` starts turns, and `off` stops them, in a running tree; `stat` shows their
/// owner.
#[test]
fn turns_are_switched_while_the_tree_runs() {
    let touches = (1_u64 << 40).to_string();
    let arguments = arguments("readers", "64", &touches, "1");
    let swapped = takers("off", "96M");
    let mut running = Running::start(&mut swapped.command(compiled("takers"), &arguments));
    let pid = running.id().to_string();
    let owner = || {
        let stat = try_stat(&pid)?;
        stat["tree"]["turns"]["owner_pid"].as_u64().ok_or_else(|| stat.to_string())
    };
    let set = |to| stdout_of(&["ctl", &pid, "set", "turns", to]);
    wait_until("the tree", owner);
    assert_eq!(set("auto"), "turns = auto\n");
    let is_owned = |expected: bool| match owner()? {
        pid if (pid != 0) == expected => Ok(()),
        pid => Err(format!("the owner is {pid}")),
    };
    wait_until("a turn", || is_owned(true));
    assert_eq!(set("off"), "turns = off\n");
    wait_until("no turn", || is_owned(false));
    assert!(!running.has_ended());
    // softswap forwards the signal to the program, whose children exit with it.
    send(running.id(), libc::SIGTERM);
    assert!(!running.finish(LIMIT).status.success());
}
