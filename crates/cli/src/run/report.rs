//! Writes the closing figures to a file, as JSON or as a page.

use crate::refusal::{Refusal, plain};
use softswap_engine::api::settings::Config;
use softswap_view::page;
use softswap_view::report::{Machine, Report};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The report file, opened before the program starts, so that an unwritable path is refused early.
pub(super) struct ReportFile {
    file: File,
    path: PathBuf,
    /// True if `open` created the file and nothing is written to it yet.
    is_empty: bool,
}

impl ReportFile {
    /// Opens `path` for the report; its content is replaced at the end.
    pub(super) fn open(path: &Path) -> Result<ReportFile, Refusal> {
        let is_empty = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| {
            Refusal::usage(format!(
                "--report {}: the file cannot be written: {}; choose another path",
                path.display(),
                plain(&error)
            ))
        })?;
        Ok(ReportFile { file, path: path.to_path_buf(), is_empty })
    }

    /// Returns true if `path` refers to the report's file, and it is a regular file.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let (Ok(own), Ok(other)) = (self.file.metadata(), path.metadata()) else { return false };
        own.is_file() && (own.dev(), own.ino()) == (other.dev(), other.ino())
    }

    /// Replaces the file's content by the report, as an HTML page if the name ends in `.html` or
    /// `.htm`. Prints errors.
    pub(super) fn write(mut self, report: &Report) {
        self.is_empty = false;
        if let Err(error) = self.try_write(report) {
            let (path, why) = (self.path.display(), plain(&error));
            eprintln!(
                "softswap: the report could not be written to {path}: {why}; the program was not \
                 affected"
            );
        }
    }

    fn try_write(&mut self, report: &Report) -> io::Result<()> {
        let is_page = self.path.extension().is_some_and(|it| it == "html" || it == "htm");
        let mut text = match is_page {
            true => page::of(&serde_json::to_string(report)?)?,
            false => serde_json::to_string_pretty(report)?,
        };
        text.push('\n');
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())
    }
}

/// Removes the new file of a report that is not written, because the program did not start.
impl Drop for ReportFile {
    fn drop(&mut self) {
        if self.is_empty {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the settings at the start, by their keys in `softswap ctl`.
pub(super) fn settings(config: &Config) -> BTreeMap<String, String> {
    let areas: Vec<_> = config.areas.iter().map(|area| area.path.display().to_string()).collect();
    let settings = [
        ("memory", format!("{}M", config.memory_bytes >> 20)),
        ("codec", config.codec.to_string()),
        ("pool.limit", config.pool.to_string()),
        ("io.poll", config.poll.to_string()),
        ("swap", areas.join(", ")),
        ("encrypt", config.encrypt.to_string()),
    ];
    settings.map(|(key, value)| (key.to_string(), value)).into()
}

/// Describes this machine.
pub(super) fn machine() -> Machine {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names = text.lines().filter_map(|line| line.strip_prefix("model name"));
    let name = names.filter_map(|rest| rest.split_once(':')).map(|(_, name)| name.trim());
    Machine {
        processor: name.take(1).collect(),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        dram_bytes: softswap_sys::memory::dram_bytes(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
    }
}
