//! Whole programs verify themselves, or their output is compared with that of a plain run.

use crate::common::assert_contains_all;
use crate::support::processes::{children, kill, stat_of};
use crate::support::{
    LIMIT, Report, Swapped, compiled, disk_dir, plain, programs_in, python, script, sources,
};
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

/// With this budget, the pressure of [`PUSHED`] evicts all pages between two uses.
const SMALL: &str = "16M";
const PUSHED: [&str; 3] = ["--pressure", "26", "--require-out"];

fn pushed<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&PUSHED[..], more].concat()
}

const WITHOUT_CASES: &str = "adversary emulated foreign_loader secrets sleeping stall steady \
                             transfers unmanaged_memory waking worker";

fn all_programs() -> BTreeSet<String> {
    let has_cases = |program: &String| WITHOUT_CASES.split(' ').all(|it| it != program);
    programs_in(&sources()).into_iter().filter(has_cases).collect()
}

#[test]
fn every_test_program_detects_wrong_data() {
    for program in all_programs() {
        let list = plain(compiled(&program), &["--list"]).stdout_text();
        assert!(!list.is_empty(), "{program} has no cases");
        for case in list.lines() {
            let ended = plain(compiled(&program), &["--corrupt", case]);
            let stderr = &ended.stderr;
            assert_eq!(ended.status.code(), Some(1), "{program} {case} noticed nothing: {stderr}");
            assert!(stderr.contains("FAILED"), "{program} {case}: {stderr}");
        }
    }
}

#[test]
fn every_program_passes_without_softswap() {
    for program in all_programs() {
        plain(compiled(&program), &[] as &[&str]).expect_ok(&program);
        let ended = plain(compiled(&program), &["--require-out"]);
        assert_eq!(ended.status.code(), Some(1), "{program}: {}", ended.stderr);
    }
}

#[test]
fn text_of_four_budgets_uses_no_disk() {
    let swapped = Swapped::within("32M").options(&["--codec=zstd:-1", "--pool=80%"]);
    let report = swapped.run_ok("text", &["--mib", "128", "--require-out"]);
    // Pages that are not text, and batches written when codecs use most of the budget.
    assert!(report.figure("bytes_written") <= 2 << 20, "{}", report.figure("bytes_written"));
}

#[test]
fn python_programs_are_deterministic_and_detect_wrong_data() {
    for program in ["sqlite.py", "bigsort.py", "kinds.py"] {
        let run = |more: &[&str]| {
            let ended = plain(python(), &script(program, &[&["--mib", "8"], more].concat()));
            ended.expect_success(program);
            ended.stdout_text()
        };
        let expected = run(&[]);
        assert_eq!(run(&[]), expected, "{program}");
        assert_ne!(run(&["--corrupt"]), expected, "{program} --corrupt");
    }
}

#[test]
fn every_kind_of_data_round_trips() {
    let report = Swapped::within(SMALL).run_ok("tiers", &pushed(&["--mib", "24"]));
    for figure in ["pages_same_filled", "pages_pooled", "pages_written", "pages_read"] {
        assert!(report.figure(figure) > 0, "{figure} is 0: {}", report.figures);
    }
}

#[test]
fn incompressible_data_is_written_to_disk() {
    let report = Swapped::within("64M").run_ok("hog", &["--mib", "128", "--require-out"]);
    let beyond = (128 - 64) << 20;
    assert!(report.figure("bytes_written") >= beyond, "{}", report.figures);
    assert!(report.figure("disk_peak_bytes") >= beyond, "{}", report.figures);
    assert!(report.figure("bytes_read") >= beyond, "{}", report.figures);
}

fn variant_keeps_data(variant: impl Fn() -> Swapped, unused: &str) -> [Report; 3] {
    let reports = [
        variant().run_ok("tiers", &pushed(&["--mib", "8", "--only", "malloc-mixed,mmap-random"])),
        variant().run_ok("threads", &["--mib", "64", "--operations", "1500", "--require-out"]),
        variant().run_ok("guard", &pushed(&["--only", "large-file,vectors,threads-under-churn"])),
    ];
    for report in &reports {
        assert!(report.figure("pages_written") > 0, "{}", report.figures);
        assert_eq!(report.figure(unused), 0, "{unused} must not be used");
    }
    reports
}

