//! Output of commands.

use crate::refusal::{FAILED, Refusal, plain};
use softswap_view::units::visible;
use std::io::{ErrorKind, Write};

pub(crate) fn lines(text: &str) -> String {
    text.split('\n').map(visible).collect::<Vec<_>>().join("\n")
}

/// Prints text with a final newline. Returns false if the reader has closed the pipe.
///
/// # Errors
/// If the text cannot be written: a script must not mistake missing output for an answer.
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

/// Ignores errors: a closed pipe must not change the exit status.
pub(crate) fn print_message(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_=./:,%+@".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}
