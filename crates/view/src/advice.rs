//! What to change, by the figures of a run.

use crate::curve::Curve;
use crate::report::Report;
use crate::units::{bytes, count, nanoseconds};

/// Below this share of its time a program does not wait to speak of.
const NOTABLE_STALL: f64 = 0.05;
/// A budget of which less was used is larger than it need be.
const UNUSED: f64 = 0.6;
const MIB: u64 = 1 << 20;

/// One thing to change, and the figure that speaks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// A sentence.
    pub what: String,
    /// What it comes from.
    pub figure: String,
}

/// Everything that the figures speak for, the weightiest first.
#[must_use]
pub fn of(report: &Report) -> Vec<Advice> {
    let rules: [fn(&Report) -> Option<Advice>; 9] = [
        errors,
        never_started,
        slept,
        waits_for_disk,
        waits_for_pool,
        does_not_pack,
        unused,
        beside,
        own_option,
    ];
    let all: Vec<Advice> = rules.iter().filter_map(|rule| rule(report)).collect();
    if all.is_empty() { vec![nothing(report)] } else { all }
}

fn advice(what: impl Into<String>, figure: impl Into<String>) -> Option<Advice> {
    Some(Advice { what: what.into(), figure: figure.into() })
}

/// The budget from which on at most half of the time had been stalled, and that it had: of a few
/// that are larger than this.
fn halves(report: &Report) -> Option<(u64, String)> {
    let curve = Curve::of(report)?;
    let enough = [1.25, 1.5, 2.0, 3.0].into_iter().find(|share| curve.spared(*share) >= 0.5)?;
    Some((curve.at(enough).budget_bytes, curve.in_words(enough)))
}

/// A budget as it is given: `768M`.
fn asked(bytes: u64) -> String {
    format!("--memory {}M", bytes.div_ceil(MIB))
}

fn errors(report: &Report) -> Option<Advice> {
    let errors = report.errors();
    (errors > 0).then_some(())?;
    advice(
        "Use another disk: this one has failed, or has returned something else than was written. \
         Look at the kernel's log.",
        format!("{} errors", count(errors)),
    )
}

fn never_started(report: &Report) -> Option<Advice> {
    (!report.engine_started && !report.slept).then_some(())?;
    advice(
        "softswap never came to work in this program: run `softswap doctor`, and look at what the \
         program said.",
        "engine_started is false",
    )
}

fn slept(report: &Report) -> Option<Advice> {
    report.slept.then_some(())?;
    advice(
        format!("Nothing: all of it fitted {}, and cost nothing.", bytes(report.budget_bytes)),
        "slept is true",
    )
}

fn waits_for_disk(report: &Report) -> Option<Advice> {
    let (disk_ns, share) = (report.waited_ns("disk"), report.stalled_share());
    (share > NOTABLE_STALL && disk_ns * 2 > report.stalled_ns).then_some(())?;
    let disk = report.faults.get("disk")?;
    let size = bytes(report.disk_peak_bytes);
    let larger = match halves(report) {
        Some((budget, words)) => format!("take {}: {words}", asked(budget)),
        None => format!(
            "{} would hold all of it without",
            asked(report.budget_bytes + report.disk_peak_bytes)
        ),
    };
    let median = disk.p50_ns.map_or_else(String::new, nanoseconds);
    advice(
        format!(
            "Give it more memory: up to {size} lay on the disk; {larger}. Or put --swap on a faster \
             disk."
        ),
        format!(
            "waited for {} of {:.1} s over all threads, mostly for {} pages from the disk, {median} \
             each at the median",
            nanoseconds(report.stalled_ns),
            report.wall_s,
            count(disk.count),
        ),
    )
}

