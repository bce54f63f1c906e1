//! A process starts its engine only when its memory exceeds the budget. The programs compare all their data
//! before and after.

use crate::support::{Ended, LIMIT, Running, compiled, softswap};
use std::process::Command;

/// Runs a case within a budget and returns its output.
fn said(memory: &str, case: &str) -> String {
    let mut command = Command::new(softswap());
    command.args(["run", "-q", "--reserve", "0", "--memory-per-process", memory, "--"]);
    let ended = Running::start(command.arg(compiled("sleeping")).arg(case)).finish(LIMIT);
    ended.expect_ok(case);
    ended.stdout_text()
}

#[test]
fn a_program_that_fits_has_no_filter_and_no_thread_of_ours() {
    assert_eq!(said("256M", "fits"), "threads 1\nawake 0\nok fits\n");
}

#[test]
fn a_heap_in_a_large_budget_uses_huge_pages_and_one_in_a_small_budget_commits_what_it_needs() {
    assert_eq!(said("1G", "blocks"), "huge 1\nawake 0\nok blocks\n");
    assert_eq!(said("128M", "blocks"), "huge 0\nawake 0\nok blocks\n");
}

#[test]
fn all_that_a_program_had_is_there_when_it_has_woken() {
    assert_eq!(said("64M", "wakes"), "asleep 1\nawake 1\nok wakes\n");
}

#[test]
fn reservations_count_when_they_are_committed() {
    assert_eq!(said("128M", "reserves"), "asleep 1\nawake 1\nok reserves\n");
}

#[test]
fn what_is_larger_than_the_budget_wakes_before_it_is_touched() {
    assert_eq!(said("64M", "lazy"), "awake 1\nok lazy\n");
}

#[test]
fn a_forked_child_wakes_by_itself() {
    assert_eq!(said("64M", "forks"), "awake 0\nok forks\n");
}

#[test]
fn signals_are_as_they_were_set_when_a_process_of_threads_has_woken() {
    assert_eq!(said("64M", "threads"), "awake 1\nok threads\n");
}

#[test]
fn it_wakes_in_whatever_state_its_threads_are() {
    let cases = "small_stack c11_thread vforks restarts main_ends cancels no_queue";
    for case in cases.split(' ') {
        assert_eq!(said("64M", case), format!("awake 1\nok {case}\n"));
    }
}

#[test]
fn the_summary_and_the_report_say_that_it_slept() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let report = dir.path().join("report.json");
    let summary = |option: &str| {
        let mut command = Command::new(softswap());
        command.args(["run", option, "--memory=256M", "--report"]).arg(&report).arg("true");
        Running::start(&mut command).finish(LIMIT).stderr
    };
    assert_eq!(summary("--codec=lz4"), "");
    let text = summary("-v");
    assert!(text.contains("true finished in ") && text.contains("nothing to do"), "{text}");
    let text = std::fs::read_to_string(report).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&text).expect("an object");
    assert_eq!(report["slept"], true);
    assert_eq!(report["engine_started"], false);
}

/// Runs `softswap run` with userfaultfd and io_uring forbidden, as in a container.
fn contained(options: &[&str], program: &[&str]) -> Ended {
    let mut command = Command::new(compiled("sleeping"));
    command.arg("contained").arg(softswap()).args(["run", "-q"]).args(options).arg("--");
    Running::start(command.args(program)).finish(LIMIT)
}

#[test]
fn where_no_engine_could_come_up_the_start_says_so() {
    let ended = contained(&["--memory", "256M", "--faults", "userfaultfd"], &["true"]);
    assert_eq!(ended.status.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("userfaultfd"), "{}", ended.stderr);
}

#[test]
fn where_userfaultfd_is_refused_pages_are_protected_instead() {
    let sleeping = compiled("sleeping").display().to_string();
    for case in ["wakes", "threads", "small_stack", "vforks", "cancels", "main_ends"] {
        let options = ["--reserve", "0", "--memory-per-process", "64M"];
        let ended = contained(&options, &[&sleeping, case]);
        ended.expect_ok(case);
        assert!(ended.stdout_text().ends_with(&format!("awake 1\nok {case}\n")), "{case}");
    }
}

#[test]
fn who_is_asked_to_be_awake_is() {
    let mut command = Command::new(softswap());
    command.args(["run", "--awake", "--memory", "256M", "--", "true"]);
    let ended = Running::start(&mut command).finish(LIMIT);
    assert!(ended.stderr.contains("  budget     256.0 MiB"), "{}", ended.stderr);
}
