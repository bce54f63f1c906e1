//! `softswap report` and `softswap advise`: what `softswap run --report` has written, read again.

use crate::control_client::visible;
use crate::output::print;
use crate::refusal::{FAILED, Refusal, plain};
use clap::{Args, ValueHint};
use softswap_view::report::Report;
use softswap_view::units::bytes;
use softswap_view::{advice, compared, page};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// No report is longer: those of a run of any length have at most so many samples and processes.
const MOST_BYTES: u64 = 64 << 20;

/// Compare two reports of `softswap run --report`, or make a page of one.
#[derive(Args)]
#[command(after_long_help = "\
Of two reports each figure is shown beside the other's, with the second over the first.

Exit status: 0, or 1 where a file cannot be read or is no report, or the page cannot be written.")]
pub(crate) struct ReportArgs {
    /// The report
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    first: PathBuf,

    /// Another to compare it with
    #[arg(value_name = "OTHER", value_hint = ValueHint::FilePath, required_unless_present = "html")]
    second: Option<PathBuf>,

    /// Write a page with plots to FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,
}

/// Say what to change, by a report of `softswap run --report`.
///
/// Each sentence has the figure beside it from which it comes.
#[derive(Args)]
#[command(after_long_help = "\
Exit status: 0, or 1 where the file cannot be read or is no report.")]
pub(crate) struct AdviseArgs {
    /// The report
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    report: PathBuf,
}

pub(crate) fn report(args: &ReportArgs) -> Result<ExitCode, Refusal> {
    let first = read(&args.first)?;
    let second = args.second.as_deref().map(read).transpose()?;
    let (mut text, mut html) = (String::new(), page::of(&first));
    if let (Some(second), Some(path)) = (&second, &args.second) {
        let names = [&args.first, path].map(|path| visible(&path.to_string_lossy()));
        let names = [names[0].as_str(), names[1].as_str()];
        text = compared::text(names, [&first, second]);
        html = compared::page(names, [&first, second]);
    }
    if let Some(path) = &args.html {
        html.push('\n');
        std::fs::write(path, html).map_err(|error| {
            failed(format!("--html {}: cannot be written: {}", path.display(), plain(&error)))
        })?;
    }
    if !text.is_empty() {
        print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn advise(args: &AdviseArgs) -> Result<ExitCode, Refusal> {
    let report = read(&args.report)?;
    let told = advice::of(&report);
    let told: String = told.iter().map(|it| format!("{}\n  ({})\n", it.what, it.figure)).collect();
    print(&told)?;
    Ok(ExitCode::SUCCESS)
}

fn failed(why: String) -> Refusal {
    Refusal::new(FAILED, why)
}

fn read(path: &Path) -> Result<Report, Refusal> {
    let mut text = String::new();
    File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_string(&mut text)).map_err(
        |error| failed(format!("{}: cannot be read: {}", path.display(), plain(&error))),
    )?;
    let no_report = |why: String| {
        failed(format!(
            "{}: this is no report: {why}; `softswap run --report FILE.json` writes one",
            path.display()
        ))
    };
    if text.len() as u64 > MOST_BYTES {
        return Err(no_report(format!("it is longer than {}", bytes(MOST_BYTES))));
    }
    if text.starts_with("<!DOCTYPE html>") {
        return Err(no_report("it is a page, which has only what people read".into()));
    }
    Report::read(&text).map_err(|error| no_report(error.to_string()))
}
