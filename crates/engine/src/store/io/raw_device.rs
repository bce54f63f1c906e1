//! The block device below a swap file. It transfers like any device, but writes only if the file's
//! block map allows it.

use super::poll::Polling;
use super::{
    Device, DeviceProperties, FileDevice, IoError, IoErrorKind, Lane, MapGuard, Operation, Piece,
};
use softswap_sys::file::{SwapFile, errno};
use softswap_sys::segment::StaticRange;
use std::io;
use std::sync::Arc;

/// Message if the block map has changed.
const MOVED: &str = "the file system has moved or freed blocks of the swap file, or does not \
                     report where they are, so softswap writes nothing more there; restart \
                     the program with another swap area";

/// A block device, for the blocks of one of its files.
#[derive(Debug)]
pub struct RawDevice {
    blocks: FileDevice,
    guard: MapGuard,
}

impl RawDevice {
    /// Creates the device for the blocks of `file`, whose map `guard` compares. Rings keep `file`
    /// open, and so its claim, until their last write has completed.
    pub fn new(
        device: Arc<SwapFile>,
        file: Arc<SwapFile>,
        guard: MapGuard,
        avoid_io_uring: bool,
    ) -> RawDevice {
        RawDevice { blocks: FileDevice::holding(device, Some(file), avoid_io_uring), guard }
    }

    fn check(&self, operation: Operation, offset: u64, length: u64) -> Result<(), IoError> {
        if self.guard.allows_writes() {
            return Ok(());
        }
        let kind = IoErrorKind::Message(MOVED);
        Err(IoError { kind, operation, offset, length, transferred: 0 })
    }
}

impl Device for RawDevice {
    fn open_lane(&self) -> Lane {
        self.blocks.open_lane()
    }

    fn expect_buffers(&mut self, range: Option<StaticRange>) {
        self.blocks.expect_buffers(range);
    }

    fn read(&self, lane: &mut Lane, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.blocks.read(lane, offset, buf)
    }

    fn read_page(
        &self,
        lane: &mut Lane,
        offset: u64,
        buf: &mut [u8],
        polling: &Polling,
    ) -> Result<(), IoError> {
        self.blocks.read_page(lane, offset, buf, polling)
    }

    fn read_many(&self, lane: &mut Lane, pieces: &mut [Piece<&mut [u8]>]) -> Result<(), IoError> {
        self.blocks.read_many(lane, pieces)
    }

    fn read_polling(
        &self,
        lane: &mut Lane,
        pieces: &mut [Piece<&mut [u8]>],
        polling: &Polling,
    ) -> Result<(), IoError> {
        self.blocks.read_polling(lane, pieces, polling)
    }

    fn write_many(&self, lane: &mut Lane, pieces: &[Piece<&[u8]>]) -> Result<(), IoError> {
        let bytes: usize = pieces.iter().map(|piece| piece.buf.len()).sum();
        let first = pieces.first().map_or(0, |piece| piece.offset);
        self.check(Operation::Write, first, bytes as u64)?;
        self.blocks.write_many(lane, pieces)
    }

    fn write(&self, lane: &mut Lane, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.check(Operation::Write, offset, buf.len() as u64)?;
        self.blocks.write(lane, offset, buf)
    }

    fn grow(&self, from: u64, bytes: u64) -> Result<(), IoError> {
        // The area has all its pages from the start.
        let unsupported = io::Error::from_raw_os_error(errno::EOPNOTSUPP);
        Err(IoError::from_os(Operation::Grow, from, bytes, &unsupported))
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), IoError> {
        self.check(Operation::Discard, offset, bytes)?;
        self.blocks.discard(offset, bytes)
    }

    fn free_bytes(&self) -> Result<u64, IoError> {
        Ok(0)
    }

    fn describe(&self) -> DeviceProperties {
        self.blocks.describe()
    }
}
