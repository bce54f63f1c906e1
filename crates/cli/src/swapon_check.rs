//! `softswap swapon-check`: checks whether a file, device or directory can be a swap area.

use crate::output::print;
use crate::refusal::{FAILED, Refusal, plain};
use crate::run::resolve::resolve_storage;
use crate::swapdir;
use crate::swapon_raw::{Raw, RawFacts};
use clap::Args;
use serde::Serialize;
use softswap_engine::store::swap::named::{Activated, activate};
use softswap_remote::url::is_url;
use softswap_sys::PAGE_SIZE;
use softswap_view::units;
use softswap_view::units::visible;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use uuid::Uuid;

/// Check if a file, block device or directory can be used for swapping.
///
/// Makes all checks that `softswap run --swap` makes, and changes nothing. The exception is the
/// mark that a killed run left on a file whose blocks it used: the check removes it.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  softswap swapon-check /var/tmp

Exit status: 0 if it can be used, perhaps with warnings; 2 if not, with the reason and the remedy on
standard error, and with --json also on standard output.")]
pub(crate) struct SwaponCheckArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Check a swap file for use by its blocks (`--swap FILE,raw`), and measure what that gains
    ///
    /// Overwrites pages of the area, which must hold nothing of use. Needs the right to write the
    /// device below the file.
    #[arg(long)]
    raw: bool,

    /// A swap file, a block device, or a directory for swap files
    path: PathBuf,
}

/// Fields that do not apply to directories are omitted.
#[derive(Serialize, Default)]
struct Found {
    schema: u32,
    path: String,
    usable: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: &'static str,
    usable_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    area: Option<AreaFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<RawFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_system: Option<&'static str>,
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
}

#[derive(Serialize)]
struct AreaFacts {
    /// Number of pages, including the header's.
    pages: u64,
    bad_pages: Vec<u32>,
    label: Option<String>,
    uuid: String,
    byte_order: &'static str,
    /// Null if the file system does not report the extents.
    extents: Option<u64>,
    direct_io: bool,
}

pub(crate) fn swapon_check(args: &SwaponCheckArgs) -> Result<ExitCode, Refusal> {
    if args.path.to_str().is_some_and(is_url) {
        return Err(Refusal::usage(
            "swapon-check: that is a cluster: check it with `softswap remote check URL`",
        ));
    }
    let checked = match args.path.is_dir() {
        true if !args.raw => directory(&args.path),
        _ => named(&args.path, args.raw),
    };
    let shown = args.path.display().to_string();
    let (found, outcome) = match checked {
        Ok(found) => (Found { path: shown, usable: true, ..found }, Ok(ExitCode::SUCCESS)),
        Err(refusal) => {
            let text = Some(refusal.to_string());
            (Found { path: shown, refusal: text, ..Found::default() }, Err(refusal))
        }
    };
    let found = Found { schema: 1, ..found };
    let text = match &outcome {
        _ if args.json => serde_json::to_string_pretty(&found).map_err(Refusal::own)?,
        Ok(_) => for_people(&found),
        Err(_) => return outcome,
    };
    print(&text)?;
    outcome
}

fn directory(path: &Path) -> Result<Found, Refusal> {
    let reserve_bytes = resolve_storage(false)?.reserve_bytes;
    let dir = swapdir::check("swapon-check", path, reserve_bytes)?;
    Ok(Found {
        kind: "directory",
        usable_bytes: dir.free_bytes.saturating_sub(reserve_bytes),
        file_system: Some(dir.file_system),
        ..Found::default()
    })
}

fn named(path: &Path, is_raw: bool) -> Result<Found, Refusal> {
    let refuse = |error: &dyn std::fmt::Display| Refusal::usage(format!("swapon-check: {error}"));
    let (area, raw) = if is_raw {
        let (area, raw) = Raw::prove(path).map_err(|error| refuse(&error))?;
        (area, Some(raw))
    } else {
        (activate(path).map_err(|error| refuse(&error))?, None)
    };
    let mut found = Found {
        kind: if area.is_device { "device" } else { "file" },
        usable_bytes: area.header.usable_pages() * PAGE_SIZE as u64,
        warnings: area.warnings.iter().map(ToString::to_string).collect(),
        area: Some(facts(&area)),
        ..Found::default()
    };
    if let Some(proven) = raw {
        found.warnings.extend(proven.warning().map(String::from));
        let facts = RawFacts::of(&proven, &area);
        proven.mark.remove().map_err(|error| refuse(&plain(&error)))?;
        found.raw = Some(facts.map_err(|error| {
            Refusal::new(FAILED, format!("swapon-check: {}: {}", path.display(), plain(&error)))
        })?);
    }
    Ok(found)
}

fn facts(area: &Activated) -> AreaFacts {
    let header = &area.header;
    AreaFacts {
        pages: header.pages(),
        bad_pages: header.bad_pages.clone(),
        label: header.label_text(),
        uuid: Uuid::from_bytes(header.uuid).to_string(),
        byte_order: if header.is_byte_swapped { "other" } else { "native" },
        extents: area.pieces,
        direct_io: area.file.is_direct(),
    }
}

fn for_people(found: &Found) -> String {
    let mut out = format!(
        "{} ({}) can be used: {} for pages\n",
        found.path,
        found.kind,
        units::bytes(found.usable_bytes)
    );
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<12} {value}");
    };
    if let Some(file_system) = found.file_system {
        line("file system", file_system.into());
    }
    if let Some(area) = &found.area {
        let other = if area.byte_order == "other" { ", in the other byte order" } else { "" };
        line("header", format!("version 1{other}"));
        line("label", area.label.as_deref().map_or("none".into(), visible));
        line("UUID", area.uuid.clone());
        line("pages", format!("{}, of them 1 for the header", units::count(area.pages)));
        line("bad pages", units::count(area.bad_pages.len() as u64));
        line("extents", area.extents.map_or("not known".into(), units::count));
        line("direct I/O", if area.direct_io { "yes" } else { "no" }.into());
    }
    for (name, value) in found.raw.iter().flat_map(RawFacts::lines) {
        line(name, value);
    }
    for warning in &found.warnings {
        line("warning", warning.clone());
    }
    out
}
