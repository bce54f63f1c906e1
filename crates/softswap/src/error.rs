//! Errors, each with a remedy.

use bytesize::ByteSize;
use softswap_engine::api::engine::memory_limit::LimitRefused;
use softswap_engine::api::open_areas::OpenError;
use softswap_engine::core::errors::FaultError;
use softswap_engine::store::swap::named::ActivateError;
use std::io;

/// A pool's last remedy, for [`FaultError::message`].
pub(crate) const RAISE_BUDGET: &str = "raise the pool's budget";

const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;

/// Reason for which a call failed. A failed call changes nothing.
///
/// ```
/// let error = softswap::Pool::builder().memory("64X").unwrap_err();
/// assert!(matches!(error, softswap::Error::Size { .. }));
/// assert_eq!(error.raw_os_error(), 22); // EINVAL
/// let text = "\"64X\" is not a size; use a number with a unit, such as 256M";
/// assert_eq!(error.to_string(), text);
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a size.
    #[error("{text:?} is not a size; use a number with a unit, such as 256M")]
    Size {
        /// The given text.
        text: String,
    },
    /// The text is not a swap area.
    #[error(
        "{text:?} is not a swap area; give a directory, also with a size (/var/tmp:50G), a swap file or \
         a device"
    )]
    Swap {
        /// The given text.
        text: String,
    },
    /// The budget leaves no memory for pages.
    #[error("a budget of {} is too little; {reason}", ByteSize(*asked_bytes))]
    TooLittleMemory {
        /// The requested budget in bytes.
        asked_bytes: u64,
        /// The minimum budget, as a remedy.
        reason: String,
    },
    /// A swap area cannot be used.
    #[error("{reason}")]
    Area {
        /// The reason and the remedy.
        reason: String,
        /// The nearest `errno`, positive: for example `ENOENT` if the area does not exist.
        errno: i32,
    },
    /// The kernel or a limit of the process denies a feature that a pool needs.
    #[error("{reason}")]
    Unsupported {
        /// The denied feature and the remedy.
        reason: String,
    },
    /// There is no address space for another pool.
    #[error("{reason}")]
    NoAddresses {
        /// The reason and the remedy.
        reason: String,
    },
    /// The length of a region is 0, or larger than the pool's window.
    #[error(
        "a region of {} is not possible; its length must be from 1 byte to the size of the pool's \
         window",
        ByteSize(*len as u64)
    )]
    Length {
        /// The requested length in bytes.
        len: usize,
    },
    /// The pool has no address space for a region of this length.
    #[error(
        "the pool has no address space for a region of {}; drop other regions, or create another \
         pool",
        ByteSize(*len as u64)
    )]
    WindowFull {
        /// The requested length in bytes.
        len: usize,
    },
    /// The range is not within the region.
    #[error("bytes {start} to {end} are outside the region of {len} bytes")]
    Range {
        /// First byte of the range.
        start: usize,
        /// Byte after the last one.
        end: usize,
        /// Length of the region in bytes.
        len: usize,
    },
    /// Pins may hold only a part of the budget.
    #[error(
        "{} cannot be pinned in addition to the existing pins: all pins together may hold {}; \
 release some, pin smaller ranges, or raise the pool's budget",
        ByteSize(*asked_bytes as u64), ByteSize(*most_bytes as u64)
    )]
    Pinned {
        /// The requested length in bytes.
        asked_bytes: usize,
        /// Limit of all pins in bytes.
        most_bytes: usize,
    },
    /// The number of pins is limited, too.
    #[error("a pool has at most {most} pins; release some, or pin longer ranges")]
    TooManyPins {
        /// Limit of all pins.
        most: usize,
    },
    /// Other threads may be reading the region.
    #[error(
        "content can be dropped only while no other code uses the region; release its pins and \
         other references first"
    )]
    Shared,
    /// A page cannot be faulted in.
    #[error("{0}")]
    Page(String),
    /// The limit cannot be set.
    #[error("{0}")]
    Limit(String),
    /// The pool belongs to the parent of this forked process.
    #[error("a forked child cannot use pools of its parent; it may create its own")]
    OtherProcess,
    /// A system call failed.
    #[error("a system call failed: {0}")]
    Kernel(#[from] io::Error),
}

/// Result of this crate's functions.
///
/// ```
/// fn half(text: &str) -> softswap::Result<softswap::Builder> {
///     softswap::Pool::builder().memory(text)
/// }
/// assert!(half("64M").is_ok());
/// ```
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns the nearest `errno`, positive.
    ///
    /// ```
    /// let error = softswap::Error::Length { len: 0 };
    /// assert_eq!(std::io::Error::from_raw_os_error(error.raw_os_error()).kind(),
    ///     std::io::ErrorKind::InvalidInput);
    /// ```
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        const EAGAIN: i32 = 11;
        const EBUSY: i32 = 16;
        const ENOSYS: i32 = 38;
        const EOWNERDEAD: i32 = 130;
        match self {
            Error::Size { .. } | Error::Swap { .. } | Error::Length { .. } => EINVAL,
            Error::Range { .. } | Error::Limit(_) => EINVAL,
            Error::TooLittleMemory { .. } | Error::WindowFull { .. } => ENOMEM,
            Error::NoAddresses { .. } => ENOMEM,
            Error::Area { errno, .. } => *errno,
            Error::Page(_) => EIO,
            Error::Unsupported { .. } => ENOSYS,
            Error::Pinned { .. } | Error::TooManyPins { .. } => EAGAIN,
            Error::Shared => EBUSY,
            Error::OtherProcess => EOWNERDEAD,
            Error::Kernel(error) => error.raw_os_error().unwrap_or(EIO),
        }
    }
}

impl From<FaultError> for Error {
    fn from(error: FaultError) -> Error {
        Error::Page(error.message(RAISE_BUDGET).to_string())
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Error {
        let errno = match &error {
            OpenError::Directory(refused) => refused.raw_os_error(),
            OpenError::Named(ActivateError::Claim(refused)) => refused.raw_os_error(),
            OpenError::Named(ActivateError::Io { cause, .. }) => {
                cause.raw_os_error().unwrap_or(EIO)
            }
            OpenError::Named(ActivateError::NotSwapFile { errno, .. }) => *errno,
            OpenError::Named(_) => EINVAL,
            _ => EIO,
        };
        Error::Area { reason: error.to_string(), errno }
    }
}

impl From<LimitRefused> for Error {
    fn from(refused: LimitRefused) -> Error {
        match refused {
            LimitRefused::Tables(error) => Error::Kernel(error),
            refused => Error::Limit(refused.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_engine::core::errors::{Exhausted, NoSlot};
    use softswap_engine::store::swap::AreaFull;

    #[test]
    fn messages_name_the_setting_of_the_pool() {
        let full = Exhausted::NoSlot(NoSlot::from(AreaFull::Failed));
        let pinned = Exhausted::NoVictims { limit_mib: 16, other_mib: 2, pages_mib: 14 };
        for (cause, end) in [(full, ", or"), (pinned, ";")] {
            let text = Error::from(FaultError::from(cause)).to_string();
            assert!(text.ends_with(&format!("{end} raise the pool's budget")), "{text}");
        }
    }
}
