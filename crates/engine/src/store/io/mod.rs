//! Devices: the last step of a page out and the first of a page in from disk.
//!
//! A [`Device`] moves whole buffers between memory and numbered bytes, or says
//! exactly how far it came. A swapped page is the only copy of it, so a result
//! is never assumed: each one's code and length are checked, short transfers
//! are continued, and what cannot be continued is an error.
//!
//! Transfers go through a [`Lane`], which a fault context or the reclaim
//! thread opens at the start and then owns: no lock is shared between them on
//! the way to the device, and nothing is allocated once lanes are open.

pub mod poll;
pub(crate) mod file_device;
pub mod remote_device;
pub mod mirror_device;
// Not the crate: its devices are of another build of this one.
#[cfg(test)]
#[path = "../../../../testkit/src/sim_device.rs"]
pub mod sim_device;

pub use file_device::FileDevice;
pub use mirror_device::MirrorDevice;
pub use remote_device::RemoteDevice;

use poll::Polling;
use softswap_sys::PAGE_SIZE;
use softswap_sys::file::errno;
pub use softswap_sys::ring::Piece;
use softswap_sys::ring::Ring;
use softswap_sys::segment::StaticRange;
use std::fmt;
use std::io;

/// Attempts without any progress before a transfer counts as stuck.
const MAX_STALLS: u32 = 8;

/// A channel to the device, owned by one thread at a time.
///
/// ```
/// use softswap_engine::store::io::{Device, Lane};
/// use softswap_testkit::SimDevice;
/// let device = SimDevice::new(1 << 20, 1);
/// device.grow(0, 4096).unwrap();
/// let mut lane: Lane = device.open_lane();
/// device.write(&mut lane, 0, &[7; 4096]).unwrap();
/// ```
#[derive(Debug)]
// A context has one lane for its whole life, so the larger variant costs nothing.
#[expect(clippy::large_enum_variant)]
pub enum Lane {
    /// Through io_urings of the lane's own.
    Rings(Rings),
    /// Through a system call per transfer.
    Plain,
}

impl Lane {
    /// How many requests it has under way at once.
    #[must_use]
    pub(crate) fn reads_at_once(&self) -> usize {
        match self {
            Lane::Rings(rings) if rings.told.is_usable() => MAX_PIECES,
            _ => 1,
        }
    }
}

/// The io_urings of a lane: one ring cannot both be told by interrupts and ask
/// the device.
#[derive(Debug)]
pub struct Rings {
    /// Completions come by interrupt.
    pub(crate) told: Ring,
    /// The device is asked for completions, where it can be.
    pub(crate) asking: Option<Ring>,
    /// As `asking`, after a sleep of the kernel's (hybrid), where it does that.
    pub(crate) napping: Option<Ring>,
}

/// The most pieces that are handed over at once.
pub const MAX_PIECES: usize = 32;

/// How a device is reached.
///
/// ```
/// use softswap_engine::store::io::Device;
/// use softswap_testkit::SimDevice;
/// let facts = SimDevice::new(1 << 20, 1).describe();
/// assert!(!facts.io_uring && !facts.device_polling);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Facts {
    /// Lanes have an io_uring.
    pub io_uring: bool,
    /// Transfers bypass the page cache; buffers, offsets and lengths must then
    /// be multiples of the page size.
    pub direct: bool,
    /// The device is asked for completions of polled reads (IOPOLL).
    pub device_polling: bool,
    /// The kernel has the pages of most buffers at hand (fixed buffers).
    pub(crate) fixed_buffers: bool,
    /// Pages are in the memory of other machines alone: nothing of the rest applies.
    pub(crate) remote: bool,
}

