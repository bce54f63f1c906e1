//! Processes of a tree that thrashes take turns (`--turns auto`).

use crate::support::control_client::{query, wait_until};
use crate::support::{LIMIT, Report, Running, Swapped, compiled};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const TOUCHES: u64 = 400_000;

/// Returns a run in which one of three processes fits the budget.
fn takers(turns: &str, budget: &str) -> Swapped {
    Swapped::within(budget).option("--codec=none").option(format!("--turns={turns}"))
}

fn tree_figure(report: &Report, name: &str) -> u64 {
    report.figures["tree"][name].as_u64().unwrap_or_else(|| panic!("{name}: {}", report.figures))
}

/// The programs verify each word that they touch.
#[test]
fn random_readers_take_turns_and_keep_their_memory() {
    let touches = TOUCHES.to_string();
    let arguments = ["--only", "readers", "--mib", "64", "--touches", &touches, "--rounds", "1"];
    let report = takers("auto", "96M").run(compiled("takers"), &arguments);
    report.ended.expect_ok("takers");
    assert!(tree_figure(&report, "turns") > 0, "{}", report.figures["tree"]);
}

#[test]
fn no_turns_start_if_they_are_off() {
    let arguments = ["--only", "readers", "--mib", "48", "--touches", "20000", "--rounds", "1"];
    let report = takers("off", "72M").run(compiled("takers"), &arguments);
    report.ended.expect_ok("takers");
    assert_eq!(tree_figure(&report, "turns"), 0);
}

/// Processes that wait for each other exit, even if the one that holds up the others has no turn.
#[test]
fn dependent_processes_exit() {
    for case in ["pipe_ring", "lock", "barrier"] {
        let arguments = ["--only", case, "--mib", "40", "--touches", "1500", "--rounds", "16"];
        let report = takers("auto", "64M").run(compiled("takers"), &arguments);
        report.ended.expect_ok(case);
    }
}

/// `ctl set turns auto` starts turns, and `off` stops them, in a running tree; `stat` shows their
/// owner.
#[test]
fn turns_are_switched_while_the_tree_runs() {
    let touches = (1_u64 << 40).to_string();
    let arguments = ["--only", "readers", "--mib", "64", "--touches", &touches, "--rounds", "1"];
    let swapped = takers("off", "96M");
    let mut running = Running::start(&mut swapped.command(compiled("takers"), &arguments));
    let pid = running.id().to_string();
    let owner = || {
        let output = query(&["stat", &pid, "--json"]);
        let stat: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        stat["tree"]["turns"]["owner_pid"].as_u64().ok_or_else(|| stat.to_string())
    };
    let set = |to| String::from_utf8(query(&["ctl", &pid, "set", "turns", to]).stdout).unwrap();
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
    kill_process(Pid::from_raw(running.id()).unwrap(), Signal::TERM).unwrap();
    assert!(!running.finish(LIMIT).status.success());
}
