//! A report as a self-contained HTML page, without scripts.

use crate::advice;
use crate::curve::Curve;
use crate::estimate::if_too_large;
use crate::plots::{Plot, Series, Unit};
use crate::report::{Columns, History, LeftOut, Report, TIERS};
use crate::sections::Mappings;
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
figure{margin:1em 0;overflow-x:auto}figcaption{font-weight:600}\
svg{display:block;width:100%;min-width:34em;max-width:56em;height:auto}\
.legend{display:flex;flex-wrap:wrap;gap:.2em 1.2em;margin:.3em 0}\
.legend i{display:inline-block;width:1.3em;vertical-align:middle;margin-right:.4em}\
dt{font-weight:600;float:left;clear:left;width:5em}dd{margin:0 0 .2em 5em}\
.wide{overflow-x:auto}\
@media(max-width:40em){body{margin:1em auto}.tile{flex:1 1 7em}}\
@media(prefers-color-scheme:dark){svg text{fill:#ddd}svg [stroke='#000000']{stroke:#999}\
svg rect[fill='#FFFFFF']{fill:#222}}";

/// A data block, which browsers do not execute.
const JSON_START: &str = "<script type=\"application/json\" id=\"report\">";
const JSON_END: &str = "</script>";

/// The page contains the report's JSON.
///
/// # Errors
/// If `json` is not a report.
pub fn of(json: &str) -> Result<String, serde_json::Error> {
    Ok(page(&Report::read(json)?, json))
}

/// `None` if the page has no JSON.
#[must_use]
pub fn json_in(page: &str) -> Option<&str> {
    let (_, rest) = page.split_once(JSON_START)?;
    Some(rest.split_once(JSON_END)?.0)
}

fn page(report: &Report, json: &str) -> String {
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
    // Only strings contain `<`, which can be escaped there.
    let _ = writeln!(body, "{JSON_START}{}{JSON_END}", json.replace('<', "\\u003c"));
    document(&format!("softswap: {}", report.name()), &body)
}

pub(crate) fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{}</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>",
        escaped(title)
    )
}

fn tiles(report: &Report) -> String {
    let share = report.share_of_time(report.stalled_ns_of_all());
    let stalled = match share {
        _ if share > 1.0 => format!("{share:.1} threads"),
        _ => format!("{:.0} %", share * 100.0),
    };
    let ratio = report.compression_ratio;
    let of_program = [
        ("mapped memory", bytes(report.mapped_peak_bytes)),
        ("at most in the pool", bytes(report.pool_peak_bytes)),
        ("at most on the disk", bytes(report.disk_peak_bytes)),
        ("compressed", ratio.map_or_else(|| "nothing".into(), |ratio| format!("{ratio:.2} to 1"))),
        ("faults from the disk", count(report.faults_of("disk"))),
    ];
    let mut all = vec![
        ("of the time stalled", stalled),
        ("at most used of the budget", bytes(report.used_peak_bytes_of_all())),
    ];
    match &report.tree {
        // Figures of the first process could be mistaken for the tree's.
        Some(tree) if report.is_dominated_by_descendants() => {
            all.push(("processes at a time", count(tree.processes_peak as u64)));
            all.push(("faults on swapped-out pages", count(tree.faults())));
            if !tree.faults_by_tier.is_empty() {
                let pool = report.max_over_tree(report.pool_peak_bytes, |tree| &tree.pool_bytes);
                let disk = report.max_over_tree(report.disk_peak_bytes, |tree| &tree.disk_bytes);
                all.push(("at most in the pool", bytes(pool)));
                all.push(("at most on the disk", bytes(disk)));
                all.push(("faults from the disk", count(report.faults_of_all("disk"))));
            }
        }
        _ => all.extend(of_program),
    }
    let tiles = all.iter().map(|(name, value)| {
        format!("<div class=\"tile\"><b>{}</b>{name}</div>\n", escaped(value))
    });
    format!("<div class=\"tiles\">\n{}</div>\n", tiles.collect::<String>())
}

fn other_budgets(report: &Report) -> String {
    let curve = Curve::of(report).filter(|_| !report.is_dominated_by_descendants());
    let Some(curve) = curve else { return String::new() };
    let mut text = String::from("<h2>Estimated effect of more or less memory</h2>\n<ul>\n");
    for share in [0.75, 1.5, 2.0] {
        let budget_bytes = curve.at(share).budget_bytes;
        let too_large = if_too_large(report.largest_budget(), budget_bytes);
        let _ = writeln!(text, "<li>{}</li>", escaped(&(curve.in_words(share) + &too_large)));
    }
    let points = curve.points().map(|point| (point.budget_bytes as f64, point.stalled_ns / 1e9));
    let now = (report.budget_bytes as f64, report.stalled_ns as f64 / 1e9);
    let plot = Plot {
        title: "Estimated time stalled, over all threads, by budget",
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
        text += "<p>The program exited before the first sample, so there are no plots over \
             time.</p>\n";
    } else {
        text += "<h2>Over time</h2>\n";
        history_plots(&report.history).iter().for_each(|plot| text += &figure(plot));
    }
    let has_latencies = report.latencies.values().any(|buckets| !buckets.is_empty());
    if has_latencies && shows_first_process(report) {
        let title = format!("How long faults took, by tier{}", of_first(report));
        let _ = writeln!(text, "<h2>{}</h2>", escaped(&title));
        text += &figure(&latencies(report));
    }
    text
}

/// Empty unless other processes waited more than the first.
fn of_first(report: &Report) -> String {
    match report.is_dominated_by_descendants() {
        true => format!(", of the first process ({})", report.name()),
        false => String::new(),
    }
}

/// False if other processes waited more and the first was idle.
fn shows_first_process(report: &Report) -> bool {
    !(report.is_dominated_by_descendants() && report.first_was_idle())
}

pub(crate) fn figure(plot: &Plot) -> String {
    let (title, svg) = (escaped(plot.title), plot.svg());
    let keys = plot.legend().into_iter().map(|key| {
        let height = if key.is_line { "2px" } else { ".8em" };
        let (name, color) = (escaped(key.name), key.color);
        format!("<span><i style=\"height:{height};background:{color}\"></i>{name}</span>\n")
    });
    let legend = match keys.collect::<String>() {
        keys if keys.is_empty() => keys,
        keys => format!("<div class=\"legend\">\n{keys}</div>\n"),
    };
    format!(
        "<figure role=\"img\" aria-label=\"{title}\"><figcaption>{title}</figcaption>\n{legend}{svg}</figure>\n"
    )
}

fn series(name: &str, at: &[f64], values: impl Iterator<Item = f64>) -> Series {
    Series { name: name.into(), points: at.iter().copied().zip(values).collect() }
}

pub(crate) fn amounts(name: &str, at: &[f64], values: &[u64]) -> Series {
    series(name, at, values.iter().map(|value| *value as f64))
}

pub(crate) fn rate(name: &str, at: &[f64], counted: &[u64]) -> Series {
    let pairs = at.windows(2).zip(counted.windows(2));
    let rates = pairs.filter(|(at, _)| at[1] > at[0]).map(|(at, counts)| {
        // After exec the counters restart at 0.
        let more = counts[1].checked_sub(counts[0]).unwrap_or(counts[1]);
        (at[1], more as f64 / (at[1] - at[0]))
    });
    Series { name: name.into(), points: rates.collect() }
}

pub(crate) fn stalled(name: &str, at: &[f64], stalled_ns: &[u64]) -> Series {
    let mut series = rate(name, at, stalled_ns);
    series.points.iter_mut().for_each(|(_, value)| *value = (*value / 1e9).min(1.0));
    series
}

fn dram(at: &[f64], of: &Columns) -> Vec<Series> {
    let used = of.used_bytes.iter().zip(&of.resident_bytes).zip(&of.pool_bytes);
    let other = used
        .map(|((used, resident), pool)| used.saturating_sub(resident.saturating_add(*pool)) as f64);
    vec![
        amounts("resident", at, &of.resident_bytes),
        amounts("pool", at, &of.pool_bytes),
        series("other", at, other),
    ]
}

fn time(title: &'static str, y: Unit, series: Vec<Series>) -> Plot {
    Plot { title, x: Unit::Seconds, y, is_stacked: false, series, bound: None }
}

fn history_plots(history: &History) -> Vec<Plot> {
    let (at, of) = (&history.at_s, history.whole());
    let (title, faults) = match &history.tree {
        Some(tree) => ("DRAM of the tree", &tree.faults_by_tier),
        None => ("DRAM", &history.faults),
    };
    let bound = Some(amounts("budget", at, &of.budget_bytes));
    let stalled = time("Time stalled", Unit::Share, vec![stalled("stalled", at, &of.stalled_ns)]);
    if let Some(tree) = history.tree.as_ref().filter(|tree| tree.faults_by_tier.is_empty()) {
        // Older versions of softswap recorded only the following figures of a tree.
        let used = vec![amounts("used", at, &of.used_bytes)];
        let faults = vec![rate("faults", at, &tree.faults)];
        return vec![
            Plot { bound, ..time(title, Unit::Bytes, used) },
            stalled,
            time("Faults on swapped-out pages", Unit::PerSecond, faults),
        ];
    }
    let faults = TIERS.iter().filter_map(|tier| Some((*tier, faults.get(*tier)?)));
    let faults = faults.map(|(tier, counted)| rate(tier, at, counted)).collect();
    let traffic = vec![rate("read", at, &of.bytes_read), rate("written", at, &of.bytes_written)];
    vec![
        Plot { is_stacked: true, bound, ..time(title, Unit::Bytes, dram(at, of)) },
        time("On the disk", Unit::Bytes, vec![amounts("disk", at, &of.disk_bytes)]),
        stalled,
        time("Faults by tier", Unit::PerSecond, faults),
        time("Traffic of the disk", Unit::BytesPerSecond, traffic),
    ]
}

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
        title: "Share of faults that took at most this long",
        x: Unit::LogNanoseconds,
        y: Unit::Share,
        is_stacked: false,
        series: lines.collect(),
        bound: None,
    }
}

