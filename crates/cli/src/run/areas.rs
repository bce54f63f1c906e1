//! `--swap`: storage for evicted pages.

use super::remote::Remote;
use super::sourced::Sourced;
use crate::refusal::Refusal;
use crate::swapdir;
use crate::swapon_raw::Raw;
use softswap_engine::api::settings::AreaSpec;
use softswap_engine::store::swap::{Activated, Discard, MAX_AREAS, activate};
pub(crate) use softswap_remote::url::is_url;
use softswap_view::units::{self, parse_size};
use std::path::{Path, PathBuf};

/// The largest priority, as with `swapon`.
const MAX_PRIORITY: u16 = 32_767;

const WITHOUT_DISK: &str = "copies=local stores the second copy in a directory on disk, but no \
    directory is given: add one with --swap DIR, or use copies=2";

#[derive(Debug, Default)]
pub(super) struct Common {
    pub(super) named: Vec<Named>,
    /// Each cluster has the index of its area, or of the area that it mirrors.
    pub(super) remotes: Vec<(usize, Remote)>,
}

#[derive(Debug)]
pub(super) struct Named {
    pub(super) order: usize,
    /// The tree's claim, held while this value exists.
    pub(super) area: Activated,
    /// Checked blocks of a raw file. Dropped after the claim.
    pub(super) raw: Option<Raw>,
    /// The user's text, for messages.
    pub(super) shown: String,
}

pub(super) fn resolve(
    asked: Vec<Sourced>,
    default: &[AreaSpec],
    reserve_bytes: u64,
    notes: &mut Vec<String>,
) -> Result<(Vec<AreaSpec>, Common), Refusal> {
    let by_default = |area: &AreaSpec| Sourced {
        text: area.path.to_string_lossy().into_owned(),
        shown: format!("--swap {} (the default)", area.path.display()),
    };
    let asked = if asked.is_empty() { default.iter().map(by_default).collect() } else { asked };
    check_count(&asked)?;
    let (mut areas, mut common) = (Vec::<AreaSpec>::new(), Common::default());
    let is_directory = |asked: &Sourced| {
        !is_url(&asked.text) && parse(&asked.text).is_ok_and(|spec| spec.path.is_dir())
    };
    let has_local_disk = asked.iter().any(is_directory);
    let mut mirrors = Vec::new();
    for asked in &asked {
        let order = areas.len();
        if is_url(&asked.text) {
            let remote = remote(&asked.text, has_local_disk).map_err(|why| asked.refuse(why))?;
            if remote.is_mirror() {
                mirrors.push((asked, remote));
            } else {
                areas.push(remote.spec());
                common.remotes.push((order, remote));
            }
            continue;
        }
        let spec = parse(&asked.text).map_err(|why| asked.refuse(why))?;
        // A directory may be given several times: each area in it has its own file.
        let is_same = |other: &AreaSpec| is_same_file(&other.path, &spec.path);
        if !spec.path.is_dir() && areas.iter().any(is_same) {
            return Err(asked.refuse("this swap area is given twice; give each once"));
        }
        if spec.path.exists() && !spec.path.is_dir() {
            let (spec, area, raw) = named(asked, spec, notes)?;
            areas.push(spec);
            common.named.push(Named { order, area, raw, shown: asked.shown.clone() });
        } else if spec.raw {
            let shown = spec.path.display();
            return Err(asked.refuse(format!(
                "`raw` needs an existing swap file, and {shown} is not one: create it with \
                 `fallocate -l SIZE FILE` and `softswap mkswap --raw FILE`, or leave out `raw`"
            )));
        } else {
            areas.push(directory(asked, spec, reserve_bytes, notes)?);
        }
    }
    // Mirrors are assigned to directories in the given order.
    let mut directories = (0..areas.len()).filter(|order| areas[*order].path.is_dir());
    for (asked, remote) in mirrors {
        let directory = directories.next().ok_or_else(|| asked.refuse(WITHOUT_DISK))?;
        common.remotes.push((directory, remote));
    }
    Ok((areas, common))
}

fn check_count(asked: &[Sourced]) -> Result<(), Refusal> {
    let Some(beyond) = asked.get(MAX_AREAS) else { return Ok(()) };
    let count = asked.len();
    Err(beyond.refuse(format!(
        "{count} swap areas are given, but at most {MAX_AREAS} are supported; remove {} of the \
         --swap options",
        count - MAX_AREAS
    )))
}

/// Returns a cluster's URL as `run` would use it.
///
/// # Errors
/// The reason if the URL is unusable.
pub(crate) fn resolved_url(text: &str, has_local_disk: bool) -> Result<String, String> {
    remote(text, has_local_disk).map(|remote| remote.text().into())
}

