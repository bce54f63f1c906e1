//! The closing figures in a file, as JSON or as a page.

use super::figures::Figures;
use super::history::History;
use super::machine::Machine;
use crate::refusal::{Refusal, plain};
use serde::Serialize;
use softswap_engine::door::settings::Config;
use softswap_view::page;
use softswap_view::report as view;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The report file, open since before the program started, so that a path
/// that cannot be written is refused while that costs nothing.
pub(super) struct Report {
    file: File,
    path: PathBuf,
    /// It did not exist before.
    created: bool,
}

impl Report {
    /// Opens `path` for the report; what it held is replaced at the end.
    pub(super) fn open(path: &Path) -> Result<Report, Refusal> {
        let created = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| {
            Refusal::usage(format!(
                "--report {}: the file cannot be written: {}; choose another path",
                path.display(),
                plain(&error)
            ))
        })?;
        Ok(Report { file, path: path.to_path_buf(), created })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes what there is to tell, in place of whatever was there: a page where the file's
    /// name says so.
    pub(super) fn write(mut self, told: &Told<'_>) -> io::Result<()> {
        let is_page = self.path.extension().is_some_and(|it| it == "html" || it == "htm");
        let mut text = match is_page {
            true => page::of(&view::Report::read(&serde_json::to_string(told)?)?),
            false => serde_json::to_string_pretty(told)?,
        };
        text.push('\n');
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())
    }

    /// Leaves things as they were: the program never started.
    pub(super) fn abandon(self) {
        if self.created {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The report's keys: the figures, and what is known besides when the program has ended.
#[derive(Serialize)]
pub(super) struct Told<'f> {
    #[serde(flatten)]
    pub(super) figures: &'f Figures,
    pub(super) history: &'f History,
    pub(super) settings: BTreeMap<&'static str, String>,
    pub(super) machine: Machine,
}

/// The settings that the program ran with, by the names that `softswap ctl` has for them.
pub(super) fn settings(config: &Config) -> BTreeMap<&'static str, String> {
    let areas: Vec<_> = config.areas.iter().map(|area| area.path.display().to_string()).collect();
    BTreeMap::from([
        ("memory", format!("{}M", config.memory_bytes >> 20)),
        ("codec", config.codec.to_string()),
        ("pool.limit", config.pool.to_string()),
        ("io.poll", config.poll.to_string()),
        ("swap", areas.join(", ")),
        ("encrypt", config.encrypt.to_string()),
    ])
}
