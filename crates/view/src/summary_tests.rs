//! Tests of the summary.

use super::*;
use crate::report::{
    Columns, History, Outcome, OutsideBudget, Tier, Tree, TreeHistory, Unmanaged, UnmanagedProcess,
};
use crate::sections::Copies;

const MIB: u64 = 1 << 20;

fn exited(status: u8) -> Outcome {
    Outcome { kind: "exited".into(), status: Some(status), ..Outcome::default() }
}

fn killed(signal: i32, name: &str) -> Outcome {
    let (signal, signal_name) = (Some(signal), Some(name.into()));
    Outcome { kind: "killed".into(), signal, signal_name, ..Outcome::default() }
}

fn run(outcome: Outcome, waited_s: u64) -> Report {
    Report {
        program: vec!["/usr/bin/prog".into(), "argument".into()],
        outcome,
        wall_s: 10.0,
        engine_started: true,
        budget_bytes: 64 * MIB,
        budget_peak_bytes: 64 * MIB,
        stalled_ns: waited_s * 1_000_000_000,
        ..Report::default()
    }
}

fn slept(outcome: Outcome) -> Report {
    Report { engine_started: false, slept: true, ..run(outcome, 0) }
}

fn first_line(report: &Report) -> String {
    text(report, false).lines().next().unwrap_or_default().to_string()
}

#[test]
fn summary_states_exit_and_wait_time() {
    let finished = "softswap: prog finished in 10.00 s;";
    for (report, expected) in [
        (run(exited(0), 2), format!("{finished} it waited for memory 20 % of the time")),
        (run(exited(0), 0), format!("{finished} it hardly waited for memory")),
        (
            run(exited(0), 35),
            format!("{finished} it waited 35.00 s for memory, added up over all threads"),
        ),
        (
            run(exited(3), 2),
            "softswap: prog exited with status 3 after 10.00 s; it waited for memory 20 % of the \
             time"
                .into(),
        ),
        (
            run(killed(15, "SIGTERM"), 2),
            "softswap: prog was killed by SIGTERM after 10.00 s; it waited for memory 20 % of the \
             time"
                .into(),
        ),
    ] {
        assert_eq!(first_line(&report), expected);
    }
    let killed = first_line(&run(killed(9, "SIGKILL"), 0));
    assert!(killed.contains("from outside softswap: `kill -9`"), "{killed}");
    let stopped = Report { stop_reason: Some(4), ..run(killed_by_bus(), 0) };
    let stopped = first_line(&stopped);
    assert!(stopped.contains("stopped by softswap after 10.00 s: no memory"), "{stopped}");
    let never = first_line(&Report { engine_started: false, ..run(exited(0), 0) });
    assert!(never.contains("was not loaded") && never.contains("softswap doctor"), "{never}");
}

#[test]
fn summary_does_not_repeat_failed_start() {
    let failed = Report { engine_started: false, ..run(exited(125), 0) };
    assert_eq!(text(&failed, false), "");
    assert!(!text(&failed, true).contains("was not loaded"), "{}", text(&failed, true));
}

#[test]
fn killed_program_is_not_said_to_have_fitted() {
    let outside_budget =
        Some(OutsideBudget { anonymous_bytes: 60 * MIB, ..OutsideBudget::default() });
    let slept = slept(killed(9, "SIGKILL"));
    for report in [Report { outside_budget, ..slept.clone() }, slept] {
        let line = first_line(&report);
        assert!(line.contains("was killed by SIGKILL") && !line.contains("fitted"), "{line}");
    }
}

#[test]
fn program_without_library_is_named_after_exec() {
    let outside_budget = Some(OutsideBudget { left_by_exec: true, ..OutsideBudget::default() });
    let program = UnmanagedProcess { name: "still".into(), ..UnmanagedProcess::default() };
    let largest = vec![program.clone()];
    let one = Unmanaged { processes: 1, largest, ..Unmanaged::default() };
    let two = Unmanaged { processes: 2, largest: vec![program; 2], ..Unmanaged::default() };
    for (unmanaged, part) in [
        (one, "prog called exec with still, a program without libsoftswap.so"),
        (two, "prog called exec with a program without libsoftswap.so"),
    ] {
        let report = Report { outside_budget, unmanaged: Some(unmanaged), ..run(exited(0), 0) };
        assert!(text(&report, false).contains(part), "{}", text(&report, false));
    }
}

fn killed_by_bus() -> Outcome {
    killed(7, "SIGBUS")
}

