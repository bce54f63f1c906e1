//! A file for the result of a command.

use crate::refusal::{Refusal, plain};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Opened before the work starts, so that an unwritable path is refused early. On drop, a new file
/// is removed unless all of it was written.
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
    /// A refusal with `status` and `remedy`, if the file cannot be written.
    pub fn open(
        option: &str,
        path: &Path,
        status: u8,
        remedy: &str,
    ) -> Result<OutputFile, Refusal> {
        // Only a file that this process creates may be removed on drop.
        let opened = match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => Ok((file, true)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                OpenOptions::new().write(true).open(path).map(|file| (file, false))
            }
            Err(error) => Err(error),
        };
        let (file, is_new) = opened.map_err(|error| {
            let why = match missing_directory(path) {
                Some(dir) => format!(
                    "the directory {0} does not exist; create it with `mkdir -p {0}`, or",
                    dir.display()
                ),
                None => format!("{};", plain(&error)),
            };
            let path = path.display();
            Refusal::new(
                status,
                format!("{option} {path}: the file cannot be written: {why} {remedy}"),
            )
        })?;
        Ok(OutputFile { file, path: path.to_path_buf(), is_new })
    }

    /// Always false for a file that is not regular.
    pub fn is_at(&self, path: &Path) -> bool {
        let (Ok(own), Ok(other)) = (self.file.metadata(), path.metadata()) else { return false };
        own.is_file() && (own.dev(), own.ino()) == (other.dev(), other.ino())
    }

    /// Replaces the file's content.
    ///
    /// # Errors
    /// Errors of the file system. A new file is then removed on drop, and an existing one may have
    /// lost its content.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())?;
        self.is_new = false;
        Ok(())
    }
}

/// `None` if the directory exists.
fn missing_directory(path: &Path) -> Option<&Path> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty())?;
    std::fs::metadata(dir)
        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        .then_some(dir)
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Result<OutputFile, Refusal> {
        OutputFile::open("--report", path, 2, "choose another path")
    }

    #[test]
    fn only_a_new_file_that_was_not_written_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        drop(open(&path).unwrap());
        assert!(!path.exists());
        open(&path).unwrap().write("first").unwrap();
        drop(open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first");
        open(&path).unwrap().write("2nd").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "2nd");
    }

    #[test]
    fn dangling_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (link, target) = (dir.path().join("link"), dir.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let refused = open(&link).unwrap_err().to_string();
        assert!(
            refused.contains("No such file") && refused.contains("choose another"),
            "{refused}"
        );
        assert!(!target.exists() && link.is_symlink());
    }
}
