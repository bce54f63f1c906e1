//! Why an area cannot be had, or has no room.

use crate::store::io::IoError;
use crate::store::swap::cluster::CLUSTER_BYTES;
use crate::store::swap::extent::AppendError;
use bytesize::ByteSize;
use softswap_sys::file::errno;
use std::io;

/// Why an area could not be set up.
///
/// ```
/// use softswap_engine::base::stats::{STATS_WORDS, Stats};
/// use softswap_engine::door::{engine::Engine, settings::Config};
/// use std::sync::atomic::AtomicU64;
/// static WORDS: [AtomicU64; STATS_WORDS] = [const { AtomicU64::new(0) }; STATS_WORDS];
/// let error = Engine::start(&Config::default(), Vec::new(), Stats::new(&WORDS)).err().unwrap();
/// assert!(error.to_string().starts_with("0 swap areas were given; give at least one"));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum AreaError {
    /// Not even the smallest step of growth fits below the limit.
    #[error(
        "swap area limit of {} is too small: give it at least {}",
        ByteSize(*limit_bytes), ByteSize(CLUSTER_BYTES)
    )]
    LimitTooSmall {
        /// The configured limit.
        limit_bytes: u64,
    },
    /// The file system is too full to begin with.
    #[error(
        "swap area has no room: {} are free and {} are to stay free; free some space, lower the \
         reserve, or use another directory",
        ByteSize(*free_bytes), ByteSize(*reserve_bytes)
    )]
    NoRoom {
        /// Free on the file system.
        free_bytes: u64,
        /// The configured reserve.
        reserve_bytes: u64,
    },
    /// None, or more than slot numbers can tell apart.
    #[error("{areas} swap areas were given; give at least one and at most {most}")]
    Count {
        /// How many were given.
        areas: usize,
        /// How many there may be.
        most: usize,
    },
    /// The pages set aside do not all have a place.
    #[error("swap area of {pages} pages: only {mapped} of them have a place on the device")]
    Unmapped {
        /// Pages with a place.
        mapped: u64,
        /// Pages there should be.
        pages: u64,
    },
    /// Where the pages lie makes no sense.
    #[error("swap area: {0}")]
    Extents(#[from] AppendError),
    /// Address space for the tables was refused.
    #[error(
        "swap area tables: {0}; raise the address-space limit (ulimit -v) or lower the area's limit"
    )]
    Tables(#[from] io::Error),
    /// The device did not answer.
    #[error(transparent)]
    Device(#[from] IoError),
}

impl AreaError {
    /// The error number that says the same.
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        match self {
            AreaError::NoRoom { .. } => errno::ENOSPC,
            AreaError::Tables(error) => error.raw_os_error().unwrap_or(errno::EIO),
            AreaError::Device(_) => errno::EIO,
            _ => errno::EINVAL,
        }
    }
}

/// Of the memory of other machines there is no file system, and no reserve.
fn full_text(size_bytes: u64, free_bytes: u64, reserve_bytes: u64) -> String {
    let [size, free, reserve] = [size_bytes, free_bytes, reserve_bytes].map(ByteSize);
    if reserve_bytes == 0 {
        return format!(
            "swap area is full at {size}: {free} are free beside it; free some space, or add an \
             area elsewhere"
        );
    }
    format!(
        "swap area is full at {size}: its file system has {free} free, of which {reserve} are to \
         stay free; free some space, lower the reserve, or add an area elsewhere"
    )
}

/// Why no slot is to be had, and what would help.
///
/// ```
/// use softswap_engine::store::swap::AreaFull;
/// let error = AreaFull::Limit { limit_bytes: 1 << 30 };
/// assert!(error.to_string().ends_with("raise the limit, or add an area"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AreaFull {
    /// The configured limit is reached.
    #[error(
        "swap area is full: all of its limit of {} is in use; raise the limit, or add an area",
        ByteSize(*limit_bytes)
    )]
    Limit {
        /// The configured limit.
        limit_bytes: u64,
    },
    /// Growing would eat into the reserve.
    #[error("{}", full_text(*size_bytes, *free_bytes, *reserve_bytes))]
    Reserve {
        /// What the area has.
        size_bytes: u64,
        /// Free on the file system.
        free_bytes: u64,
        /// The configured reserve.
        reserve_bytes: u64,
    },
    /// The device refused to grow for lack of space.
    #[error(
        "swap area is full at {}: {cause}; free some space, or add an area elsewhere",
        ByteSize(*size_bytes)
    )]
    NoSpace {
        /// What the area has.
        size_bytes: u64,
        /// What the device said.
        cause: IoError,
    },
    /// The tables, sized when the area was made, have no room for more.
    #[error(
        "swap area is full: its tables end at {}; restart to use space that became free since the \
         start, or add an area",
        ByteSize(*size_bytes)
    )]
    Tables {
        /// What the area has.
        size_bytes: u64,
    },
    /// The device failed to grow for another reason.
    #[error(
        "swap area cannot grow beyond {}: {cause}; add an area on another device",
        ByteSize(*size_bytes)
    )]
    Device {
        /// What the area has.
        size_bytes: u64,
        /// What the device said.
        cause: IoError,
    },
    /// All of the pages set aside are in use.
    #[error(
        "swap area is full: all of its {} are in use; add an area, or make a larger one",
        ByteSize(*size_bytes)
    )]
    Fixed {
        /// What the area has.
        size_bytes: u64,
    },
    /// All of the pages that a tree of processes shares are in use.
    #[error(
        "swap area is full: all of its {} are in use, {} of them by this process and the rest by \
         others of its tree; add an area, or make a larger one",
        ByteSize(*size_bytes), ByteSize(*own_bytes)
    )]
    Shared {
        /// What the area has.
        size_bytes: u64,
        /// What this process has of it.
        own_bytes: u64,
    },
    /// Several areas, and none has room.
    #[error(
        "all {areas} swap areas are full, with {} between them; add an area, raise a limit, or free \
         some space",
        ByteSize(*size_bytes)
    )]
    Every {
        /// How many areas there are.
        areas: usize,
        /// What they have.
        size_bytes: u64,
    },
    /// The device takes no page, wherever it is to lie.
    #[error(
        "the swap area cannot be written any more: {cause}; see to the device, or add an area \
         elsewhere"
    )]
    Write {
        /// What the device said.
        cause: IoError,
    },
    /// None is left that works.
    #[error("no swap area works any more; see to the devices, or add an area elsewhere")]
    Failed,
}

impl AreaFull {
    /// What it means that the device of an area so large refused storage.
    pub(super) fn refused(size_bytes: u64, cause: IoError) -> AreaFull {
        match cause.is_no_space() {
            true => AreaFull::NoSpace { size_bytes, cause },
            false => AreaFull::Device { size_bytes, cause },
        }
    }

    /// What it means that an area so large takes no page.
    pub(super) fn refused_write(size_bytes: u64, cause: IoError) -> AreaFull {
        match cause.is_no_space() {
            true => AreaFull::NoSpace { size_bytes, cause },
            false => AreaFull::Write { cause },
        }
    }
}
