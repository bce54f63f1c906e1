//! A file for the result of a command.

use crate::refusal::{Refusal, plain};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file that is opened before the work starts, so that an unwritable path is refused early. Until
/// it is written, an existing file is unchanged, and a new one is removed on drop.
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    pub path: PathBuf,
    is_new: bool,
}

impl OutputFile {
    /// Opens the file that `option` names.
    ///
    /// # Errors
    /// A refusal with `status` and `remedy`, if it cannot be written.
    pub fn open(
        option: &str,
        path: &Path,
        status: u8,
        remedy: &str,
    ) -> Result<OutputFile, Refusal> {
        let is_new = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| {
            let (path, why) = (path.display(), plain(&error));
            Refusal::new(
                status,
                format!("{option} {path}: the file cannot be written: {why}; {remedy}"),
            )
        })?;
        Ok(OutputFile { file, path: path.to_path_buf(), is_new })
    }

    /// Returns true if `path` refers to this file, and it is a regular file.
    pub fn is_at(&self, path: &Path) -> bool {
        let (Ok(own), Ok(other)) = (self.file.metadata(), path.metadata()) else { return false };
        own.is_file() && (own.dev(), own.ino()) == (other.dev(), other.ino())
    }

    /// Replaces the file's content.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())?;
        self.is_new = false;
        Ok(())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
