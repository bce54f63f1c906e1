//! Errors of page-in and page-out.

use crate::base::stats::{Counter, Stats, StopReason};
use crate::codec::CodecError;
use crate::codec::compressed_slot::NoPart;
use crate::store::io::IoError;
use crate::store::pool::Damaged;
use crate::store::swap::AreaFull;
use softswap_sys::raw::write_stderr;
use std::fmt::{self, Display};
use std::io;

/// Remedy of programs under `softswap run`, for [`FaultError::message`].
pub const RAISE_MEMORY: &str = "raise --memory";

/// Aborts the process, because continuing would lose a page.
pub(crate) fn die(stats: Stats, why: &str) -> ! {
    stats.set(Counter::StopReason, StopReason::InternalError as u64);
    write_stderr(b"softswap: internal error: ");
    write_stderr(why.as_bytes());
    write_stderr(b"; the program is stopped to protect its data; please report this\n");
    std::process::abort()
}

#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    #[error("the address is not mapped")]
    NotMapped,
    /// An unmanaged mapping of the program, which must handle the fault itself.
    #[error("the address is not managed")]
    Unmanaged,
    #[error("a swapped-out page could not be read back: {0}")]
    Read(#[from] IoError),
    #[error(
        "the swap area returned wrong data for slot {slot} (it does not match its seal): the \
         device or file system returned other data than softswap wrote; check or replace the device"
    )]
    Corrupt { slot: u64 },
    #[error("a compressed page {0}")]
    Decompress(#[from] DecompressError),
    #[error("{0}")]
    Exhausted(#[from] Exhausted),
    #[error(
        "the kernel refused to map a page ({0}); raise `ulimit -v` and the container's memory \
         limit if they are below the budget"
    )]
    Install(io::Error),
    #[error(
        "a resident page of managed memory vanished, probably by a raw munmap or madvise; its \
         content is lost; use the C library's functions, or report this"
    )]
    Lost,
}

impl FaultError {
    /// Returns the text with all remedies. `more_memory` is the last remedy of exhausted memory, in
    /// the terms of the user's interface.
    pub fn message(&self, more_memory: &str) -> impl Display {
        fmt::from_fn(move |f| match self {
            FaultError::Exhausted(Exhausted::NoSlot(_)) => write!(f, "{self}, or {more_memory}"),
            FaultError::Exhausted(Exhausted::NoVictims { .. }) => {
                write!(f, "{self}; {more_memory}")
            }
            _ => write!(f, "{self}"),
        })
    }

    /// Returns true if the thread should only take a signal and retry.
    pub fn is_for_a_signal(&self) -> bool {
        matches!(self, FaultError::Exhausted(Exhausted::Signal))
    }

    /// Returns the reason recorded in statistics; `None` if the engine did not fail.
    pub fn stop_reason(&self) -> Option<StopReason> {
        Some(match self {
            FaultError::NotMapped | FaultError::Unmanaged => return None,
            FaultError::Exhausted(Exhausted::Signal) => return None,
            FaultError::Read(_) => StopReason::ReadFailed,
            FaultError::Corrupt { .. } => StopReason::WrongData,
            FaultError::Decompress(_) => StopReason::PoolDamaged,
            FaultError::Exhausted(_) => StopReason::OutOfMemory,
            FaultError::Install(_) => StopReason::MapRefused,
            FaultError::Lost => StopReason::PageLost,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecompressError {
    #[error("in memory does not match its checksum ({0}): memory was overwritten")]
    Damaged(#[from] Damaged),
    /// The slot's seal matches, but the part does not exist.
    #[error("in the swap area was not found ({0}): a bug in softswap; please report it")]
    NoPart(#[from] NoPart),
    #[error("cannot be decompressed ({0}): a bug in softswap; please report it")]
    Codec(#[from] CodecError),
}

#[derive(Debug, thiserror::Error)]
pub enum Exhausted {
    #[error("memory is full: {0}")]
    NoSlot(NoSlot),
    #[error(
        "the budget of {limit_mib} MiB is exhausted: the engine needs {other_mib} MiB, and the \
         remaining {pages_mib} MiB of pages are pinned"
    )]
    NoVictims { limit_mib: usize, other_mib: usize, pages_mib: usize },
    #[error("a signal is pending")]
    Signal,
}

#[derive(Debug, thiserror::Error)]
pub enum NoSlot {
    #[error(transparent)]
    Area(#[from] AreaFull),
    #[error("a forked child cannot write to the swap area of its parent; let the child call exec")]
    ForkedChild,
    #[error(
        "a forked child cannot write to the swap area of its parent, and cannot create its own \
         ({0}); add a writable directory with --swap"
    )]
    NoOwnArea(String),
}
