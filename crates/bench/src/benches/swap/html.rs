//! The result as one page that needs nothing else.

use super::outcome::{SwapOutcome, shown};
use super::plots::{self, Plot};
use crate::measure::report::Report;
use softswap_cli::refusal::{Refusal, plain};
use softswap_cli::units;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

const STYLE: &str = "body{font:15px sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\
pre{overflow-x:auto;font-size:12px;background:#f6f6f6;padding:1em}svg{max-width:100%;height:auto}\
th,td{text-align:left;padding:.1em 1em .1em 0}";

/// The file that the page goes to, if any.
pub(super) struct HtmlFile(Option<Opened>);

struct Opened {
    path: PathBuf,
    /// It was not there before, and nothing is in it yet.
    is_empty: bool,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.is_empty {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl HtmlFile {
    /// Tries the file before anything is measured.
    pub(super) fn open(path: Option<&Path>) -> Result<HtmlFile, Refusal> {
        let Some(path) = path else { return Ok(HtmlFile(None)) };
        let is_empty = !path.exists();
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        opened.map_err(|error| {
            Refusal::usage(format!(
                "--html {}: the file cannot be written: {}; choose another path",
                path.display(),
                plain(&error)
            ))
        })?;
        Ok(HtmlFile(Some(Opened { path: path.into(), is_empty })))
    }

    pub(super) fn write(self, outcome: &SwapOutcome, plots: &[Plot]) -> Result<(), Refusal> {
        let Some(mut file) = self.0 else { return Ok(()) };
        fs::write(&file.path, text(outcome, plots)).map_err(|error| {
            Refusal::own(format!("{} cannot be written: {}", file.path.display(), plain(&error)))
        })?;
        file.is_empty = false;
        Ok(())
    }
}

fn text(outcome: &SwapOutcome, plots: &[Plot]) -> String {
    let mut body = String::from("<h1>softswap beside the kernel's swap</h1>\n");
    body += &format!("<p>{}</p>\n", escaped(&outcome.conditions.machine.line()));
    let settings: Vec<_> = outcome
        .settings
        .iter()
        .map(|(name, value)| format!("{name} {}", value.as_str().unwrap_or_default()))
        .collect();
    body +=
        &format!("<p>{}; {}</p>\n", escaped(&settings.join(", ")), outcome.conditions.disturbance);
    body += "<p>Every side is held to the same limit by a memory control group. The kernel does \
             not count zram's packed pages in it, nor in version 1 zswap's; <em>outside</em> is \
             what these took beyond the limit. <em>softswap_same_dram</em> is softswap with that much more.</p>\n";
    body += &dram(outcome);
    for heading in plots::HEADINGS {
        let of_it = plots.iter().filter(|plot| plot.heading == heading);
        body += &headed(heading, of_it.map(|plot| plot.svg.as_str()).collect());
    }
    body += &format!("<h2>All figures</h2>\n<pre>{}</pre>\n", escaped(&outcome.table()));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>softswap bench swap</title><style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )
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
        drop(HtmlFile::open(Some(&path)).unwrap());
        assert!(!path.exists());
        fs::write(&path, "mine").unwrap();
        drop(HtmlFile::open(Some(&path)).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("a<b> & c"), "a&lt;b&gt; &amp; c");
    }
}
