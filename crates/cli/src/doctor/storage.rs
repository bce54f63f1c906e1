//! Checks of the swap directory and of the runtime library.

use super::check::{Check, Status};
use super::cluster;
use crate::library;
use crate::refusal::{Refusal, plain};
use crate::run::areas::{self, is_url};
use crate::run::resolve::{Storage, resolve_storage};
use crate::run::sourced::{Sourced, without_password};
use crate::swapdir::{self, SwapDir};
use crate::swapon_raw;
use softswap_engine::api::settings::{AreaSpec, Config};
use softswap_engine::store::swap::{activate, raw};
use softswap_sys::{PAGE_SIZE, probe};
use softswap_view::units;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) fn checks(asked: &[String]) -> Vec<Check> {
    let mut checks = Vec::new();
    let fix = "softswap doctor --swap DIR   # and softswap run --swap DIR";
    let storage = resolve_storage(asked.is_empty()).unwrap_or_else(|refusal| {
        let fix = "correct the variable or the settings file".into();
        checks.push(Check::fatal("settings", refusal.to_string(), fix));
        Storage { reserve_bytes: Config::default().reserve_bytes, areas: Vec::new() }
    });
    let chosen = chosen(asked, &storage.areas);
    let has_local_disk =
        chosen.iter().any(|(location, _)| matches!(location, Ok(AreaLocation::Directory(_))));
    for (location, from) in chosen {
        let path = match location {
            Ok(AreaLocation::Directory(path)) => path,
            Ok(AreaLocation::Cluster(url)) => {
                checks.extend(cluster::checks(&url, has_local_disk));
                continue;
            }
            Ok(AreaLocation::Named { path, is_raw }) => {
                let (name, examined) = match is_raw {
                    true => ("swap-raw-file", raw_file(&path)),
                    false => ("swap-file", file_or_device(&path)),
                };
                checks.push(match examined {
                    Ok(detail) => Check::ok(name, detail),
                    Err(why) => Check::fatal(name, why, fix.into()),
                });
                continue;
            }
            Err(why) => {
                checks.push(Check::fatal("swap-directory", format!("{from}: {why}"), fix.into()));
                continue;
            }
        };
        match swapdir::check(&from, &path, storage.reserve_bytes) {
            Ok(dir) => {
                checks.push(directory(&dir));
                checks.extend(swap_file(&dir));
            }
            Err(refusal) => {
                checks.push(Check::fatal("swap-directory", refusal.to_string(), fix.into()));
            }
        }
    }
    checks.push(runtime_library());
    checks
}

enum AreaLocation {
    Directory(PathBuf),
    Cluster(String),
    Named { path: PathBuf, is_raw: bool },
}

impl AreaLocation {
    fn parse(text: &str) -> Result<AreaLocation, String> {
        match is_url(text) {
            true => Ok(AreaLocation::Cluster(text.into())),
            false => areas::parse(text).map(|AreaSpec { path, raw: is_raw, .. }| {
                match is_raw || path.exists() && !path.is_dir() {
                    true => AreaLocation::Named { path, is_raw },
                    false => AreaLocation::Directory(path),
                }
            }),
        }
    }
}

fn chosen(given: &[String], settings: &[Sourced]) -> Vec<(Result<AreaLocation, String>, String)> {
    if !given.is_empty() {
        let from = |text: &str| format!("--swap {}", without_password(text));
        return given.iter().map(|text| (AreaLocation::parse(text), from(text))).collect();
    }
    if !settings.is_empty() {
        let area = |area: &Sourced| (AreaLocation::parse(&area.text), area.shown.clone());
        return settings.iter().map(area).collect();
    }
    let paths = Config::default().areas.into_iter().map(|area| area.path);
    paths.map(|path| (Ok(AreaLocation::Directory(path)), "the default".into())).collect()
}

fn directory(dir: &SwapDir) -> Check {
    let detail = format!(
        "{} ({}), {} free",
        dir.path.display(),
        dir.file_system,
        units::bytes(dir.free_bytes)
    );
    Check::ok("swap-directory", detail)
}

/// Does not write to the area. Returns what it is.
fn file_or_device(path: &Path) -> Result<String, String> {
    let area = activate(path).map_err(|error| error.to_string())?;
    let kind = if area.is_device { "device" } else { "file" };
    let size = units::bytes(area.header.usable_pages() * PAGE_SIZE as u64);
    Ok(format!("{} ({kind}), {size} for pages", path.display()))
}

/// Does not write to the area. Returns what it is.
fn raw_file(path: &Path) -> Result<String, String> {
    let examine = || {
        let (area, raw) = raw::claim(path)?;
        raw.check_not_open(&area).map(|()| raw)
    };
    let raw = examine().map_err(|error| error.to_string())?;
    let (shown, extents) = (path.display(), swapon_raw::extents(raw.map.len()));
    Ok(format!("{shown} ({}): {extents}, and its device is writable", raw.file_system))
}

fn swap_file(dir: &SwapDir) -> Vec<Check> {
    let shown = dir.path.display();
    let nameless = probe::nameless_file(&dir.path);
    let mut checks = vec![match &nameless {
        Ok(_) => Check::ok("swap-nameless-file", "a file without a name was made (O_TMPFILE)"),
        Err(error) => Check::missing(
            "swap-nameless-file",
            format!("O_TMPFILE is refused: {}", plain(error)),
            "softswap creates a named file and unlinks it immediately",
            "softswap run --swap DIR ...   # DIR on ext4, xfs or btrfs".into(),
        ),
    }];
    let tried = match nameless {
        Ok(file) => probe::direct_round_trip(file),
        Err(_) => tempfile_in(&dir.path).and_then(probe::direct_round_trip),
    };
    checks.push(match tried {
        Ok(()) => Check::ok("swap-direct-io", "a page was written and read back with O_DIRECT"),
        Err(error) => Check::missing(
            "swap-direct-io",
            format!("O_DIRECT is refused in {shown}: {}", plain(&error)),
            "pages pass through the page cache, which uses DRAM outside the budget",
            "softswap run --swap DIR ...   # DIR on ext4, xfs or btrfs on a disk".into(),
        ),
    });
    checks
}

fn tempfile_in(dir: &Path) -> std::io::Result<std::os::fd::OwnedFd> {
    let path = dir.join(format!(".softswap-doctor-{}", std::process::id()));
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file.into())
}

fn runtime_library() -> Check {
    let path = match library::find() {
        Ok(path) => path,
        Err(refusal) => {
            return Check::fatal("runtime-library", refusal.to_string(), "make install".into());
        }
    };
    let shown = path.display();
    match preload(&path) {
        Ok(()) => Check::ok("runtime-library", format!("{shown}; the loader can preload it")),
        Err(why) => Check {
            status: Status::Fatal,
            ..Check::fatal(
                "runtime-library",
                format!("{shown} cannot be preloaded: {why}"),
                "make install".into(),
            )
        },
    }
}

/// Fails if the loader prints a warning.
fn preload(library: &Path) -> Result<(), Refusal> {
    let tried = std::env::current_exe()
        .and_then(|exe| Command::new(exe).arg("--version").env("LD_PRELOAD", library).output())
        .map_err(|error| Refusal::own(plain(&error)))?;
    let said = String::from_utf8_lossy(&tried.stderr);
    if tried.status.success() && said.trim().is_empty() {
        return Ok(());
    }
    let first = said.lines().next().map_or_else(|| tried.status.to_string(), str::to_string);
    Err(Refusal::own(first))
}
