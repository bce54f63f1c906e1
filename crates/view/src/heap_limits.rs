//! Runtimes that limit their own heap by the memory that they see.

use crate::report::Report;
use crate::units::bytes;

/// A program that used half of its limit may have reached the limit.
const NOTABLE_PART: u64 = 2;
const MIB: u64 = 1 << 20;

struct Runtime {
    program: &'static str,
    /// Divisor of the memory that the runtime sees.
    part: u64,
    max_bytes: u64,
    options: &'static [&'static str],
    /// Text before and after a number of MiB.
    option: [&'static str; 2],
}

const RUNTIMES: [Runtime; 2] = [
    Runtime {
        program: "java",
        part: 4,
        max_bytes: u64::MAX,
        options: &["-Xmx", "-XX:MaxRAM", "-XX:MaxHeapSize"],
        option: ["-Xmx", "m"],
    },
    Runtime {
        program: "node",
        part: 4,
        // Below 15 GiB of memory it is 2 GiB, which is ignored here.
        max_bytes: 4 << 30,
        options: &["--max-old-space-size", "--max-heap-size"],
        option: ["--max-old-space-size=", ""],
    },
];

/// Returns a line if one of [`RUNTIMES`] may have reached its limit, and budget and swap areas
/// allow at least twice the limit.
pub(crate) fn line(report: &Report) -> Option<String> {
    let runtime = RUNTIMES.iter().find(|runtime| runtime.program == report.name())?;
    let is_set = |argument: &String| runtime.options.iter().any(|it| argument.starts_with(it));
    if report.program.iter().any(is_set) {
        return None;
    }
    let advertised_bytes = report.advertised_bytes.filter(|bytes| *bytes > 0);
    let seen_bytes = advertised_bytes.or(report.machine.as_ref().map(|it| it.dram_bytes))?;
    let limit_bytes = (seen_bytes / runtime.part).min(runtime.max_bytes);
    // Some is for the collector itself.
    let usable_bytes = report.usable_bytes? / 4 * 3;
    let ratio = report.compression_ratio.unwrap_or(1.0);
    let pooled_bytes = (report.pool_peak_bytes as f64 * ratio) as u64;
    let used_bytes = report.resident_peak_bytes + report.disk_peak_bytes + pooled_bytes;
    // A program that slept has no figures, but its memory fitted the budget.
    let failed_asleep =
        report.slept && limit_bytes <= report.budget_bytes && report.outcome.status != Some(0);
    let is_near = used_bytes > limit_bytes / NOTABLE_PART || failed_asleep;
    (is_near && usable_bytes / 2 > limit_bytes).then_some(())?;
    let [before, after] = runtime.option;
    let tell = if advertised_bytes.is_some() { "" } else { "--tell auto, or " };
    Some(format!(
        "{} limits its heap to a share of the memory that it sees ({} of {}), but {} fit: \
         {tell}{before}{}{after}",
        runtime.program,
        bytes(limit_bytes),
        bytes(seen_bytes),
        bytes(usable_bytes),
        usable_bytes / MIB,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;

    #[test]
    fn heap_limit_far_below_the_usable_memory_is_named_with_its_option() {
        let report = Report {
            program: ["java", "Main"].map(str::to_string).into(),
            outcome: Outcome { status: Some(1), ..Outcome::default() },
            slept: true,
            budget_bytes: 2 << 30,
            advertised_bytes: Some(8 << 30),
            usable_bytes: Some(40 << 30),
            ..Report::default()
        };
        let text = line(&report).unwrap();
        assert!(text.contains("(2.0 GiB of 8.0 GiB)") && text.ends_with("-Xmx30720m"), "{text}");
        let given = Report {
            program: ["java", "-Xmx4g", "Main"].map(str::to_string).into(),
            ..report.clone()
        };
        assert_eq!(line(&given), None);
        let small = Report { usable_bytes: Some(4 << 30), ..report.clone() };
        assert_eq!(line(&small), None);
        let far = Report { slept: false, disk_peak_bytes: 1 << 29, ..report.clone() };
        assert_eq!(line(&far), None);
        let near = Report { disk_peak_bytes: 3 << 29, ..far };
        assert!(line(&near).is_some());
        let other = Report { program: vec!["javac".into()], ..report };
        assert_eq!(line(&other), None);
    }
}
