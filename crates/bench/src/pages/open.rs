//! Opens a source of pages by name: a PID or a file.

use super::source::Source;
use super::{file, process};
use softswap_cli::refusal::Refusal;
use std::path::Path;

/// Opens a process by its PID, or a file.
pub(crate) fn subject(subject: &Path, raw: bool) -> Result<Source, Refusal> {
    let number = subject.to_str().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    match number.filter(|text| !text.is_empty()) {
        Some(_) if raw => Err(Refusal::usage(format!(
            "--raw is for files, but {0} is a PID; write ./{0} for a file of that name",
            subject.display()
        ))),
        Some(text) => process::open(text),
        None => file::open(subject, raw),
    }
}

pub(crate) fn process(pid: u32) -> Result<Source, Refusal> {
    process::open(&pid.to_string())
}
