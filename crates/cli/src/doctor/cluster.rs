//! Checks a cluster that stores pages, by running `softswap-remote check`.

use super::check::Check;
use crate::refusal::plain;
use crate::run::areas;
use serde::Deserialize;
use softswap_remote::PROGRAM;
use softswap_view::units;
use std::process::Command;

const NAME: &str = "swap-cluster";

#[derive(Deserialize)]
struct Answer {
    result: Report,
}

#[derive(Deserialize)]
struct Report {
    servers: Vec<Server>,
    room_for_pages_bytes: Option<u64>,
    refusals: Vec<String>,
    warnings: Vec<String>,
}

#[derive(Deserialize)]
struct Server {
    median_read_us: u64,
}

pub(super) fn checks(url: &str, has_local_disk: bool) -> Vec<Check> {
    let url = match areas::resolved_url(url, has_local_disk) {
        Ok(url) => url,
        // The URL is not repeated, because it may contain a password.
        Err(why) => return vec![Check::fatal(NAME, why, "softswap remote check URL".into())],
    };
    let url = url.as_str();
    let fix = || format!("softswap remote check '{url}'");
    let report = match query(url) {
        Ok(report) => report,
        Err(why) => return vec![Check::fatal(NAME, why, fix())],
    };
    let refused = report.refusals.iter().map(|why| Check::fatal(NAME, why, fix()));
    let mut checks: Vec<Check> = refused.collect();
    if checks.is_empty() {
        let slowest = report.servers.iter().map(|server| server.median_read_us).max().unwrap_or(0);
        let room = report.room_for_pages_bytes.map_or_else(
            || "no maxmemory limits its space for pages".into(),
            |bytes| format!("space for {} of pages, each with all its copies", units::bytes(bytes)),
        );
        let servers = report.servers.len();
        let detail = format!(
            "primaries: {servers}; median time to read a page: {slowest} us on \
            the slowest; {room}"
        );
        checks.push(Check::ok(NAME, detail));
    }
    checks.extend(report.warnings.iter().map(|why| Check::note(NAME, why)));
    checks
}

/// `softswap-remote` looks up the password itself, so it is not passed.
fn query(url: &str) -> Result<Report, String> {
    let own = std::env::current_exe().map_err(|error| plain(&error))?;
    let mut command = Command::new(own.with_file_name(PROGRAM));
    let output = command.args(["check", url, "--json"]).output().map_err(|error| {
        format!(
            "{PROGRAM}, which connects to clusters, cannot be run: {}; install it next to \
             `softswap`",
            plain(&error)
        )
    })?;
    serde_json::from_slice::<Answer>(&output.stdout).map(|answer| answer.result).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        said.trim().trim_start_matches("softswap remote: ").to_string()
    })
}
