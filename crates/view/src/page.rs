//! A report as one page that needs nothing else: no script, no network.

use crate::advice;
use crate::curve::Curve;
use crate::plots::{Plot, Series, Unit};
use crate::report::{History, LeftOut, Report};
use crate::units::{bytes, count, nanoseconds};
use std::fmt::Write as _;
use std::time::Duration;

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:15px/1.45 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em}\
h1{font-size:1.5em;overflow-wrap:anywhere}h2{font-size:1.15em;margin-top:2em}\
.tiles{display:flex;flex-wrap:wrap;gap:.7em}\
.tile{border:1px solid #8886;border-radius:.5em;padding:.5em .9em}\
.tile b{display:block;font-size:1.3em}\
table{border-collapse:collapse}td,th{text-align:right;padding:.15em .9em .15em 0}\
td:first-child,th:first-child{text-align:left}\
figure{margin:1em 0}figcaption{font-weight:600}svg{max-width:100%;height:auto}\
.wide{overflow-x:auto}\
@media(prefers-color-scheme:dark){svg text{fill:#ddd}svg [stroke='#000000']{stroke:#999}\
svg rect[fill='#FFFFFF']{fill:#222}}";

/// The tiers in the order in which they cost more.
pub(crate) const TIERS: [&str; 6] = ["zero", "staged", "standby", "filled", "pool", "disk"];

/// The page.
#[must_use]
pub fn of(report: &Report) -> String {
    let mut body = format!("<h1>{}</h1>\n", escaped(&report.command()));
    let wall = crate::units::duration(Duration::from_secs_f64(report.wall_s.clamp(0.0, 1e9)));
    let _ = writeln!(
        body,
        "<p>{} after {wall}, under softswap {} within {}.</p>",
        escaped(&report.ending()),
        escaped(&report.softswap_version),
        bytes(report.budget_bytes),
    );
    body += &tiles(report);
    body += "<h2>What to change</h2>\n<ul>\n";
    for advice in advice::of(report) {
        let _ = writeln!(
            body,
            "<li>{} <small>({})</small></li>",
            escaped(&advice.what),
            escaped(&advice.figure)
        );
    }
    body += "</ul>\n";
    body += &other_budgets(report);
    body += &plots_of(report);
    body += &tables(report);
    document(&format!("softswap: {}", report.name()), &body)
}

/// A whole document.
pub(crate) fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{}</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>",
        escaped(title)
    )
}

fn tiles(report: &Report) -> String {
    let share = report.stalled_share();
    let stalled = match share {
        _ if share > 1.0 => format!("{share:.1} threads"),
        _ => format!("{:.0} %", share * 100.0),
    };
    let ratio = report.compression_ratio;
    let all = [
        ("of the time stalled", stalled),
        ("at most used of the budget", bytes(report.used_peak_bytes)),
        ("program memory", bytes(report.mapped_peak_bytes)),
        ("at most in the pool", bytes(report.pool_peak_bytes)),
        ("at most on the disk", bytes(report.disk_peak_bytes)),
        ("packed", ratio.map_or_else(|| "nothing".into(), |ratio| format!("{ratio:.2} to 1"))),
        ("faults from the disk", count(report.faults_of("disk"))),
    ];
    let tiles = all.iter().map(|(name, value)| {
        format!("<div class=\"tile\"><b>{}</b>{name}</div>\n", escaped(value))
    });
    format!("<div class=\"tiles\">\n{}</div>\n", tiles.collect::<String>())
}

/// What more or less memory would have done.
fn other_budgets(report: &Report) -> String {
    let Some(curve) = Curve::of(report) else { return String::new() };
    let mut text = String::from("<h2>What more or less memory would have done</h2>\n<ul>\n");
    for share in [0.75, 1.5, 2.0] {
        let _ = writeln!(text, "<li>{}</li>", escaped(&curve.in_words(share)));
    }
    let points = curve.points().map(|point| (point.budget_bytes as f64, point.stalled_ns / 1e9));
    let now = (report.budget_bytes as f64, report.stalled_ns as f64 / 1e9);
    let plot = Plot {
        title: "Time stalled over all threads, by the budget, about",
        x: Unit::Bytes,
        y: Unit::Seconds,
        is_stacked: false,
        series: vec![Series { name: "predicted".into(), points: points.collect() }],
        bound: Some(Series { name: "this run".into(), points: vec![(now.0, 0.0), now] }),
    };
    text + "</ul>\n" + &figure(&plot)
}

fn plots_of(report: &Report) -> String {
    let mut text = String::new();
    if report.history.at_s.len() < 2 {
        text += "<p>It ended before there was anything to plot over time.</p>\n";
    } else {
        text += "<h2>Over time</h2>\n";
        over_time(&report.history).iter().for_each(|plot| text += &figure(plot));
    }
    if report.latencies.values().any(|buckets| !buckets.is_empty()) {
        text += "<h2>How long faults took, by tier</h2>\n";
        text += &figure(&latencies(report));
    }
    text
}

pub(crate) fn figure(plot: &Plot) -> String {
    let (title, svg) = (escaped(plot.title), plot.svg());
    format!(
        "<figure role=\"img\" aria-label=\"{title}\"><figcaption>{title}</figcaption>\n{svg}</figure>\n"
    )
}

fn series(name: &str, at: &[f64], values: impl Iterator<Item = f64>) -> Series {
    Series { name: name.into(), points: at.iter().copied().zip(values).collect() }
}

fn amounts(name: &str, at: &[f64], values: &[u64]) -> Series {
    series(name, at, values.iter().map(|value| *value as f64))
}

/// What was counted, by the second, between samples.
pub(crate) fn rate(name: &str, at: &[f64], counted: &[u64]) -> Series {
    let pairs = at.windows(2).zip(counted.windows(2));
    let rates = pairs.filter(|(at, _)| at[1] > at[0]).map(|(at, counts)| {
        // A process that has become another program counts from its start.
        let more = counts[1].checked_sub(counts[0]).unwrap_or(counts[1]);
        (at[1], more as f64 / (at[1] - at[0]))
    });
    Series { name: name.into(), points: rates.collect() }
}

/// The share of the time for which a thread waited; not more than all of it.
pub(crate) fn stalled(name: &str, at: &[f64], stalled_ns: &[u64]) -> Series {
    let mut series = rate(name, at, stalled_ns);
    series.points.iter_mut().for_each(|(_, value)| *value = (*value / 1e9).min(1.0));
    series
}

fn over_time(history: &History) -> Vec<Plot> {
    let at = &history.at_s;
    let time = |title, y, series| Plot {
        title,
        x: Unit::Seconds,
        y,
        is_stacked: false,
        series,
        bound: None,
    };
    if let Some(tree) = &history.tree {
        return vec![
            Plot {
                bound: Some(amounts("budget", at, &tree.budget_bytes)),
                ..time("DRAM of the tree", Unit::Bytes, vec![amounts("used", at, &tree.used_bytes)])
            },
            time("Time stalled", Unit::Share, vec![stalled("stalled", at, &tree.stalled_ns)]),
            time(
                "Faults that brought something back",
                Unit::PerSecond,
                vec![rate("faults", at, &tree.faults)],
            ),
        ];
    }
    let other = history.used_bytes.iter().zip(&history.resident_bytes).zip(&history.pool_bytes);
    let other = other.map(|((used, resident), pool)| used.saturating_sub(resident + pool) as f64);
    let faults = TIERS.iter().filter_map(|tier| Some((*tier, history.faults.get(*tier)?)));
    vec![
        Plot {
            is_stacked: true,
            bound: Some(amounts("budget", at, &history.budget_bytes)),
            ..time(
                "DRAM",
                Unit::Bytes,
                vec![
                    amounts("resident", at, &history.resident_bytes),
                    amounts("pool", at, &history.pool_bytes),
                    series("other", at, other),
                ],
            )
        },
        time("On the disk", Unit::Bytes, vec![amounts("disk", at, &history.disk_bytes)]),
        time("Time stalled", Unit::Share, vec![stalled("stalled", at, &history.stalled_ns)]),
        time(
            "Faults by tier",
            Unit::PerSecond,
            faults.map(|(tier, counted)| rate(tier, at, counted)).collect(),
        ),
        time(
            "Traffic of the disk",
            Unit::BytesPerSecond,
            vec![
                rate("read", at, &history.bytes_read),
                rate("written", at, &history.bytes_written),
            ],
        ),
    ]
}

/// Of each tier the share of faults that took so long, by latency.
fn latencies(report: &Report) -> Plot {
    let lines = TIERS.iter().filter_map(|tier| {
        let buckets = report.latencies.get(*tier).filter(|buckets| !buckets.is_empty())?;
        let all: u64 = buckets.iter().map(|(_, count)| *count).sum();
        let mut over = 0;
        let points = buckets.iter().map(|(from_ns, count)| {
            over += count;
            ((*from_ns).max(1) as f64, over as f64 / all.max(1) as f64)
        });
        let points = points.map(|(ns, share)| (ns.log10(), share));
        Some(Series { name: (*tier).into(), points: points.collect() })
    });
    Plot {
        title: "Share of faults that were over by then",
        x: Unit::LogNanoseconds,
        y: Unit::Share,
        is_stacked: false,
        series: lines.collect(),
        bound: None,
    }
}

fn tables(report: &Report) -> String {
    let mut text = String::from("<h2>Faults</h2>\n");
    let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_string(), nanoseconds);
    let rows = TIERS.iter().filter_map(|tier| {
        let of = report.faults.get(*tier)?;
        let waited = nanoseconds(report.waited_ns(tier));
        Some(vec![(*tier).into(), count(of.count), time(of.p50_ns), time(of.p99_ns), waited])
    });
    text += &table(&["tier", "faults", "median", "99th percentile", "waited"], rows);
    text += "<h2>Pages that went out</h2>\n";
    let kinds = [
        ("all", report.pages_out),
        ("one repeated word", report.pages_same_filled),
        ("packed into the pool", report.pages_pooled),
        ("did not pack", report.pages_incompressible),
        ("written to the disk", report.pages_written),
        ("read from the disk", report.pages_read),
    ];
    let rows = kinds.iter().map(|(name, pages)| {
        let size = bytes(pages * softswap_sys::PAGE_SIZE as u64);
        vec![(*name).to_string(), count(*pages), size]
    });
    text += &table(&["pages", "number", "size"], rows);
    if let Some(tree) = &report.tree {
        let _ = writeln!(
            text,
            "<h2>Processes</h2>\n<p>At most {} at a time, and {} used by all. Those that used most:</p>",
            tree.processes_peak,
            bytes(tree.used_peak_bytes)
        );
        let rows = tree.largest.iter().map(|it| {
            let used = bytes(it.used_peak_bytes);
            let pid = it.pid.to_string();
            vec![it.name.clone(), pid, used, count(it.faults), nanoseconds(it.stalled_ns)]
        });
        text += &table(&["process", "pid", "at most used", "faults", "stalled"], rows);
        let LeftOut { processes, faults, stalled_ns } = &tree.left_out;
        if *processes > 0 {
            let (processes, faults) = (count(*processes), count(*faults));
            let stalled = nanoseconds(*stalled_ns);
            let _ = writeln!(
                text,
                "<p>{processes} more are left out, with {faults} faults, {stalled} stalled.</p>"
            );
        }
    }
    text += "<h2>Settings and machine</h2>\n";
    let mut rows: Vec<Vec<String>> =
        report.settings.iter().map(|(key, value)| vec![key.clone(), value.clone()]).collect();
    let yes_or_no = |is: bool| if is { "yes" } else { "no" }.to_string();
    rows.push(vec!["io_uring".into(), yes_or_no(report.uses_io_uring)]);
    rows.push(vec!["O_DIRECT".into(), yes_or_no(report.uses_direct_io)]);
    rows.push(vec!["UFFDIO_MOVE".into(), yes_or_no(report.uses_move)]);
    if let Some(beside) = &report.beside {
        rows.push(vec!["beside the budget".into(), bytes(beside.total_bytes)]);
    }
    if let Some(machine) = &report.machine {
        rows.push(vec!["processor".into(), machine.processor.clone()]);
        rows.push(vec!["processors".into(), machine.processors.to_string()]);
        rows.push(vec!["DRAM".into(), bytes(machine.dram_bytes)]);
        rows.push(vec!["kernel".into(), machine.kernel.clone()]);
    }
    text += &table(&["", ""], rows.into_iter());
    text
}

pub(crate) fn table(titles: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &mut dyn Iterator<Item = String>, tag: &str| {
        let cells: String =
            cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(&cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let mut text = String::from("<div class=\"wide\"><table>\n");
    if titles.iter().any(|title| !title.is_empty()) {
        text += &line(&mut titles.iter().map(ToString::to_string), "th");
    }
    rows.for_each(|row| text += &line(&mut row.into_iter(), "td"));
    text + "</table></div>\n"
}

/// Text that is nothing but text in HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut all, sign| {
        match sign {
            '&' => all += "&amp;",
            '<' => all += "&lt;",
            '>' => all += "&gt;",
            '"' => all += "&quot;",
            '\'' => all += "&#39;",
            sign => all.push(sign),
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Process, Tier, Tree};

    /// A run of so many seconds.
    fn run(samples: usize, seconds: f64) -> Report {
        let at_s: Vec<f64> =
            (0..samples).map(|at| seconds * at as f64 / samples.max(2) as f64).collect();
        let rising: Vec<u64> = (0..samples as u64).map(|at| at * 1000).collect();
        let tier = Tier { count: 9, p50_ns: Some(2000), p99_ns: None };
        Report {
            program: vec!["/usr/bin/<script>".into(), "a & b".into()],
            wall_s: seconds,
            engine_started: true,
            faults: TIERS.map(|name| (name.to_string(), tier.clone())).into(),
            latencies: [("pool".to_string(), vec![(1000, 5), (4096, 4)])].into(),
            history: History {
                at_s,
                budget_bytes: vec![64 << 20; samples],
                used_bytes: rising.clone(),
                resident_bytes: rising.clone(),
                pool_bytes: rising.clone(),
                pool_pages: rising.clone(),
                disk_bytes: rising.clone(),
                faults: TIERS.map(|name| (name.to_string(), rising.clone())).into(),
                stalled_ns: rising.clone(),
                bytes_read: rising.clone(),
                bytes_written: rising,
                tree: None,
            },
            ..Report::default()
        }
    }

    #[test]
    fn a_page_has_every_plot_and_fetches_nothing() {
        for (samples, seconds) in [(12, 1.0), (512, 86_400.0)] {
            let page = of(&run(samples, seconds));
            assert_eq!(page.matches("<svg").count(), 6, "{page}");
            assert_eq!(page.matches("</svg>").count(), 6);
            assert!(!page.contains("could not be drawn") && !page.contains("NaN"));
            assert!(!page.contains("<script") && page.contains("&lt;script&gt; a &amp; b"));
            // The name of the namespace is no address that anybody fetches.
            let addresses = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!addresses.contains("http:") && !addresses.contains("https:"));
            assert!(page.len() < 1 << 20, "{}", page.len());
        }
    }

    #[test]
    fn what_another_budget_would_have_done_is_shown_where_it_is_known() {
        let returns = [("pool".to_string(), vec![(1024, 5_000)])].into();
        let report = Report {
            returns,
            budget_bytes: 64 << 20,
            pages_out: 20_000,
            stalled_ns: 1_000_000_000,
            ..run(20, 5.0)
        };
        let page = of(&report);
        assert!(page.contains("<li>with 96.0 MiB about "), "{page}");
        assert_eq!(page.matches("<svg").count(), 7);
        assert!(!page.contains("NaN"));
    }

    #[test]
    fn a_run_without_samples_or_faults_and_one_of_many_processes_are_pages_too() {
        let empty = of(&Report { slept: true, ..Report::default() });
        assert!(empty.contains("before there was anything to plot") && !empty.contains("<svg"));
        let process = |pid| Process { pid, name: format!("p{pid}"), ..Process::default() };
        let left_out = LeftOut { processes: 30, ..LeftOut::default() };
        let tree = Tree { largest: (0..100).map(process).collect(), left_out, ..Tree::default() };
        let page = of(&Report { tree: Some(tree), ..run(20, 5.0) });
        assert!((0..100).all(|pid| page.contains(&format!("<td>p{pid}</td>"))));
        assert!(page.contains("<p>30 more are left out, with 0 faults"));
    }

    #[test]
    fn rates_are_between_samples() {
        let rates = rate("a", &[0.0, 2.0, 2.0, 3.0, 4.0], &[0, 100, 100, 110, 4]);
        assert_eq!(rates.points, [(2.0, 50.0), (3.0, 10.0), (4.0, 4.0)]);
        let shares = stalled("b", &[0.0, 1.0, 2.0], &[0, 500_000_000, 9_000_000_000]);
        assert_eq!(shares.points, [(1.0, 0.5), (2.0, 1.0)]);
    }
}
