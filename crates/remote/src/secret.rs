//! The password. It never comes from the command line, which every user can read.

use crate::refusal::Refusal;
use rustix::termios::{self, LocalModes, OptionalActions};
use softswap_sys::file::plain;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

pub const VARIABLE: &str = "SOFTSWAP_REMOTE_PASSWORD";

const MAX_BYTES: u64 = 64 << 10;

#[derive(Clone, Default)]
pub enum Password {
    #[default]
    None,
    Given(Zeroizing<String>),
    /// Read again for each connection, so a password can be changed while programs run.
    File(PathBuf),
}

/// Allows only regular files, because each connection reads the password again.
fn read_file(path: &Path) -> io::Result<Zeroizing<String>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = Zeroizing::new(String::new());
    std::fs::File::open(path)?.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no password"),
            Self::Given(_) => f.write_str("a password"),
            Self::File(path) => write!(f, "the password in {}", path.display()),
        }
    }
}

impl Password {
    #[must_use]
    pub fn from_environment() -> Self {
        match std::env::var(VARIABLE) {
            Ok(text) if !text.is_empty() => Self::Given(Zeroizing::new(text)),
            _ => Self::None,
        }
    }

    /// Asks for the password at the terminal, without echo.
    ///
    /// # Errors
    /// If there is no terminal.
    pub fn prompted(what: &str) -> Result<Self, Refusal> {
        let no_terminal = |error: &dyn fmt::Display| {
            Refusal::new(format!(
                "there is no terminal to ask for the password ({}): set {VARIABLE}, or name a file \
                 with password-file=",
                plain(error)
            ))
        };
        let terminal = std::fs::OpenOptions::new().read(true).write(true).open("/dev/tty");
        let mut terminal = terminal.map_err(|error| no_terminal(&error))?;
        write!(terminal, "Password for {what}: ").map_err(|error| no_terminal(&error))?;
        let mut line = Zeroizing::new(String::new());
        let shown = termios::tcgetattr(&terminal).map_err(|error| no_terminal(&error))?;
        let mut hidden = shown.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        termios::tcsetattr(&terminal, OptionalActions::Flush, &hidden)
            .map_err(|error| no_terminal(&error))?;
        let read = BufReader::new(&terminal).read_line(&mut line);
        _ = termios::tcsetattr(&terminal, OptionalActions::Now, &shown);
        _ = writeln!(terminal);
        read.map_err(|error| no_terminal(&error))?;
        Ok(Self::Given(Zeroizing::new(line.trim_end_matches(['\r', '\n']).to_string())))
    }

    pub fn read(&self) -> Result<Option<Zeroizing<String>>, Refusal> {
        match self {
            Self::None => Ok(None),
            Self::Given(text) => Ok(Some(text.clone())),
            Self::File(path) => {
                let text = read_file(path).map_err(|error| {
                    Refusal::new(format!(
                        "the password cannot be read from {}: {}",
                        path.display(),
                        plain(&error)
                    ))
                })?;
                let line = text.lines().next().unwrap_or_default();
                if line.is_empty() {
                    return Err(Refusal::new(format!(
                        "there is no password in the first line of {}: store it there",
                        path.display()
                    )));
                }
                Ok(Some(Zeroizing::new(line.to_string())))
            }
        }
    }
}
