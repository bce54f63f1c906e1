//! Two runs side by side.

use crate::page::{self, TIERS, document, escaped, figure, table};
use crate::plots::{Plot, Series, Unit};
use crate::report::Report;
use crate::units::{bytes, count, duration, nanoseconds};
use std::fmt::Write as _;
use std::time::Duration;

/// One figure of both.
struct Row {
    name: String,
    values: [f64; 2],
    shown: [String; 2],
}

impl Row {
    fn of(name: impl Into<String>, values: [f64; 2], shown: impl Fn(f64) -> String) -> Row {
        Row { name: name.into(), shown: values.map(shown), values }
    }

    /// The second over the first.
    fn ratio(&self) -> String {
        match self.values {
            [first, second] if first > 0.0 => format!("{:.2}", second / first),
            _ => "-".into(),
        }
    }
}

fn rows(both: [&Report; 2]) -> Vec<Row> {
    let size = |value: f64| bytes(value as u64);
    let number = |value: f64| count(value as u64);
    let time = |value: f64| nanoseconds(value as u64);
    let of = |value: fn(&Report) -> u64| both.map(|report| value(report) as f64);
    let mut rows = vec![
        Row::of("time", both.map(|report| report.wall_s), |seconds| {
            duration(Duration::from_secs_f64(seconds.clamp(0.0, 1e9)))
        }),
        Row::of("budget", of(|it| it.budget_bytes), size),
        Row::of("stalled", of(|it| it.stalled_ns), time),
        Row::of("at most used", of(|it| it.used_peak_bytes), size),
        Row::of("at most resident", of(|it| it.resident_peak_bytes), size),
        Row::of("at most in the pool", of(|it| it.pool_peak_bytes), size),
        Row::of("at most on the disk", of(|it| it.disk_peak_bytes), size),
        Row::of("pages out", of(|it| it.pages_out), number),
        Row::of("packed", both.map(|it| it.compression_ratio.unwrap_or(0.0)), |ratio| {
            format!("{ratio:.2} to 1")
        }),
        Row::of("read", of(|it| it.bytes_read), size),
        Row::of("written", of(|it| it.bytes_written), size),
    ];
    for tier in TIERS {
        let faults = both.map(|report| report.faults_of(tier) as f64);
        rows.push(Row::of(format!("faults, {tier}"), faults, number));
    }
    for tier in ["pool", "disk"] {
        let median = |report: &Report| report.faults.get(tier).and_then(|it| it.p50_ns);
        let medians = both.map(|report| median(report).unwrap_or(0) as f64);
        rows.push(Row::of(format!("median, {tier}"), medians, time));
    }
    rows
}

/// For the terminal.
#[must_use]
pub fn text(names: [&str; 2], both: [&Report; 2]) -> String {
    let mut text = format!("{:<20} {:>18} {:>18} {:>8}\n", "", names[0], names[1], "ratio");
    for row in rows(both) {
        let [first, second] = &row.shown;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:<20} {first:>18} {second:>18} {:>8}", row.name, row.ratio());
    }
    text
}

/// As a page.
#[must_use]
pub fn page(names: [&str; 2], both: [&Report; 2]) -> String {
    let mut body = format!("<h1>{} and {}</h1>\n<ul>\n", escaped(names[0]), escaped(names[1]));
    for (name, report) in names.iter().zip(both) {
        let (command, ending) = (report.command(), report.ending());
        let line = format!("{name}: {command}, which {ending}");
        let _ = writeln!(body, "<li>{}</li>", escaped(&line));
    }
    body += "</ul>\n";
    let cells = rows(both).into_iter().map(|row| {
        let ratio = row.ratio();
        let [first, second] = row.shown;
        vec![row.name, first, second, ratio]
    });
    body += &table(&["", names[0], names[1], "ratio"], cells);
    let each = |of: fn(&Report, &str) -> Series| -> Vec<Series> {
        names.iter().zip(both).map(|(name, report)| of(report, name)).collect()
    };
    let plots = [
        (
            "DRAM used",
            Unit::Bytes,
            each(|report, name| {
                let history = &report.history;
                let used = match &history.tree {
                    Some(tree) => &tree.used_bytes,
                    None => &history.used_bytes,
                };
                let used = used.iter().map(|bytes| *bytes as f64);
                Series {
                    name: name.into(),
                    points: history.at_s.iter().copied().zip(used).collect(),
                }
            }),
        ),
        (
            "Time stalled",
            Unit::Share,
            each(|report, name| {
                let history = &report.history;
                let stalled_ns = match &history.tree {
                    Some(tree) => &tree.stalled_ns,
                    None => &history.stalled_ns,
                };
                page::stalled(name, &history.at_s, stalled_ns)
            }),
        ),
        (
            "Read from the disk",
            Unit::BytesPerSecond,
            each(|report, name| page::rate(name, &report.history.at_s, &report.history.bytes_read)),
        ),
    ];
    for (title, y, series) in plots {
        let plot = Plot { title, x: Unit::Seconds, y, is_stacked: false, series, bound: None };
        body += &figure(&plot);
    }
    document("softswap: two runs", &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_shown_with_the_second_over_the_first() {
        let first = Report { wall_s: 10.0, budget_bytes: 256 << 20, ..Report::default() };
        let second = Report { wall_s: 5.0, budget_bytes: 512 << 20, ..Report::default() };
        let shown = text(["a.json", "b.json"], [&first, &second]);
        let line = |name: &str| {
            let line = shown.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_whitespace().map(String::from).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("time"), "time 10.00 s 5.00 s 0.50");
        assert_eq!(line("budget"), "budget 256.0 MiB 512.0 MiB 2.00");
        assert_eq!(line("read"), "read 0 B 0 B -");
        let page = page(["a<b", "c"], [&first, &second]);
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("a&lt;b"));
    }
}
