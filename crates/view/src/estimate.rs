//! The budget with which a program takes a given multiple of its time without waits.

use crate::curve::Curve;
use crate::report::Report;
use crate::units::bytes;
use serde::Serialize;
use softswap_engine::api::settings::{MIN_MEMORY_BYTES, SPARE_BYTES, SPARE_PART};
use softswap_engine::base::stats::StopReason;

/// Shares of the run's budget. Below the first one a program may thrash unnoticed.
const MIN_SHARE: f64 = 0.75;
const MAX_SHARE: f64 = 8.0;
const STEPS: u32 = 24;
const MIB: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Estimate {
    pub memory_bytes: u64,
    /// Multiple of the run time without waits for memory.
    pub slowdown: f64,
    pub slowdown_limit: f64,
    /// A smaller budget may suffice, which the run's figures cannot show.
    pub is_at_most: bool,
    pub run_memory_bytes: u64,
    pub run_slowdown: f64,
}

/// Returns the smallest budget with at most this slowdown.
///
/// # Errors
/// The reason why the run does not allow an estimate, or the size that does not fit.
pub fn size_for(report: &Report, slowdown_limit: f64) -> Result<Estimate, String> {
    let estimate = smallest_for(report, slowdown_limit)?;
    match too_large(report.largest_budget(), estimate.memory_bytes) {
        Some(why) => Err(format!("it needs {}, but {why}", bytes(estimate.memory_bytes))),
        None => Ok(estimate),
    }
}

/// Returns the largest budget that fits and the remedy, if this budget does not fit.
#[must_use]
pub fn too_large(largest_bytes: Option<u64>, budget_bytes: u64) -> Option<String> {
    let largest_mib = largest_bytes.filter(|largest| *largest < budget_bytes)? / MIB;
    Some(format!(
        "at most --memory {largest_mib}M fits in the memory that is available here: raise the \
         container's memory limit, or use a machine with more memory"
    ))
}

/// Returns the end of a sentence that advises a budget.
#[must_use]
pub fn if_too_large(largest_bytes: Option<u64>, budget_bytes: u64) -> String {
    too_large(largest_bytes, budget_bytes).map_or_else(String::new, |why| format!(", but {why}"))
}

fn smallest_for(report: &Report, slowdown_limit: f64) -> Result<Estimate, String> {
    let code = report.stop_reason.and_then(StopReason::from_code);
    if code.is_some() || report.outcome.status != Some(0) {
        return Err(
            "the program failed or was stopped, so its figures are not those of a whole run".into(),
        );
    }
    if report.is_dominated_by_descendants() {
        return Err(
            "processes that the program started waited longer than the program, and the report \
                    has no curve of them; run the process that needs the memory by itself and \
                    take a report of that run"
                .into(),
        );
    }
    let stalled_ns = report.stalled_ns as f64;
    let lost_s = report.lost_s();
    let own_s = (report.wall_s - lost_s).max(report.wall_s / 1000.0);
    let slowdown = |ns: f64| 1.0 + lost_s * (ns / stalled_ns.max(1.0)) / own_s;
    let of = |memory_bytes: u64, slowdown: f64, is_at_most| Estimate {
        memory_bytes: memory_bytes.max(MIN_MEMORY_BYTES).next_multiple_of(MIB),
        slowdown,
        slowdown_limit,
        is_at_most,
        run_memory_bytes: report.budget_bytes,
        run_slowdown: self::slowdown(report),
    };
    let Some(curve) = Curve::of(report) else {
        return fitting(report, slowdown_limit)
            .map(|(memory_bytes, slowdown)| of(memory_bytes, slowdown, slowdown < slowdown_limit));
    };
    let at = |share: f64| {
        let point = curve.at(share);
        (point.is_known, slowdown(point.stalled_ns), point.budget_bytes)
    };
    let is_enough = |share: f64| matches!(at(share), (true, it, _) if it <= slowdown_limit);
    // With its whole memory in DRAM the program sleeps.
    let whole_bytes =
        if report.tree.is_none() { asleep_bytes(report.mapped_peak_bytes) } else { u64::MAX };
    let whole_share = whole_bytes as f64 / report.budget_bytes.max(1) as f64;
    if whole_share < MAX_SHARE && !is_enough(whole_share) {
        return Ok(of(whole_bytes, 1.0, true));
    }
    if !is_enough(MAX_SHARE) {
        let (_, least, memory_bytes) = at(MAX_SHARE);
        return Err(format!(
            "even with {} it is expected to take {least:.1} times as long",
            bytes(memory_bytes)
        ));
    }
    let (low, high) = boundary(is_enough);
    let (_, expected, memory_bytes) = at(high);
    let (is_known, below, _) = at(low);
    Ok(of(memory_bytes, expected, !is_known || below <= slowdown_limit))
}

/// Returns the budget with which a program sleeps: the spare part stays free.
pub(crate) fn asleep_bytes(mapped_bytes: u64) -> u64 {
    (mapped_bytes + SPARE_BYTES) / (SPARE_PART - 1) * SPARE_PART
}