fn waits_for_pool(report: &Report) -> Option<Advice> {
    let (pool_ns, share) = (report.waited_ns("pool"), report.stalled_share());
    (share > NOTABLE_STALL && pool_ns * 2 > report.stalled_ns).then_some(())?;
    let ratio = report.compression_ratio?;
    let held = (report.pool_peak_bytes as f64 * ratio) as u64;
    let larger = match halves(report) {
        Some((budget, words)) => format!("take {}: {words}", asked(budget)),
        None => format!(
            "{} would hold without packing what was packed",
            asked(report.budget_bytes + held.saturating_sub(report.pool_peak_bytes))
        ),
    };
    let codec = report.settings.get("codec").map(String::as_str);
    let faster = match codec {
        Some(codec) if codec.starts_with("zstd") => {
            "; or take --codec auto or lz4, which unpack faster"
        }
        _ => "",
    };
    advice(
        format!("Give it more memory: {larger}{faster}."),
        format!(
            "waited for {} of {:.1} s over all threads, mostly for {} compressed pages, up to {} of \
             them packed {ratio:.1} to 1",
            nanoseconds(report.stalled_ns),
            report.wall_s,
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
        "Try --codec none: hardly any page packs, and trying costs time.",
        format!("{:.0} % of {} pages did not pack", share * 100.0, count(offered)),
    )
}

fn unused(report: &Report) -> Option<Advice> {
    let share = report.used_peak_bytes as f64 / report.budget_bytes.max(1) as f64;
    (report.engine_started && report.used_peak_bytes > 0 && share < UNUSED).then_some(())?;
    let enough = report.used_peak_bytes + report.used_peak_bytes / 8;
    advice(
        format!("Less would do: {} holds all that it used.", asked(enough)),
        format!("at most {} of {} used", bytes(report.used_peak_bytes), bytes(report.budget_bytes)),
    )
}

fn beside(report: &Report) -> Option<Advice> {
    let beside = report.beside.as_ref()?;
    (beside.total_bytes > report.budget_bytes / 10).then_some(())?;
    advice(
        "Leave room for it beside the budget, in a container's limit too: stacks, code, files and \
         shared memory are not managed.",
        format!("{} lay in DRAM beside the budget", bytes(beside.total_bytes)),
    )
}

/// Programs with a heap of their own size it by the machine, not by the budget.
fn own_option(report: &Report) -> Option<Advice> {
    const OPTIONS: [(&str, &str, &str); 6] = [
        ("java", "-Xmx", "its collector walks the whole heap, wherever that lies"),
        ("node", "--max-old-space-size", "its collector walks the whole heap, wherever that lies"),
        ("sort", "-S", "it sorts in files of its own what does not fit, which is in order"),
        ("postgres", "shared_buffers", "it has the kernel's page cache besides"),
        ("redis-server", "--maxmemory", "it forgets by use what does not fit"),
        ("mysqld", "--innodb-buffer-pool-size", "it reads from its files what does not fit"),
    ];
    let found = OPTIONS.iter().find(|(name, _, _)| *name == report.name());
    let (name, option, why) = found?;
    let is_given = report.program.iter().any(|argument| argument.contains(option));
    (report.stalled_share() > NOTABLE_STALL && !is_given).then_some(())?;
    let within = bytes(report.budget_bytes / 4 * 3);
    advice(
        format!("Give {name} {option} of about {within}: {why}."),
        format!(
            "stalled for {:.0} % of the time, without {option}",
            (report.stalled_share() * 100.0).min(100.0)
        ),
    )
}

fn nothing(report: &Report) -> Advice {
    Advice {
        what: "Nothing: it hardly waited for pages.".into(),
        figure: format!(
            "{} of {:.1} s over all threads",
            nanoseconds(report.stalled_ns),
            report.wall_s
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Tier;

    /// A run of ten seconds that waited for so many, nearly all of it for a tier.
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
            compression_ratio: Some(3.0),
            stalled_ns: stalled_s * 1_000_000_000,
            faults: [(tier.to_string(), tier_figures)].into(),
            latencies: [(tier.to_string(), vec![(1_000_000, stalled_s * 1000)])].into(),
            ..Report::default()
        }
    }

    fn whats(report: &Report) -> String {
        of(report).into_iter().map(|it| format!("{} ({})\n", it.what, it.figure)).collect()
    }

    #[test]
    fn who_waits_for_the_disk_needs_memory_or_a_faster_disk_and_java_a_smaller_heap() {
        let text = whats(&run("disk", 6));
        for part in ["--memory 342M", "faster disk", "25,000 pages", "6.00 s of 10.0 s", "-Xmx"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let mut given = run("disk", 6);
        given.program.push("-Xmx200m".into());
        assert!(!whats(&given).contains("Give java"));
    }

    #[test]
    fn who_waits_for_the_pool_is_told_what_would_hold_it() {
        let text = whats(&run("pool", 6));
        assert!(text.contains("--memory 456M") && !text.contains("faster disk"), "{text}");
        let mut zstd = run("pool", 6);
        zstd.settings.insert("codec".into(), "zstd:9".into());
        assert!(whats(&zstd).contains("--codec auto or lz4"));
    }

    #[test]
    fn who_does_not_wait_needs_nothing_or_less() {
        let text = whats(&run("pool", 0));
        assert!(text.starts_with("Nothing: it hardly waited"), "{text}");
        let small = Report { used_peak_bytes: 64 << 20, ..run("pool", 0) };
        assert!(whats(&small).contains("--memory 72M"), "{}", whats(&small));
        let slept = Report { slept: true, engine_started: false, ..Report::default() };
        assert!(whats(&slept).contains("fitted"));
        let failed = Report { read_errors: 3, ..run("pool", 0) };
        assert!(whats(&failed).starts_with("Use another disk"));
        let packs_not = Report { pages_incompressible: 90_000, pages_pooled: 5, ..run("disk", 6) };
        assert!(whats(&packs_not).contains("--codec none"));
    }
}
