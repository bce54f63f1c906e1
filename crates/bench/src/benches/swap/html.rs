//! The result as one page that needs nothing else.

use super::outcome::{PatternRow, ProgramRow, SwapOutcome, shown};
use super::plots;
use crate::measure::report::Report;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::units;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

const STYLE: &str = "body{font:15px sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\
pre{overflow-x:auto;font-size:12px;background:#f6f6f6;padding:1em}svg{max-width:100%;height:auto}\
th,td{text-align:left;padding:.1em 1em .1em 0}";

/// Where the page goes, if anywhere.
pub(super) struct Page(Option<Place>);

struct Place {
    path: PathBuf,
    /// It was not there before, and nothing is in it yet.
    empty: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.empty {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Page {
    /// Tries the place before anything is measured.
    pub(super) fn open(path: Option<&Path>) -> Result<Page, Refusal> {
        let Some(path) = path else { return Ok(Page(None)) };
        let empty = !path.exists();
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        opened.map_err(|error| {
            Refusal::usage(format!(
                "--html {}: the file cannot be written: {}; choose another path",
                path.display(),
                plain(&error)
            ))
        })?;
        Ok(Page(Some(Place { path: path.into(), empty })))
    }

    pub(super) fn write(self, outcome: &SwapOutcome) -> Result<(), Refusal> {
        let Some(mut place) = self.0 else { return Ok(()) };
        let text = text(outcome).map_err(|error| {
            Refusal::own(format!("--html: the plots could not be drawn: {error}"))
        })?;
        fs::write(&place.path, text).map_err(|error| {
            Refusal::own(format!("{} cannot be written: {}", place.path.display(), plain(&error)))
        })?;
        place.empty = false;
        Ok(())
    }
}

fn text(outcome: &SwapOutcome) -> Result<String, Box<dyn std::error::Error>> {
    let mut body = String::from("<h1>softswap beside the kernel's swap</h1>\n");
    body += &format!("<p>{}</p>\n", escaped(&outcome.machine.line()));
    let settings: Vec<_> = outcome
        .settings
        .iter()
        .map(|(name, value)| format!("{name} {}", value.as_str().unwrap_or_default()))
        .collect();
    body += &format!("<p>{}; {}</p>\n", escaped(&settings.join(", ")), outcome.disturbance);
    body += "<p>Every side is held to the same limit by a memory control group. The kernel does \
             not count zram's packed pages in it, nor in version 1 zswap's; <em>outside</em> is \
             what these took beyond the limit. <em>softswap_same_dram</em> is softswap with that much more.</p>\n";
    body += &dram(outcome);
    body += &throughputs(outcome)?;
    body += &latencies(outcome)?;
    body += &slowdowns(outcome)?;
    body += &format!("<h2>All figures</h2>\n<pre>{}</pre>\n", escaped(&outcome.table()));
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>softswap bench swap</title><style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    ))
}

/// What each side had of DRAM.
fn dram(outcome: &SwapOutcome) -> String {
    let cells = |tag: &str, all: &[String]| {
        let cells: String = all.iter().map(|text| format!("<{tag}>{text}</{tag}>")).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let heads = ["side", "data", "fits", "limit", "outside", "DRAM in all", "kills"];
    let rows = outcome.sessions.iter().map(|row| {
        let all = [
            row.side.into(),
            row.data.into(),
            format!("{} %", row.share_percent),
            units::bytes(row.limit_bytes),
            units::bytes(row.outside_bytes),
            shown(row.dram_bytes),
            row.oom_kills.to_string(),
        ];
        cells("td", &all)
    });
    let rows: String = rows.collect();
    if rows.is_empty() {
        return rows;
    }
    headed("DRAM", format!("<table>\n{}{rows}</table>", cells("th", &heads.map(String::from))))
}

type Part = Result<String, Box<dyn std::error::Error>>;

fn throughputs(outcome: &SwapOutcome) -> Part {
    let mut text = String::new();
    for (data, share, threads) in groups(&outcome.rows) {
        let rows: Vec<&PatternRow> = outcome
            .rows
            .iter()
            .filter(|row| (row.data, row.share_percent, row.threads) == (data, share, threads))
            .collect();
        let title = format!("{data} data, {share} % fit, {threads} {}", threads_word(threads));
        text += &plots::throughput(&title, &rows)?;
    }
    Ok(headed("Touches a second, by pattern", text))
}

fn threads_word(threads: u32) -> &'static str {
    if threads == 1 { "thread" } else { "threads" }
}

fn groups(rows: &[PatternRow]) -> Vec<(&'static str, u32, u32)> {
    let mut all = Vec::new();
    for row in rows {
        let group = (row.data, row.share_percent, row.threads);
        if !all.contains(&group) {
            all.push(group);
        }
    }
    all
}

fn latencies(outcome: &SwapOutcome) -> Part {
    let mut text = String::new();
    for (title, all) in [
        ("faults of softswap, by tier", &outcome.faults),
        ("touches in the first pattern, by side", &outcome.touches),
    ] {
        for share in super::plan::PATTERN_SHARES {
            let of: Vec<_> = all.iter().filter(|one| one.share_percent == share).collect();
            if !of.is_empty() {
                text += &plots::distributions(&format!("{title}, {share} % fit"), &of)?;
            }
        }
    }
    Ok(headed("Latencies", text))
}

fn slowdowns(outcome: &SwapOutcome) -> Part {
    let mut text = String::new();
    let mut names: Vec<&str> = outcome.programs.iter().map(|row| row.program).collect();
    names.dedup();
    for name in names {
        let rows: Vec<&ProgramRow> =
            outcome.programs.iter().filter(|row| row.program == name && row.came_through).collect();
        text += &plots::slowdown(name, &rows)?;
    }
    Ok(headed("Slowdown by share of memory", text))
}

fn headed(title: &str, text: String) -> String {
    if text.is_empty() { text } else { format!("<h2>{title}</h2>\n{text}\n") }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_never_written_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.html");
        drop(Page::open(Some(&path)).unwrap());
        assert!(!path.exists());
        fs::write(&path, "mine").unwrap();
        drop(Page::open(Some(&path)).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("a<b> & c"), "a&lt;b&gt; &amp; c");
    }
}
