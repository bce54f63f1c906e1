//! `--save`: the pages that were examined, one after the other.

use crate::pages::Page;
use softswap_cli::refusal::{FAILED, Refusal, plain};
use softswap_cli::units;
use softswap_sys::PAGE_SIZE;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file that is removed again unless it is kept.
pub(super) struct SavedPages {
    path: PathBuf,
    file: BufWriter<File>,
    pages: u64,
    is_complete: bool,
}

impl SavedPages {
    /// What is there stays: it may be the only copy of what it holds.
    pub(super) fn create(path: &Path) -> Result<SavedPages, Refusal> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| {
            let way_out = match error.kind() {
                ErrorKind::AlreadyExists => "and is not overwritten; name another, or remove it",
                _ => "choose another path",
            };
            let what = match error.kind() {
                ErrorKind::AlreadyExists => "the file exists".to_string(),
                _ => format!("the file cannot be created: {};", plain(&error)),
            };
            Refusal::usage(format!("--save {}: {what} {way_out}", path.display()))
        })?;
        let path = path.to_path_buf();
        Ok(SavedPages { path, file: BufWriter::new(file), pages: 0, is_complete: false })
    }

    pub(super) fn add(&mut self, pages: &[Page]) -> Result<(), Refusal> {
        self.pages += pages.len() as u64;
        let written = pages.iter().try_for_each(|page| self.file.write_all(&page.0));
        written.map_err(|error| self.failed(&error))
    }

    /// Leaves the file there, and says so.
    pub(super) fn keep(mut self) -> Result<String, Refusal> {
        self.file.flush().map_err(|error| self.failed(&error))?;
        self.is_complete = true;
        let bytes = units::bytes(self.pages * PAGE_SIZE as u64);
        Ok(format!("{bytes} of pages are in {}", self.path.display()))
    }

    fn failed(&self, error: &std::io::Error) -> Refusal {
        let way_out = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                "; name a file where there is room, or read fewer pages with --sample N"
            }
            _ => "",
        };
        let shown = self.path.display();
        let why = plain(error);
        Refusal::new(FAILED, format!("--save {shown}: cannot be written: {why}{way_out}"))
    }
}

impl Drop for SavedPages {
    fn drop(&mut self) {
        if !self.is_complete {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_that_is_not_complete_does_not_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pages");
        let mut dump = SavedPages::create(&path).unwrap();
        dump.add(&[Page::ZERO]).unwrap();
        assert!(
            SavedPages::create(&path).is_err_and(|e| e.to_string().contains("not overwritten"))
        );
        drop(dump);
        assert!(!path.exists());
        let mut dump = SavedPages::create(&path).unwrap();
        dump.add(&[Page::ZERO, Page::ZERO]).unwrap();
        dump.keep().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 8192);
    }
}
