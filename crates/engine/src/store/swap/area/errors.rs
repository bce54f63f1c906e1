//! Errors of the creation of an area and of allocation in it.

use crate::store::io::IoError;
use crate::store::swap::cluster::CLUSTER_BYTES;
use crate::store::swap::extent_map::AppendError;
use bytesize::ByteSize;
use softswap_sys::file::errno;
use std::io;

#[derive(Debug, thiserror::Error)]
pub enum AreaError {
    #[error(
        "swap area limit of {} is too small: give it at least {}",
        ByteSize(*limit_bytes), ByteSize(CLUSTER_BYTES)
    )]
    LimitTooSmall { limit_bytes: u64 },
    #[error(
        "swap area has no space: {} are free, and the reserve is {}; free disk space, lower the \
         reserve, or use another directory",
        ByteSize(*free_bytes), ByteSize(*reserve_bytes)
    )]
    NoSpaceLeft { free_bytes: u64, reserve_bytes: u64 },
    #[error("{areas} swap areas were given; give at least one and at most {most}")]
    Count { areas: usize, most: usize },
    #[error(
        "swap area of {pages} pages: only {mapped} of them have blocks on the device; choose \
         another swap area"
    )]
    Unmapped { mapped: u64, pages: u64 },
    #[error("swap area: {0}")]
    Extents(#[from] AppendError),
    #[error(
        "cannot reserve address space for the tables of the swap area ({0}); raise `ulimit -v`, or \
         give the area a smaller size (`--swap DIR:SIZE`)"
    )]
    Tables(#[from] io::Error),
    #[error(transparent)]
    Device(#[from] IoError),
}

impl AreaError {
    pub fn raw_os_error(&self) -> i32 {
        match self {
            AreaError::NoSpaceLeft { .. } => errno::ENOSPC,
            AreaError::Tables(error) => error.raw_os_error().unwrap_or(errno::EIO),
            AreaError::Device(_) => errno::EIO,
            _ => errno::EINVAL,
        }
    }
}

fn full_text(size_bytes: u64, free_bytes: u64, reserve_bytes: u64) -> String {
    let [size, free, reserve] = [size_bytes, free_bytes, reserve_bytes].map(ByteSize);
    if reserve_bytes == 0 {
        return format!(
            "swap area is full at {size}: its file system has only {free} free; free disk space, \
             add a swap area on another file system"
        );
    }
    format!(
        "swap area is full at {size}: its file system has {free} free, and the reserve is \
         {reserve}; free disk space, lower the reserve, add a swap area elsewhere"
    )
}

/// `FaultError::message` adds the last remedy, more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AreaFull {
    #[error(
        "swap area is full: its limit of {} is used up; raise SIZE in `--swap DIR:SIZE`, add \
         another swap area",
        ByteSize(*limit_bytes)
    )]
    Limit { limit_bytes: u64 },
    #[error("{}", full_text(*size_bytes, *free_bytes, *reserve_bytes))]
    Reserve { size_bytes: u64, free_bytes: u64, reserve_bytes: u64 },
    #[error(
        "swap area is full at {}: {cause}; free disk space, add a swap area elsewhere",
        ByteSize(*size_bytes)
    )]
    NoSpace { size_bytes: u64, cause: IoError },
    /// The tables, sized at the creation of the area, are full.
    #[error(
        "swap area is full: its tables were sized at the start for {}; restart to use space that \
         became free since then, add another swap area",
        ByteSize(*size_bytes)
    )]
    Tables { size_bytes: u64 },
    #[error(
        "swap area cannot grow beyond {}: {cause}; add a swap area on another device",
        ByteSize(*size_bytes)
    )]
    Device { size_bytes: u64, cause: IoError },
    #[error(
        "swap area is full: all of its {} are in use; add another swap area, use a larger one",
        ByteSize(*size_bytes)
    )]
    Fixed { size_bytes: u64 },
    #[error(
        "swap area is full: all of its {} are in use, {} of them by this process and the rest by \
         other processes of its tree; add another swap area, use a larger one",
        ByteSize(*size_bytes), ByteSize(*own_bytes)
    )]
    Shared { size_bytes: u64, own_bytes: u64 },
    #[error(
        "all {areas} swap areas ({}) are full; add another one, raise SIZE in `--swap DIR:SIZE`, \
         free disk space",
        ByteSize(*size_bytes)
    )]
    Every { areas: usize, size_bytes: u64 },
    #[error(
        "the swap area cannot be written any more: {cause}; repair the device, add a swap area \
         elsewhere"
    )]
    Write { cause: IoError },
    #[error("no swap area works any more; repair the devices, add a swap area elsewhere")]
    Failed,
}

impl AreaFull {
    pub(super) fn refused(size_bytes: u64, cause: IoError) -> AreaFull {
        match cause.is_no_space() {
            true => AreaFull::NoSpace { size_bytes, cause },
            false => AreaFull::Device { size_bytes, cause },
        }
    }

    pub(super) fn refused_write(size_bytes: u64, cause: IoError) -> AreaFull {
        match cause.is_no_space() {
            true => AreaFull::NoSpace { size_bytes, cause },
            false => AreaFull::Write { cause },
        }
    }
}
