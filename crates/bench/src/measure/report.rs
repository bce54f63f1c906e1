//! A benchmark's result: a table for people, one JSON object for programs.

use super::machine::Machine;
use super::sample::Figures;
use serde::Serialize;
use softswap_cli::refusal::{Refusal, plain};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// One line of a table of latencies.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) variant: &'static str,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) cov: f64,
    pub(crate) count: usize,
}

impl Row {
    pub(crate) fn new(variant: &'static str, figures: Figures) -> Row {
        let Figures { p50_us, p99_us, cov, count, .. } = figures;
        Row { variant, p50_us, p99_us, cov, count }
    }
}

/// What a benchmark found: one JSON object, and a table of it for people.
pub(crate) trait Report: Serialize {
    fn table(&self) -> String;
}

/// Everything that a benchmark of latencies found.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) schema: u32,
    pub(crate) bench: &'static str,
    pub(crate) machine: Machine,
    pub(crate) rows: Vec<Row>,
    pub(crate) ratios: serde_json::Map<String, serde_json::Value>,
    /// What the variants are, for people.
    #[serde(skip)]
    pub(crate) notes: Vec<String>,
}

/// Where JSON goes: `-` is standard output, without a table then.
pub(crate) enum Target {
    Table,
    Stdout,
    File { file: File, path: PathBuf, created: bool },
}

impl Target {
    /// Opens the target before anything is measured, so that a path that
    /// cannot be written costs no time.
    pub(crate) fn open(json: Option<&Path>) -> Result<Target, Refusal> {
        let Some(path) = json else { return Ok(Target::Table) };
        if path == Path::new("-") {
            return Ok(Target::Stdout);
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
        Ok(Target::File { file, path: path.to_path_buf(), created })
    }

    /// Writes what was found.
    pub(crate) fn write(self, outcome: &impl Report) -> Result<(), Refusal> {
        let failed = |what: &str, error: &std::io::Error| {
            Refusal::own(format!("{what} cannot be written: {}", plain(error)))
        };
        let json = || serde_json::to_string_pretty(outcome).map(|text| text + "\n");
        match self {
            Target::Table => print(&outcome.table()).map_err(|e| failed("the table", &e)),
            Target::Stdout => json()
                .map_err(Into::into)
                .and_then(|text| print(&text))
                .map_err(|e| failed("the result", &e)),
            Target::File { mut file, path, .. } => {
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

    /// Leaves things as they were: there is no result.
    pub(crate) fn abandon(self) {
        if let Target::File { path, created: true, .. } = self {
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

impl Report for Outcome {
    fn table(&self) -> String {
        let mut text = format!("{}\n\n", self.machine.line());
        let head = ("variant", "p50 us", "p99 us", "CoV", "count");
        text += &format!("{:<18}{:>10}{:>10}{:>8}{:>9}\n", head.0, head.1, head.2, head.3, head.4);
        for row in &self.rows {
            text += &format!(
                "{:<18}{:>10.2}{:>10.2}{:>6.1} %{:>9}\n",
                row.variant,
                row.p50_us,
                row.p99_us,
                row.cov * 100.0,
                row.count
            );
        }
        text + "\n" + &ratios_text(&self.ratios) + &lines(&self.notes)
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