#[test]
fn larger_budget_is_advised_only_within_curve() {
    let history = History {
        at_s: vec![0.0, 5.0, 10.0],
        columns: Columns {
            budget_bytes: vec![64 * MIB; 3],
            used_bytes: vec![64 * MIB; 3],
            resident_bytes: vec![64 * MIB; 3],
            ..Columns::default()
        },
        ..History::default()
    };
    let pool = Tier { count: 100_000, ..Tier::default() };
    let known = Report {
        pages_out: 100_000,
        returns: [("pool".to_string(), vec![(12_000, 100_000)])].into(),
        faults: [("pool".to_string(), pool)].into(),
        latencies: [("pool".to_string(), vec![(20_000, 100_000)])].into(),
        history,
        ..run(exited(0), 2)
    };
    let line = first_line(&known);
    assert!(
        line.contains("% of the time; with --memory ")
            && (line.ends_with(" as long") || line.ends_with(" would hardly wait")),
        "{line}"
    );
    let largest = |largest_mib: u64| {
        let largest_budget_bytes = Some(largest_mib * MIB);
        first_line(&Report { largest_budget_bytes, ..known.clone() })
    };
    assert!(largest(64).contains(", but at most --memory 64M fits"), "{}", largest(64));
    assert!(largest(96).contains("; with --memory 96M it would wait"), "{}", largest(96));
    let mut moved = known.clone();
    moved.history.columns.budget_bytes[1] = 32 * MIB;
    // A tree's budget is fixed even if another process has taken a part.
    let of_tree = |budget_bytes: Vec<u64>| {
        let mut report = known.clone();
        report.history.columns.budget_bytes[1] = 63 * MIB;
        let columns = Columns { budget_bytes, ..Columns::default() };
        report.history.tree = Some(TreeHistory { columns, ..TreeHistory::default() });
        Report { tree: Some(Tree::default()), ..report }
    };
    let fixed = first_line(&of_tree(vec![0, 64 * MIB, 64 * MIB]));
    assert!(fixed.contains("; with --memory "), "{fixed}");
    for unknown in [
        of_tree(vec![64 * MIB, 32 * MIB, 64 * MIB]),
        Report { outcome: exited(1), ..known.clone() },
        Report { stalled_ns: 100_000_000, ..known.clone() },
        Report { returns: [].into(), ..known.clone() },
        moved,
    ] {
        assert!(!text(&unknown, false).contains("with --memory"));
    }
}

#[test]
fn a_program_that_slept_prints_nothing_unless_it_was_killed_or_partly_unmanaged() {
    assert_eq!(text(&slept(exited(0)), false), "");
    assert_eq!(text(&slept(exited(1)), false), "");
    assert!(text(&slept(exited(0)), true).contains("nothing to do"));
    assert!(text(&slept(killed(15, "SIGTERM")), false).contains("SIGTERM"));
    let outside_budget =
        Some(OutsideBudget { anonymous_bytes: 60 * MIB, ..OutsideBudget::default() });
    let unmanaged = text(&Report { outside_budget, ..slept(exited(0)) }, false);
    assert!(unmanaged.contains("  UNMANAGED  at most 60.0 MiB outside"), "{unmanaged}");
    // The kernel drops clean pages of files.
    let outside_budget = Some(OutsideBudget {
        total_bytes: 60 * MIB,
        file_bytes: 60 * MIB,
        ..OutsideBudget::default()
    });
    assert_eq!(text(&Report { outside_budget, ..slept(exited(0)) }, false), "");
}

#[test]
fn memory_outside_the_budget_is_one_line_with_its_largest_parts() {
    let process = |pid, name: &str, mib| UnmanagedProcess {
        pid,
        name: name.into(),
        anonymous_peak_bytes: mib * MIB,
        ..UnmanagedProcess::default()
    };
    let largest = vec![process(8, "block", 64), process(9, "small", 1)];
    let unmanaged = Some(Unmanaged { processes: 2, anonymous_peak_bytes: 65 * MIB, largest });
    let outside_budget = Some(OutsideBudget { shared_bytes: 30 * MIB, ..OutsideBudget::default() });
    let text = text(&Report { outside_budget, unmanaged, ..run(exited(0), 0) }, false);
    let line = text.lines().find(|line| line.contains("UNMANAGED")).unwrap();
    assert_eq!(
        line,
        "  UNMANAGED  at most 95.0 MiB outside the budget, with 2 unmanaged processes, without a \
         limit: 64.0 MiB block (pid 8, no budget), 30.0 MiB shared memory"
    );
}

#[test]
fn details_add_every_counter() {
    let tier = Tier { count: 1, p50_ns: Some(80_000), p99_ns: None };
    let process = |pid| Process { pid, name: format!("p{pid}"), ..Process::default() };
    let tree = Tree { largest: (1..=7).map(process).collect(), ..Tree::default() };
    let report = Report {
        tree: Some(tree),
        same_filled_share: Some(0.125),
        compression_ratio: Some(4.0),
        bytes_written: 3 << 30,
        faults: [("disk".to_string(), tier)].into(),
        outside_budget: Some(OutsideBudget::default()),
        pool: Pool {
            copies: Copies { unchanged_pages: 5, ..Copies::default() },
            ..Pool::default()
        },
        ..run(exited(0), 1)
    };
    assert_eq!(text(&report, false).lines().count(), 4, "{}", text(&report, false));
    let text = text(&report, true);
    for part in [
        "  budget     64.0 MiB",
        "  peaks      resident",
        "  processes  up to",
        "and 2 more, with 0 faults, 0 ns stalled",
        "12.5 % same-filled",
        "compressed 4.00 to 1",
        "3.0 GiB written",
        "    disk                    1    80.0 us          -",
        "  pool       5 dropped unchanged",
        "  stalled    1.00 s over all threads, 0 direct reclaims",
        "(pread/pwrite, page cache, not encrypted)",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}
