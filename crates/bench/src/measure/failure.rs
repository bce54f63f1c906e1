//! Converts errors of the operating system to texts and refusals.

use softswap_cli::refusal::{Refusal, plain};
use std::fmt::Display;
use std::io;

/// Adds a description of the failed action to an error.
pub(crate) trait OrRefuse<T> {
    fn or_text(self, what: impl Display) -> Result<T, String>;

    /// Refuses with the exit status for a failure of softswap itself.
    fn or_own(self, what: impl Display) -> Result<T, Refusal>;

    /// Refuses with the exit status for an unusable value.
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

/// Converts an error whose message needs no description.
pub(crate) fn own(error: impl Display) -> Refusal {
    Refusal::own(error.to_string())
}
