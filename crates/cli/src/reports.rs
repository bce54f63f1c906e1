//! `softswap report` and `softswap advise`: what `softswap run --report` has written, read again.

use crate::refusal::{FAILED, Refusal, plain};
use clap::{Args, ValueHint};
use softswap_view::report::Report;
use softswap_view::{advice, compared, page};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

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
        let names = [args.first.to_string_lossy(), path.to_string_lossy()];
        let names = [names[0].as_ref(), names[1].as_ref()];
        text = compared::text(names, [&first, second]);
        html = compared::page(names, [&first, second]);
    }
    if let Some(path) = &args.html {
        html.push('\n');
        std::fs::write(path, html).map_err(|error| {
            failed(format!("--html {}: cannot be written: {}", path.display(), plain(&error)))
        })?;
    }
    // A reader that has gone away has read enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn advise(args: &AdviseArgs) -> Result<ExitCode, Refusal> {
    let report = read(&args.report)?;
    for advice in advice::of(&report) {
        // A reader that has gone away has read enough.
        let _ = writeln!(std::io::stdout(), "{}\n  ({})", advice.what, advice.figure);
    }
    Ok(ExitCode::SUCCESS)
}

fn failed(why: String) -> Refusal {
    Refusal::new(FAILED, why)
}

fn read(path: &Path) -> Result<Report, Refusal> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        failed(format!("{}: cannot be read: {}", path.display(), plain(&error)))
    })?;
    Report::read(&text).map_err(|error| {
        failed(format!(
            "{}: this is no report: {error}; `softswap run --report FILE` writes one",
            path.display()
        ))
    })
}
