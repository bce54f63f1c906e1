//! The closing figures as JSON in a file.

use super::figures::Figures;
use crate::refusal::{Refusal, plain};
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

    /// Writes the figures, in place of whatever was there.
    pub(super) fn write(mut self, figures: &Figures) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(figures)?;
        text.push(b'\n');
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(&text)
    }

    /// Leaves things as they were: the program never started.
    pub(super) fn abandon(self) {
        if self.created {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