/// Bisects. Returns the largest share that is not enough, and the smallest that is.
fn boundary(is_enough: impl Fn(f64) -> bool) -> (f64, f64) {
    let (mut low, mut high) = (MIN_SHARE, MAX_SHARE);
    for _ in 0..STEPS {
        let middle = f64::midpoint(low, high);
        if is_enough(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    (low, high)
}

#[must_use]
pub fn slowdown(report: &Report) -> f64 {
    let own_s = report.wall_s - report.lost_s();
    report.wall_s / own_s.max(report.wall_s / 1000.0).max(f64::MIN_POSITIVE)
}

/// Size and slowdown of a run with too few refaults for a curve.
fn fitting(report: &Report, slowdown_limit: f64) -> Result<(u64, f64), String> {
    let mapped_bytes = if report.slept { report.mapped_peak_bytes } else { 0 };
    let used_bytes = report.used_peak_bytes_of_all().max(mapped_bytes);
    let slowdown = slowdown(report);
    match slowdown <= slowdown_limit {
        true if used_bytes > 0 => {
            let most_bytes = report.budget_bytes.max(used_bytes);
            Ok((asleep_bytes(used_bytes).min(most_bytes), slowdown))
        }
        true => Err("the run used no managed memory; take a report of a longer run, with \
                     a --memory that makes it swap"
            .into()),
        false => Err("too few pages refaulted to estimate the cost of another budget; take a \
                      report of a longer run"
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{History, Outcome, Tier};

    /// Ten seconds, half of them waiting. As many evicted as resident pages (16,000), touched at
    /// random.
    fn run() -> Report {
        let (budget_bytes, count) = (16_000 * 4096, 100_000);
        let bucket = |at: u64| (2048 << at, count >> at.abs_diff(3).max(1));
        let returns: Vec<_> = (0..6).map(bucket).collect();
        let count = returns.iter().map(|(_, count)| count).sum();
        Report {
            outcome: Outcome { status: Some(0), ..Outcome::default() },
            wall_s: 10.0,
            threads_peak: Some(1),
            engine_started: true,
            budget_bytes,
            used_peak_bytes: budget_bytes,
            mapped_peak_bytes: 64 * budget_bytes,
            pages_out: 1_600_000,
            stalled_ns: 5_000_000_000,
            faults: [("pool".to_string(), Tier { count, ..Tier::default() })].into(),
            latencies: [("pool".to_string(), vec![(4_500_000_000 / count, count)])].into(),
            returns: [("pool".to_string(), returns)].into(),
            history: History::with_full_budget(budget_bytes),
            ..Report::default()
        }
    }

    #[test]
    fn smaller_slowdown_needs_larger_budget() {
        let sizes = [3.0, 2.0, 1.5, 1.2].map(|limit| size_for(&run(), limit).unwrap());
        assert!(sizes.windows(2).all(|pair| pair[0].memory_bytes <= pair[1].memory_bytes));
        assert!(sizes[0].memory_bytes < sizes[3].memory_bytes);
        assert!(sizes.iter().all(|it| it.slowdown <= it.slowdown_limit + 0.01), "{sizes:?}");
        assert!((sizes[0].run_slowdown - 2.0).abs() < 0.01);
        assert!((sizes[1].memory_bytes as f64 / run().budget_bytes as f64 - 1.0).abs() < 0.3);
    }

    #[test]
    fn no_more_is_needed_than_the_whole_memory() {
        let whole = Report { mapped_peak_bytes: 64 << 20, ..run() };
        let estimate = size_for(&whole, 1.0001).unwrap();
        assert_eq!((estimate.memory_bytes, estimate.slowdown), (75 << 20, 1.0));
        assert!(size_for(&whole, 3.0).unwrap().memory_bytes < 75 << 20);
    }

    #[test]
    fn size_that_does_not_fit_is_refused_with_remedy() {
        let needed_bytes = size_for(&run(), 1.2).unwrap().memory_bytes;
        let small = Report { largest_budget_bytes: Some(needed_bytes - MIB), ..run() };
        let why = size_for(&small, 1.2).unwrap_err();
        let largest = format!("at most --memory {}M fits", (needed_bytes - MIB) / MIB);
        assert!(why.contains(&largest) && why.contains("raise the container's"), "{why}");
        let enough = Report { largest_budget_bytes: Some(needed_bytes), ..run() };
        assert_eq!(size_for(&enough, 1.2).unwrap().memory_bytes, needed_bytes);
    }

    #[test]
    fn run_that_fitted_needs_its_used_memory() {
        let fitted = Report {
            stalled_ns: 0,
            used_peak_bytes: 80 << 20,
            budget_bytes: 256 << 20,
            returns: [].into(),
            ..run()
        };
        assert_eq!(size_for(&fitted, 1.5).unwrap().memory_bytes, 92 << 20);
        assert!(size_for(&fitted, 1.5).unwrap().is_at_most);
        let small = Report { used_peak_bytes: 4096, ..fitted.clone() };
        assert_eq!(size_for(&small, 1.5).unwrap().memory_bytes, MIN_MEMORY_BYTES);
        let silent = Report { used_peak_bytes: 0, ..fitted.clone() };
        assert!(size_for(&silent, 1.5).unwrap_err().contains("--memory"));
        let stopped = Report { outcome: Outcome::default(), ..fitted };
        assert!(size_for(&stopped, 1.5).is_err());
    }
}
