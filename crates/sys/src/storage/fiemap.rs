//! Locations of a file's data on its device: FIEMAP.

use crate::exemption::FS_IOC_FIEMAP;
use crate::raw;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const BATCH: usize = 256;
/// Write delayed allocations to the device first.
const FLAG_SYNC: u32 = 1;

pub(crate) mod flags {
    pub(crate) const LAST: u32 = 0x1;
    pub(crate) const UNKNOWN: u32 = 0x2;
    pub(crate) const DELALLOC: u32 = 0x4;
    pub(crate) const ENCODED: u32 = 0x8;
    pub(crate) const DATA_ENCRYPTED: u32 = 0x80;
    pub(crate) const NOT_ALIGNED: u32 = 0x100;
    pub(crate) const DATA_INLINE: u32 = 0x200;
    pub(crate) const DATA_TAIL: u32 = 0x400;
    pub(crate) const UNWRITTEN: u32 = 0x800;
    pub(crate) const MERGED: u32 = 0x1000;
    pub(crate) const SHARED: u32 = 0x2000;
}
use flags::*;

/// A physically contiguous piece of a file. All sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    pub logical: u64,
    /// Offset on the device; meaningless unless [`FileExtent::is_placed`].
    pub physical: u64,
    pub length: u64,
    flags: u32,
}

impl FileExtent {
    /// Returns `None` if the extent is empty, or extends past the largest offset.
    pub fn new(logical: u64, physical: u64, length: u64, flags: u32) -> Option<Self> {
        let max_offset = i64::MAX as u64;
        let ends = |start: u64| start.checked_add(length).is_some_and(|end| end <= max_offset);
        let extent = Self { logical, physical, length, flags };
        match extent.is_placed() {
            _ if length == 0 || !ends(logical) => None,
            true => ends(physical).then_some(extent),
            false => Some(Self { physical: 0, ..extent }),
        }
    }

    pub fn end(&self) -> u64 {
        self.logical + self.length
    }

    /// Returns true if the extent was never written: it reads as zeroes without the device.
    pub fn is_unwritten(&self) -> bool {
        self.flags & UNWRITTEN != 0
    }

    /// Returns true if other files (reflinks, snapshots) share the extent: a write moves it.
    pub fn is_shared(&self) -> bool {
        self.flags & SHARED != 0
    }

    /// Returns flags that a written, unshared extent of whole blocks does not have.
    pub(crate) fn unsupported_flags(&self) -> u32 {
        self.flags & !(LAST | MERGED)
    }

    /// Returns true if the extent is stored uncompressed in whole blocks at a known location.
    pub fn is_placed(&self) -> bool {
        const NO_LOCATION: u32 = UNKNOWN | DELALLOC | ENCODED | DATA_ENCRYPTED;
        self.flags & (NO_LOCATION | NOT_ALIGNED | DATA_INLINE | DATA_TAIL) == 0
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
}

const _: () = assert!(size_of::<RawExtent>() == 56 && size_of::<Request>() == 32 + 56 * BATCH);

/// A request for extents that can be repeated without an allocation.
pub struct Reader(Box<Request>);

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl Default for Reader {
    fn default() -> Self {
        // SAFETY: all fields are integers, for which zero is valid.
        Self(unsafe { Box::<Request>::new_zeroed().assume_init() })
    }
}

impl Reader {
    /// Calls `each` for the extents, in file order and without holes. Fails with EOPNOTSUPP if the
    /// file system does not report extents, `InvalidData` if they are inconsistent.
    pub fn read(
        &mut self,
        file: BorrowedFd<'_>,
        mut each: impl FnMut(FileExtent),
    ) -> io::Result<()> {
        let Reader(request) = self;
        let mut end = 0;
        loop {
            (request.start, request.length) = (end, u64::MAX - end);
            (request.count, request.mapped, request.flags) = (BATCH as u32, 0, FLAG_SYNC);
            let address = &raw mut **request as usize;
            let args = [file.as_raw_fd() as usize, FS_IOC_FIEMAP as usize, address, 0, 0, 0];
            // SAFETY: the kernel reads and writes the head of `request`, and writes at most `count`
            // extents after it, for which there is space.
            raw::check(unsafe { raw::syscall(libc::SYS_ioctl, args) })?;
            let mapped = &request.extents[..(request.mapped as usize).min(BATCH)];
            for raw in mapped {
                let next = FileExtent::new(raw.logical, raw.physical, raw.length, raw.flags);
                let next = following(end, next)?;
                end = next.end();
                each(next);
            }
            if mapped.last().is_none_or(|last| last.flags & LAST != 0) {
                return Ok(());
            }
        }
    }
}

/// Returns the extents of an open file: see [`Reader::read`].
pub fn extents(file: BorrowedFd<'_>) -> io::Result<Vec<FileExtent>> {
    let mut found = Vec::new();
    Reader::default().read(file, |extent| found.push(extent))?;
    Ok(found)
}

/// Fails unless `next` exists and begins at or after `end`: the file may have changed between two
/// requests. The loop in [`Reader::read`] relies on progress.
pub fn following(end: u64, next: Option<FileExtent>) -> io::Result<FileExtent> {
    next.filter(|next| next.logical >= end).ok_or_else(|| {
        let reason = "the file system reports inconsistent extents: the file may have changed";
        io::Error::new(io::ErrorKind::InvalidData, reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn written_extents_are_returned_in_order() {
        let file = tempfile::tempfile().unwrap();
        // Every second 64 KiB: more extents than one request returns.
        const STEP: u64 = 128 << 10;
        let written = vec![7; 64 << 10];
        for piece in 0..300 {
            file.write_all_at(&written, piece * STEP).unwrap();
        }
        let found = match extents(file.as_fd()) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return,
            result => result.unwrap(),
        };
        assert_eq!(found.iter().map(|extent| extent.length).sum::<u64>(), 300 * (64 << 10));
        for pair in found.windows(2) {
            assert!(pair[0].logical + pair[0].length <= pair[1].logical);
        }
        for extent in &found {
            assert!(extent.is_placed() && !extent.is_shared());
            assert!(extent.logical % STEP + extent.length <= 64 << 10);
        }
    }
}