#[test]
fn page_protection_works_with_few_mappings() {
    let variant = || Swapped::within(SMALL).options(&["--faults", "protection"]);
    for report in variant_keeps_data(variant, "uses_move") {
        assert_eq!(report.figures["fault_mechanism"], "protection");
        let mappings = &report.figures["mappings"];
        let [peak, limit] = ["peak", "limit"].map(|key| mappings[key].as_u64().unwrap());
        assert!(0 < peak && peak <= limit, "{mappings}");
    }
}

/// Each variant has a figure that must be 0.
#[test]
fn works_without_move_compression_or_io_uring() {
    for (options, unused) in [
        ("--no-move", "uses_move"),
        ("--no-io-uring", "uses_io_uring"),
        ("--no-move --no-io-uring --codec none", "pages_pooled"),
    ] {
        eprintln!("{options}");
        let options: Vec<&str> = options.split(' ').collect();
        variant_keeps_data(|| Swapped::within(SMALL).options(&options), unused);
    }
}

#[test]
fn system_calls_take_swapped_buffers() {
    let report = Swapped::within(SMALL).run_ok("guard", &pushed(&[]));
    assert!(report.figure("guarded_calls") > 0, "{}", report.figures);
}

#[test]
fn many_streams_keep_their_content() {
    let report = Swapped::within(SMALL).run(compiled("streams"), &[] as &[&str]);
    report.ended.expect_ok("streams");
}

#[test]
fn stream_writes_need_no_swap_in() {
    let guarded = |mib: &str| {
        let report = Swapped::within(SMALL).run(compiled("streams"), &["--null", mib]);
        report.ended.expect_ok("streams");
        report.figure("guarded_calls")
    };
    // 16 MiB are 4096 buffers.
    let (without, with) = (guarded("0"), guarded("16"));
    assert!(with < without + 1000, "{without} calls without, {with} with 16 MiB");
}

#[test]
fn programs_find_their_data_unchanged() {
    for (program, memory, arguments) in [
        ("threads", "96M", "--mib 400 --operations 5000 --require-out"),
        // With a smaller budget the tables of the largest mapping would take half of it.
        ("mappings", "32M", "--pressure 48 --require-out"),
        // Large reservations are managed as they are committed.
        ("mappings", SMALL, "--pressure 26 --require-out --only reserve-a-terabyte"),
        ("mappings", SMALL, "--pressure 26 --require-out --only reserve-four-terabytes"),
        ("blocks", SMALL, "--pressure 26 --require-out"),
        ("signals", SMALL, "--pressure 26 --require-out"),
        ("children", SMALL, "--pressure 26 --require-out --mib 24"),
        ("stacks", SMALL, "--pressure 26 --require-out"),
    ] {
        eprintln!("{program} within {memory}: {arguments}");
        let arguments: Vec<&str> = arguments.split(' ').collect();
        Swapped::within(memory).run_ok(program, &arguments);
    }
}

/// Otherwise pages in use would be evicted.
#[test]
fn freed_memory_reduces_usage_immediately() {
    let blocks = "x = b'x' * (40 << 20); del x; y = [b'y' * (10 << 20) for _ in range(4)]";
    let report = Swapped::within("72M").option("--awake").run(python(), &["-c", blocks]);
    report.ended.expect_success("python");
    let mapped = report.figure("resident_peak_bytes");
    assert!(mapped > 40 << 20, "only {mapped} bytes were used at one time");
    assert_eq!(report.figure("pages_out"), 0);
}

/// Merged pages would lose their protection, and old content would return.
#[test]
fn memory_merging_is_refused() {
    let merge = "import ctypes, errno; libc = ctypes.CDLL(None, use_errno=True); \
                 assert libc.prctl(67, 1, 0, 0, 0) == -1; assert ctypes.get_errno() == errno.EINVAL";
    let report = Swapped::within(SMALL).option("--awake").run(python(), &["-c", merge]);
    report.ended.expect_success("python");
}

#[test]
fn growing_block_is_not_copied_at_every_step() {
    let options = ["--only", "small-steps", "--mib", "48", "--steps", "96", "--require-out"];
    let report = Swapped::within(SMALL).run_ok("blocks", &options);
    let pages = (48 << 20) / 4096;
    let fresh = report.figures["faults"]["zero"]["count"].as_u64().expect("a count");
    assert!(fresh < 2 * pages, "{fresh} faults created zero pages for a block of {pages}");
    let out = report.figure("pages_out");
    assert!(out < 3 * pages, "{out} pages evicted of a block of {pages}");
}

