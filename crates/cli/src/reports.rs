//! `softswap report` and `softswap advise`: read the output of `softswap run --report`.

use crate::output::print;
use crate::refusal::{FAILED, OrRefuse, Refusal, plain};
use clap::{Args, ValueHint};
use softswap_view::report::Report;
use softswap_view::units::{bytes, visible};
use softswap_view::{advice, compared, estimate, page, summary};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Samples and processes in a report are limited, however long the run.
const MAX_BYTES: u64 = 64 << 20;
const TRUNCATED: &str = "its end is missing";

/// Show a report of `softswap run --report`, compare two, or write one as a page with plots.
#[derive(Args)]
#[command(after_long_help = "\
A report is the JSON, or the page, that `softswap run --report` has written. For one report the
command prints the summary of the run; for two it prints each figure of both, and the second divided
by the first.

Examples:
  softswap report run.json
  softswap report before.json after.json --html both.html

Exit status: 0, or 1 if a file cannot be read or is not a report, or if the page cannot be written.")]
pub(crate) struct ReportArgs {
    /// The report
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    first: PathBuf,

    /// Another report to compare it with
    #[arg(value_name = "OTHER", value_hint = ValueHint::FilePath)]
    second: Option<PathBuf>,

    /// Write a page with plots to FILE, and print nothing for one report
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,

    /// Print all figures of one report, not only the summary
    #[arg(long, short, conflicts_with = "second")]
    verbose: bool,
}

/// Suggest changes to the budget, disk or codec, by a report of `softswap run --report`.
///
/// Each sentence names the figure that it is based on.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  softswap advise run.json
  softswap advise --slowdown 1.5 run.json

Exit status: 0, or 1 if the file cannot be read or is not a report, or if the run does not allow
the estimate, or if the size does not fit in the memory that was available to the run.")]
pub(crate) struct AdviseArgs {
    /// The report
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    report: PathBuf,

    /// Print the smallest --memory with which the program is expected to take at most this many
    /// times as long as without waits for memory
    #[arg(long, value_name = "TIMES", value_parser = times)]
    slowdown: Option<f64>,

    /// Print one object
    #[arg(long)]
    json: bool,
}

fn times(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(times) if times > 1.0 && times <= 1000.0 => Ok(times),
        _ => Err("give a number above 1, such as 1.5".into()),
    }
}

pub(crate) fn report(args: &ReportArgs) -> Result<ExitCode, Refusal> {
    let json = read(&args.first)?;
    let first = parse(&args.first, &json)?;
    let (text, mut html) = match &args.second {
        Some(path) => {
            let second = parse(path, &read(path)?)?;
            let names = [&args.first, path].map(|path| visible(&path.to_string_lossy()));
            let names = [names[0].as_str(), names[1].as_str()];
            let both = [&first, &second];
            (compared::text(names, both), compared::page(names, both))
        }
        None => {
            let html = page::of(&json).map_err(|error| failed(error.to_string()))?;
            let is_shown = args.html.is_none() || args.verbose;
            (if is_shown { summary_of(&first, args.verbose) } else { String::new() }, html)
        }
    };
    if let Some(path) = &args.html {
        html.push('\n');
        let what = format!("--html {}: cannot be written", path.display());
        std::fs::write(path, html).or_status(FAILED, what)?;
    }
    if !text.is_empty() {
        print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn advise(args: &AdviseArgs) -> Result<ExitCode, Refusal> {
    let report = parse(&args.report, &read(&args.report)?)?;
    if let Some(times) = args.slowdown {
        return size_for(args, &report, times);
    }
    let advice = advice::of(&report);
    if args.json {
        return print_json(&serde_json::json!({ "advice": advice }));
    }
    let lines = advice.iter().map(|it| format!("{}\n  ({})\n", it.what, it.figure));
    print(&lines.collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the size alone, as `--memory` and schedulers take it.
fn size_for(args: &AdviseArgs, report: &Report, times: f64) -> Result<ExitCode, Refusal> {
    let estimate = estimate::size_for(report, times)
        .map_err(|why| failed(format!("{}: {why}", args.report.display())))?;
    if args.json {
        return print_json(&serde_json::json!(estimate));
    }
    print(&format!("{}M\n", estimate.memory_bytes >> 20))?;
    Ok(ExitCode::SUCCESS)
}

fn print_json(value: &serde_json::Value) -> Result<ExitCode, Refusal> {
    print(&format!("{value:#}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn failed(why: String) -> Refusal {
    Refusal::new(FAILED, why)
}

/// Returns the detailed summary if the run printed none.
fn summary_of(report: &Report, is_verbose: bool) -> String {
    match summary::text(report, is_verbose) {
        text if text.is_empty() => summary::text(report, true),
        text => text,
    }
}

fn no_report(path: &Path, why: &str) -> Refusal {
    failed(format!(
        "{}: not a report: {why}; `softswap run --report FILE.json` writes one",
        path.display()
    ))
}

fn read(path: &Path) -> Result<String, Refusal> {
    let mut content = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut content)).map_err(
        |error| {
            failed(format!(
                "{}: cannot be read: {}; `softswap run --report FILE` writes a report",
                path.display(),
                plain(&error)
            ))
        },
    )?;
    if content.len() as u64 > MAX_BYTES {
        return Err(no_report(path, &format!("it is longer than {}", bytes(MAX_BYTES))));
    }
    let text = String::from_utf8(content).map_err(|_| no_report(path, "it is not text"))?;
    if !text.starts_with("<!DOCTYPE html>") {
        return Ok(text);
    }
    let json = page::json_in(&text).map(str::to_string);
    json.ok_or_else(|| {
        let why = match text.trim_end().ends_with("</html>") {
            true => {
                "the page contains no figures: it compares two reports, or an older softswap wrote \
                 it"
            }
            false => TRUNCATED,
        };
        no_report(path, why)
    })
}

fn parse(path: &Path, json: &str) -> Result<Report, Refusal> {
    Report::read(json).map_err(|error| match error.is_eof() {
        true => no_report(path, TRUNCATED),
        false => no_report(path, &error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_is_not_a_report_is_rejected_with_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        for (content, why) in [
            (&b"{\"schema\": 1, \"wall_s\""[..], TRUNCATED),
            (b"<!DOCTYPE html><script type=\"application/json\" id=\"report\">{", TRUNCATED),
            (b"<!DOCTYPE html></html>\n", "it compares two reports"),
            (b"[1,2]", "neither a JSON object nor a page"),
            (b"<html></html>", "neither a JSON object nor a page"),
            (b"\x7fELF\xff", "not text"),
        ] {
            std::fs::write(&path, content).unwrap();
            let refusal = read(&path).and_then(|json| parse(&path, &json)).unwrap_err();
            let text = refusal.to_string();
            assert!(text.contains(why) && text.contains("softswap run --report"), "{text}");
        }
    }
}
