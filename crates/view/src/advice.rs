//! Suggested changes, from the figures of a run.

use crate::curve::Curve;
use crate::estimate::{asleep_bytes, too_large};
use crate::report::{Report, TIERS};
use crate::units::{bytes, count, nanoseconds};
use serde::Serialize;
use softswap_engine::api::settings::MIN_MEMORY_BYTES;
use softswap_engine::base::stats::StopReason;

/// Waits below this share of the time get no suggestion.
const NOTABLE_STALL: f64 = 0.05;
/// The budget is too large below this used share.
const UNUSED: f64 = 0.6;
const SIGKILL: i32 = 9;
const MIB: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    pub what: String,
    pub figure: String,
}

#[must_use]
pub fn of(report: &Report) -> Vec<Advice> {
    if let Some(full) = full(report) {
        // Figures of an incomplete run say nothing about a whole run.
        return errors(report).into_iter().chain([full]).collect();
    }
    let rules: [fn(&Report) -> Option<Advice>; 9] = [
        errors,
        never_started,
        slept,
        descendants_wait,
        waits,
        does_not_pack,
        unused,
        outside_budget,
        own_option,
    ];
    let all: Vec<Advice> = rules.iter().filter_map(|rule| rule(report)).collect();
    if all.is_empty() { vec![nothing(report)] } else { all }
}

fn advice(what: impl Into<String>, figure: impl Into<String>) -> Option<Advice> {
    Some(Advice { what: what.into(), figure: figure.into() })
}

fn halves(report: &Report) -> Option<String> {
    let (budget_bytes, spared) = Curve::of(report)?.halving(report.largest_budget())?;
    let option = memory_option(report, budget_bytes);
    let percent = spared * 100.0;
    Some(format!("use {option}, with which the program would wait about {percent:.0} % less"))
}

/// `--memory 768M`, with a remedy if it does not fit.
fn memory_option(report: &Report, bytes: u64) -> String {
    let too_large = too_large(report.largest_budget(), bytes);
    let too_large = too_large.map_or_else(String::new, |why| format!(" (but {why})"));
    format!("--memory {}M{too_large}", bytes.max(MIN_MEMORY_BYTES).div_ceil(MIB))
}

fn errors(report: &Report) -> Option<Advice> {
    let errors = report.errors();
    (errors > 0).then_some(())?;
    advice(
        "Use another disk: this one failed, or returned other data than softswap wrote. See the \
         kernel's log.",
        format!("{} errors", count(errors)),
    )
}

fn full(report: &Report) -> Option<Advice> {
    let reason = StopReason::from_code(report.stop_reason?)?;
    (reason == StopReason::OutOfMemory).then_some(())?;
    advice(
        "Give it a larger --swap or --memory: softswap could not swap out another page, and \
         stopped the program. The message of the run names the swap area that was full or did not \
         answer.",
        format!(
            "{}; up to {} of pages were on the disk, for {} of mapped memory in a budget of {}",
            reason.text(),
            bytes(report.disk_peak_bytes),
            bytes(report.mapped_peak_bytes),
            bytes(report.budget_bytes),
        ),
    )
}

fn never_started(report: &Report) -> Option<Advice> {
    (!report.engine_started && !report.slept && report.stalled_ns_of_all() == 0).then_some(())?;
    advice(
        "softswap did not start in this program: run `softswap doctor`, and read the messages of \
         the run.",
        "engine_started is false",
    )
}

fn was_killed(report: &Report) -> bool {
    report.outcome.signal == Some(SIGKILL)
}

fn slept(report: &Report) -> Option<Advice> {
    (report.slept && report.stalled_ns_of_all() == 0 && !was_killed(report)).then_some(())?;
    // Descendants used a part of the budget.
    let enough_bytes = match report.tree {
        None => asleep_bytes(report.mapped_peak_bytes),
        Some(_) => u64::MAX,
    };
    let smaller = match (enough_bytes as f64) < report.budget_bytes as f64 * UNUSED {
        true => format!(" {} is enough for that.", memory_option(report, enough_bytes)),
        false => String::new(),
    };
    advice(
        format!(
            "Change nothing: its memory fitted the budget of {}, so it ran at full speed.{smaller}",
            bytes(report.budget_bytes)
        ),
        "slept is true",
    )
}

