//! Checks that the budget is kept: programs run in a memory cgroup slightly larger than the budget,
//! without kernel swap. Skipped unless run as root.

use crate::support::cgroup::MemoryGroup;
use crate::support::{LIMIT, Report, Running, Swapped, plain, python, script};
use std::process::Command;

/// Limit of the cgroup: the budget of 64 MiB and the program's unmanaged memory.
const GROUP_BYTES: u64 = 112 << 20;
const DATABASE: [&str; 2] = ["--mib", "288"];

fn group() -> Option<MemoryGroup> {
    MemoryGroup::limited_to(GROUP_BYTES).inspect_err(|reason| eprintln!("skipped: {reason}")).ok()
}

fn within_group(group: MemoryGroup) -> Swapped {
    Swapped::within("64M").in_group(group)
}

fn expect_beyond_budget(report: &Report, what: &str) {
    report.expect_healthy(what);
    let mapped = report.figure("mapped_peak_bytes");
    assert!(mapped > 2 * GROUP_BYTES, "{what}: only {mapped} bytes were mapped");
}

#[test]
fn database_of_four_budgets_returns_same_results() {
    let Some(group) = group() else { return };
    let arguments = script("sqlite.py", &DATABASE);
    let expected = plain(python(), &arguments);
    expected.expect_success("plain");
    let report = within_group(group).run(python(), &arguments);
    report.ended.expect_success("under softswap in a group of 112 MiB");
    expect_beyond_budget(&report, "sqlite.py");
    assert_eq!(report.ended.stdout_text(), expected.stdout_text());
}

/// Checks that the cgroup's limit is effective. Otherwise the other tests here would always pass.
#[test]
fn same_database_without_softswap_is_oom_killed() {
    use std::os::unix::process::ExitStatusExt;
    let Some(group) = group() else { return };
    let mut command: Command = group.command(python());
    command.args(script("sqlite.py", &DATABASE));
    let ended = Running::start(&mut command).finish(LIMIT);
    assert_eq!(ended.status.signal(), Some(libc::SIGKILL), "{}", ended.stderr);
}

#[test]
fn gnu_sort_of_four_budgets_writes_same_file() {
    let Some(group) = group() else { return };
    let report = crate::support::compare_sort(&within_group(group), 240_000_000);
    expect_beyond_budget(&report, "sort");
}

#[test]
fn eight_threads_use_four_budgets() {
    let Some(group) = group() else { return };
    let arguments = ["--mib", "288", "--threads", "8", "--operations", "6000", "--require-out"];
    let report = within_group(group).run_ok("threads", &arguments);
    expect_beyond_budget(&report, "threads");
}

#[test]
fn auto_budget_fits_cgroup() {
    let Some(group) = group() else { return };
    let arguments = script("sqlite.py", &DATABASE);
    let expected = plain(python(), &arguments);
    let report = Swapped::within("auto").in_group(group).run(python(), &arguments);
    report.ended.expect_success("under softswap with --memory auto");
    let mapped = report.figure("mapped_peak_bytes");
    assert!(mapped > 2 * GROUP_BYTES, "only {mapped} bytes were mapped");
    assert_eq!(report.ended.stdout_text(), expected.stdout_text());
}

#[test]
fn oom_kill_is_reported_with_limit_and_remedy() {
    use std::os::unix::process::ExitStatusExt;
    let Some(group) = group() else { return };
    let arguments = script("sqlite.py", &DATABASE);
    let report = Swapped::within("256M").in_group(group).run(python(), &arguments);
    let stderr = &report.ended.stderr;
    assert_eq!(report.ended.status.signal(), Some(libc::SIGKILL), "{stderr}");
    for part in ["the kernel killed a process: control group", "112.0 MiB", "--memory auto"] {
        assert!(stderr.contains(part), "{part:?} is missing in\n{stderr}");
    }
    let note = "note: --memory 256M: the memory limit of control group";
    assert!(stderr.contains(note), "{stderr}");
}