fn tables(report: &Report) -> String {
    let faults = match faults(report) {
        faults if faults.is_empty() => faults,
        faults => faults + &tiers(),
    };
    faults + &pages_out(report) + &processes(report) + &settings(report)
}

fn tiers() -> String {
    let meanings = [
        "first touch of a page: it is filled with zeroes",
        "chosen for eviction, but still in memory",
        "stored on the disk, and still in memory",
        "a page of one repeated word, which takes no memory while it is swapped out",
        "compressed in memory",
        "read from a swap area",
    ];
    let lines = TIERS.iter().zip(meanings);
    let lines = lines.map(|(tier, meaning)| format!("<dt>{tier}</dt><dd>{meaning}</dd>\n"));
    format!("<dl>\n{}</dl>\n", lines.collect::<String>())
}

fn faults(report: &Report) -> String {
    let of_tree = report.tree.as_ref().is_some_and(|tree| !tree.faults_by_tier.is_empty());
    let mut text = String::new();
    if of_tree {
        text += "<h2>Faults</h2>\n";
        let rows = TIERS.iter().map(|tier| vec![(*tier).into(), count(report.faults_of_all(tier))]);
        text += &table(&["tier", "faults of all processes"], rows);
        if report.first_was_idle() {
            return text;
        }
    }
    if !shows_first_process(report) {
        return text;
    }
    let title = match of_tree {
        true => format!("Faults, of the first process ({})", report.name()),
        false => format!("Faults{}", of_first(report)),
    };
    let _ = writeln!(text, "<h2>{}</h2>", escaped(&title));
    let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_string(), nanoseconds);
    let rows = TIERS.iter().filter_map(|tier| {
        let of = report.faults.get(*tier)?;
        let waited = nanoseconds(report.waited_ns(tier));
        Some(vec![(*tier).into(), count(of.count), time(of.p50_ns), time(of.p99_ns), waited])
    });
    text + &table(&["tier", "faults", "median", "99th percentile", "waited"], rows)
}