/// The waits of several threads can add up to more than the time of the run.
fn waited(report: &Report, ns: u64) -> String {
    format!("its threads waited {} in all, in a run of {:.1} s", nanoseconds(ns), report.wall_s)
}

/// Descendants share the budget, so suggest a larger one or fewer processes.
fn descendants_wait(report: &Report) -> Option<Advice> {
    let all_ns = report.stalled_ns_of_all();
    (report.is_dominated_by_descendants() && report.share_of_time(all_ns) > NOTABLE_STALL)
        .then_some(())?;
    let tree = report.tree.as_ref()?;
    let most = tree.largest.iter().max_by_key(|process| process.stalled_ns);
    let most = most.filter(|process| process.stalled_ns > 0).map_or_else(String::new, |process| {
        format!(
            "; {} (pid {}) waited {}",
            process.name,
            process.pid,
            nanoseconds(process.stalled_ns)
        )
    });
    advice(
        format!(
            "Raise the budget of {}, or let it start fewer processes at a time: the processes \
             that it started waited for pages. For details, run one of them with a report of its \
             own (`softswap run --report` before its name).",
            bytes(tree.budget_bytes)
        ),
        format!(
            "{}, with at most {} processes at a time{most}",
            waited(report, all_ns),
            count(tree.processes_peak as u64)
        ),
    )
}

fn waits(report: &Report) -> Option<Advice> {
    (report.stalled_share() > NOTABLE_STALL && !report.is_dominated_by_descendants())
        .then_some(())?;
    let most = TIERS.into_iter().max_by_key(|tier| report.waited_ns(tier));
    match most.filter(|tier| report.waited_ns(tier) > 0) {
        Some("disk") => waits_for_disk(report),
        Some("pool") => waits_for_pool(report),
        tier => waits_for_free_memory(report, tier),
    }
}

/// Even pages with a low fault cost need free memory.
fn waits_for_free_memory(report: &Report, tier: Option<&str>) -> Option<Advice> {
    let larger = halves(report).unwrap_or_else(|| {
        format!("try {}", memory_option(report, report.budget_bytes + report.budget_bytes / 2))
    });
    let what = tier.map_or_else(String::new, |tier| {
        let pages = count(report.faults_of(tier));
        match tier {
            "zero" => {
                format!(", mostly for {pages} first touches of pages, which evict other pages")
            }
            _ => format!(", mostly for {pages} {tier} faults"),
        }
    });
    advice(format!("Raise the budget: {larger}."), waited(report, report.stalled_ns) + &what)
}

fn waits_for_disk(report: &Report) -> Option<Advice> {
    let disk = report.faults.get("disk")?;
    let size = bytes(report.disk_peak_bytes);
    let larger = match halves(report) {
        Some(larger) => larger,
        None => format!(
            "{} would hold these pages in memory",
            memory_option(report, report.budget_bytes + report.disk_peak_bytes)
        ),
    };
    let median = disk.p50_ns.map_or_else(String::new, nanoseconds);
    advice(
        format!(
            "Raise the budget: up to {size} of pages were on the disk; {larger}. Or put --swap on \
             a faster disk."
        ),
        format!(
            "{}, mostly for {} pages from the disk, {median} each at the median",
            waited(report, report.stalled_ns),
            count(disk.count),
        ),
    )
}

