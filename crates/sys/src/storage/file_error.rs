//! Errors of opening a swap file, and the error numbers that callers distinguish.

use rustix::io::Errno;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

pub mod errno {
    pub use libc::{
        EAGAIN, EBADF, EDQUOT, EFBIG, EINTR, EINVAL, EIO, ENOSPC, ENOSYS, ENOTTY, EOPNOTSUPP,
        ESTALE, ETIMEDOUT,
    };
}

/// Returns the text of an error without Rust's "(os error 2)".
pub fn plain(error: &(impl Display + ?Sized)) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_string(),
        None => text,
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(
        "swap directory {path} does not exist: create it with `mkdir -p {path}`, or choose another \
         directory"
    )]
    NoSuchDirectory { path: PathBuf },
    #[error("swap path {path} is not a directory: choose a directory")]
    NotADirectory { path: PathBuf },
    #[error(
        "swap directory {path} does not allow creating files ({}): change its permissions, or \
         choose another directory",
        plain(cause)
    )]
    NotWritable { path: PathBuf, cause: io::Error },
    #[error(
        "swap directory {path} is on a read-only file system: choose a directory on a writable \
         one"
    )]
    ReadOnly { path: PathBuf },
    #[error(
        "the swap directory {path} is on a file system that stores no files; choose another \
         directory"
    )]
    NoFiles { path: PathBuf },
    #[error(
        "the swap directory {path} is a {file_system}: its files are stored in DRAM, so writing \
         pages there frees no memory; choose a directory on a disk"
    )]
    InMemory { path: PathBuf, file_system: &'static str },
    #[error(
        "file system of swap directory {path} is full: free disk space, or choose another \
         directory"
    )]
    NoSpace { path: PathBuf },
    #[error(
        "disk quota is used up in swap directory {path}: raise the quota, or choose another \
         directory"
    )]
    Quota { path: PathBuf },
    #[error(
        "no file descriptor is free for a swap file in {path} ({}): raise the open-files limit \
         (ulimit -n)",
        plain(cause)
    )]
    NoDescriptor { path: PathBuf, cause: io::Error },
    #[error("cannot create a swap file in {path}: {}; choose another directory", plain(cause))]
    Unusable { path: PathBuf, cause: io::Error },
}

impl FileError {
    pub(super) fn new(path: &Path, errno: Errno) -> Self {
        let path = path.to_owned();
        let cause = io::Error::from(errno);
        match errno {
            Errno::NOENT => Self::NoSuchDirectory { path },
            Errno::NOTDIR => Self::NotADirectory { path },
            Errno::ACCESS | Errno::PERM => Self::NotWritable { path, cause },
            Errno::ROFS => Self::ReadOnly { path },
            Errno::NOSPC => Self::NoSpace { path },
            Errno::DQUOT => Self::Quota { path },
            Errno::MFILE | Errno::NFILE => Self::NoDescriptor { path, cause },
            _ => Self::Unusable { path, cause },
        }
    }
    pub fn raw_os_error(&self) -> i32 {
        match self {
            Self::NoSuchDirectory { .. } => libc::ENOENT,
            Self::NotADirectory { .. } => libc::ENOTDIR,
            Self::ReadOnly { .. } => libc::EROFS,
            Self::NoFiles { .. } => libc::EOPNOTSUPP,
            Self::InMemory { .. } => libc::EINVAL,
            Self::NoSpace { .. } => libc::ENOSPC,
            Self::Quota { .. } => libc::EDQUOT,
            Self::NotWritable { cause, .. }
            | Self::NoDescriptor { cause, .. }
            | Self::Unusable { cause, .. } => cause.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}
