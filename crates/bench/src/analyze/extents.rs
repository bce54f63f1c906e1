//! `softswap analyze extents`: the extents of a file on its device.

use crate::measure::machine::Machine;
use crate::measure::sample::{Object, object};
use crate::pages::file::regular;
use clap::Args;
use softswap_cli::refusal::{FAILED, Refusal, plain};
use softswap_cli::swapdir;
use softswap_sys::fiemap::{self, FileExtent};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
const GIB: f64 = (1_u64 << 30) as f64;

/// Print the extents in which a file is stored.
///
/// The file system reports them (FIEMAP); the file is not read or changed. Its dirty pages are
/// written first.
#[derive(Args)]
#[command(after_long_help = "\
With --json the result is one object with the keys of the tables, and schema (1) and analysis
(extents). A line of the histogram holds extents from from_bytes to less than twice as much.
share_under_1mib is a share of the mapped bytes. Unplaced extents have no blocks of their own
(inline, compressed, encrypted, not allocated yet).

Examples:
  softswap analyze extents /var/lib/vm/disk.img

Exit status: 0 if the file was examined, 1 if it cannot be, 2 for wrong usage.")]
pub(crate) struct ExtentsArgs {
    /// The file
    path: PathBuf,
}

pub(super) fn examine(args: &ExtentsArgs) -> Result<Object, Refusal> {
    let path = &args.path;
    let (file, file_bytes) =
        regular(path, "is a device, not a regular file; only files have extents", "")?;
    let file_system = swapdir::file_system_of(path);
    let mut found = object! {
        schema: 1,
        analysis: "extents",
        path: path.display().to_string(),
        file_system,
        machine: Machine::with_file_system(path, file_system),
    };
    found.extend(summary(file_bytes, &extents_of(path, &file, file_system)?));
    Ok(found)
}

fn refuse(path: &Path, why: &str) -> Refusal {
    Refusal::new(FAILED, format!("{}: {why}", path.display()))
}

fn extents_of(path: &Path, file: &File, file_system: &str) -> Result<Vec<FileExtent>, Refusal> {
    fiemap::extents(file.as_fd()).map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL | libc::ENOSYS) => refuse(
            path,
            &format!(
                "its file system ({file_system}) does not report where it stores files (FIEMAP); \
                     ext4, XFS, btrfs and f2fs do"
            ),
        ),
        _ => refuse(path, &format!("its extents cannot be read: {}", plain(&error))),
    })
}

pub(crate) fn summary(file_bytes: u64, extents: &[FileExtent]) -> Object {
    let lengths = || extents.iter().map(|extent| extent.length);
    let mapped_bytes: u64 = lengths().sum();
    let (holes, hole_bytes) = holes(file_bytes, extents);
    let some = |value: f64| (mapped_bytes > 0).then_some(value);
    let under_1mib: u64 = lengths().filter(|length| *length < MIB).sum();
    let those = |which: fn(&FileExtent) -> bool| {
        let found = extents.iter().filter(|extent| which(extent));
        found.fold((0, 0), |(count, bytes), extent| (count + 1, bytes + extent.length))
    };
    let (unwritten_extents, unwritten_bytes) = those(FileExtent::is_unwritten);
    let (shared_extents, shared_bytes) = those(FileExtent::is_shared);
    let (unplaced_extents, unplaced_bytes) = those(|extent| !extent.is_placed());
    object! {
        file_bytes,
        mapped_bytes,
        hole_bytes,
        holes,
        extents: extents.len(),
        mean_bytes: some(mapped_bytes as f64 / extents.len() as f64),
        smallest_bytes: lengths().min(),
        largest_bytes: lengths().max(),
        extents_per_gib: some(extents.len() as f64 / (mapped_bytes as f64 / GIB)),
        share_under_1mib: some(under_1mib as f64 / mapped_bytes as f64),
        unwritten_extents,
        unwritten_bytes,
        shared_extents,
        shared_bytes,
        unplaced_extents,
        unplaced_bytes,
        histogram: histogram(extents),
    }
}

fn holes(file_bytes: u64, extents: &[FileExtent]) -> (usize, u64) {
    let mut end = 0;
    let (mut count, mut bytes) = (0, 0);
    let starts = extents.iter().map(|extent| (extent.logical, extent.end()));
    for (start, next_end) in starts.chain([(file_bytes, file_bytes)]) {
        if start > end {
            count += 1;
            bytes += start - end;
        }
        end = next_end.max(end);
    }
    (count, bytes)
}

fn histogram(extents: &[FileExtent]) -> Vec<Object> {
    let mut found: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
    for length in extents.iter().map(|extent| extent.length).filter(|length| *length > 0) {
        let (count, bytes) = found.entry(length.ilog2()).or_default();
        *count += 1;
        *bytes += length;
    }
    let ends = found.keys().next().zip(found.keys().next_back());
    let powers = ends.into_iter().flat_map(|(first, last)| *first..=*last);
    let line = |power| {
        let (extents, bytes) = found.get(&power).copied().unwrap_or_default();
        object! { from_bytes: 1_u64 << power, extents, bytes }
    };
    powers.map(line).collect()
}