fn waits_for_pool(report: &Report) -> Option<Advice> {
    let ratio = report.compression_ratio.unwrap_or(1.0);
    // The peak and the mean ratio are from different times.
    let held = ((report.pool_peak_bytes as f64 * ratio) as u64).min(report.mapped_peak_bytes);
    let larger = match halves(report) {
        Some(larger) => larger,
        None => format!(
            "{} would hold these pages uncompressed",
            memory_option(
                report,
                report.budget_bytes + held.saturating_sub(report.pool_peak_bytes)
            )
        ),
    };
    let codec = report.settings.get("codec").map(String::as_str);
    let faster = match codec {
        Some(codec) if codec.starts_with("zstd") => {
            "; or use --codec auto or lz4, which decompress faster"
        }
        _ => "",
    };
    advice(
        format!("Raise the budget: {larger}{faster}."),
        format!(
            "{}, mostly for {} compressed pages; the pool held about {} of pages, compressed \
             {ratio:.1} to 1",
            waited(report, report.stalled_ns),
            count(report.faults_of("pool")),
            bytes(held),
        ),
    )
}

fn does_not_pack(report: &Report) -> Option<Advice> {
    let offered = report.pages_pooled + report.pages_incompressible;
    let share = report.pages_incompressible as f64 / offered.max(1) as f64;
    let is_packed = report.settings.get("codec").is_none_or(|codec| codec != "none");
    (is_packed && offered > 10_000 && share > 0.8).then_some(())?;
    advice(
        "Try --codec none: few pages compress, and compressing them costs time.",
        format!("{:.0} % of {} pages did not compress", share * 100.0, count(offered)),
    )
}

fn unused(report: &Report) -> Option<Advice> {
    // Descendants used a part of the budget.
    let of_tree = report.tree.as_ref().map_or(0, |tree| tree.used_peak_bytes);
    let used = report.used_peak_bytes.max(of_tree);
    let share = used as f64 / report.budget_bytes.max(1) as f64;
    (report.engine_started && used > 0 && share < UNUSED && !was_killed(report)).then_some(())?;
    advice(
        format!(
            "A smaller budget is enough: {} holds all that it used.",
            memory_option(report, used + used / 8)
        ),
        format!("at most {} of {} used", bytes(used), bytes(report.budget_bytes)),
    )
}

fn outside_budget(report: &Report) -> Option<Advice> {
    let outside_bytes = report.outside_budget.as_ref()?.undroppable_bytes();
    (outside_bytes > report.budget_bytes / 10).then_some(())?;
    let outside = bytes(outside_bytes);
    advice(
        format!(
            "Leave {outside} of DRAM free beyond the budget; a container's limit must be at least \
             the budget plus {outside}. Stacks, small mappings and shared memory are not managed."
        ),
        format!("{outside} of DRAM outside the budget"),
    )
}

struct OwnOption {
    program: &'static str,
    option: &'static str,
    unit: &'static str,
    why: &'static str,
}

/// The advice has a condition, because the report lacks the size of the live heap.
const COLLECTOR: &str = "its garbage collector reads the whole heap, also swapped-out pages. If the \
     program fails with that heap, its live objects need more";

const OWN_OPTIONS: [OwnOption; 6] = [
    OwnOption { program: "java", option: "-Xmx", unit: "m", why: COLLECTOR },
    OwnOption { program: "node", option: "--max-old-space-size=", unit: "", why: COLLECTOR },
    OwnOption {
        program: "sort",
        option: "-S ",
        unit: "M",
        why: "it sorts what does not fit through temporary files, which it reads sequentially",
    },
    OwnOption {
        program: "postgres",
        option: "shared_buffers=",
        unit: "MB",
        why: "it also uses the kernel's page cache",
    },
    OwnOption {
        program: "redis-server",
        option: "--maxmemory ",
        unit: "mb",
        why: "it then evicts keys by its maxmemory-policy",
    },
    OwnOption {
        program: "mysqld",
        option: "--innodb-buffer-pool-size=",
        unit: "M",
        why: "it reads the rest from its files",
    },
];

