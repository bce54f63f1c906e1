//! Devices: the last step of page-out to disk, and the first step of a swap-in.
//!
//! A swapped page is the only copy, so every result code and length is checked. Short transfers are
//! continued, and fail if nothing more is transferred.
//!
//! A fault context or reclaim thread owns its [`Lane`] to a device. So lanes share no lock, and no
//! transfer allocates.

pub mod poll;
pub mod map_guard;
pub(crate) mod file_device;
pub mod remote_device;
pub mod mirror_device;
// Includes the file, because the testkit's devices implement the trait of another build.
#[cfg(test)]
#[path = "../../../../testkit/src/sim_device.rs"]
pub mod sim_device;

pub use file_device::FileDevice;
pub use map_guard::MapGuard;
pub use mirror_device::MirrorDevice;
pub use remote_device::RemoteDevice;

use poll::Polling;
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::errno;
pub use softswap_sys::ring::Piece;
use softswap_sys::ring::Ring;
use softswap_sys::segment::StaticRange;
use std::{fmt, io};

/// Attempts without progress before a transfer fails.
const MAX_STALLS: u32 = 8;

/// A channel to the device, owned by one thread at a time.
#[derive(Debug)]
// A context keeps its lane, so the size of the larger variant costs nothing.
#[expect(clippy::large_enum_variant)]
pub enum Lane {
    Rings(Rings),
    /// Uses a system call for each transfer.
    Plain,
}

impl Lane {
    pub(crate) fn reads_at_once(&self) -> usize {
        match self {
            Lane::Rings(rings) if rings.irq.is_usable() => MAX_PIECES,
            _ => 1,
        }
    }
}

/// The io_urings of a lane. One ring cannot both use interrupts and poll the device.
#[derive(Debug)]
pub struct Rings {
    pub(crate) irq: Ring,
    /// Ring that polls the device for completions (IOPOLL), if supported.
    pub(crate) iopoll: Option<Ring>,
    /// Ring with which the kernel sleeps before it polls the device (hybrid), if supported.
    pub(crate) hybrid: Option<Ring>,
}

pub const MAX_PIECES: usize = 32;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceProperties {
    pub io_uring: bool,
    /// Transfers bypass the page cache. Buffers, offsets and lengths must be whole pages.
    pub direct: bool,
    pub device_polling: bool,
    pub(crate) fixed_buffers: bool,
    /// Pages are only in the memory of other machines; the other fields do not apply.
    pub(crate) remote: bool,
}

impl DeviceProperties {
    /// Combines properties: `device_polling` if any local device has it, the others if all have
    /// them. Remote devices are ignored unless all are remote.
    pub(crate) fn of_all(all: impl Iterator<Item = DeviceProperties>) -> DeviceProperties {
        let merge =
            |one: DeviceProperties, other: DeviceProperties| match (one.remote, other.remote) {
                (true, _) => other,
                (false, true) => one,
                (false, false) => DeviceProperties {
                    io_uring: one.io_uring && other.io_uring,
                    direct: one.direct && other.direct,
                    device_polling: one.device_polling || other.device_polling,
                    fixed_buffers: one.fixed_buffers && other.fixed_buffers,
                    remote: false,
                },
            };
        all.reduce(merge).unwrap_or_default()
    }
}

/// Storage for swapped pages.
pub trait Device: Send + Sync {
    /// Opens a channel for one fault context or reclaim thread; may allocate.
    fn open_lane(&self) -> Lane;

    /// Receives the range of the first bounce pool and the reserve before lanes are opened, to
    /// register it with io_uring. `None`: this area's lanes have no rings.
    fn expect_buffers(&mut self, range: Option<StaticRange>) {
        let _ = range;
    }

    /// Fills up to [`MAX_PIECES`] pieces, concurrently if possible. `polling` decides how to wait
    /// for a few pages; `None` sleeps. On an error the content of all buffers is undefined.
    fn read_pieces(
        &self,
        lane: &mut Lane,
        pieces: &mut [Piece<&mut [u8]>],
        polling: Option<&Polling>,
    ) -> Result<(), IoError>;

