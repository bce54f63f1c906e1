//! Writes the closing figures to a file, as JSON or as a page.

use super::figures::Figures;
use super::history::History;
use super::machine::Machine;
use crate::refusal::{Refusal, plain};
use serde::Serialize;
use softswap_engine::api::settings::Config;
use softswap_view::page;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The report file, opened before the program starts, so that an unwritable path is refused early.
pub(super) struct Report {
    file: File,
    path: PathBuf,
    /// The file was created for the report, which is not written yet.
    is_empty: bool,
}

impl Report {
    /// Opens `path` for the report; its content is replaced at the end.
    pub(super) fn open(path: &Path) -> Result<Report, Refusal> {
        let is_empty = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| {
            Refusal::usage(format!(
                "--report {}: the file cannot be written: {}; choose another path",
                path.display(),
                plain(&error)
            ))
        })?;
        Ok(Report { file, path: path.to_path_buf(), is_empty })
    }

    /// Returns true if `path` names this regular file, in any spelling.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let (Ok(own), Ok(other)) = (self.file.metadata(), path.metadata()) else { return false };
        own.is_file() && (own.dev(), own.ino()) == (other.dev(), other.ino())
    }

    /// Replaces the file's content by the report, as a page if the file's name says so. Prints
    /// errors.
    pub(super) fn write(mut self, closing: &Closing<'_>) {
        self.is_empty = false;
        if let Err(error) = self.try_write(closing) {
            let (path, why) = (self.path.display(), plain(&error));
            eprintln!(
                "softswap: the report could not be written to {path}: {why}; the program itself \
                 is not affected"
            );
        }
    }

    fn try_write(&mut self, closing: &Closing<'_>) -> io::Result<()> {
        let is_page = self.path.extension().is_some_and(|it| it == "html" || it == "htm");
        let mut text = match is_page {
            true => page::of(&serde_json::to_string(closing)?)?,
            false => serde_json::to_string_pretty(closing)?,
        };
        text.push('\n');
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())
    }
}

/// Removes the new file of a report that is not written, because the program did not start.
impl Drop for Report {
    fn drop(&mut self) {
        if self.is_empty {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The report's keys: the figures, and data that are known when the program has exited.
#[derive(Serialize)]
pub(super) struct Closing<'f> {
    #[serde(flatten)]
    pub(super) figures: &'f Figures,
    pub(super) history: &'f History,
    pub(super) settings: BTreeMap<&'static str, String>,
    pub(super) machine: Machine,
}

/// Returns the settings of the program, by the names of `softswap ctl`.
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