/// `-Xmx2g`, `--max-old-space-size=512`.
fn heap_bytes(argument: &str, option: &OwnOption) -> Option<u64> {
    let value = argument.strip_prefix(option.option)?.to_ascii_lowercase();
    let digits = value.trim_end_matches(|sign: char| !sign.is_ascii_digit());
    let unit = match (&value[digits.len()..], option.unit) {
        ("g", _) => 1 << 30,
        ("m", _) | ("", "") => MIB,
        ("k", _) => 1 << 10,
        ("", _) => 1,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Some programs choose their heap size by the machine's memory, not by the budget.
fn own_option(report: &Report) -> Option<Advice> {
    let found = OWN_OPTIONS.iter().find(|own| own.program == report.name())?;
    let OwnOption { program, option, unit, why } = found;
    let given = report.program.iter().find(|it| it.contains(option.trim_end_matches([' ', '='])));
    let is_within = given.is_some_and(|given| {
        heap_bytes(given, found).is_none_or(|heap_bytes| heap_bytes <= report.budget_bytes)
    });
    (report.stalled_share() > NOTABLE_STALL && !is_within).then_some(())?;
    let within = report.budget_bytes / 4 * 3 / MIB;
    advice(
        format!("Try {program} with {option}{within}{unit}: {why}."),
        format!(
            "{}, {} within {}",
            waited(report, report.stalled_ns),
            given.map_or_else(
                || format!("without {}", option.trim_end()),
                |it| format!("with {it}")
            ),
            bytes(report.budget_bytes),
        ),
    )
}

fn nothing(report: &Report) -> Advice {
    if was_killed(report) {
        return Advice {
            what: "SIGKILL ended the run early, so its figures suggest no budget. If the kernel \
                   killed the program for lack of memory, a message of the run names a budget."
                .into(),
            figure: format!("killed by SIGKILL after {:.1} s", report.wall_s),
        };
    }
    Advice {
        what: "Change nothing: it hardly waited for pages.".into(),
        figure: waited(report, report.stalled_ns_of_all()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Outcome, Process, Tier, Tree};

    /// A run of ten seconds that waited nearly only for one tier.
    fn run(tier: &str, stalled_s: u64) -> Report {
        let tier_figures = Tier { count: 25_000, p50_ns: Some(400_000), p99_ns: None };
        Report {
            program: vec!["/usr/bin/java".into(), "Main".into()],
            wall_s: 10.0,
            engine_started: true,
            budget_bytes: 256 << 20,
            used_peak_bytes: 255 << 20,
            disk_peak_bytes: 86 << 20,
            pool_peak_bytes: 100 << 20,
            mapped_peak_bytes: 1 << 30,
            compression_ratio: Some(3.0),
            stalled_ns: stalled_s * 1_000_000_000,
            faults: [(tier.to_string(), tier_figures)].into(),
            latencies: [(tier.to_string(), vec![(1_000_000, stalled_s * 1000)])].into(),
            ..Report::default()
        }
    }

    fn suggestions(report: &Report) -> String {
        of(report).into_iter().map(|it| format!("{} ({})\n", it.what, it.figure)).collect()
    }

    #[test]
    fn disk_waits_advise_memory_or_faster_disk() {
        let text = suggestions(&run("disk", 6));
        for part in [
            "--memory 342M",
            "faster disk",
            "25,000 pages",
            "waited 6.00 s in all, in a run of 10.0 s",
            "-Xmx",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let mut given = run("disk", 6);
        given.program.push("-Xmx200m".into());
        assert!(!suggestions(&given).contains("Try java"), "{}", suggestions(&given));
        given.program[2] = "-Xmx2G".into();
        let text = suggestions(&given);
        assert!(text.contains("Try java with -Xmx192m") && text.contains("with -Xmx2G"), "{text}");
    }

    #[test]
    fn full_swap_advises_swap_space() {
        let stopped =
            Report { stop_reason: Some(StopReason::OutOfMemory as u64), ..run("disk", 6) };
        let text = suggestions(&stopped);
        assert!(
            text.starts_with("Give it a larger --swap") && !text.contains("use --memory"),
            "{text}"
        );
    }

    #[test]
    fn pool_waits_advise_larger_budget() {
        let text = suggestions(&run("pool", 6));
        assert!(text.contains("--memory 456M") && !text.contains("faster disk"), "{text}");
        let mut zstd = run("pool", 6);
        zstd.settings.insert("codec".into(), "zstd:9".into());
        assert!(suggestions(&zstd).contains("--codec auto or lz4"));
    }

    #[test]
    fn memory_waits_advise_memory() {
        let text = suggestions(&run("zero", 6));
        for part in ["Raise the budget", "--memory 384M", "first touches of pages", "6.00 s"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let without_latencies = Report { latencies: [].into(), ..run("disk", 6) };
        assert!(
            suggestions(&without_latencies).contains("Raise the budget"),
            "{}",
            suggestions(&without_latencies)
        );
        // Not more than the program's mapped memory.
        let small = Report { mapped_peak_bytes: 120 << 20, ..run("pool", 6) };
        assert!(suggestions(&small).contains("about 120.0 MiB"), "{}", suggestions(&small));
    }

    #[test]
    fn budget_that_does_not_fit_has_remedy() {
        for tier in ["disk", "pool", "zero"] {
            let text =
                suggestions(&Report { largest_budget_bytes: Some(300 << 20), ..run(tier, 6) });
            assert!(text.contains("(but at most --memory 300M fits"), "{text}");
            let text = suggestions(&Report { largest_budget_bytes: Some(1 << 30), ..run(tier, 6) });
            assert!(!text.contains("at most --memory"), "{text}");
        }
    }

    #[test]
    fn advice_covers_waiting_descendants() {
        let process = |pid, stalled_s: u64| Process {
            pid,
            name: "cpp".into(),
            stalled_ns: stalled_s * 1_000_000_000,
            ..Process::default()
        };
        let tree = Tree {
            budget_bytes: 80 << 20,
            processes_peak: 3,
            largest: vec![process(7, 4), process(8, 5)],
            ..Tree::default()
        };
        let slept = Report {
            slept: true,
            engine_started: false,
            stalled_ns: 0,
            tree: Some(tree),
            ..run("zero", 0)
        };
        let text = suggestions(&slept);
        for part in
            ["80.0 MiB", "waited 9.00 s in all, in a run of 10.0 s", "cpp (pid 8) waited 5.00 s"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("Change nothing") && !text.contains("did not start"), "{text}");
        // Figures of the first process do not apply to the others.
        let tree = Tree { used_peak_bytes: 79 << 20, ..slept.tree.clone().unwrap() };
        let small = Report {
            engine_started: true,
            used_peak_bytes: 9 << 20,
            budget_bytes: 80 << 20,
            tree: Some(tree),
            ..run("disk", 4)
        };
        let text = suggestions(&small);
        assert!(text.contains("Raise the budget of 80.0 MiB"), "{text}");
        assert!(!text.contains("A smaller budget") && !text.contains("use --memory"), "{text}");
    }

    #[test]
    fn no_waits_advise_nothing_or_smaller_budget() {
        let text = suggestions(&run("pool", 0));
        assert!(text.starts_with("Change nothing: it hardly waited"), "{text}");
        let small = Report { used_peak_bytes: 64 << 20, ..run("pool", 0) };
        assert!(suggestions(&small).contains("--memory 72M"), "{}", suggestions(&small));
        let slept = Report { slept: true, engine_started: false, ..Report::default() };
        assert!(suggestions(&slept).contains("fitted"));
        let large = Report { budget_bytes: 1 << 30, mapped_peak_bytes: 200 << 20, ..slept.clone() };
        assert!(suggestions(&large).contains("so it ran at full speed. --memory 2"));
        let tiny = Report { mapped_peak_bytes: 0, ..large };
        assert!(suggestions(&tiny).contains("--memory 8M is enough"), "{}", suggestions(&tiny));
        let outcome = Outcome { signal: Some(SIGKILL), ..Outcome::default() };
        for killed in [&slept, &small, &run("pool", 0)] {
            let text = suggestions(&Report { outcome: outcome.clone(), ..killed.clone() });
            assert!(text.starts_with("SIGKILL ended the run early"), "{text}");
        }
        let failed = Report { read_errors: 3, ..run("pool", 0) };
        assert!(suggestions(&failed).starts_with("Use another disk"));
        let packs_not = Report { pages_incompressible: 90_000, pages_pooled: 5, ..run("disk", 6) };
        assert!(suggestions(&packs_not).contains("--codec none"));
    }
}
