//! Claims a named file or block device exclusively: O_EXCL and `flock`.
//!
//! All checks use one open descriptor, after it is locked, so nothing can change between a check
//! and its use:
//!
//! - `O_EXCL` on a block device: the kernel refuses it while another exclusive user (file system,
//!   swap, array) has the device or a part of it, and refuses such users afterwards.
//! - An exclusive `flock` keeps out softswap and `mkswap --lock`. It belongs to the open file, so
//!   it lasts until the last copy of the descriptor is closed, also in a forked child.
//! - A write of no bytes, and an allocation beyond the largest offset, change nothing, but fail
//!   with ETXTBSY if the kernel swaps to the file.

use crate::descriptor::move_high;
use crate::file::{SwapFile, is_kernel_swap, plain};
use crate::holders::{Use, use_of};
use crate::memory::PAGE_SIZE;
use crate::raw_mark::{self, Mark};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// udev locks a device briefly after each close; a ring keeps its file open briefly after exit.
const ATTEMPTS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error(
        "{path} does not exist: create it with `fallocate -l SIZE {path}`, or choose another \
         file or device"
    )]
    Missing { path: PathBuf },
    #[error("{path} is {kind}: choose a file or a block device")]
    Kind { path: PathBuf, kind: &'static str },
    #[error(
        "{path} may not be read and written by this user ({}): change its permissions, or choose \
         another file or device",
        plain(cause)
    )]
    Denied { path: PathBuf, cause: io::Error },
    #[error(
        "{path} is immutable: run `chattr -i {path}` as root, or choose another file or device"
    )]
    Immutable { path: PathBuf },
    #[error(
        "{path} is read-only ({}): remount or unlock it for writing, or choose another file or \
         device",
        plain(cause)
    )]
    ReadOnly { path: PathBuf, cause: io::Error },
    #[error(
        "{path} is {used}, and was not changed: {}choose another file or device",
        used.remedy().map_or_else(String::new, |remedy| format!("{remedy}, or "))
    )]
    InUse { path: PathBuf, used: Use },
    #[error(
        "{path} or a part of it is in use by another program, and was not changed: stop that \
         program, or choose another file or device"
    )]
    Busy { path: PathBuf },
    #[error(
        "{path} is locked by another softswap or mkswap, and was not changed: wait until that \
         program exits, or choose another file or device"
    )]
    Locked { path: PathBuf },
    #[error(
        "{path} cannot be locked ({}), so another program could write to it: choose a file on \
         another file system",
        plain(cause)
    )]
    NoLock { path: PathBuf, cause: io::Error },
    #[error(
        "{path} has sectors of {sector_bytes} bytes, but at most {PAGE_SIZE} are supported: \
         choose another device"
    )]
    Sectors { path: PathBuf, sector_bytes: u32 },
    #[error("{path} cannot be used: {}; choose another file or device", plain(cause))]
    Io { path: PathBuf, cause: io::Error },
}

