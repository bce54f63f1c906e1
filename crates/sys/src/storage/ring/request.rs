//! The submission entry of one transfer, and its result.

use crate::file::errno;
use crate::segment::StaticRange;
use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The kernel's limit of bytes in one request.
const MAX_TRANSFER_BYTES: usize = 0x7fff_f000;

#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// An open descriptor, which the kernel looks up for each request.
    Descriptor(BorrowedFd<'a>),
    /// The file given to [`super::Ring::attach`].
    Attached,
}

#[derive(Debug)]
pub struct Piece<B> {
    pub offset: u64,
    pub buf: B,
}

pub(super) fn clear(results: &mut [io::Result<usize>]) {
    for result in results {
        *result = Err(io::Error::from_raw_os_error(errno::EIO));
    }
}

pub(super) fn outcome_of(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

pub(super) fn read_entry(
    registered: Option<StaticRange>,
    target: Target<'_>,
    buf: &mut [u8],
    offset_bytes: u64,
) -> Entry {
    let is_registered = registered.is_some_and(|range| range.contains(buf));
    let (at, length) = (buf.as_mut_ptr(), buf.len().min(MAX_TRANSFER_BYTES) as u32);
    macro_rules! entry {
        ($file:expr) => {
            if is_registered {
                opcode::ReadFixed::new($file, at, length, 0).offset(offset_bytes).build()
            } else {
                opcode::Read::new($file, at, length).offset(offset_bytes).build()
            }
        };
    }
    match target {
        Target::Descriptor(fd) => entry!(types::Fd(fd.as_raw_fd())),
        Target::Attached => entry!(types::Fixed(0)),
    }
}

pub(super) fn write_entry(
    registered: Option<StaticRange>,
    target: Target<'_>,
    buf: &[u8],
    offset_bytes: u64,
) -> Entry {
    let is_registered = registered.is_some_and(|range| range.contains(buf));
    let (at, length) = (buf.as_ptr(), buf.len().min(MAX_TRANSFER_BYTES) as u32);
    macro_rules! entry {
        ($file:expr) => {
            if is_registered {
                opcode::WriteFixed::new($file, at, length, 0).offset(offset_bytes).build()
            } else {
                opcode::Write::new($file, at, length).offset(offset_bytes).build()
            }
        };
    }
    match target {
        Target::Descriptor(fd) => entry!(types::Fd(fd.as_raw_fd())),
        Target::Attached => entry!(types::Fixed(0)),
    }
}