fn pages_out(report: &Report) -> String {
    if !shows_first_process(report) {
        return String::new();
    }
    let title = format!("Pages swapped out{}", of_first(report));
    let kinds = [
        ("all", report.pages_out),
        ("one repeated word", report.pages_same_filled),
        ("compressed into the pool", report.pages_pooled),
        ("did not compress", report.pages_incompressible),
        ("written to the disk", report.pages_written),
        ("read from the disk", report.pages_read),
    ];
    let rows = kinds.iter().map(|(name, pages)| {
        let size = bytes(pages * softswap_sys::PAGE_SIZE as u64);
        vec![(*name).to_string(), count(*pages), size]
    });
    format!("<h2>{}</h2>\n", escaped(&title)) + &table(&["pages", "number", "size"], rows)
}

fn processes(report: &Report) -> String {
    let Some(tree) = &report.tree else { return String::new() };
    let mut text = format!(
        "<h2>Processes</h2>\n<p>At most {} at a time, and {} used by all. The processes that used \
         most:</p>\n",
        tree.processes_peak,
        bytes(tree.used_peak_bytes)
    );
    let rows = tree.largest.iter().map(|it| {
        let used = bytes(it.used_peak_bytes);
        let pid = it.pid.to_string();
        vec![it.name.clone(), pid, used, count(it.faults), nanoseconds(it.stalled_ns)]
    });
    text += &table(&["process", "pid", "at most used", "faults", "stalled"], rows);
    let LeftOut { processes, faults, stalled_ns, .. } = &tree.left_out;
    if *processes > 0 {
        let (processes, faults) = (count(*processes), count(*faults));
        let stalled = nanoseconds(*stalled_ns);
        let _ = writeln!(
            text,
            "<p>{processes} more processes are not shown, with {faults} faults, {stalled} \
             stalled.</p>"
        );
    }
    text
}