fn remote(text: &str, has_local_disk: bool) -> Result<Remote, String> {
    if has_local_disk { Remote::parse_with_local_disk(text) } else { Remote::parse(text) }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let [one, other] = [one, other].map(|path| path.canonicalize().ok());
    one.is_some() && one == other
}

fn directory(
    asked: &Sourced,
    spec: AreaSpec,
    reserve_bytes: u64,
    notes: &mut Vec<String>,
) -> Result<AreaSpec, Refusal> {
    let dir = swapdir::check(&asked.shown, &spec.path, reserve_bytes)?;
    let usable = dir.free_bytes.saturating_sub(reserve_bytes);
    if spec.limit_bytes.is_some_and(|bytes| bytes > usable) {
        notes.push(format!(
            "{}: only {} are free there now, in addition to the reserve",
            asked.shown,
            units::bytes(usable)
        ));
    }
    // The program and its descendants may change directory.
    Ok(AreaSpec { path: std::path::absolute(&dir.path).unwrap_or(dir.path), ..spec })
}

fn named(
    asked: &Sourced,
    spec: AreaSpec,
    notes: &mut Vec<String>,
) -> Result<(AreaSpec, Activated, Option<Raw>), Refusal> {
    let shown = &asked.shown;
    if let Some(bytes) = spec.limit_bytes {
        return Err(asked.refuse(format!(
            "a size ({}) can only be given for a directory; {} is a file or device, whose size is \
             used: leave the size out",
            units::bytes(bytes),
            spec.path.display()
        )));
    }
    let (area, raw) = if spec.raw {
        let (area, raw) = Raw::prove(&spec.path).map_err(|error| asked.refuse(error))?;
        (area, Some(raw))
    } else {
        let area = activate(&spec.path).map_err(|error| asked.refuse(error))?;
        (area, None)
    };
    notes.extend(area.warnings.iter().map(|warning| format!("{shown}: {warning}")));
    notes.extend(raw.iter().filter_map(Raw::warning).map(|warning| format!("{shown}: {warning}")));
    if !area.is_device && raw.is_none() && spec.discard != Discard::None {
        notes.push(format!(
            "{shown}: discard has no effect on a swap file, which keeps its blocks; leave it out, \
             or add `,raw`"
        ));
    }
    let path = std::path::absolute(&spec.path).unwrap_or(spec.path);
    Ok((AreaSpec { path, ..spec }, area, raw))
}

pub(crate) fn each(text: &str) -> impl Iterator<Item = &str> {
    text.split(';').filter(|text| !text.is_empty())
}

/// Parses `PATH[:SIZE][,pri=N][,discard=WHEN][,poll=MODE][,raw]`, or a cluster's URL. The path is
/// the longest prefix that exists.
pub(crate) fn parse(text: &str) -> Result<AreaSpec, String> {
    if is_url(text) {
        return Remote::parse(text).map(|remote| remote.spec());
    }
    let mut spec = AreaSpec::new("");
    let mut rest = text;
    while !Path::new(rest).exists()
        && let Some((before, option)) = rest.rsplit_once(',')
    {
        match option.split_once('=') {
            Some((key, value)) => take_option(&mut spec, key, value)?,
            None if option == "raw" => spec.raw = true,
            None => break,
        }
        rest = before;
    }
    (spec.path, spec.limit_bytes) = split_size(rest)?;
    if spec.path.as_os_str().is_empty() {
        return Err("the path is empty; give a directory, or leave the option out".into());
    }
    Ok(spec)
}

fn take_option(spec: &mut AreaSpec, key: &str, value: &str) -> Result<(), String> {
    match key {
        "pri" => {
            let number = value.parse().ok().filter(|number| *number <= MAX_PRIORITY);
            let number = number.ok_or_else(|| {
                format!("`{value}` is not a priority; give a number from 0 to {MAX_PRIORITY}")
            })?;
            spec.priority = Some(number);
        }
        "discard" => spec.discard = value.parse().map_err(|bad| format!("{bad}"))?,
        "poll" => spec.poll = Some(value.parse().map_err(|bad| format!("{bad}"))?),
        _ => {
            return Err(format!(
                "unknown option `{key}`; the options are pri, discard, poll and raw"
            ));
        }
    }
    Ok(())
}

