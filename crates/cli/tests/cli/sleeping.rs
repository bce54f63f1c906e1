//! A process starts its engine only when its memory exceeds the budget. The programs compare all their data
//! before and after.

use crate::support::{Ended, LIMIT, Running, compiled, softswap};
use std::process::Command;

/// Runs a case within a budget and returns its output.
fn output_of_case(memory: &str, case: &str) -> String {
    let mut command = Command::new(softswap());
    command.args(["run", "-q", "--reserve", "0", "--memory-per-process", memory, "--"]);
    let ended = Running::start(command.arg(compiled("sleeping")).arg(case)).finish(LIMIT);
    ended.expect_ok(case);
    ended.stdout_text()
}

#[test]
fn fitting_program_has_no_filter_and_no_engine_thread() {
    assert_eq!(output_of_case("256M", "fits"), "threads 1\nawake 0\nok fits\n");
}

#[test]
fn heap_uses_huge_pages_only_with_large_budget() {
    assert_eq!(output_of_case("1G", "blocks"), "huge 1\nawake 0\nok blocks\n");
    assert_eq!(output_of_case("128M", "blocks"), "huge 0\nawake 0\nok blocks\n");
}

#[test]
fn memory_is_intact_after_waking() {
    assert_eq!(output_of_case("64M", "wakes"), "asleep 1\nawake 1\nok wakes\n");
}

#[test]
fn reservations_count_when_they_are_committed() {
    assert_eq!(output_of_case("128M", "reserves"), "asleep 1\nawake 1\nok reserves\n");
}

#[test]
fn oversized_commit_wakes_before_touch() {
    assert_eq!(output_of_case("64M", "lazy"), "awake 1\nok lazy\n");
}

#[test]
fn forked_child_wakes_independently() {
    assert_eq!(output_of_case("64M", "forks"), "awake 0\nok forks\n");
}

#[test]
fn signal_state_is_kept_after_waking() {
    assert_eq!(output_of_case("64M", "threads"), "awake 1\nok threads\n");
}

#[test]
fn process_wakes_in_any_thread_state() {
    let cases = "small_stack c11_thread vforks restarts main_ends cancels no_queue";
    for case in cases.split(' ') {
        assert_eq!(output_of_case("64M", case), format!("awake 1\nok {case}\n"));
    }
}

#[test]
fn summary_and_report_show_sleeping_process() {
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
fn impossible_engine_is_reported_at_start() {
    let ended = contained(&["--memory", "256M", "--faults", "userfaultfd"], &["true"]);
    assert_eq!(ended.status.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("userfaultfd"), "{}", ended.stderr);
}

#[test]
fn page_protection_replaces_refused_userfaultfd() {
    let sleeping = compiled("sleeping").display().to_string();
    for case in ["wakes", "threads", "small_stack", "vforks", "cancels", "main_ends"] {
        let options = ["--reserve", "0", "--memory-per-process", "64M"];
        let ended = contained(&options, &[&sleeping, case]);
        ended.expect_ok(case);
        assert!(ended.stdout_text().ends_with(&format!("awake 1\nok {case}\n")), "{case}");
    }
}

#[test]
fn awake_option_starts_engine() {
    let mut command = Command::new(softswap());
    command.args(["run", "--awake", "--memory", "256M", "--", "true"]);
    let ended = Running::start(&mut command).finish(LIMIT);
    assert!(ended.stderr.contains("  budget     256.0 MiB"), "{}", ended.stderr);
}
