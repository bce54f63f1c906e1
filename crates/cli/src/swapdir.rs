//! Checks whether a directory can contain the swap file.

use crate::refusal::{Refusal, plain};
use softswap_engine::store::swap::contents::{HEAD_BYTES, recognise};
use softswap_sys::file::{may_make_files, on_disk};
use softswap_sys::holders::use_of_path;
use softswap_view::units;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Free space needed in addition to the reserve, so that swapping can start.
pub const START_BYTES: u64 = 64 << 20;
pub const MIN_FILE_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone)]
pub struct SwapDir {
    pub path: PathBuf,
    pub free_bytes: u64,
    pub file_system: &'static str,
}

/// `asked` names the setting in messages.
pub fn check(asked: &str, path: &Path, reserve_bytes: u64) -> Result<SwapDir, Refusal> {
    let shown = path.display();
    let refuse = |why: String| Refusal::usage(format!("{asked}: {why}"));
    let meta = fs::metadata(path).map_err(|error| {
        refuse(format!(
            "the swap directory {shown} cannot be used: {}; create it with `mkdir -p {shown}`, \
             or choose another directory with --swap DIR",
            plain(&error)
        ))
    })?;
    if !meta.is_dir() {
        return Err(refuse(not_a_directory(path, &meta)));
    }
    let space = rustix::fs::statvfs(path)
        .map_err(|error| refuse(format!("{shown} cannot be examined: {}", plain(&error))))?;
    if space.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return Err(refuse(format!(
            "the swap directory {shown} is on a file system mounted read-only; \
             choose another directory with --swap DIR"
        )));
    }
    on_disk(path).map_err(|error| refuse(format!("{error} with --swap DIR")))?;
    if let Err(error) = may_make_files(path) {
        return Err(refuse(format!(
            "the swap directory {shown} is not writable for this user ({}); \
             choose another directory with --swap DIR, or change its permissions",
            plain(&error)
        )));
    }
    let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
    if free_bytes < reserve_bytes.saturating_add(START_BYTES) {
        return Err(refuse(full_text(path, free_bytes, reserve_bytes)));
    }
    Ok(SwapDir { path: path.to_path_buf(), free_bytes, file_system: file_system_of(path) })
}

fn full_text(path: &Path, free_bytes: u64, reserve_bytes: u64) -> String {
    let shown = path.display();
    let [free, reserve, start] = [free_bytes, reserve_bytes, START_BYTES].map(units::bytes);
    if reserve_bytes == 0 {
        return format!(
            "the swap directory {shown} is full: {free} free, but at least {start} are needed; free \
             space there, or choose another directory with --swap DIR"
        );
    }
    format!(
        "the swap directory {shown} is full: {free} free, but {reserve} are kept in reserve and at \
         least {start} more are needed; free space there, choose another directory with --swap \
         DIR, or lower the reserve with `softswap run --reserve SIZE`"
    )
}

fn not_a_directory(path: &Path, meta: &fs::Metadata) -> String {
    let shown = path.display();
    let kind = meta.file_type();
    let what = if kind.is_block_device() {
        "a block device"
    } else if kind.is_file() {
        "a file"
    } else {
        "not a directory"
    };
    let mut text = format!("{shown} is {what}");
    if kind.is_block_device() || kind.is_file() {
        match content_of(path) {
            Ok(Some(found)) => text += &format!(" that holds {found}"),
            Ok(None) => {}
            Err(error) => text += &format!(" whose contents cannot be read ({})", plain(&error)),
        }
        if let Some(used) = use_of_path(path) {
            text += &format!(" and is {used}");
        }
    }
    text + ", and was not changed: give a directory with --swap DIR"
}

/// `None` if the first bytes are not recognized.
fn content_of(path: &Path) -> io::Result<Option<&'static str>> {
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    let mut head = Vec::new();
    file.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(recognise(&head).next().map(|magic| magic.name))
}

pub fn file_system_of(path: &Path) -> &'static str {
    name_of(rustix::fs::statfs(path).map_or(0, |stat| stat.f_type))
}

fn name_of(kind: i64) -> &'static str {
    match kind {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0xf2f5_2010 => "f2fs",
        0x2fc1_2fc1 => "zfs",
        0x794c_7630 => "overlay",
        0x6969 => "nfs",
        0x6573_5546 => "fuse",
        0x0102_1997 => "9p",
        0x0102_1994 => "tmpfs",
        0x8584_58f6 => "ramfs",
        _ => "unnamed file system",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tmpfs_swap_directory_is_rejected_with_remedy() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
            return eprintln!("skipped: /dev/shm is missing or not writable");
        };
        let error = check("--swap", dir.path(), 0).unwrap_err().to_string();
        assert!(error.contains("is a tmpfs") && error.contains("on a disk"), "{error}");
    }

    #[test]
    fn full_swap_directory_is_rejected_with_free_space() {
        let dir = tempfile::tempdir().unwrap();
        let error = check("--swap", dir.path(), 1 << 60).unwrap_err().to_string();
        assert!(error.contains("is full") && error.contains("--reserve"), "{error}");
        assert!(check("--swap", dir.path(), 0).is_ok());
        assert!(!full_text(dir.path(), 0, 0).contains("reserve"));
    }
}