fn split_size(text: &str) -> Result<(PathBuf, Option<u64>), String> {
    let whole = PathBuf::from(text);
    if whole.exists() {
        return Ok((whole, None));
    }
    let Some((path, size)) = text.rsplit_once(':') else {
        return Ok((whole, None));
    };
    let bytes = parse_size(size).map_err(|why| format!("the size `{size}`: {why}"))?;
    if bytes < swapdir::MIN_FILE_BYTES {
        return Err(format!(
            "a swap file of {} is too small: give at least {}, or leave the size out to use all \
             free space",
            units::bytes(bytes),
            units::bytes(swapdir::MIN_FILE_BYTES)
        ));
    }
    Ok((PathBuf::from(path), Some(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_engine::store::io::poll::mode::Mode;
    use softswap_engine::store::swap::Discard;

    #[test]
    fn area_options_are_parsed_in_any_order() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        assert_eq!(parse(dir), Ok(AreaSpec::new(dir)));
        let raw = AreaSpec { raw: true, priority: Some(7), ..AreaSpec::new(dir) };
        for text in [",raw,pri=7", ",pri=7,raw"] {
            assert_eq!(parse(&format!("{dir}{text}")), Ok(raw.clone()));
        }
        let all = AreaSpec {
            limit_bytes: Some(1 << 30),
            priority: Some(7),
            discard: Discard::Both,
            poll: Some(Mode::Poll),
            ..AreaSpec::new(dir)
        };
        assert_eq!(parse(&format!("{dir}:1G,pri=7,discard=both,poll=poll")), Ok(all.clone()));
        assert_eq!(parse(&format!("{dir}:1G,poll=poll,discard=both,pri=7")), Ok(all));
    }

    #[test]
    fn existing_path_takes_precedence() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a:1G", "b,pri=3", "c,d=e:1G"] {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            assert_eq!(parse(path.to_str().unwrap()), Ok(AreaSpec::new(&path)));
            let with_priority = parse(&format!("{},pri=9", path.display())).unwrap();
            assert_eq!((with_priority.path, with_priority.priority), (path, Some(9)));
        }
    }

    #[test]
    fn cluster_url_needs_size_and_no_password() {
        let area = parse("redis://job@a:7000,b?size=1G&pri=7").unwrap();
        assert_eq!(area.path, Path::new("redis://job@a:7000,b:6379"));
        assert_eq!((area.limit_bytes, area.priority), (Some(1 << 30), Some(7)));
        for (text, part) in [
            ("redis://a", "size="),
            ("redis://a?size=1M", "16.0 MiB"),
            ("redis://a?size=1G&copies=local&pri=3", "pri="),
            ("redis://u:hunter2@a?size=1G", "password"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.contains(part) && !refused.contains("hunter2"), "{refused}");
        }
    }

    #[test]
    fn cluster_with_directories_is_a_mirror() {
        let dirs = [(); 2].map(|()| tempfile::tempdir_in("/var/tmp").unwrap());
        let [one, other] = dirs.each_ref().map(|dir| dir.path().to_str().unwrap());
        let resolve_all = |swaps: &[&str]| {
            let asked =
                |text: &&str| Sourced { text: (*text).into(), shown: format!("--swap {text}") };
            resolve(swaps.iter().map(asked).collect(), &[], 0, &mut Vec::new())
        };
        let cluster = "redis://a?size=1G";
        let (areas, common) = resolve_all(&[cluster, one, cluster, other]).unwrap();
        assert_eq!(areas.iter().map(|area| &area.path).collect::<Vec<_>>(), [one, other]);
        let places = |common: Common| -> Vec<_> {
            common.remotes.into_iter().map(|(at, remote)| (at, remote.is_mirror())).collect()
        };
        assert_eq!(places(common), [(0, true), (1, true)]);
        let (areas, common) = resolve_all(&["redis://a?size=1G&copies=2", one, cluster]).unwrap();
        assert_eq!((areas.len(), places(common)), (2, vec![(0, false), (1, true)]));
        for alone in [&["redis://a?size=1G&copies=local"][..], &[one, cluster, cluster]] {
            let refused = resolve_all(alone).unwrap_err().to_string();
            assert!(refused.contains("copies=local") && refused.contains("--swap"), "{refused}");
        }
        let (areas, common) = resolve_all(&[cluster]).unwrap();
        assert_eq!((areas.len(), places(common)), (1, vec![(0, false)]));
    }

    #[test]
    fn invalid_parts_are_reported_with_valid_values() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        for (text, parts) in [
            (":banana", &["banana"][..]),
            (":1K", &["too small", "16.0 MiB"]),
            (",pri=-1", &["`-1`", "32767"]),
            (",pri=32768", &["`32768`", "32767"]),
            (",discard=maybe", &["`maybe`", "once, pages, both or none"]),
            (",poll=often", &["often", "hybrid"]),
            (",color=red", &["`color`", "pri, discard, poll and raw"]),
        ] {
            let refused = parse(&format!("{dir}{text}")).unwrap_err();
            assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
        }
    }
}
