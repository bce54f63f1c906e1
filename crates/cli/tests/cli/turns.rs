//! Processes of a tree that thrashes take turns (`--turns auto`).

use crate::support::control_client::{stdout_of, try_stat, wait_until};
use crate::support::processes::send;
use crate::support::{LIMIT, Running, Swapped, compiled, number};

/// One of three processes fits the budget.
fn takers(turns: &str, budget: &str) -> Swapped {
    Swapped::within(budget).option("--codec=none").option(format!("--turns={turns}"))
}

fn readers<'a>(mib: &'a str, touches: &'a str) -> [&'a str; 6] {
    ["--only", "readers", "--mib", mib, "--touches", touches]
}

/// The programs verify each word that they touch.
fn turns_of(takers: &Swapped, arguments: [&str; 6]) -> u64 {
    let report = takers.run(compiled("takers"), &arguments);
    report.ended.expect_ok(&arguments.join(" "));
    report.figures["tree"]["turns"].as_u64().unwrap_or_else(|| panic!("{}", report.figures))
}

#[test]
fn random_readers_take_turns_and_keep_their_memory() {
    let turns = turns_of(&takers("auto", "96M"), readers("64", "400000"));
    assert!(turns > 0);
}

#[test]
fn no_turns_start_if_they_are_off() {
    let turns = turns_of(&takers("off", "72M"), readers("48", "20000"));
    assert_eq!(turns, 0);
}

/// The processes wait for each other in pipes, sockets, file locks and shared futexes.
/// `SOFTSWAP_TREE_TURNS` is the number of trees; `make test-long` uses 1,000.
#[test]
fn random_trees_of_dependent_processes_exit() {
    let takers = takers("auto", "56M");
    for seed in 0..number("SOFTSWAP_TREE_TURNS", 10) {
        turns_of(&takers, ["--only", "tree", "--seed", &seed.to_string(), "--mib", "24"]);
    }
}

#[test]
fn turns_are_switched_while_the_tree_runs() {
    let touches = (1_u64 << 40).to_string();
    let arguments = readers("64", &touches);
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
    // The program's children exit with it.
    send(running.id(), libc::SIGTERM);
    running.finish(LIMIT).expect_failure("a program that got SIGTERM");
}