#[test]
fn programs_exec_and_fork() {
    let report = Swapped::within(SMALL).run_ok("spawn", &pushed(&["--mib", "24"]));
    let parts = ["fork, child reads: ", "fork, both write: "]
        .map(|what| format!("{what}the child saw all its data"));
    assert_contains_all(&report.ended.stdout_text(), &parts.each_ref().map(String::as_str));
}

#[test]
fn fatal_signal_is_forwarded() {
    for (how, signal) in [
        ("segv", libc::SIGSEGV),
        ("unmapped", libc::SIGSEGV),
        ("bus", libc::SIGBUS),
        ("sys", libc::SIGSYS),
        ("abort", libc::SIGABRT),
        ("kill", libc::SIGKILL),
    ] {
        let report = Swapped::within(SMALL).run(compiled("signals"), &pushed(&["--die", how]));
        assert_eq!(report.killed_by(), Some(signal), "--die {how}: {}", report.ended.stderr);
    }
}

#[test]
fn python_programs_give_the_same_answers() {
    for (program, mib, memory) in
        [("sqlite.py", "48", "24M"), ("bigsort.py", "16", "16M"), ("kinds.py", "60", "24M")]
    {
        let arguments = script(program, &["--mib", mib]);
        let expected = plain(python(), &arguments);
        expected.expect_success(program);
        let report = Swapped::within(memory).run(python(), &arguments);
        report.ended.expect_success(program);
        report.expect_healthy(program);
        assert_eq!(report.ended.stdout_text(), expected.stdout_text(), "{program}");
    }
}

#[test]
fn gnu_sort_writes_same_file() {
    crate::support::compare_sort(&Swapped::within("64M"), 80 << 20);
}

/// Unlinked files count, too.
fn users_of(dir: &Path) -> Vec<String> {
    let mut users = Vec::new();
    for process in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Ok(descriptors) = std::fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        for descriptor in descriptors.flatten() {
            if std::fs::read_link(descriptor.path()).is_ok_and(|file| file.starts_with(dir)) {
                users.push(descriptor.path().display().to_string());
            }
        }
    }
    users
}

#[test]
fn killed_run_leaves_no_files() {
    let swap = disk_dir();
    let swapped = Swapped::within(SMALL).swap(swap.path().display());
    let running = swapped.start("hog", &["--mib", "128", "--seconds", "0"]);
    assert!(!users_of(swap.path()).is_empty(), "the swap directory is not in use");
    let children = children(running.id());
    assert_eq!(children.len(), 1, "softswap has one child, the program");
    kill(children[0]);

    let ended = running.finish(LIMIT);
    assert_eq!(ended.status.signal(), Some(libc::SIGKILL), "{}", ended.stderr);
    assert!(ended.stderr.contains("SIGKILL"), "the summary must name the signal: {}", ended.stderr);
    assert!(stat_of(children[0]).is_none(), "the program still exists");
    assert_eq!(users_of(swap.path()), [] as [&str; 0], "a process still uses the swap directory");
    let left = std::fs::read_dir(swap.path()).expect("the swap directory").count();
    assert_eq!(left, 0, "files were left in the swap directory");
}

/// Counts signals while the program waits for a page that cannot be faulted in.
fn signals_handled_while_waiting(kind: &str) -> u64 {
    let swap = disk_dir();
    let swapped = Swapped::within("16M").swap(format_args!("{}:16M", swap.path().display()));
    let report = swapped.run(compiled("stall"), &[kind]);
    let (stdout, stderr) = (report.ended.stdout_text(), &report.ended.stderr);
    assert!(stderr.contains("softswap: stopping the program"), "{stderr}");
    let count = stdout.trim().rsplit(' ').next().and_then(|count| count.parse().ok());
    count.unwrap_or_else(|| panic!("{stdout} {stderr}"))
}

#[test]
fn signals_are_delivered_while_waiting_for_memory() {
    for kind in ["touch", "call"] {
        // If signals were blocked during the wait, one or two would be handled. The wait has 15
        // parts or more, and pending signals are handled after each.
        let signals = signals_handled_while_waiting(kind);
        assert!(signals >= 5, "{signals} signals ({kind})");
    }
}