impl Facts {
    /// What holds for all storage of this machine, and device polling if it holds for one; of
    /// several devices that are all remote, only that.
    pub(crate) fn of_all(all: impl Iterator<Item = Facts>) -> Facts {
        let merge = |one: Facts, other: Facts| match (one.remote, other.remote) {
            (true, _) => other,
            (false, true) => one,
            (false, false) => Facts {
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

/// Storage that swapped pages go to.
///
/// ```
/// use softswap_engine::store::io::Device;
/// use softswap_testkit::SimDevice;
/// let device: Box<dyn Device> = Box::new(SimDevice::new(1 << 20, 1));
/// let (mut lane, mut page) = (device.open_lane(), [0; 4096]);
/// device.grow(0, 8192).unwrap();
/// device.write(&mut lane, 4096, &[7; 4096]).unwrap();
/// device.read(&mut lane, 4096, &mut page).unwrap();
/// assert_eq!(page, [7; 4096]);
/// ```
pub trait Device: Send + Sync {
    /// Opens a channel for one fault context or reclaim thread; it may allocate.
    fn open_lane(&self) -> Lane;

    /// Says where most buffers will lie, before lanes are opened: a device that
    /// can use that registers them. `None` where its lanes are to have no rings.
    fn expect_buffers(&mut self, range: Option<StaticRange>) {
        let _ = range;
    }

    /// Fills the whole of `buf` from `offset` on.
    ///
    /// # Errors
    /// When less than all could be read; `buf` then holds nothing of use.
    fn read(&self, lane: &mut Lane, offset: u64, buf: &mut [u8]) -> Result<(), IoError>;

    /// As [`Device::read`] of one page, which the caller has nothing to do
    /// without: waits as `polling` says.
    ///
    /// # Errors
    /// As for [`Device::read`].
    fn read_page(
        &self,
        lane: &mut Lane,
        offset: u64,
        buf: &mut [u8],
        polling: &Polling,
    ) -> Result<(), IoError> {
        let _ = polling;
        self.read(lane, offset, buf)
    }

    /// As [`Device::read`] of each of up to [`MAX_PIECES`] pieces, all under
    /// way at once where the device can do that.
    ///
    /// # Errors
    /// The first one met; then none of the buffers holds anything of use.
    fn read_many(&self, lane: &mut Lane, pieces: &mut [Piece<&mut [u8]>]) -> Result<(), IoError> {
        pieces.iter_mut().try_for_each(|piece| self.read(lane, piece.offset, piece.buf))
    }

    /// As [`Device::read_many`], which the caller has nothing to do without: waits as
    /// `polling` says.
    ///
    /// # Errors
    /// As for [`Device::read_many`].
    fn read_few(
        &self,
        lane: &mut Lane,
        pieces: &mut [Piece<&mut [u8]>],
        polling: &Polling,
    ) -> Result<(), IoError> {
        let _ = polling;
        self.read_many(lane, pieces)
    }

    /// As [`Device::write`] of each of up to [`MAX_PIECES`] pieces, all under
    /// way at once where the device can do that.
    ///
    /// # Errors
    /// The first one met; then what is stored there is unknown.
    fn write_many(&self, lane: &mut Lane, pieces: &[Piece<&[u8]>]) -> Result<(), IoError> {
        pieces.iter().try_for_each(|piece| self.write(lane, piece.offset, piece.buf))
    }

    /// Writes the whole of `buf` from `offset` on.
    ///
    /// # Errors
    /// When less than all could be written; what is stored there is unknown.
    fn write(&self, lane: &mut Lane, offset: u64, buf: &[u8]) -> Result<(), IoError>;

    /// Makes `[from, from + bytes)` storage that can be written.
    ///
    /// # Errors
    /// When there is no room ([`IoError::is_no_space`]), or the device failed.
    fn grow(&self, from: u64, bytes: u64) -> Result<(), IoError>;

    /// Gives up the storage from `offset` on: the end of a file that grew.
    ///
    /// # Errors
    /// When the storage cannot become smaller, or the device failed.
    fn truncate(&self, offset: u64) -> Result<(), IoError> {
        let unsupported = io::Error::from_raw_os_error(errno::EOPNOTSUPP);
        Err(IoError::from_os(Operation::Shrink, offset, 0, &unsupported))
    }

    /// Tells the device that the content of a range is not needed any more.
    ///
    /// # Errors
    /// When the device cannot discard ([`IoError::is_unsupported`]), or failed.
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), IoError>;

    /// Bytes that growing could still obtain.
    ///
    /// # Errors
    /// When the device cannot tell.
    fn free_bytes(&self) -> Result<u64, IoError>;

    /// In a forked child: what is stored is the parent's, and only read from now on. Returns
    /// false if it cannot be read either.
    fn inherit(&self) -> bool {
        true
    }

    /// How this device is reached.
    fn describe(&self) -> Facts;
}

/// What was asked of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Read from the device.
    Read,
    /// Write to the device.
    Write,
    /// Claim storage.
    Grow,
    /// Give storage back.
    Shrink,
    /// Release content.
    Discard,
    /// Ask for the free space.
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

/// Why an operation ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoErrorKind {
    /// The kernel's error number.
    Errno(i32),
    /// The device kept transferring nothing without giving a reason: the end
    /// of a file that is shorter than it should be, for one.
    Stopped,
    /// No extent of the area holds the slot; a bug of the engine.
    Unmapped,
    /// There is no room, as the device says itself.
    NoSpace(&'static str),
    /// As the device says itself.
    Told(&'static str),
}

impl fmt::Display for IoErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(number) => io::Error::from_raw_os_error(*number).fmt(f),
            Self::Stopped => f.write_str("the device transferred no more"),
            Self::Unmapped => f.write_str("no extent holds it, a bug in softswap"),
            Self::NoSpace(text) | Self::Told(text) => f.write_str(text),
        }
    }
}

/// An operation that was not carried out whole.
///
/// ```
/// use softswap_engine::store::io::{Device, IoErrorKind, Lane};
/// use softswap_testkit::SimDevice;
/// let nothing_grown = SimDevice::new(1 << 20, 1);
/// let error = nothing_grown.read(&mut Lane::Plain, 0, &mut [0; 4096]).unwrap_err();
/// assert_eq!(error.kind, IoErrorKind::Stopped);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "swap device: {operation} {length} bytes at offset {offset} stopped after {transferred}: {kind}"
)]
pub struct IoError {
    /// Why it ended.
    pub kind: IoErrorKind,
    /// What was asked.
    pub(crate) operation: Operation,
    /// Where it was to begin, in bytes.
    pub(crate) offset: u64,
    /// How many bytes were asked for.
    pub(crate) length: u64,
    /// How many of them were transferred.
    pub transferred: u64,
}

