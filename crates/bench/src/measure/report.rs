//! The result of a benchmark: one JSON object for programs, and the same as tables for people.

use super::machine::{Disturbance, Machine};
use super::tables;
use serde::Serialize;
use serde_json::{Map, Value};
use softswap_cli::refusal::{Refusal, plain};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Of every benchmark's JSON object: changes whenever a key changes its meaning or goes away.
/// Beside it are `bench`, `machine`, and all ratios under `ratios`, as `<a>_vs_<b>`: a over b.
pub(crate) const SCHEMA: u32 = 2;

/// What a command found: one JSON object, which is also printed as tables.
pub(crate) trait Report: Serialize {
    fn table(&self) -> String {
        tables::of(self)
    }
}

/// What a benchmark found; `figures` are the fields of its own.
#[derive(Debug, Serialize)]
pub(crate) struct Findings<F> {
    pub(crate) schema: u32,
    pub(crate) bench: &'static str,
    pub(crate) machine: Machine,
    #[serde(flatten)]
    pub(crate) disturbance: Option<Disturbance>,
    #[serde(flatten)]
    pub(crate) figures: F,
    pub(crate) ratios: Map<String, Value>,
    pub(crate) notes: Vec<String>,
}

impl<F> Findings<F> {
    pub(crate) fn new(
        bench: &'static str,
        machine: Machine,
        disturbance: Disturbance,
        figures: F,
        ratios: Map<String, Value>,
    ) -> Findings<F> {
        let (disturbance, notes) = (Some(disturbance), Vec::new());
        Findings { schema: SCHEMA, bench, machine, disturbance, figures, ratios, notes }
    }
}

impl<F: Serialize> Report for Findings<F> {}

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
