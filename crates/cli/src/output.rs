//! What a command prints.

use crate::refusal::{FAILED, Refusal, plain};
use softswap_view::units::visible;
use std::io::{ErrorKind, Write};

/// Text of several lines, with nothing else in it that a terminal obeys: it may name files.
pub(crate) fn lines(text: &str) -> String {
    text.split('\n').map(visible).collect::<Vec<_>>().join("\n")
}

/// Prints text with a line's end behind it. `false` where the reader has gone away: it has read
/// enough.
///
/// # Errors
/// Where it cannot be written, as to a full disk: a script must not take nothing for an answer.
pub(crate) fn print(text: &str) -> Result<bool, Refusal> {
    let mut stdout = std::io::stdout();
    let written = stdout.write_all(format!("{}\n", text.trim_end()).as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            let why = plain(&error);
            Err(Refusal::new(FAILED, format!("standard output cannot be written: {why}")))
        }
    }
}

/// Returns a word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_=./:,%+@".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}
