//! Unnamed files (O_TMPFILE): no other process can open them, and closing them deletes them.

use super::file_error::FileError;
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;

pub fn is_in_memory(file_system: i64) -> bool {
    matches!(file_system, TMPFS | RAMFS)
}

/// Checks that a directory's files are on a disk, so that writing pages to them frees memory.
pub fn on_disk(directory: &Path) -> Result<(), FileError> {
    let stat = rustix::fs::statfs(directory).map_err(|errno| FileError::new(directory, errno))?;
    let path = || directory.to_owned();
    match stat.f_type {
        RAMFS => Err(FileError::InMemory { path: path(), file_system: "ramfs" }),
        TMPFS => Err(FileError::InMemory { path: path(), file_system: "tmpfs" }),
        // File systems without storage, such as /proc.
        _ if stat.f_blocks == 0 => Err(FileError::NoFiles { path: path() }),
        _ => Ok(()),
    }
}

pub fn may_make_files(directory: &Path) -> io::Result<()> {
    Ok(rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK)?)
}

pub(super) fn open_unnamed(parent: &OwnedFd, direct: bool) -> Result<OwnedFd, Errno> {
    let owner_only = Mode::RUSR | Mode::WUSR;
    let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
    if direct {
        flags |= OFlags::DIRECT;
    }
    // With EXCL, `linkat` cannot give the file a name later.
    let unnamed = flags | OFlags::TMPFILE | OFlags::EXCL;
    match rustix::fs::openat(parent, c".", unnamed, owner_only) {
        // Errors of file systems (and overlays of them) without O_TMPFILE.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
            open_and_unlink(parent, flags, owner_only)
        }
        result => result,
    }
}

fn open_and_unlink(parent: &OwnedFd, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    const ATTEMPTS: usize = 16;
    let process = rustix::process::getpid().as_raw_nonzero();
    for _ in 0..ATTEMPTS {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!(".softswap-{process}-{:x}-{count}", now.tv_nsec);
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        match rustix::fs::openat(parent, &name, flags | OFlags::CREATE | OFlags::EXCL, mode) {
            Err(Errno::EXIST) => {}
            Err(errno) => {
                // Some file systems create the file and then refuse O_DIRECT.
                let _ = rustix::fs::unlinkat(parent, &name, AtFlags::empty());
                return Err(errno);
            }
            Ok(fd) => {
                rustix::fs::unlinkat(parent, &name, AtFlags::empty())?;
                return Ok(fd);
            }
        }
    }
    Err(Errno::EXIST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_file_is_unlinked_at_once() {
        assert!(matches!(on_disk("/proc".as_ref()), Err(FileError::NoFiles { .. })));
        let directory = tempfile::tempdir().unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(directory.path(), flags, Mode::empty()).unwrap();
        let fd = open_and_unlink(&parent, OFlags::RDWR, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let stat = rustix::fs::fstat(&fd).unwrap();
        assert_eq!((stat.st_nlink, stat.st_mode & 0o777), (0, 0o600));
    }
}
