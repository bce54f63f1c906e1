//! Result of a check, and all results as a table.

use serde::Serialize;
use std::fmt::Write;
use std::io::IsTerminal;

const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Ok,
    Note,
    Missing,
    Fatal,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) status: Status,
    pub(super) detail: String,
    /// Substitute that softswap uses if the feature is missing.
    pub(super) instead: Option<String>,
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

pub(super) fn is_colour_enabled() -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stdout().is_terminal() && !forbidden
}

pub(super) fn table(diagnosis: &Diagnosis, colour: bool) -> String {
    let width = diagnosis.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for check in &diagnosis.checks {
        let _ = write_check(&mut out, check, width, colour);
    }
    let count = |status| diagnosis.checks.iter().filter(|check| check.status == status).count();
    let verdict = match (diagnosis.ok, count(Status::Missing)) {
        (false, _) => {
            format!("`softswap run` will not work here: {} fatal.", count(Status::Fatal))
        }
        (true, 0) => "`softswap run` will work here.".to_string(),
        (true, missing) => format!("`softswap run` will work here; {missing} missing, see above."),
    };
    let _ = writeln!(out, "\n{verdict}");
    out
}

fn write_check(out: &mut String, check: &Check, width: usize, colour: bool) -> std::fmt::Result {
    let (word, shade) = match check.status {
        Status::Ok => ("ok", GREEN),
        Status::Note => ("note", YELLOW),
        Status::Missing => ("missing", YELLOW),
        Status::Fatal => ("fatal", RED),
    };
    let (on, off) = if colour { (shade, PLAIN) } else { ("", "") };
    writeln!(out, "{on}{word:<8}{off} {:<width$}  {}", check.name, check.detail)?;
    let indent = " ".repeat(width + 11);
    if let Some(instead) = &check.instead {
        writeln!(out, "{indent}instead: {instead}")?;
    }
    if let Some(fix) = &check.fix {
        writeln!(out, "{indent}fix:     {fix}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_features_are_printed_with_remedy() {
        let checks = vec![
            Check::ok("kernel", "6.18"),
            Check::note("swap", "slow"),
            Check::missing("io_uring", "refused", "pread", "sysctl".into()),
        ];
        let text = table(&Diagnosis { schema: 1, ok: true, checks }, false);
        assert_eq!(
            text,
            "ok       kernel    6.18\n\
             note     swap      slow\n\
             missing  io_uring  refused\n\
             \x20                  instead: pread\n\
             \x20                  fix:     sysctl\n\
             \n`softswap run` will work here; 1 missing, see above.\n"
        );
    }

    #[test]
    fn colour_is_used_only_if_enabled() {
        let diagnosis = Diagnosis { schema: 1, ok: true, checks: vec![Check::ok("a", "b")] };
        assert!(table(&diagnosis, true).contains(GREEN));
        assert!(!table(&diagnosis, false).contains('\x1b'));
    }
}
