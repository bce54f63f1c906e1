//! Reports about memory outside the budget and about programs that a signal killed.

use crate::common::area::MIB;
use crate::common::{assert_contains_all, compile, skip};
use crate::support::control_client::{WAIT_TIMEOUT, program_stat, stdout_of};
use crate::support::{Running, Swapped, compiled, disk_dir, wait_for_rounds};

fn unmanaged(report: &crate::support::Report, key: &str) -> u64 {
    report.figures["outside_budget"][key].as_u64().unwrap_or_else(|| panic!("{}", report.figures))
}

#[test]
fn unmanaged_memory_is_reported() {
    let arguments = ["--only", "mapped", "--mib", "64"];
    let report = Swapped::within("32M").option("-v").run(compiled("unmanaged_memory"), &arguments);
    report.ended.expect_success("unmanaged_memory");
    assert!(unmanaged(&report, "anonymous_bytes") >= 60 * MIB, "{}", report.figures);
    assert!(unmanaged(&report, "total_bytes") >= 60 * MIB, "{}", report.figures);
    let parts = ["  outside    at most ", "outside the budget", "UNMANAGED", "as Go does"];
    assert_contains_all(&report.ended.stderr, &parts);
}

#[test]
fn managed_memory_is_not_reported_as_unmanaged() {
    let report = Swapped::within("64M").run_ok("hog", &["--mib", "100", "--pressure", "80"]);
    // Only the runtime, the C library and the program's own data are unmanaged.
    assert!(unmanaged(&report, "anonymous_bytes") < 4 * MIB, "{}", report.figures);
    assert!(unmanaged(&report, "total_bytes") < 16 * MIB, "{}", report.figures);
}

fn unmanaged_bytes_while_running(case: &str) -> u64 {
    let swapped = Swapped::within("32M");
    let arguments = ["--only", case, "--mib", "64", "--linger", "1000"];
    let program = swapped.start("commits", &arguments);
    let json = program_stat(&program.id().to_string());
    json["outside_budget"]["anonymous_bytes"].as_u64().unwrap_or_else(|| panic!("{json}"))
}

#[test]
fn private_memory_is_managed_for_every_kind_of_commit() {
    for case in ["stacks", "zero_device", "by_number", "executable"] {
        let bytes = unmanaged_bytes_while_running(case);
        assert!(bytes < 16 * MIB, "{case}: {bytes} bytes are unmanaged");
    }
}

#[test]
fn stat_shows_memory_of_running_program() {
    let swapped = Swapped::within("32M");
    let arguments = ["--only", "mapped", "--mib", "64", "--seconds", "1000"];
    let mut command = swapped.command(compiled("unmanaged_memory"), &arguments);
    let mut program = Running::start(command.env("SOFTSWAP_AWAKE", "1"));
    program.wait_for_line("ready");
    let number = program.id().to_string();
    let json = program_stat(&number);
    assert_contains_all(&stdout_of(&["stat", &number]), &["  outside    ", "UNMANAGED"]);
    assert!(json["outside_budget"]["anonymous_bytes"].as_u64() >= Some(60 * MIB), "{json}");
}

#[test]
fn exec_of_static_program_is_reported_unmanaged() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let text = "#include <stdio.h>\n#include <unistd.h>\n\
                int main(int count, char **words) { puts(\"ready\"); fflush(stdout); \
                while (count > 1 && access(words[1], F_OK)) usleep(10000); return 0; }\n";
    let Some(program) = compile("gcc", dir.path(), "still", text, &["-static"]) else {
        return skip("no static C library is installed");
    };
    let seen = dir.path().join("seen");
    let script = format!("exec {} {}", program.display(), seen.display());
    let swapped = Swapped::within("32M");
    let mut running = Running::start(&mut swapped.command("sh", &["-c", &script]));
    running.wait_for_line("ready");
    wait_for_rounds(running.id(), 3);
    std::fs::write(&seen, "").expect("a file");
    let report = swapped.report_of(running.finish(WAIT_TIMEOUT));
    report.ended.expect_success("still");
    assert_eq!(report.figures["outside_budget"]["left_by_exec"], true, "{}", report.figures);
    assert_contains_all(&report.ended.stderr, &["sh called exec with still, a program without"]);
}

#[test]
fn blocked_fatal_signal_is_explained_when_quiet() {
    let arguments = ["--only", "blocked", "--pressure", "40"];
    let report = Swapped::within("16M").option("-q").run(compiled("unmanaged_memory"), &arguments);
    assert_eq!(report.killed_by(), Some(libc::SIGBUS), "{}", report.ended.stderr);
    let lines: Vec<&str> = report.ended.stderr.lines().collect();
    assert!(matches!(lines[..], [line] if line.contains("SIGBUS killed it")), "{lines:?}");
}

#[test]
fn fatal_signal_of_program_is_not_explained() {
    for signal in ["BUS", "SYS", "KILL"] {
        let script = format!("kill -{signal} $$");
        let report = Swapped::within("16M").option("-q").run("sh", &["-c", &script]);
        assert_eq!(report.ended.stderr, "", "{signal}");
    }
    let killed = Swapped::within("16M").run("sh", &["-c", "kill -KILL $$"]);
    assert_contains_all(&killed.ended.stderr, &["from outside softswap: `kill -9`"]);
}

#[test]
fn full_area_ends_program_and_counts_written_pages_only() {
    let dir = disk_dir();
    let swapped = Swapped::within("16M").options(&["--reserve=0", "--codec=none"]);
    let swapped = swapped.swap(format_args!("{}:32M", dir.path().display()));
    let report = swapped.run(compiled("hog"), &["--mib", "200", "--seconds", "0"]);
    let parts = ["its limit of 32.0 MiB is used up", "--memory", "--swap"];
    assert_contains_all(&report.ended.stderr, &parts);
    report.ended.expect_failure("hog");
    assert!(!report.ended.stderr.contains("FAILED"), "{}", report.ended.stderr);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files in the swap directory");
    // Each evicted page was written, or its stored copy was valid.
    let (out, written) = (report.figure("pages_out"), report.figure("pages_written"));
    let unchanged = report.figures["areas"]["unchanged_pages"].as_u64().expect("a figure");
    assert!(out <= written + unchanged, "{}", report.figures);
    // softswap stops the program after 1.5 s without progress. Each try pauses for 1 ms, so a
    // thread makes about 1,500 at most.
    let tries = report.figure("direct_reclaims");
    assert!(tries < 10_000, "the program made {tries} attempts");
}
