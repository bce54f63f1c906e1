//! A value that somebody gave, with the place where it was given.

use crate::refusal::Refusal;
use std::fmt::Display;

/// A value and where it came from.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) text: String,
    /// `--memory banana`, `SOFTSWAP_MEMORY=banana`, `memory = banana in FILE`.
    pub(super) shown: String,
}

impl Asked {
    pub(super) fn refuse(&self, why: impl Display) -> Refusal {
        Refusal::usage(format!("{}: {why}", self.shown))
    }
}
