//! Errors of the operating system as texts and refusals.

use softswap_cli::refusal::{Refusal, plain};
use std::fmt::Display;
use std::io;

/// Says what failed, and why.
pub(crate) trait OrRefuse<T> {
    fn or_text(self, what: impl Display) -> Result<T, String>;

    /// With the exit status of a failure of softswap's own.
    fn or_own(self, what: impl Display) -> Result<T, Refusal>;

    /// With the exit status of a value that cannot be used.
    fn or_usage(self, what: impl Display) -> Result<T, Refusal>;
}

impl<T> OrRefuse<T> for io::Result<T> {
    fn or_text(self, what: impl Display) -> Result<T, String> {
        self.map_err(|error| format!("{what}: {}", plain(&error)))
    }

    fn or_own(self, what: impl Display) -> Result<T, Refusal> {
        self.or_text(what).map_err(Refusal::own)
    }

    fn or_usage(self, what: impl Display) -> Result<T, Refusal> {
        self.or_text(what).map_err(Refusal::usage)
    }
}

/// An error that says all by itself.
pub(crate) fn own(error: impl Display) -> Refusal {
    Refusal::own(error.to_string())
}