impl IoError {
    /// Returns the error for an operation that the kernel refused.
    #[must_use]
    pub fn from_os(operation: Operation, offset: u64, length: u64, error: &io::Error) -> Self {
        let number = error.raw_os_error().unwrap_or(errno::EIO);
        Self { kind: IoErrorKind::Errno(number), operation, offset, length, transferred: 0 }
    }

    /// The device cannot do that at all.
    #[must_use]
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self.kind, IoErrorKind::Errno(errno::EOPNOTSUPP | errno::ENOTTY | errno::ENOSYS))
    }

    /// It is not the place that is bad: another on the same device would fail as well.
    #[must_use]
    pub(crate) fn is_of_device(&self) -> bool {
        matches!(self.kind, IoErrorKind::Errno(errno::ETIMEDOUT) | IoErrorKind::Told(_))
    }

    /// The device has no room; another device may have.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(
            self.kind,
            IoErrorKind::Errno(errno::ENOSPC | errno::EDQUOT | errno::EFBIG)
                | IoErrorKind::NoSpace(_)
        )
    }
}

/// Repeats `step(bytes done)`, which transfers once and returns a count, until
/// `length` bytes are done.
///
/// A short transfer is continued at a page boundary, because direct I/O takes
/// no other: the partial page is transferred again.
///
/// # Errors
/// When `step` fails or makes no progress.
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
                let passing = matches!(number, errno::EINTR | errno::EAGAIN);
                stalls = if passing { stalls + 1 } else { MAX_STALLS };
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
    fn facts_are_those_of_storage_here_wherever_else_pages_go() {
        let disk = Facts { io_uring: true, direct: true, ..Facts::default() };
        let polled = Facts { direct: false, device_polling: true, ..disk };
        let remote = Facts { remote: true, ..Facts::default() };
        let of = |all: &[Facts]| Facts::of_all(all.iter().copied());
        assert_eq!(of(&[disk, polled]), Facts { direct: false, device_polling: true, ..disk });
        assert_eq!((of(&[disk, remote]), of(&[remote, disk])), (disk, disk));
        assert_eq!((of(&[remote, remote]), of(&[])), (remote, Facts::default()));
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
    fn a_transfer_that_stays_short_ends_with_what_was_done() {
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
    fn interruptions_are_retried_and_failures_are_not() {
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
    fn errors_say_what_where_and_how_far() {
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