    /// Writes up to [`MAX_PIECES`] pieces. On an error the stored content is unknown.
    fn write_pieces(&self, lane: &mut Lane, pieces: &[Piece<&[u8]>]) -> Result<(), IoError>;

    fn read(&self, lane: &mut Lane, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.read_pieces(lane, &mut [Piece { offset, buf }], None)
    }

    /// Reads one page that the caller waits for.
    fn read_page(
        &self,
        lane: &mut Lane,
        offset: u64,
        buf: &mut [u8],
        polling: &Polling,
    ) -> Result<(), IoError> {
        self.read_pieces(lane, &mut [Piece { offset, buf }], Some(polling))
    }

    fn write(&self, lane: &mut Lane, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.write_pieces(lane, &[Piece { offset, buf }])
    }

    /// Claims storage, so that it can be written. [`IoError::is_no_space`] if there is none.
    fn grow(&self, from: u64, bytes: u64) -> Result<(), IoError>;

    /// Releases the storage from `offset` on. Fails if the storage cannot shrink.
    fn truncate(&self, offset: u64) -> Result<(), IoError> {
        let unsupported = io::Error::from_raw_os_error(errno::EOPNOTSUPP);
        Err(IoError::from_os(Operation::Shrink, offset, 0, &unsupported))
    }

    /// Discards content. [`IoError::is_unsupported`] if the device cannot.
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), IoError>;

    /// Returns the bytes by which the storage could grow. Fails if the device cannot report it.
    fn free_bytes(&self) -> Result<u64, IoError>;

    /// Fails if the page at `offset` may be stored elsewhere. Called after a wrong page was read.
    fn check_place(&self, offset: u64) -> Result<(), IoError> {
        let _ = offset;
        Ok(())
    }

    /// In a forked child, makes the parent's content read-only. Returns false if it is unreadable.
    fn inherit(&self) -> bool {
        true
    }

    fn describe(&self) -> DeviceProperties;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Grow,
    Shrink,
    Discard,
    Measure,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "reading",
            Self::Write => "writing",
            Self::Grow => "growing by",
            Self::Shrink => "shrinking by",
            Self::Discard => "discarding",
            Self::Measure => "measuring",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IoErrorKind {
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    Errno(i32),
    /// No progress and no error, for example at the end of a file that is too short.
    #[error("the device transferred no more")]
    Stopped,
    #[error("no extent contains it: a bug in softswap; please report it")]
    Unmapped,
    #[error("{0}")]
    NoSpace(&'static str),
    #[error("{0}")]
    Message(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "swap device: {operation} {length} bytes at offset {offset} stopped after {transferred}: {kind}"
)]
pub struct IoError {
    pub kind: IoErrorKind,
    pub(crate) operation: Operation,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub transferred: u64,
}

impl IoError {
    pub fn from_os(operation: Operation, offset: u64, length: u64, error: &io::Error) -> Self {
        let number = error.raw_os_error().unwrap_or(errno::EIO);
        Self { kind: IoErrorKind::Errno(number), operation, offset, length, transferred: 0 }
    }

    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self.kind, IoErrorKind::Errno(errno::EOPNOTSUPP | errno::ENOTTY | errno::ENOSYS))
    }

    /// Returns true if the whole device is affected: other offsets would fail as well.
    pub(crate) fn is_of_device(&self) -> bool {
        matches!(self.kind, IoErrorKind::Errno(errno::ETIMEDOUT) | IoErrorKind::Message(_))
    }

    pub fn is_no_space(&self) -> bool {
        matches!(
            self.kind,
            IoErrorKind::Errno(errno::ENOSPC | errno::EDQUOT | errno::EFBIG)
                | IoErrorKind::NoSpace(_)
        )
    }
}

