//! Programs run as root in a memory cgroup slightly larger than the budget, without kernel swap.

use crate::common::assert_contains_all;
use crate::support::cgroup::ControlGroup;
use crate::support::{Report, Swapped, finish, plain, python, script};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;

/// The budget of 64 MiB and the program's unmanaged memory.
const GROUP_BYTES: u64 = 112 << 20;
const DATABASE: [&str; 2] = ["--mib", "288"];

fn group() -> Option<ControlGroup> {
    ControlGroup::or_skip(GROUP_BYTES)
}

fn within_group(group: ControlGroup) -> Swapped {
    Swapped::within("64M").in_group(group)
}

fn expect_beyond_budget(report: &Report, what: &str) {
    let mapped = report.figure("mapped_peak_bytes");
    assert!(mapped > 2 * GROUP_BYTES, "{what}: only {mapped} bytes were mapped");
}

#[test]
fn database_of_four_budgets_returns_same_results() {
    let arguments = script("sqlite.py", &DATABASE);
    for memory in ["64M", "auto"] {
        let Some(group) = group() else { return };
        let expected = plain(python(), &arguments);
        expected.expect_success("plain");
        let report = Swapped::within(memory).in_group(group).run(python(), &arguments);
        report.ended.expect_success(memory);
        if memory == "64M" {
            report.expect_healthy(memory);
        }
        expect_beyond_budget(&report, memory);
        assert_eq!(report.ended.stdout_text(), expected.stdout_text(), "{memory}");
    }
}

/// If the cgroup's limit were not effective, the other tests here would always pass.
#[test]
fn same_database_without_softswap_is_oom_killed() {
    let Some(group) = group() else { return };
    let ended = finish(group.command(python()).args(script("sqlite.py", &DATABASE)));
    assert_eq!(ended.status.signal(), Some(libc::SIGKILL), "{}", ended.stderr);
}

#[test]
fn gnu_sort_of_four_budgets_writes_same_file() {
    let Some(group) = group() else { return };
    let report = crate::support::compare_sort(&within_group(group), 240_000_000);
    expect_beyond_budget(&report, "sort");
}

/// Ruby's heap consists of mappings of 32 KiB.
#[test]
fn small_mappings_of_four_budgets_keep_their_content() {
    let Some(group) = group() else { return };
    let program = r"
import hashlib, mmap, random
flags, contents = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, random.Random(7)
maps = [mmap.mmap(-1, 32 << 10, flags=flags) for _ in range(9 << 10)]
for each in maps:
    each[:] = contents.randbytes(32 << 10)
digest = hashlib.sha256()
for each in maps:
    digest.update(each)
print(digest.hexdigest())
";
    let arguments = ["-c", program].map(OsString::from);
    let expected = plain(python(), &arguments);
    let report = within_group(group).run(python(), &arguments);
    report.expect_healthy("small mappings");
    expect_beyond_budget(&report, "small mappings");
    assert_eq!(report.ended.stdout_text(), expected.stdout_text());
}

#[test]
fn eight_threads_use_four_budgets() {
    let Some(group) = group() else { return };
    let arguments = ["--mib", "288", "--threads", "8", "--operations", "6000", "--require-out"];
    let report = within_group(group).run_ok("threads", &arguments);
    expect_beyond_budget(&report, "threads");
}

#[test]
fn oom_kill_is_reported_with_limit_and_remedy() {
    let Some(group) = group() else { return };
    let arguments = script("sqlite.py", &DATABASE);
    let report = Swapped::within("256M").in_group(group).run(python(), &arguments);
    let stderr = &report.ended.stderr;
    assert_eq!(report.ended.status.signal(), Some(libc::SIGKILL), "{stderr}");
    let note = "note: --memory 256M is too large for the";
    let kill = "the kernel killed a process: control group";
    assert_contains_all(stderr, &[kill, "112.0 MiB", "is larger than that", "--memory auto", note]);
}

#[test]
fn proposed_budgets_fit_the_control_group() {
    let Some(group) = group() else { return };
    let softswap = crate::common::bin_dir().join("softswap");
    let diagnosis = finish(group.command(&softswap).arg("doctor"));
    assert_contains_all(&diagnosis.stdout_text(), &["use --memory auto, or at most --memory 7"]);
    let small = finish(group.command(&softswap).args(["run", "--memory", "1K", "true"]));
    assert_contains_all(&small.stderr, &["give more, such as --memory 7"]);
    let large = finish(group.command(&softswap).args(["run", "--memory", "99999G", "true"]));
    let note = "note: --memory 99999G is too large for the";
    assert_contains_all(&large.stderr, &[note, "control group", "auto, or --memory 7"]);
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    // The program fits this budget, but the budget does not fit the group.
    let mut run = group.command(&softswap);
    run.args(["run", "-q", "--memory", "100M", "--reserve", "0", "--swap"]).arg(dir.path());
    run.arg("--report").arg(&report).arg(python()).args(["-c", "b'1' * (75 << 20)"]);
    finish(&mut run).expect_success("100M");
    let mut advise = std::process::Command::new(softswap);
    let advised = finish(advise.args(["advise", "--slowdown", "1000"]).arg(report));
    assert_eq!(advised.status.code(), Some(1), "{}", advised.stdout_text());
    let parts = ["it needs", "but at most --memory", "raise the container's memory limit"];
    assert_contains_all(&advised.stderr, &parts);
}
