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

/// Defines a function that makes an entry: a fixed operation for a registered buffer.
macro_rules! entry {
    ($name:ident($buf:ty), $as_ptr:ident, $fixed:ident, $plain:ident) => {
        pub(super) fn $name(
            registered: Option<StaticRange>,
            target: Target<'_>,
            buf: $buf,
            at: u64,
        ) -> Entry {
            let is_fixed = registered.is_some_and(|range| range.contains(buf));
            let (data, len) = (buf.$as_ptr(), buf.len().min(MAX_TRANSFER_BYTES) as u32);
            match target {
                Target::Descriptor(fd) if is_fixed => {
                    let fd = types::Fd(fd.as_raw_fd());
                    opcode::$fixed::new(fd, data, len, 0).offset(at).build()
                }
                Target::Descriptor(fd) => {
                    opcode::$plain::new(types::Fd(fd.as_raw_fd()), data, len).offset(at).build()
                }
                Target::Attached if is_fixed => {
                    opcode::$fixed::new(types::Fixed(0), data, len, 0).offset(at).build()
                }
                Target::Attached => {
                    opcode::$plain::new(types::Fixed(0), data, len).offset(at).build()
                }
            }
        }
    };
}

entry!(read_entry(&mut [u8]), as_mut_ptr, ReadFixed, Read);
entry!(write_entry(&[u8]), as_ptr, WriteFixed, Write);
