//! Errors of commands: the message and the exit status.

pub use softswap_sys::file::plain;
use std::fmt;

/// The operation failed.
pub const FAILED: u8 = 1;
/// The user has given an unusable value.
pub const USAGE: u8 = 2;
/// softswap itself failed, not the program. `env` and `docker run` use the same number.
pub const OWN: u8 = 125;
/// The program was found but cannot be run.
pub const CANNOT_RUN: u8 = 126;
/// The program was not found.
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

    pub fn own(message: impl Into<String>) -> Refusal {
        Refusal::new(OWN, message)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}