impl ClaimError {
    fn new(path: &Path, errno: Errno) -> Self {
        let path = path.to_owned();
        let cause = io::Error::from(errno);
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::Missing { path },
            Errno::ACCESS | Errno::PERM => Self::Denied { path, cause },
            Errno::ROFS => Self::ReadOnly { path, cause },
            Errno::TXTBSY => Self::Busy { path },
            _ => Self::Io { path, cause },
        }
    }

    pub fn raw_os_error(&self) -> i32 {
        match self {
            Self::Missing { .. } => libc::ENOENT,
            Self::Immutable { .. } => libc::EPERM,
            Self::Kind { .. } | Self::Sectors { .. } => libc::EINVAL,
            Self::InUse { .. } | Self::Busy { .. } | Self::Locked { .. } => libc::EBUSY,
            Self::Denied { cause, .. }
            | Self::ReadOnly { cause, .. }
            | Self::NoLock { cause, .. }
            | Self::Io { cause, .. } => cause.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// A file or block device that this process uses exclusively while this value exists.
#[derive(Debug)]
pub struct Claimed {
    /// Open for reading and writing, with O_DIRECT if possible.
    pub file: SwapFile,
    pub is_device: bool,
    pub len_bytes: u64,
    pub mode: u32,
    /// The owner, if it is neither this user nor root.
    pub untrusted_owner: Option<u32>,
}

/// Claims the file or block device at `path`. Retries for two seconds if it is busy.
pub fn claim(path: &Path) -> Result<Claimed, ClaimError> {
    for _ in 1..ATTEMPTS {
        match claim_at_once(path) {
            Err(ClaimError::Locked { .. } | ClaimError::Busy { .. }) => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
    claim_at_once(path)
}

pub fn claim_at_once(path: &Path) -> Result<Claimed, ClaimError> {
    let explain = |errno| ClaimError::new(path, errno);
    // Check before opening: opening other kinds of file can have side effects or block.
    let stat = rustix::fs::stat(path).map_err(explain)?;
    let is_device = is_device(path, &stat)?;
    let (fd, direct) = open_unmarked(path, is_device)?;
    let stat = rustix::fs::fstat(&fd).map_err(explain)?;
    if is_device != self::is_device(path, &stat)? {
        // The name now refers to another file, which was opened in the wrong way.
        return Err(ClaimError::Busy { path: path.to_owned() });
    }
    lock(path, &fd)?;
    if let Some(used) = use_of(&stat) {
        return Err(ClaimError::InUse { path: path.to_owned(), used });
    }
    if !is_device && is_kernel_swap(fd.as_fd()) {
        return Err(ClaimError::InUse { path: path.to_owned(), used: Use::ActiveSwap });
    }
    match retry_on_intr(|| rustix::io::pwrite(&fd, &[], 0)) {
        Err(Errno::TXTBSY) => {
            return Err(ClaimError::InUse { path: path.to_owned(), used: Use::ActiveSwap });
        }
        // A read-only device: opening succeeds, but the kernel refuses an empty write.
        Err(errno @ (Errno::PERM | Errno::ACCESS)) if is_device => {
            return Err(ClaimError::ReadOnly { path: path.to_owned(), cause: errno.into() });
        }
        result => result.map_err(explain)?,
    };
    if is_device {
        let sector_bytes = rustix::fs::ioctl_blksszget(&fd).map_err(explain)?;
        if sector_bytes as usize > PAGE_SIZE {
            return Err(ClaimError::Sectors { path: path.to_owned(), sector_bytes });
        }
    }
    let file = SwapFile::of(move_high(fd), direct);
    let len_bytes =
        file.len_bytes().map_err(|cause| ClaimError::Io { path: path.to_owned(), cause })?;
    let owners = [0, rustix::process::geteuid().as_raw()];
    Ok(Claimed {
        file,
        is_device,
        len_bytes,
        mode: stat.st_mode & 0o7777,
        untrusted_owner: (!owners.contains(&stat.st_uid)).then_some(stat.st_uid),
    })
}

fn is_device(path: &Path, stat: &Stat) -> Result<bool, ClaimError> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(false),
        FileType::BlockDevice => return Ok(true),
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "neither a file nor a block device",
    };
    Err(ClaimError::Kind { path: path.to_owned(), kind })
}

/// Removes the immutable flag that a killed process left ([`raw_mark`]).
fn open_unmarked(path: &Path, is_device: bool) -> Result<(OwnedFd, bool), ClaimError> {
    let refused = match open(path, is_device) {
        Err(refused @ ClaimError::Denied { .. }) if !is_device => refused,
        result => return result,
    };
    match raw_mark::clear_stale(path) {
        Ok(Mark::Cleared) => open(path, is_device),
        Ok(Mark::InUse) => Err(ClaimError::Locked { path: path.to_owned() }),
        Ok(Mark::Kept) => Err(ClaimError::Immutable { path: path.to_owned() }),
        Ok(Mark::None) | Err(_) => Err(refused),
    }
}

fn open(path: &Path, is_device: bool) -> Result<(OwnedFd, bool), ClaimError> {
    let mut flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
    if is_device {
        flags |= OFlags::EXCL;
    }
    let open = |more| rustix::fs::open(path, flags | more, Mode::empty());
    let opened = match open(OFlags::DIRECT) {
        Err(Errno::INVAL) => open(OFlags::empty()).map(|fd| (fd, false)),
        result => result.map(|fd| (fd, true)),
    };
    opened.map_err(|errno| match errno {
        Errno::BUSY => held(path),
        // The kernel may refuse writers because the device is in use.
        Errno::ACCESS | Errno::PERM | Errno::ROFS
            if let Some(used) = crate::holders::use_of_path(path) =>
        {
            ClaimError::InUse { path: path.to_owned(), used }
        }
        Errno::ACCESS | Errno::PERM if is_device && is_write_protected(path) => {
            ClaimError::ReadOnly { path: path.to_owned(), cause: errno.into() }
        }
        _ => ClaimError::new(path, errno),
    })
}

/// Returns true if permissions allow writing: a refusal is then by the device's write protection.
fn is_write_protected(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

fn held(path: &Path) -> ClaimError {
    let path = path.to_owned();
    if let Some(used) = crate::holders::use_of_path(&path) {
        return ClaimError::InUse { path, used };
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let locked = rustix::fs::open(&path, flags, Mode::empty()).is_ok_and(|fd| {
        rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    });
    if locked { ClaimError::Locked { path } } else { ClaimError::Busy { path } }
}

fn lock(path: &Path, fd: &OwnedFd) -> Result<(), ClaimError> {
    let path = path.to_owned();
    match retry_on_intr(|| rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(ClaimError::Locked { path }),
        Err(errno) => Err(ClaimError::NoLock { path, cause: errno.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::{NamedTempFile, TempPath};

    fn scratch(bytes: usize) -> TempPath {
        let file = NamedTempFile::new().unwrap().into_temp_path();
        std::fs::write(&file, vec![7; bytes]).unwrap();
        file
    }

    #[test]
    fn claim_lasts_until_last_descriptor_closes() {
        let path = scratch(8192);
        let first = claim_at_once(&path).unwrap();
        assert!(!first.is_device && first.len_bytes == 8192 && first.untrusted_owner.is_none());
        let copy = first.file.as_fd().try_clone_to_owned().unwrap();
        let is_locked = || matches!(claim_at_once(&path), Err(ClaimError::Locked { .. }));
        assert!(is_locked());
        drop(first);
        assert!(is_locked());
        drop(copy);
        // Children that other tests fork also hold copies for a moment.
        crate::waiting::eventually("the claim is released", || !is_locked());
    }

    #[test]
    fn claiming_changes_nothing() {
        let path = scratch(10_000);
        let before = std::fs::metadata(&path).unwrap();
        drop(claim_at_once(&path).unwrap());
        let after = std::fs::metadata(&path).unwrap();
        assert_eq!(before.modified().unwrap(), after.modified().unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), [7; 10_000]);
    }

    #[test]
    fn non_storage_is_rejected_by_kind() {
        for (path, kind) in [("/dev/null", "a character device"), ("/", "a directory")] {
            let error = claim(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains(path) && error.contains(kind), "{error}");
        }
        let error = claim(Path::new("/no/such/file")).unwrap_err().to_string();
        assert!(error.contains("/no/such/file") && error.contains("fallocate"), "{error}");
    }

    #[test]
    fn running_executable_is_rejected() {
        let path = scratch(0);
        // Copied by a process: no forked child of a test may hold the program open for writing.
        let copy = std::process::Command::new("cp").arg("/bin/sleep").arg(&path).status();
        assert!(copy.unwrap().success());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        let mut child = std::process::Command::new(&path).arg("1000").spawn().unwrap();
        let refused = claim_at_once(&path);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(refused, Err(ClaimError::Busy { .. })), "{refused:?}");
    }
}