fn settings(report: &Report) -> String {
    let mut rows: Vec<Vec<String>> =
        report.settings.iter().map(|(key, value)| vec![key.clone(), value.clone()]).collect();
    let yes_or_no = |is: bool| if is { "yes" } else { "no" }.to_string();
    if shows_first_process(report) {
        let mut uses = Vec::new();
        if let Some(mechanism) = &report.fault_mechanism {
            uses.push(("faults by", mechanism.clone()));
        }
        match &report.mappings {
            Some(Mappings { peak, limit, .. }) => {
                uses.push(("mappings", format!("{} of at most {}", count(*peak), count(*limit))));
            }
            None => uses.push(("UFFDIO_MOVE", yes_or_no(report.uses_move))),
        }
        if !report.is_remote {
            uses.push(("io_uring", yes_or_no(report.uses_io_uring)));
            uses.push(("O_DIRECT", yes_or_no(report.uses_direct_io)));
        }
        let of_first = of_first(report);
        rows.extend(uses.into_iter().map(|(name, value)| vec![format!("{name}{of_first}"), value]));
    }
    if let Some(outside) = &report.outside_budget {
        rows.push(vec!["outside the budget".into(), bytes(outside.total_bytes)]);
    }
    if let Some(machine) = &report.machine {
        rows.push(vec!["processor".into(), machine.processor.clone()]);
        rows.push(vec!["processors".into(), machine.processors.to_string()]);
        rows.push(vec!["DRAM".into(), bytes(machine.dram_bytes)]);
        rows.push(vec!["kernel".into(), machine.kernel.clone()]);
    }
    "<h2>Settings and machine</h2>\n".to_string() + &table(&["", ""], rows.into_iter())
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

/// Invisible, or changes the text's direction.
fn is_hidden(sign: char) -> bool {
    let turns = ['\u{202A}'..='\u{202E}', '\u{2066}'..='\u{2069}'];
    (sign.is_control() && sign != '\n') || turns.iter().any(|range| range.contains(&sign))
}

pub(crate) fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut all, sign| {
        match sign {
            '&' => all += "&amp;",
            '<' => all += "&lt;",
            '>' => all += "&gt;",
            '"' => all += "&quot;",
            '\'' => all += "&#39;",
            sign if is_hidden(sign) => all.push('\u{FFFD}'),
            sign => all.push(sign),
        }
        all
    })
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
