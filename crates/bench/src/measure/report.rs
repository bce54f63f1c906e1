//! A benchmark's result: a table for people, one JSON object for programs.

use serde::Serialize;
use softswap_cli::refusal::{Refusal, plain};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Of every benchmark's JSON object: changes whenever a key changes its meaning or goes away.
/// Beside it are `bench`, `machine`, and all ratios under `ratios`, as `<a>_vs_<b>`: a over b.
pub(crate) const SCHEMA: u32 = 2;

/// What a benchmark found: one JSON object, and a table of it for people.
pub(crate) trait Report: Serialize {
    fn table(&self) -> String;
}

/// Where JSON goes: `-` is standard output, without a table then.
pub(crate) enum Output {
    Table,
    Stdout,
    File { file: File, path: PathBuf, created: bool },
}

impl Output {
    /// Opens the target before anything is measured, so that a path that
    /// cannot be written costs no time.
    pub(crate) fn open(json: Option<&Path>) -> Result<Output, Refusal> {
        let Some(path) = json else { return Ok(Output::Table) };
        if path == Path::new("-") {
            return Ok(Output::Stdout);
        }
        let created = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| {
            Refusal::usage(format!(
                "--json {}: the file cannot be written: {}; choose another path, or - for \
                 standard output",
                path.display(),
                plain(&error)
            ))
        })?;
        Ok(Output::File { file, path: path.to_path_buf(), created })
    }

    /// Writes what was found, or leaves things as they were where nothing was.
    pub(crate) fn finish(self, outcome: Result<impl Report, Refusal>) -> Result<ExitCode, Refusal> {
        match outcome {
            Ok(outcome) => self.write(&outcome).map(|()| ExitCode::SUCCESS),
            Err(refusal) => {
                self.abandon();
                Err(refusal)
            }
        }
    }

    fn write(self, outcome: &impl Report) -> Result<(), Refusal> {
        let failed = |what: &str, error: &std::io::Error| {
            Refusal::own(format!("{what} cannot be written: {}", plain(error)))
        };
        let json = || serde_json::to_string_pretty(outcome).map(|text| text + "\n");
        match self {
            Output::Table => print(&outcome.table()).map_err(|e| failed("the table", &e)),
            Output::Stdout => json()
                .map_err(Into::into)
                .and_then(|text| print(&text))
                .map_err(|e| failed("the result", &e)),
            Output::File { mut file, path, .. } => {
                let written = json().map_err(Into::into).and_then(|text| {
                    if file.metadata()?.is_file() {
                        file.set_len(0)?;
                    }
                    file.write_all(text.as_bytes())
                });
                written.map_err(|e| failed(&path.display().to_string(), &e))?;
                print(&outcome.table()).map_err(|e| failed("the table", &e))
            }
        }
    }

    fn abandon(self) {
        if let Output::File { path, created: true, .. } = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn print(text: &str) -> std::io::Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // A reader that has gone away has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// One line for each ratio; what could not be had is `-`.
pub(crate) fn ratios_text(ratios: &serde_json::Map<String, serde_json::Value>) -> String {
    let shown = |value: &serde_json::Value| {
        value.as_f64().map_or_else(|| "-".to_string(), |number| format!("{number:.2}"))
    };
    ratios.iter().map(|(name, value)| format!("{name}: {}\n", shown(value))).collect()
}

/// Each text on a line of its own.
pub(crate) fn lines(texts: &[String]) -> String {
    texts.iter().map(|text| format!("{text}\n")).collect()
}
