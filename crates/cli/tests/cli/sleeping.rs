//! A process starts its engine only when its memory exceeds the budget.

use crate::common::json_file;
use crate::support::{Ended, compiled, finish, softswap, softswap_with};
use std::process::Command;

/// Budget, case of the program, and its output before `ok`.
const CASES: [(&str, &str, &str); 18] = [
    // A program that fits its budget has no filter and no engine thread.
    ("256M", "fits", "threads 1\nawake 0\n"),
    // The heap uses huge pages only with a large budget.
    ("1G", "blocks", "huge 1\nawake 0\n"),
    ("128M", "blocks", "huge 0\nawake 0\n"),
    ("64M", "wakes", "asleep 1\nawake 1\n"),
    // Reservations count when they are committed.
    ("128M", "reserves", "asleep 1\nawake 1\n"),
    // A commit that is too large wakes the process before the touch.
    ("64M", "lazy", "awake 1\n"),
    ("64M", "forks", "awake 0\n"),
    ("64M", "clones", "awake 0\n"),
    ("64M", "locks", "awake 1\n"),
    ("64M", "threads", "awake 1\n"),
    ("64M", "small_stack", "awake 1\n"),
    ("64M", "c11_thread", "awake 1\n"),
    ("64M", "vforks", "awake 1\n"),
    ("64M", "restarts", "awake 1\n"),
    ("64M", "main_ends", "awake 1\n"),
    ("64M", "cancels", "awake 1\n"),
    ("64M", "no_queue", "awake 1\n"),
    ("64M", "closes", "awake 1\n"),
];

#[test]
fn process_wakes_only_if_its_memory_exceeds_the_budget() {
    for (memory, case, output) in CASES {
        let options = ["run", "-q", "--reserve", "0", "--memory-per-process", memory, "--"];
        let ended = finish(softswap_with(&options).arg(compiled("sleeping")).arg(case));
        ended.expect_ok(case);
        assert_eq!(ended.stdout_text(), format!("{output}ok {case}\n"), "{memory} {case}");
    }
}

#[test]
fn summary_and_report_show_sleeping_process() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let report = dir.path().join("report.json");
    let summary = |option: &str| {
        let mut command = softswap_with(&["run", option, "--memory=256M", "--report"]);
        finish(command.arg(&report).arg("true")).stderr
    };
    assert_eq!(summary("--codec=lz4"), "");
    let text = summary("-v");
    assert!(text.contains("true finished in ") && text.contains("nothing to do"), "{text}");
    let report = json_file(&report);
    assert_eq!(report["slept"], true);
    assert_eq!(report["engine_started"], false);
}

/// `contained` forbids userfaultfd and io_uring, `on_linux_4_18` what that kernel lacks.
fn filtered(filter: &str, options: &[&str], program: &[&str]) -> Ended {
    let mut command = Command::new(compiled("sleeping"));
    command.arg(filter).arg(softswap()).args(["run", "-q"]).args(options).arg("--");
    finish(command.args(program))
}

#[test]
fn impossible_engine_is_reported_at_start() {
    let options = ["--memory", "256M", "--faults", "userfaultfd"];
    let ended = filtered("contained", &options, &["true"]);
    assert_eq!(ended.status.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("userfaultfd"), "{}", ended.stderr);
}

#[test]
fn page_protection_replaces_refused_userfaultfd() {
    let sleeping = compiled("sleeping").display().to_string();
    for filter in ["contained", "on_linux_4_18"] {
        for case in ["wakes", "threads", "small_stack", "vforks", "cancels", "main_ends", "closes"]
        {
            let options = ["--reserve", "0", "--memory-per-process", "64M"];
            let ended = filtered(filter, &options, &[&sleeping, case]);
            ended.expect_ok(case);
            assert!(ended.stdout_text().ends_with(&format!("awake 1\nok {case}\n")), "{case}");
        }
    }
}

#[test]
fn awake_option_starts_engine() {
    let ended = finish(&mut softswap_with(&["run", "--awake", "--memory", "256M", "--", "true"]));
    assert!(ended.stderr.contains("  budget     256.0 MiB"), "{}", ended.stderr);
}
