//! Result of one check, and of all checks.

use serde::Serialize;

/// Status of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Ok,
    Note,
    Missing,
    Fatal,
}

/// A completed check.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) status: Status,
    /// Result of the check.
    pub(super) detail: String,
    /// Substitute that softswap uses if the feature is missing.
    pub(super) instead: Option<String>,
    /// Command that provides the feature.
    pub(super) fix: Option<String>,
}

impl Check {
    pub(super) fn ok(name: &'static str, detail: impl Into<String>) -> Check {
        Check { name, status: Status::Ok, detail: detail.into(), instead: None, fix: None }
    }

    pub(super) fn note(name: &'static str, detail: impl Into<String>) -> Check {
        Check { status: Status::Note, ..Check::ok(name, detail) }
    }

    pub(super) fn missing(
        name: &'static str,
        detail: impl Into<String>,
        instead: &str,
        fix: String,
    ) -> Check {
        let detail = detail.into();
        let instead = Some(instead.to_string());
        Check { name, status: Status::Missing, detail, instead, fix: Some(fix) }
    }

    pub(super) fn fatal(name: &'static str, detail: impl Into<String>, fix: String) -> Check {
        let instead = Some("`softswap run` refuses to start".to_string());
        Check { name, status: Status::Fatal, detail: detail.into(), instead, fix: Some(fix) }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Diagnosis {
    pub(super) schema: u32,
    pub(super) ok: bool,
    pub(super) checks: Vec<Check>,
}
