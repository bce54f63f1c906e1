//! Recognizes the content of a file or device by its first bytes, without changing it.

use softswap_engine::store::swap::contents::{HEAD_BYTES, recognise};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Returns the kind of content of `path`, if it is recognized.
pub fn of_path(path: &Path) -> io::Result<Option<&'static str>> {
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    let mut head = Vec::new();
    file.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(recognise(&head).next().map(|magic| magic.name))
}
