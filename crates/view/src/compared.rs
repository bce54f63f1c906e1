//! Comparison of two runs.

use crate::page::{self, document, escaped, figure, table};
use crate::plots::{Plot, Series, Unit};
use crate::report::{Columns, History, Report, TIERS};
use crate::units::{bytes, count, duration, nanoseconds};
use std::fmt::Write as _;
use std::time::Duration;

struct Row {
    name: String,
    values: [f64; 2],
    shown: [String; 2],
}

impl Row {
    fn of(name: impl Into<String>, values: [f64; 2], shown: impl Fn(f64) -> String) -> Row {
        Row { name: name.into(), shown: values.map(shown), values }
    }

    /// Second over first; `-` if the first is 0.
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
    let all = |of_program: fn(&Report) -> u64, column: fn(&Columns) -> &Vec<u64>| {
        both.map(|report| report.max_over_tree(of_program(report), column) as f64)
    };
    let mut rows = vec![
        Row::of("time", both.map(|report| report.wall_s), |seconds| {
            duration(Duration::from_secs_f64(seconds.clamp(0.0, 1e9)))
        }),
        Row::of("budget", of(|it| it.budget_bytes), size),
        Row::of("stalled", of(Report::stalled_ns_of_all), time),
        Row::of("at most used", of(Report::used_peak_bytes_of_all), size),
        Row::of("at most resident", of(Report::resident_peak_bytes_of_all), size),
        Row::of("at most in the pool", all(|it| it.pool_peak_bytes, |it| &it.pool_bytes), size),
        Row::of("at most on the disk", all(|it| it.disk_peak_bytes, |it| &it.disk_bytes), size),
        Row::of("pages out", of(|it| it.pages_out), number),
        Row::of("compressed", both.map(|it| it.compression_ratio.unwrap_or(0.0)), |ratio| {
            format!("{ratio:.2} to 1")
        }),
        Row::of("read", all(|it| it.bytes_read, |it| &it.bytes_read), size),
        Row::of("written", all(|it| it.bytes_written, |it| &it.bytes_written), size),
    ];
    for tier in TIERS {
        let faults = both.map(|report| report.faults_of_all(tier) as f64);
        rows.push(Row::of(format!("faults, {tier}"), faults, number));
    }
    for tier in ["pool", "disk"] {
        let median = |report: &Report| report.faults.get(tier).and_then(|it| it.p50_ns);
        let medians = both.map(|report| median(report).unwrap_or(0) as f64);
        rows.push(Row::of(format!("median, {tier}"), medians, time));
    }
    rows
}

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
    let each = |of: fn(&str, &History) -> Series| -> Vec<Series> {
        names.iter().zip(both).map(|(name, report)| of(name, &report.history)).collect()
    };
    let plots = [
        (
            "DRAM used",
            Unit::Bytes,
            each(|name, of| page::amounts(name, &of.at_s, &of.whole().used_bytes)),
        ),
        (
            "Time stalled",
            Unit::Share,
            each(|name, of| page::stalled(name, &of.at_s, &of.whole().stalled_ns)),
        ),
        (
            "Read from the disk",
            Unit::BytesPerSecond,
            each(|name, of| match &of.whole().bytes_read {
                // Older versions of softswap did not record reads of a tree.
                read if read.is_empty() => page::rate(name, &of.at_s, &of.columns.bytes_read),
                read => page::rate(name, &of.at_s, read),
            }),
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
    use crate::report::{Tree, TreeHistory};

    #[test]
    fn compared_values_have_ratio() {
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
        // Shows the whole tree.
        let tree = Tree {
            used_peak_bytes: 9 << 20,
            faults_by_tier: [("disk".to_string(), 7)].into(),
            ..Tree::default()
        };
        let columns = Columns { bytes_read: vec![0, 4 << 20], ..Columns::default() };
        let seen = TreeHistory { columns, ..TreeHistory::default() };
        let history = History { tree: Some(seen), ..History::default() };
        let of_tree = Report { tree: Some(tree), history, ..Report::default() };
        let shown = text(["a.json", "b.json"], [&first, &of_tree]);
        for line in ["faults, disk 0 7", "read 0 B 4.0 MiB", "at most used 0 B 9.0 MiB"] {
            let mut lines = shown.lines().map(|it| it.split_whitespace().collect::<Vec<_>>());
            assert!(lines.any(|it| it.join(" ").starts_with(line)), "{line} in {shown}");
        }
        let page = page(["a<b", "c"], [&first, &second]);
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("a&lt;b"));
    }
}