/// Repeats `step(bytes done)`, which makes one transfer and returns its length. A short transfer is
/// continued at a page boundary, as direct I/O requires. Fails if `step` makes no progress.
pub fn transfer_whole(
    operation: Operation,
    offset: u64,
    length: usize,
    mut step: impl FnMut(usize) -> io::Result<usize>,
) -> Result<(), IoError> {
    let (mut done, mut stalls) = (0, 0);
    while done < length {
        let kind = match step(done) {
            Ok(count) if done + count >= length => return Ok(()),
            Ok(count) => {
                let reached = (done + count) / PAGE_SIZE * PAGE_SIZE;
                stalls = if reached > done { 0 } else { stalls + 1 };
                done = reached.max(done);
                IoErrorKind::Stopped
            }
            Err(error) => {
                let number = error.raw_os_error().unwrap_or(errno::EIO);
                let is_transient = matches!(number, errno::EINTR | errno::EAGAIN);
                stalls = if is_transient { stalls + 1 } else { MAX_STALLS };
                IoErrorKind::Errno(number)
            }
        };
        if stalls >= MAX_STALLS {
            let (length, transferred) = (length as u64, done as u64);
            return Err(IoError { kind, operation, offset, length, transferred });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Operation = Operation::Read;

    #[test]
    fn properties_are_those_of_local_storage() {
        let disk = DeviceProperties { io_uring: true, direct: true, ..DeviceProperties::default() };
        let polled = DeviceProperties { direct: false, device_polling: true, ..disk };
        let remote = DeviceProperties { remote: true, ..DeviceProperties::default() };
        let of = |all: &[DeviceProperties]| DeviceProperties::of_all(all.iter().copied());
        assert_eq!(
            of(&[disk, polled]),
            DeviceProperties { direct: false, device_polling: true, ..disk }
        );
        assert_eq!((of(&[disk, remote]), of(&[remote, disk])), (disk, disk));
        assert_eq!((of(&[remote, remote]), of(&[])), (remote, DeviceProperties::default()));
    }

    #[test]
    fn short_transfers_continue_at_page_boundaries() {
        let mut starts = Vec::new();
        let answers = [5000, 4096, 4096];
        transfer_whole(READ, 0, 12288, |done| {
            starts.push(done);
            Ok(answers[starts.len() - 1])
        })
        .unwrap();
        assert_eq!(starts, [0, 4096, 8192]);
    }

    #[test]
    fn repeated_short_transfer_returns_partial_count() {
        let mut calls = 0;
        let error = transfer_whole(READ, 512, 8192, |done| {
            calls += 1;
            Ok(if done == 0 { 4096 } else { 0 })
        })
        .unwrap_err();
        assert_eq!((error.kind, error.transferred), (IoErrorKind::Stopped, 4096));
        assert_eq!((error.offset, error.length, calls), (512, 8192, 1 + MAX_STALLS));
    }

    #[test]
    fn interrupted_calls_are_retried() {
        let mut calls = 0;
        transfer_whole(READ, 0, 4096, |_| {
            calls += 1;
            if calls < 4 { Err(io::Error::from_raw_os_error(errno::EINTR)) } else { Ok(4096) }
        })
        .unwrap();
        assert_eq!(calls, 4);

        let mut calls = 0;
        let error = transfer_whole(READ, 0, 4096, |_| {
            calls += 1;
            Err(io::Error::from_raw_os_error(errno::EIO))
        })
        .unwrap_err();
        assert_eq!((error.kind, calls), (IoErrorKind::Errno(errno::EIO), 1));
    }

    #[test]
    fn errors_contain_operation_offset_and_progress() {
        let error = transfer_whole(Operation::Write, 8192, 4096, |_| {
            Err(io::Error::from_raw_os_error(errno::ENOSPC))
        })
        .unwrap_err();
        assert!(error.is_no_space());
        let text = error.to_string();
        for part in ["writing", "4096 bytes", "8192", "after 0", "No space"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
