//! Errors of commands: the message and the exit status.

pub use softswap_sys::file::plain;
use std::{fmt, io};

/// The operation failed.
pub const FAILED: u8 = 1;
/// The user has given an unusable value.
pub const USAGE: u8 = 2;
/// softswap itself failed, not the program. `env` and `docker run` use the same number.
pub const OWN: u8 = 125;
pub const CANNOT_RUN: u8 = 126;
pub const NOT_FOUND: u8 = 127;

/// A refusal. The message names the problem, the limit, and what to do.
#[derive(Debug)]
pub struct Refusal {
    pub status: u8,
    message: String,
}

impl Refusal {
    pub fn new(status: u8, message: impl Into<String>) -> Refusal {
        Refusal { status, message: message.into() }
    }

    pub fn usage(message: impl Into<String>) -> Refusal {
        Refusal::new(USAGE, message)
    }

    pub fn own(message: impl fmt::Display) -> Refusal {
        Refusal::new(OWN, message.to_string())
    }
}

pub trait OrRefuse<T> {
    fn or_text(self, what: impl fmt::Display) -> Result<T, String>;

    fn or_status(self, status: u8, what: impl fmt::Display) -> Result<T, Refusal>;

    /// Exit status [`OWN`].
    fn or_own(self, what: impl fmt::Display) -> Result<T, Refusal>
    where
        Self: Sized,
    {
        self.or_status(OWN, what)
    }

    /// Exit status [`USAGE`].
    fn or_usage(self, what: impl fmt::Display) -> Result<T, Refusal>
    where
        Self: Sized,
    {
        self.or_status(USAGE, what)
    }
}

impl<T> OrRefuse<T> for io::Result<T> {
    fn or_text(self, what: impl fmt::Display) -> Result<T, String> {
        self.map_err(|error| format!("{what}: {}", plain(&error)))
    }

    fn or_status(self, status: u8, what: impl fmt::Display) -> Result<T, Refusal> {
        self.or_text(what).map_err(|text| Refusal::new(status, text))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}
